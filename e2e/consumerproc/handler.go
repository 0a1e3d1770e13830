package consumerproc

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/examples/notification/mailer"
	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider/client"
)

// Purpose is the notification service's.
const Purpose = mailer.Purpose

// Keys are those that its payloads are sealed with.
const Keys = "2026-11:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="

// service is the notification example, with a step before and after what it
// does.
type service struct {
	stage
	provider *client.Client
	mailer   *mailer.Mailer
}

func newService(cfg Config) (*service, error) {
	const connections = 100
	s := &service{stage: stage{cfg, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}}}
	ring, err := notice.ParseRing(Keys)
	if err != nil {
		return nil, err
	}
	if s.provider, err = client.New(cfg.Provider, stepping{s.stage, &http.Transport{MaxIdleConnsPerHost: connections}}); err != nil {
		return nil, err
	}
	s.mailer = mailer.New(ring, s.provider)
	return s, nil
}

// handler is the mailer's, or one that sends payloads as they are.
func (s *service) handler() consumer.Handler {
	if s.cfg.Raw {
		return s.send
	}
	return s.mailer.Handle
}

// started is the first step of each attempt.
func (s *service) started(next consumer.Handler) consumer.Handler {
	return func(ctx context.Context, ev *consumer.Event) error {
		err := s.step(ctx, Step{At: Started, Event: ev.ID.String(), Attempt: ev.Attempt, Ambiguous: ev.Ambiguous,
			Tombstone: ev.Tombstone, Bytes: len(ev.Payload)})
		if err != nil {
			return err
		}
		if s.cfg.BeginEffect {
			digest := sha256.Sum256(ev.Payload)
			if err := ev.Claim.BeginEffect(ctx, digest[:]); err != nil {
				return err
			}
		}
		return next(ctx, ev)
	}
}

// send is a consumer.Handler.
func (s *service) send(ctx context.Context, ev *consumer.Event) error {
	answer, err := s.provider.Send(ctx, ev.Key(s.cfg.Purpose), rand.Text(), ev.Payload)
	if err != nil {
		return consumer.Ambiguous(err)
	}
	if answer.Status != http.StatusAccepted {
		return fmt.Errorf("the provider answered %d", answer.Status)
	}
	return nil
}

// record is a consumer.TxHandler, whose effect is a row.
func (s *service) record(ctx context.Context, tx pgx.Tx, ev *consumer.Event) error {
	if _, err := tx.Exec(ctx, `INSERT INTO public.effect (event_id, purpose) VALUES ($1, $2)`, ev.ID, s.cfg.Purpose); err != nil {
		return fmt.Errorf("recording the effect: %w", err)
	}
	return s.step(ctx, Step{At: Recorded, Event: ev.ID.String()})
}

// stepping is the way to the provider, with a step at each end.
type stepping struct {
	stage
	next http.RoundTripper
}

// RoundTrip sends a message; questions have no steps.
func (s stepping) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPost {
		return s.next.RoundTrip(req)
	}
	event, _, _ := strings.Cut(req.Header.Get(provider.HeaderKey), ":")
	step := Step{At: Call, Event: event, Try: req.Header.Get(provider.HeaderAttempt)}
	if err := s.step(req.Context(), step); err != nil {
		return nil, err
	}
	resp, err := s.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(resp.Body) // its head alone has not arrived
	resp.Body.Close()
	if err != nil {
		return nil, fmt.Errorf("reading the provider's answer: %w", err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	step.At, step.Status = Received, resp.StatusCode
	if err := s.step(req.Context(), step); err != nil {
		return nil, err
	}
	return resp, nil
}
