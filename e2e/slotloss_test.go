package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/load"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// dropSlot ends whoever streams from the slot, and drops it before he is back.
const dropSlot = `DO $$ BEGIN
	LOOP
		BEGIN
			PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '%[1]s';
			PERFORM pg_drop_replication_slot('%[1]s');
			EXIT;
		EXCEPTION WHEN object_in_use THEN
			PERFORM pg_sleep(0.001);
		END;
	END LOOP;
END $$`

// TestSlotDroppedWhileStreaming: the relay creates it anew and publishes from
// the table what the old one would have shown.
func TestSlotDroppedWhileStreaming(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: relayproc.Config{"reconcile.interval": "1s"}})
		relay := b.StartStreaming(nil)
		end := make(chan struct{})
		written := b.Background(func(ctx context.Context) error { return writeUntil(ctx, b, end, 500) })
		b.Wait("progress", func() bool { return b.CountStatus(check.Sent) > 500 })
		b.Exec(fmt.Sprintf(dropSlot, b.Slot))
		b.Wait("rows from the table", func() bool { return relay.Counter(rowsOfPass) > 0 })
		relay.WaitState("streaming")
		close(end)
		written()
		onlyPositions(t, b)
	})
}

// fillWAL writes WAL, and has old files removed, until the server has lost the
// slot.
func fillWAL(b *harness.Bed) {
	b.Wait("the slot to be lost", func() bool {
		b.Exec(`SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1000000))`)
		b.Exec(`SELECT pg_switch_wal()`)
		b.Exec(`CHECKPOINT`)
		return b.Count(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND wal_status = 'lost'`, b.Slot) == 1
	})
}

// idleOut has the server invalidate the slot because nobody uses it.
func idleOut(b *harness.Bed) {
	b.Exec(`ALTER SYSTEM SET idle_replication_slot_timeout = '1s'`)
	b.Exec(`SELECT pg_reload_conf()`)
	b.Wait("the slot to be invalidated", func() bool {
		b.Exec(`CHECKPOINT`)
		return b.Count(`SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1 AND invalidation_reason = 'idle_timeout'`, b.Slot) == 1
	})
	b.Exec(`ALTER SYSTEM RESET idle_replication_slot_timeout`)
	b.Exec(`SELECT pg_reload_conf()`)
}

// TestSlotLost: a relay that is behind loses its slot under load. It makes a
// new one by itself, or says what to do where it may not; nothing is missing.
func TestSlotLost(t *testing.T) {
	t.Parallel()
	eachVersion(t, pgtest.ClusterVersions, func(t *testing.T, version int) {
		lose, reason := fillWAL, "slot.wal_status"
		if version >= 17 { // which tells why
			reason = "slot.invalidation"
		}
		if version >= 18 {
			lose = idleOut
		}
		db := pgtest.StartCluster(t, version, "max_slot_wal_keep_size = '1MB'", "min_wal_size = '32MB'", "max_wal_size = '32MB'").New(t)
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: relayproc.Config{"reconcile.interval": "1s"}})
		relay := b.StartStreaming(nil)
		b.Write(500, 20)
		end := make(chan struct{})
		written := b.Background(func(ctx context.Context) error { return writeUntil(ctx, b, end, 500) })
		b.Wait("progress", func() bool { return b.CountStatus(check.Sent) > 700 })
		freeze(t, relay)
		fillWAL(b)
		thaw(t, relay)
		b.Wait("rows from the table", func() bool { return relay.Counter(rowsOfPass) > 0 })
		relay.WaitState("streaming")
		close(end)
		written()
		onlyPositions(t, b)

		relay.Terminate()
		b.Write(500, 20)
		lose(b)
		relay = b.Start(relayproc.Config{"slot.recreate_if_lost": false})
		status := relay.WaitBlocked(reason)
		remedy := "cdc-relay slot recreate --confirm " + b.Slot
		if !strings.Contains(status.Remedy, remedy) {
			t.Fatalf("remedy %q, want %q in it", status.Remedy, remedy)
		}
		if output, code := b.Command(nil, strings.Fields(remedy)[1:]...); code != 0 {
			t.Fatalf("%s: code %d\n%s", remedy, code, output)
		}
		relay.WaitState("streaming")
		onlyPositions(t, b)
	})
}

// TestSlotCannotBeCreated: the relay may create its slot, and the server has no
// place for it. That was taken for something that soon passes, and the relay was
// starting for ever without a reason.
func TestSlotCannotBeCreated(t *testing.T) {
	t.Parallel()
	b := harness.NewBed(t, pgtest.StartCluster(t, 18, "max_replication_slots = 1").New(t), harness.Options{Kafka: harness.Shared(t)})
	b.Exec(`SELECT pg_drop_replication_slot($1)`, b.Slot)
	b.Exec(`SELECT pg_create_physical_replication_slot('other')`)
	relay := b.Start(nil)
	if remedy := relay.WaitBlocked("slot.exists").Remedy; !strings.Contains(remedy, "max_replication_slots") {
		t.Errorf("remedy %q", remedy)
	}
	b.Write(50, 8)
	b.Exec(`SELECT pg_drop_replication_slot('other')`)
	relay.WaitState("streaming")
	onlyPositions(t, b)
}

// TestPublicationDroppedAndMadeAgain while the relay streams: what it would
// have let pass is told twice to a person: that the publication is missing,
// and that the new one is younger than the slot.
func TestPublicationDroppedAndMadeAgain(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const each = 50
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(nil)
		b.Write(each, 8)
		b.Settle()
		b.Exec(`DROP PUBLICATION ` + b.Slot)
		b.Write(each, 8)
		relay.WaitBlocked("pub.exists")
		relay.Terminate() // the next try is near, but not now
		b.Init()
		b.Write(each, 8)
		relay = b.Start(nil)
		relay.WaitBlocked("pub.young")
		move := []string{"slot", "advance-guard", "--to", "current", "--apply"}
		if db.Version >= 18 {
			move = []string{"slot", "recreate", "--confirm", b.Slot}
		}
		if output, code := b.Command(nil, move...); code != 0 {
			t.Fatalf("%v: code %d\n%s", move, code, output)
		}
		b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == 3*each })
		if n := relay.Counter(rowsOfPass); n != 2*each {
			t.Errorf("%v rows came from the table, want %d", n, 2*each)
		}
		onlyPositions(t, b)
	})
}

// TestUnfitWhileStreaming: what makes the server unfit is seen within a minute,
// one thing after the other, and nothing is lost meanwhile or once it is
// mended.
func TestUnfitWhileStreaming(t *testing.T) {
	t.Parallel()
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: harness.Shared(t)})
	relay := b.StartStreaming(nil)
	b.Write(100, 8)
	b.Exec(`ALTER TABLE outbox DISABLE TRIGGER outbox_requeue`)
	b.Exec(`ALTER TABLE outbox RENAME TO elsewhere`)
	relay.WaitBlocked("table.columns")
	b.Exec(`ALTER TABLE elsewhere RENAME TO outbox`)
	relay.Terminate() // the next try is near, but not now
	relay = b.Start(nil)
	relay.WaitBlocked("table.trigger")
	b.Exec(`ALTER TABLE outbox ENABLE ALWAYS TRIGGER outbox_requeue`)
	b.Write(100, 8)
	b.Finish(harness.Allow{Duplicates: 100}) // what was acknowledged while the table had another name
}

// TestRowsBehindAreNotMissed: reconciles look again and again while rows are in
// flight, and others are behind in the slot, for long. Each that they took for
// missed would be published twice.
func TestRowsBehindAreNotMissed(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const window, rows = 100, 3000
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t),
			Config: relayproc.Config{"reconcile.interval": "10ms", "limits.inflight_events": window}})
		relay := b.StartStreaming(nil)
		b.Write(100, 20)
		b.Settle()
		letWrite := lockTable(t, b, "cdc_relay_slot") // no SENT can be written
		b.Write(rows, 20)
		b.Wait("the window to be full", func() bool { return relay.Counter("inflight_events") == window })
		b.WaitSeconds(2)
		letWrite()
		b.Finish(harness.Allow{})
		if n := relay.Counter("reconcile_missed_total"); n != 0 {
			t.Errorf("%v rows counted as missed, want none", n)
		}
	})
}

// TestMemoryOfAPass: a table full of READY rows is published within bounds,
// though most of them are small only as they are stored.
func TestMemoryOfAPass(t *testing.T) {
	t.Parallel()
	const small, large, maxResident = 10_000, 150, 96 << 20
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: harness.Shared(t), Build: harness.Plain, Types: []string{"order"}})
	for i := range large {
		b.Insert(harness.Row("order", fmt.Sprint("large", i%9), strings.Repeat("x", 900_000)))
	}
	insertBulk(t, b, small)
	relay := b.StartStreaming(nil) // nothing was ever saved
	b.Finish(harness.Allow{})
	if n := relay.Counter(rowsOfPass); n != small+large {
		t.Errorf("%v rows came from the table, want %d", n, small+large)
	}
	t.Logf("%d MiB resident at most", relay.PeakMemory()>>20)
	if n := relay.PeakMemory(); n > maxResident {
		t.Errorf("%d MiB resident, want at most %d", n>>20, maxResident>>20)
	}
}

// insertBulk inserts small rows of the type order in one transaction. Their ids
// follow each other.
func insertBulk(t *testing.T, b *harness.Bed, rows int) {
	t.Helper()
	bulk := load.Bulk{Table: b.Table, Type: "order", Aggregates: 200, Rows: rows, OneTx: true}
	if err := bulk.Run(t.Context(), b.Conn(), b.History); err != nil {
		t.Fatal(err)
	}
}
