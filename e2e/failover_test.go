package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// pair is a primary and its physical standby. Everybody, the test and its
// writers included, reaches them by a DSN of both hosts.
type pair struct {
	primary, standby *pgtest.Cluster
	db               *pgtest.DB
}

// failoverSlots are the versions that can keep a logical slot on a standby.
var failoverSlots = []int{17, 18}

func startPair(t *testing.T, version int, primary, standby []string) *pair {
	t.Helper()
	p := &pair{primary: pgtest.StartCluster(t, version, primary...)}
	p.db = p.primary.New(t)
	p.standby = p.primary.StartReplica(t, standby...)
	here := fmt.Sprintf("127.0.0.1:%d", p.primary.Port)
	both := fmt.Sprintf("%s,127.0.0.1:%d", here, p.standby.Port)
	p.db.DSN = strings.Replace(p.db.DSN, here, both, 1) + "&target_session_attrs=read-write"
	return p
}

// writeUntilItEnds writes until the server is gone.
func writeUntilItEnds(b *harness.Bed) (wait func()) {
	return b.Background(func(ctx context.Context) error {
		if err := b.Load(1_000_000, 100).Run(ctx, b.History); err == nil {
			return errors.New("the writers ended before the failover")
		}
		return nil
	})
}

// failOver crashes the primary and promotes the standby. It returns what the
// new primary has never heard of.
func (p *pair) failOver(t *testing.T, b *harness.Bed, written func()) []check.Event {
	t.Helper()
	p.primary.Stop(t, pgtest.Immediate)
	written()
	p.standby.Promote(t)
	return b.Forget()
}

// afterFailover writes more, and ends the test. Where a slot had to be made
// anew its position proves nothing.
func afterFailover(t *testing.T, b *harness.Bed) {
	t.Helper()
	b.Write(500, 20)
	b.Settle()
	report := b.Check(harness.Allow{Duplicates: b.History.Len()}) // SENT may be lost too
	t.Log(report)
	for _, p := range report.Problems {
		if p.Kind != check.Position {
			t.Errorf("%s: %s", p.Kind, p.Text)
		}
	}
	if n := b.Count(`SELECT timeline FROM cdc_relay_lease WHERE slot = $1`, b.Slot); n != 2 {
		t.Errorf("the position was saved on timeline %d, want 2", n)
	}
}

// startSynced starts a relay whose slot is copied to the standby, and shows
// nothing that the standby does not have.
func startSynced(t *testing.T, version int) (*pair, *harness.Bed, *harness.Relay) {
	t.Helper()
	p := startPair(t, version, []string{"synchronized_standby_slots = 'replica'"},
		[]string{"sync_replication_slots = on", "hot_standby_feedback = on", "wal_retrieve_retry_interval = '100ms'"})
	b := harness.NewBed(t, p.db, harness.Options{Kafka: harness.Shared(t), Config: relayproc.Config{"slot.failover": true}})
	relay := b.StartStreaming(nil)
	synced := &pgtest.DB{DSN: p.standby.DSN("postgres")}
	conn := synced.Conn(t)
	b.Wait("the slot to be there on the standby", func() bool {
		b.Exec(`SELECT pg_log_standby_snapshot()`)
		var n int
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1
			AND synced AND NOT temporary AND invalidation_reason IS NULL`, b.Slot).Scan(&n)
		return err == nil && n == 1
	})
	return p, b, relay
}

// TestFailoverWithASyncedSlot: as the slot never shows what the standby does
// not have, Kafka holds nothing that the new primary has never heard of. That
// one has no standby, and has inherited the setting to wait for one.
func TestFailoverWithASyncedSlot(t *testing.T) {
	t.Parallel()
	eachVersion(t, failoverSlots, func(t *testing.T, version int) {
		p, b, relay := startSynced(t, version)
		written := writeUntilItEnds(b)
		b.Wait("progress", func() bool { return b.CountStatus(check.Sent) > 2000 })
		forgotten := p.failOver(t, b, written)
		const remedy = `ALTER SYSTEM SET synchronized_standby_slots = ''`
		if status := relay.WaitBlocked("pg.standby_slots"); !strings.Contains(status.Remedy, remedy) {
			t.Errorf("remedy %q, want %q in it", status.Remedy, remedy)
		}
		b.Exec(remedy)
		b.Exec(`SELECT pg_reload_conf()`)
		afterFailover(t, b)
		if n := b.Published(forgotten); n != 0 {
			t.Errorf("%d records of events that the new primary has never heard of, want none", n)
		}
		if n := b.Count(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND synced`, b.Slot); n != 1 {
			t.Error("the slot is not the one that was copied to the standby")
		}
	})
}

// TestStandbyDiesThatTheSlotWaitsFor: while the server holds everything back
// the stream lives and is empty. The relay says why, and goes on when the
// standby is back.
func TestStandbyDiesThatTheSlotWaitsFor(t *testing.T) {
	t.Parallel()
	p, b, relay := startSynced(t, 18)
	b.Write(200, 20)
	b.Settle()
	known := b.History.Len()
	p.standby.Stop(t, pgtest.Immediate)
	b.Write(200, 20)
	if status := relay.WaitBlocked("pg.standby_slots"); !strings.Contains(status.What, "slot replica") {
		t.Errorf("%q, want it to name the standby's slot", status.What)
	}
	if n := b.Published(b.History.Since(known)); n != 0 {
		t.Errorf("%d records of events that the standby does not have, want none", n)
	}
	p.standby.Start(t)
	relay.WaitState("streaming")
	b.Finish(harness.Allow{})
}

// TestFailoverWithoutASlot: the relay creates it on the new primary, and
// publishes what is READY there. When the old primary comes back it is not
// served, though it comes first in the DSN.
func TestFailoverWithoutASlot(t *testing.T) {
	t.Parallel()
	eachVersion(t, pgtest.ClusterVersions, func(t *testing.T, version int) {
		p := startPair(t, version, nil, nil)
		b := harness.NewBed(t, p.db, harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(nil)
		written := writeUntilItEnds(b)
		b.Wait("progress", func() bool { return b.CountStatus(check.Sent) > 2000 })
		p.failOver(t, b, written)
		afterFailover(t, b)

		p.primary.Start(t)
		old := &pgtest.DB{DSN: p.primary.DSN(p.db.Name)}
		unheard := check.Event{Aggregate: check.Aggregate{Type: "order"}}
		err := old.Conn(t).QueryRow(t.Context(), `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
		VALUES ('order', 'old', 'changed', '{}') RETURNING event_id`).Scan(&unheard.EventID)
		if err != nil {
			t.Fatal(err)
		}
		b.Exec(`SELECT pg_terminate_backend($1)`, b.Walsender())
		if status := relay.WaitBlocked("pg.primary"); !strings.Contains(status.What, "old primary") {
			t.Errorf("%q, want it to tell of the old primary", status.What)
		}
		p.primary.Stop(t, pgtest.Immediate)
		relay.WaitState("streaming")
		if n := b.Published([]check.Event{unheard}); n != 0 {
			t.Errorf("%d records of an event of the old primary, want none", n)
		}
	})
}

// TestFailoverToALaggingStandby: it gives ids to new events that others had on
// the old primary, while a relay that has published those still has to write
// SENT for them. Not one of the new events may be marked SENT by that.
func TestFailoverToALaggingStandby(t *testing.T) {
	t.Parallel()
	eachVersion(t, pgtest.ClusterVersions, func(t *testing.T, version int) {
		const kept, lost, pending, reused = 200, 300, 200, 2000
		p := startPair(t, version, nil, nil)
		b := harness.NewBed(t, p.db, harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(nil)
		b.Write(kept, 20)
		b.Settle()
		p.primary.WaitReplica(t)
		p.standby.Stop(t, pgtest.Fast)

		b.Write(lost, 20)
		b.Wait("SENT", func() bool { return b.CountStatus(check.Sent) == kept+lost })
		lockTable(t, b, "cdc_relay_slot") // no SENT can be written, until this primary ends
		insertBulk(t, b, pending)
		b.Wait("acks", func() bool { return relay.Counter("events_acked_total") == kept+lost+pending })
		freeze(t, relay)
		p.primary.Stop(t, pgtest.Immediate)
		p.standby.Configure(t, "primary_conninfo = ''")
		p.standby.Start(t)
		p.standby.Promote(t)
		forgotten := b.Forget()
		if len(forgotten) != lost+pending {
			t.Fatalf("the new primary lacks %d events, want %d", len(forgotten), lost+pending)
		}
		insertBulk(t, b, reused)
		again := 0
		for _, e := range forgotten[lost:] {
			again += b.Count(`SELECT count(*) FROM outbox WHERE id = $1`, e.ID)
		}
		if again != pending {
			t.Fatalf("%d ids are used again of those for which SENT is still to be written, want all %d", again, pending)
		}
		thaw(t, relay)
		afterFailover(t, b)
	})
}
