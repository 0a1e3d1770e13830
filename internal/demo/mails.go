package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"

	"github.com/cdc-relay/cdc-relay/examples/notification/mailer"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// mails is what came of the registrations.
type mails struct {
	accepted int // e-mails that belong to a registration, one for each
	surplus  int // other ones
	attempts int // requests to send one
	refused  int // of those, answered with an error
	lost     int // of those, accepted without an answer that arrived
	verified int // users whose token worked, once
}

// newMails compares both sides' observations and uses the tokens.
func newMails(ctx context.Context, s *site) (mails, error) {
	m := s.count()
	for _, message := range s.stub.Mailbox() {
		ok, err := s.verify(ctx, message)
		if err != nil {
			return m, err
		}
		if ok {
			m.verified++
		}
	}
	return m, nil
}

// count looks at what the provider and its client have observed.
func (s *site) count() (m mails) {
	owed := map[string]bool{}
	for _, e := range s.events {
		owed[outbox.ID(e.EventID).String()+":"+mailer.Purpose] = true
	}
	for _, message := range s.stub.Mailbox() {
		if owed[message.Key] {
			owed[message.Key] = false
			m.accepted++
		} else {
			m.surplus++
		}
	}
	attempts := map[string]bool{}
	for _, o := range s.stub.Log() {
		attempts[o.Attempt] = true
		switch {
		case o.What == provider.Answered && o.Status >= http.StatusBadRequest:
			m.refused++
		case o.What == provider.Accepted && !s.got(o.Attempt):
			m.lost++
		}
	}
	m.attempts = len(attempts)
	return m
}

var link = regexp.MustCompile(`https://\S+`)

// verify opens the link of an e-mail twice: the token works, and once.
func (s *site) verify(ctx context.Context, message provider.Message) (bool, error) {
	var mail struct{ Text string }
	if err := json.Unmarshal([]byte(message.Body), &mail); err != nil {
		return false, fmt.Errorf("reading an e-mail: %w", err)
	}
	u, err := url.Parse(link.FindString(mail.Text))
	if err != nil {
		return false, errors.New("the link of an e-mail is none")
	}
	fields := map[string]string{"email": u.Query().Get("email"), "token": u.Query().Get("token")}
	for _, want := range []int{http.StatusNoContent, http.StatusForbidden} {
		err := s.post(ctx, "/verify", want, fields)
		if unexpected := new(statusError); errors.As(err, &unexpected) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("using a token: %w", err)
		}
	}
	return true, nil
}

// line is the report for people.
func (m mails) line() string {
	return fmt.Sprintf("accepted by the provider, one for each user, in %d attempts: %d got a 500, %d no answer", m.attempts, m.refused, m.lost)
}

// verdict is nil if the faults happened and every user got one e-mail with a
// token that works.
func (m mails) verdict() error {
	if m.accepted != registrations || m.surplus != 0 || m.verified != registrations {
		return fmt.Errorf("%d users were to get an e-mail each, and to be verified: %d did, %d e-mails are too many, %d users are verified",
			registrations, m.accepted, m.surplus, m.verified)
	}
	if m.refused == 0 || m.lost == 0 {
		return errors.New("the provider was to refuse one e-mail and to lose one answer: that did not happen")
	}
	return nil
}
