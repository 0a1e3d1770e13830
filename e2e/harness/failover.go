package harness

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/check"
)

// Forget tells the bed that its database is another one now, which may lack
// the last commits: those that it lacks are no loss, and their records in
// Kafka do not count. It returns them. No writer may be at work.
func (b *Bed) Forget() []check.Event {
	b.t.Helper()
	b.Pool.Reset()
	rows, err := b.Pool.Query(b.t.Context(), fmt.Sprintf(`SELECT event_id FROM %s`, b.Table))
	if err != nil {
		b.t.Fatalf("reading what the database still knows: %v", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[[16]byte])
	if err != nil {
		b.t.Fatalf("reading what the database still knows: %v", err)
	}
	known := make(map[[16]byte]bool, len(ids))
	for _, id := range ids {
		known[id] = true
	}
	forgotten := b.History.Forget(known)
	for _, e := range forgotten {
		b.forgotten[e.EventID] = true
	}
	return forgotten
}

// Published counts the records of events.
func (b *Bed) Published(events []check.Event) (n int) {
	b.t.Helper()
	wanted := make(map[[16]byte]bool, len(events))
	for _, e := range events {
		wanted[e.EventID] = true
	}
	records, err := b.Admin.Read(b.t.Context(), b.Topics()...)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, r := range records {
		if wanted[r.EventID] {
			n++
		}
	}
	return n
}
