package harness

import (
	"fmt"
	"maps"
	"slices"

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

// Unwatch ends the watch over positions before they come to mean nothing. It
// begins anew with the next relay.
func (b *Bed) Unwatch() {
	if b.sampler != nil {
		b.sampler.stop()
		b.sampler = nil
	}
}

// Published counts the records of events. The topics of their types must be
// there.
func (b *Bed) Published(events []check.Event) (n int) {
	b.t.Helper()
	wanted := make(map[[16]byte]bool, len(events))
	topics := map[string]bool{}
	for _, e := range events {
		wanted[e.EventID] = true
		topics[b.Topic(e.Aggregate.Type)] = true
	}
	if len(topics) == 0 {
		return 0
	}
	records, err := b.Admin.Read(b.t.Context(), slices.Collect(maps.Keys(topics))...)
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
