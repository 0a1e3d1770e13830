package consumerproc

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider/client"
)

// mailer sends the payload of each event to the provider, as it is.
type mailer struct {
	stage
	provider *client.Client
}

func newMailer(cfg Config) (mailer, error) {
	s := stage{cfg, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}}
	c, err := client.New(cfg.Provider, &http.Transport{MaxIdleConnsPerHost: 100})
	return mailer{s, c}, err
}

// Purpose is that of keys where receipts have none.
const Purpose = "mail"

func (m mailer) key(ev *consumer.Event) string {
	if m.cfg.Purpose != "" {
		return ev.Key(m.cfg.Purpose)
	}
	return ev.Key(Purpose)
}

// handle is a consumer.Handler.
func (m mailer) handle(ctx context.Context, ev *consumer.Event) error {
	try := Step{At: Started, Event: ev.ID.String(), Try: newTry(), Attempt: ev.Attempt, Ambiguous: ev.Ambiguous,
		Tombstone: ev.Tombstone, Bytes: len(ev.Payload)}
	if err := m.step(ctx, try); err != nil {
		return err
	}
	if m.cfg.Mode == Receipts && m.cfg.Policy != "" {
		digest := sha256.Sum256(ev.Payload)
		if err := ev.Claim.BeginEffect(ctx, digest[:]); err != nil {
			return err
		}
	}
	try.At = Call
	if err := m.step(ctx, try); err != nil {
		return err
	}
	answer, err := m.provider.Send(ctx, m.key(ev), try.Try, ev.Payload)
	if err != nil {
		return consumer.Ambiguous(err)
	}
	try.At, try.Status = Received, answer.Status
	if err := m.step(ctx, try); err != nil {
		return err
	}
	switch s := answer.Status; {
	case s < 300:
		return nil
	case s == http.StatusTooManyRequests:
		return consumer.Delay(answer.RetryAfter, errors.New("throttled"))
	case s == http.StatusUnprocessableEntity:
		return consumer.InDoubt(errors.New("the provider knows the key with another body"))
	case s == http.StatusConflict || s >= 500:
		return consumer.Ambiguous(fmt.Errorf("the provider answered %d", s))
	default:
		return consumer.DataError("APP_REFUSED", fmt.Errorf("the provider answered %d", s))
	}
}

// ask is the question of the policy Query.
func (m mailer) ask(ctx context.Context, ev *consumer.Event) (consumer.Found, error) {
	answer, err := m.provider.Find(ctx, m.key(ev), newTry())
	switch {
	case err != nil:
		return consumer.Unknown, err
	case answer.Status == http.StatusOK:
		return consumer.Present, nil
	case answer.Status == http.StatusNotFound:
		return consumer.Absent, nil
	}
	return consumer.Unknown, fmt.Errorf("the provider answered %d", answer.Status)
}

// record is a consumer.TxHandler: its effect is a row.
func (m mailer) record(ctx context.Context, tx pgx.Tx, ev *consumer.Event) error {
	if _, err := tx.Exec(ctx, `INSERT INTO public.effect (event_id, purpose) VALUES ($1, $2)`, ev.ID, m.cfg.Purpose); err != nil {
		return fmt.Errorf("recording the effect: %w", err)
	}
	return m.step(ctx, Step{At: Started, Event: ev.ID.String(), Try: newTry(), Attempt: ev.Attempt})
}

func newTry() string {
	id := make([]byte, 8)
	rand.Read(id)
	return hex.EncodeToString(id)
}
