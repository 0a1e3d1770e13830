package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer"
)

// mailer sends an e-mail for an event, by a provider that recognises
// idempotency keys.
type mailer struct {
	url  string
	http *http.Client
}

func (m mailer) handle(ctx context.Context, ev *consumer.Event) error {
	var notice struct{ To, Text string }
	if err := json.Unmarshal(ev.Payload, &notice); err != nil || notice.To == "" {
		return consumer.DataError("APP_PAYLOAD", errors.New("not a notice"))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, m.url, bytes.NewReader(ev.Payload))
	if err != nil {
		return err
	}
	req.Header.Set("Idempotency-Key", ev.Key("welcome-mail"))
	resp, err := m.http.Do(req)
	if err != nil {
		return consumer.Ambiguous(err) // it may have arrived: the policy decides
	}
	defer resp.Body.Close()
	switch code := resp.StatusCode; {
	case code < 300:
		return nil
	case code == http.StatusTooManyRequests:
		return consumer.Delay(time.Minute, errors.New("throttled"))
	case code >= 500:
		return consumer.Ambiguous(fmt.Errorf("the provider answered %d", code))
	default:
		return consumer.DataError("APP_REFUSED", fmt.Errorf("the provider answered %d", code))
	}
}

// The outbox row is the memory: SENT, CONSUMING, CONSUMED.
func Example() {
	run := func(ctx context.Context, pool *pgxpool.Pool) error {
		m := mailer{url: "https://mail.example/v1/messages", http: &http.Client{Timeout: 10 * time.Second}}
		c, err := consumer.New(consumer.Config{
			Brokers: []string{"localhost:9092"}, Group: "mailer", Topics: []string{"outbox.event.user"}, DB: pool,
		}, m.handle, consumer.Ambiguity(consumer.Repeat), consumer.Concurrency(8))
		if err != nil {
			return err
		}
		return c.Run(ctx) // nil after a clean drain
	}
	_ = run
}

// The effect and a receipt commit together, in the consumer's own database.
func ExampleNewTx() {
	run := func(ctx context.Context, own *pgxpool.Pool) error {
		book := func(ctx context.Context, tx pgx.Tx, ev *consumer.Event) error {
			_, err := tx.Exec(ctx, `UPDATE stock SET reserved = reserved + 1 WHERE article = $1`, ev.AggregateID)
			return err
		}
		c, err := consumer.NewTx(consumer.Config{
			Brokers: []string{"localhost:9092"}, Group: "stock", Topics: []string{"outbox.event.order"}, DB: own,
		}, book, consumer.Receipts("reserve"), consumer.Horizon(14*24*time.Hour))
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}
	_ = run
}
