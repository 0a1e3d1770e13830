package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestColumnsChangeWhileStreaming alters the table between the transactions of
// a running load: what was decoded by position would now be wrong.
func TestColumnsChangeWhileStreaming(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const events = 6000
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		b.StartStreaming(nil)
		b.Exec(`DROP VIEW outbox_readable`) // it names the columns
		written := b.Background(func(ctx context.Context) error { return b.Load(events, 40).Run(ctx, b.History) })
		changes := []string{
			`ALTER TABLE outbox ADD COLUMN tenant text DEFAULT 'a tenant'`,
			`ALTER TABLE outbox ADD COLUMN numbers integer[] DEFAULT '{1,2}'`,
			`ALTER TABLE outbox DROP COLUMN tenant`,
			// a column that the relay reads moves to the end
			`ALTER TABLE outbox DROP COLUMN priority, ADD COLUMN priority smallint NOT NULL DEFAULT 0`,
			`ALTER TABLE outbox DROP COLUMN content_type, ADD COLUMN content_type text NOT NULL DEFAULT 'application/json'`,
			`ALTER TABLE outbox DROP COLUMN numbers`,
		}
		for i, change := range changes {
			b.Wait("progress before the next change", func() bool { return b.History.Len() > (i+1)*events/(len(changes)+2) })
			b.Exec(change)
		}
		written()
		b.Finish(harness.Allow{})
	})
}

// TestPayloadTypes: the value in Kafka is the payload's text, or its bytes.
func TestPayloadTypes(t *testing.T) {
	t.Parallel()
	const object = `{"b": 1,   "a": [2.50, "ü", null]}`
	for _, tc := range []struct {
		typ, bytes string // bytes is SQL for what a payload of that type is as bytes
		payloads   []string
	}{
		{"bytea", "payload", []string{"", "{}", "\x00\xff binary", object}},
		{"text", "convert_to(payload, 'UTF8')", []string{"", "no JSON, ü", object}},
		{"json", "convert_to(payload::text, 'UTF8')", []string{"{}", object}},
		{"jsonb", "convert_to(payload::text, 'UTF8')", []string{"{}", object}},
	} {
		t.Run(tc.typ, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), OwnTable: true})
				b.PayloadBytes = tc.bytes
				b.Migrate()
				b.Exec(`DROP VIEW outbox_readable`)
				b.Exec(`ALTER TABLE outbox DROP COLUMN payload`)
				b.Exec(fmt.Sprintf(`ALTER TABLE outbox ADD COLUMN payload %s`, tc.typ))
				b.Init()
				b.StartStreaming(nil)
				for i, p := range tc.payloads {
					insertPayload(t, b, tc.typ, fmt.Sprintf("order-%d", i), p)
				}
				b.Finish(harness.Allow{})
			})
		})
	}
}

// insertPayload writes a row whose payload column is not bytea.
func insertPayload(t *testing.T, b *harness.Bed, typ, aggregate, payload string) {
	t.Helper()
	var value any = payload
	if typ == "bytea" {
		value = []byte(payload)
	}
	asked := time.Now()
	row := b.Pool.QueryRow(t.Context(), fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES ('order', $1, 'written', $2::%s) RETURNING id, event_id`, typ), aggregate, value)
	e := check.Event{Aggregate: check.Aggregate{Type: "order", ID: aggregate}}
	if err := row.Scan(&e.ID, &e.EventID); err != nil {
		t.Fatalf("inserting a payload of type %s: %v", typ, err)
	}
	b.History.Add([]check.Event{e}, 0, asked)
}
