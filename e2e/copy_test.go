package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// publishUnsent publishes rows in one transaction and keeps SENT from being written
// for them, until the returned function is called.
func publishUnsent(t *testing.T, b *harness.Bed, relay *harness.Relay, rows int) (letWrite func()) {
	t.Helper()
	acked := relay.Counter("events_acked_total")
	letWrite = lockSlotRow(t, b, "cdc_relay_slot")
	insertBulk(t, b, rows)
	b.Wait("acks", func() bool { return relay.Counter("events_acked_total") == acked+float64(rows) })
	return letWrite
}

// copyOfBed lets the rest of the test work on another server's copy of the
// database, and returns what tells a relay to do so, too.
func copyOfBed(t *testing.T, b *harness.Bed, server *pgtest.Cluster) relayproc.Config {
	t.Helper()
	db := &pgtest.DB{Version: server.Version, Name: b.DB.Name, DSN: server.DSN(b.DB.Name)}
	moveTo(t, b, db)
	return relayproc.Config{"postgres.dsn": db.DSN}
}

// TestPointInTimeRecovery to a moment when some events were in Kafka and not
// SENT, and later ones did not exist: the first come again, the others stay in
// Kafka alone, and new events, which get the ids of those, are all published.
func TestPointInTimeRecovery(t *testing.T) {
	t.Parallel()
	eachVersion(t, pgtest.Versions, func(t *testing.T, version int) {
		const kept, pending, lost, reused = 200, 100, 300, 1000
		original := pgtest.StartCluster(t, version, "archive_mode = on")
		b := harness.NewBed(t, original.New(t), harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(nil)
		backup := original.TakeBackup(t)
		b.Write(kept, 20)
		b.Settle()
		letWrite := publishUnsent(t, b, relay, pending)
		var then time.Time
		if err := b.Pool.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&then); err != nil {
			t.Fatal(err)
		}
		letWrite()
		b.Write(lost, 20)
		b.Finish(harness.Allow{})
		relay.Terminate()

		here := copyOfBed(t, b, backup.Recover(t, then))
		forgotten := b.Forget()
		if ready := b.CountStatus(check.Ready); len(forgotten) != lost || ready != pending {
			t.Fatalf("the copy lacks %d events and has %d READY rows, want %d and %d", len(forgotten), ready, lost, pending)
		}
		insertBulk(t, b, reused)
		again := 0
		for _, e := range forgotten {
			again += b.Count(`SELECT count(*) FROM outbox WHERE id = $1`, e.ID)
		}
		if again == 0 {
			t.Fatal("no id is used again")
		}
		relay = b.StartStreaming(here)
		if n := relay.Counter(rowsOfPass); n != pending+reused {
			t.Errorf("%v rows came from the table, want %d", n, pending+reused)
		}
		b.Settle()
		if n := b.Published(b.History.Events()); n != kept+2*pending+reused {
			t.Errorf("%d records of what the copy knows, want %d", n, kept+2*pending+reused)
		}
		afterFailover(t, b)
	})
}

// TestPromotedClone: a copy of the files that was marked publishes nothing by
// accident, beside its original at work. Once a person has adopted it, it goes
// on from where it was copied.
func TestPromotedClone(t *testing.T) {
	t.Parallel()
	eachVersion(t, pgtest.Versions, func(t *testing.T, version int) {
		const kept, pending, later = 200, 100, 300
		original := pgtest.StartCluster(t, version)
		b := harness.NewBed(t, original.New(t), harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(nil)
		b.Write(kept, 20)
		b.Settle()
		clone := original.StartReplica(t)
		letWrite := publishUnsent(t, b, relay, pending)
		original.WaitReplica(t)
		clone.Promote(t)
		letWrite()
		(&pgtest.DB{DSN: clone.DSN(b.DB.Name)}).Exec(t, `UPDATE cdc_relay_lease SET system_identifier = 0`)
		b.Write(later, 20)
		b.Finish(harness.Allow{})
		relay.Terminate()

		here := copyOfBed(t, b, clone)
		if forgotten := b.Forget(); len(forgotten) != later {
			t.Fatalf("the clone lacks %d events, want %d", len(forgotten), later)
		}
		b.Insert(harness.Row("order", "of the clone", "{}"))
		relay = b.Start(here)
		relay.WaitBlocked("slot.system")
		if n := b.Published(b.History.Events()); n != kept+pending {
			t.Errorf("%d records of what the clone knows, want only the %d of its original", n, kept+pending)
		}
		if output, code := b.Command(here, "slot", "adopt", "--confirm", b.Slot); code != 0 {
			t.Fatalf("slot adopt: code %d\n%s", code, output)
		}
		b.Wait("the READY rows to be SENT", func() bool { return b.CountStatus(check.Ready) == 0 })
		if n := b.Published(b.History.Events()); n != kept+2*pending+1 {
			t.Errorf("%d records after the adoption, want %d", n, kept+2*pending+1)
		}
		afterFailover(t, b)
	})
}
