// Package mailer is the consumer side of the notification example: it opens a
// notice, renders its e-mail and has the provider send it, once.
//
// The provider is called with the same idempotency key and the same bytes on
// every attempt, so that a repetition does no harm while it remembers the key.
// What its answers mean for the event is said in outcome.
//
// No error of this package holds an address, a token or anything else of a
// payload.
package mailer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider/client"
	"github.com/cdc-relay/cdc-relay/examples/notification/templates"
)

// Purpose is the one that this mailer opens notices of, and the second part of
// its idempotency keys.
const Purpose = templates.VerifyEmail

// Mailer sends e-mails. It is safe for concurrent use.
type Mailer struct {
	ring     *notice.Ring
	provider *client.Client
	replays  replays
}

// New makes a Mailer.
func New(ring *notice.Ring, provider *client.Client) *Mailer {
	return &Mailer{ring: ring, provider: provider}
}

// Handle is a consumer.Handler.
func (m *Mailer) Handle(ctx context.Context, ev *consumer.Event) error {
	message, err := m.render(ev, time.Now())
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return consumer.ErrNotStarted
	}
	answer, err := m.provider.Send(ctx, ev.Key(Purpose), attemptID(ev), message)
	if err != nil {
		return unanswered(err)
	}
	return m.outcome(ev, answer)
}

// Found is for consumer.Query: it asks the provider whether an e-mail was
// accepted.
func (m *Mailer) Found(ctx context.Context, ev *consumer.Event) (consumer.Found, error) {
	answer, err := m.provider.Find(ctx, ev.Key(Purpose), attemptID(ev))
	if err != nil {
		return consumer.Unknown, err
	}
	switch answer.Status {
	case http.StatusOK:
		return consumer.Present, nil
	case http.StatusNotFound:
		return consumer.Absent, nil
	}
	return consumer.Unknown, nil
}

// attemptID names one request. The event id is in it for people.
func attemptID(ev *consumer.Event) string {
	return fmt.Sprintf("%s/%d/%s", ev.ID, ev.Attempt, rand.Text()[:8])
}

// rollout is for how long a new key, format or template may be known to the API
// and not yet here.
const rollout = 15 * time.Minute

// render makes the message of an event, from its payload alone.
func (m *Mailer) render(ev *consumer.Event, now time.Time) ([]byte, error) {
	n, err := m.ring.Open(ev.ID, Purpose, ev.Payload, now)
	if err == nil {
		var message []byte
		if message, err = templates.Render(n); err == nil {
			return message, nil
		}
	}
	for _, fault := range faults {
		switch {
		case !errors.Is(err, fault.err):
		case fault.rollout && now.Sub(ev.Time) < rollout:
			return nil, consumer.SystemError(err)
		default:
			return nil, consumer.DataError(fault.code, err)
		}
	}
	return nil, err
}

// faults of an event and their codes; rollout says that a newer version of this
// program may be able to read it.
var faults = []struct {
	err     error
	code    string
	rollout bool
}{
	{err: notice.ErrPayload, code: "APP_PAYLOAD"},
	{err: notice.ErrPurpose, code: "APP_PURPOSE"},
	{err: notice.ErrSeal, code: "APP_SEAL"},
	{err: notice.ErrExpired, code: "APP_EXPIRED"},
	{err: notice.ErrAddress, code: "APP_ADDRESS"},
	{err: notice.ErrKey, code: "APP_KEY", rollout: true},
	{err: notice.ErrVersion, code: "APP_VERSION", rollout: true},
	{err: templates.ErrTemplate, code: "APP_TEMPLATE", rollout: true},
}

// unanswered: without a connection nothing was sent. After that nobody knows.
func unanswered(err error) error {
	if op := new(net.OpError); errors.As(err, &op) && op.Op == "dial" {
		return consumer.SystemError(err)
	}
	return consumer.Ambiguous(err)
}

// throttled is how long to wait if the provider does not say.
const throttled = time.Minute

// outcome says what an answer means for the event.
func (m *Mailer) outcome(ev *consumer.Event, a client.Answer) error {
	err := fmt.Errorf("the provider answered %d", a.Status)
	if a.Replayed && a.Status >= 500 {
		if n := m.replays.add(ev.ID, a.Status); n >= maxReplays {
			m.replays.forget(ev.ID)
			return consumer.InDoubt(fmt.Errorf("%w, which it has stored: it was so %d times", err, n))
		}
		return consumer.Ambiguous(err)
	}
	m.replays.forget(ev.ID)
	switch {
	case a.Status/100 == 2:
		return nil
	case a.Status == http.StatusTooManyRequests:
		if a.RetryAfter == 0 {
			a.RetryAfter = throttled
		}
		return consumer.Delay(a.RetryAfter, err)
	case a.Status == http.StatusUnprocessableEntity:
		// the key came before with other bytes: that message may be on its way
		return consumer.InDoubt(fmt.Errorf("%w: it knows the key with another body", err))
	case a.Status == http.StatusConflict, a.Status >= 500:
		return consumer.Ambiguous(err)
	default:
		return consumer.DataError("APP_REFUSED", err)
	}
}
