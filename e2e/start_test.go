package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

const rowsOfPass = `events_received_total{via="pass"}`

// TestSlotCreatedLate: rows that were READY before there was a slot are
// published once and before newer ones, while writers go on.
func TestSlotCreatedLate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		create func(*harness.Bed)
	}{
		{"by the relay", func(*harness.Bed) {}},
		{"in SQL", func(b *harness.Bed) { b.Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, b.Slot) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				const before, step = 2000, 500
				b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: relayproc.Config{"reconcile.interval": "2s"}})
				b.Exec(`SELECT pg_drop_replication_slot($1)`, b.Slot)
				b.Write(before, 100)
				streaming := make(chan struct{})
				written := b.Background(func(ctx context.Context) error { return writeUntil(ctx, b, streaming, step) })
				b.Wait("the writers to be at work", func() bool { return b.History.Len() > before })
				tc.create(b)
				relay := b.StartStreaming(nil)
				close(streaming)
				written()
				onlyPositions(t, b)
				if n := relay.Counter(rowsOfPass); n < before {
					t.Errorf("%v rows came from the table, want %d or more", n, before)
				}
				if n := relay.Counter(`events_received_total{via="insert"}`); n == 0 {
					t.Error("no row came through the slot")
				}
			})
		})
	}
}

// writeUntil writes loads of so many events, one after the other, and one more
// after the end.
func writeUntil(ctx context.Context, b *harness.Bed, end <-chan struct{}, events int) error {
	for last := false; !last; {
		select {
		case <-end:
			last = true
		default:
		}
		if err := b.Load(events, 100).Run(ctx, b.History); err != nil {
			return err
		}
	}
	return nil
}

// TestSlotAdvancedByHand: what the slot was moved past is found in the table.
func TestSlotAdvancedByHand(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const rows = 500
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(nil)
		b.Write(rows, 20)
		b.Settle()
		relay.Terminate()
		b.Check(harness.Allow{}) // ends the watch over positions, which come to be wrong now
		b.Write(rows, 20)
		b.Exec(`SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`, b.Slot)
		relay = b.Start(nil)
		b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == 2*rows })
		if n := relay.Counter(rowsOfPass); n != rows {
			t.Errorf("%v rows came from the table, want %d", n, rows)
		}
		onlyPositions(t, b)
	})
}

// onlyPositions ends a test in which the slot was made, or moved by hand, past
// what is not resolved: nothing else may be wrong.
func onlyPositions(t *testing.T, b *harness.Bed) {
	t.Helper()
	b.Settle()
	report := b.Check(harness.Allow{})
	for _, p := range report.Problems {
		if p.Kind != check.Position {
			t.Errorf("%s: %s", p.Kind, p.Text)
		}
	}
}

// TestPublicationAwayForAWhile: the slot never shows what is inserted
// meanwhile; a reconcile finds it.
func TestPublicationAwayForAWhile(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const rows = 300
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: relayproc.Config{"reconcile.interval": "1s", "reconcile.page": "100"}})
		relay := b.StartStreaming(nil)
		b.Insert(harness.Row("order", "before", "{}"))
		b.Exec(fmt.Sprintf(`ALTER PUBLICATION %s DROP TABLE outbox`, b.Slot))
		for i := range rows {
			b.Insert(harness.Row("order", fmt.Sprint(i), "{}"))
		}
		b.Exec(fmt.Sprintf(`ALTER PUBLICATION %s ADD TABLE outbox`, b.Slot))
		b.Insert(harness.Row("order", "after", "{}"))
		b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == rows+2 })
		onlyPositions(t, b)
		if missed, requeued := relay.Counter("reconcile_missed_total"), relay.Counter(missedRequeued); missed != rows || requeued != rows {
			t.Errorf("%v rows counted as missed and %v as requeued, want %d", missed, requeued, rows)
		}
	})
}

// TestNothingIsFoundMissing while everything is well: a reconcile that is wrong
// once a million rows would publish each of those twice.
func TestNothingIsFoundMissing(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: relayproc.Config{"reconcile.interval": "10ms"}})
		relay := b.StartStreaming(nil)
		b.Write(10_000, 100)
		b.Finish(harness.Allow{})
		if n := relay.Counter("reconcile_missed_total"); n != 0 {
			t.Errorf("%v rows counted as missed, want none", n)
		}
	})
}

// TestRestartAfterAPassThatWasCut: a pass is repeated until its last row is
// resolved, and repeats none that is SENT.
func TestRestartAfterAPassThatWasCut(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const rows, window = 12_000, 500
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: relayproc.Config{"limits.inflight_events": window}})
		b.Write(rows, 100)
		relay := b.Start(nil)
		b.Wait("a part to be SENT", func() bool { return b.CountStatus(check.Sent) > rows/10 })
		relay.Kill()
		if n := b.Count(`SELECT count(saved_lsn) FROM cdc_relay_lease`); n != 0 {
			t.Error("a position was saved before the pass had ended")
		}
		b.Start(nil)
		b.Finish(harness.Allow{Duplicates: window + 5000}) // a page of the pass may be over the window
	})
}
