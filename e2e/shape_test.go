package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestRowWrittenWhileAColumnWasRenamed: in the WAL it keeps the shape that it was
// written in. To undo the renaming, which the remedy once said, helps nobody then.
func TestRowWrittenWhileAColumnWasRenamed(t *testing.T) {
	t.Parallel()
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: harness.Shared(t)})
	relay := b.StartStreaming(nil)
	b.Write(50, 8)
	b.Settle()
	relay.Terminate()
	b.Exec(`DROP VIEW outbox_readable`) // it names the columns
	b.Exec(`ALTER TABLE outbox RENAME aggregate_id TO other`)
	asked := time.Now()
	e := check.Event{Aggregate: check.Aggregate{Type: "order", ID: "renamed"}}
	if err := b.Pool.QueryRow(t.Context(), `INSERT INTO outbox (aggregate_type, other, event_type, payload)
		VALUES ('order', 'renamed', 'written', '{}') RETURNING id, event_id`).Scan(&e.ID, &e.EventID); err != nil {
		t.Fatal(err)
	}
	b.History.Add([]check.Event{e}, 0, asked)
	b.Exec(`ALTER TABLE outbox RENAME other TO aggregate_id`)
	b.Write(50, 8)

	relay = b.Start(nil)
	status := relay.WaitBlocked("table.columns")
	relay.Terminate() // as the remedy says
	const remedy = "cdc-relay slot recreate --confirm"
	if !strings.Contains(status.Remedy, remedy) {
		t.Fatalf("remedy %q, want %q in it", status.Remedy, remedy)
	}
	if output, code := b.Command(nil, append(strings.Fields(remedy)[1:], b.Slot)...); code != 0 {
		t.Fatalf("%s: code %d\n%s", remedy, code, output)
	}
	b.Start(nil)
	onlyPositions(t, b)
}
