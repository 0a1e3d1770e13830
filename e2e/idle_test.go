package e2e

import (
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// eachCluster runs a test on a throw-away cluster of every version.
func eachCluster(t *testing.T, test func(t *testing.T, db *pgtest.DB), settings ...string) {
	t.Helper()
	eachVersion(t, pgtest.Versions, func(t *testing.T, version int) {
		test(t, pgtest.StartCluster(t, version, settings...).New(t))
	})
}

// eachVersion runs a test that starts its own servers, in parallel subtests.
func eachVersion(t *testing.T, versions []int, test func(t *testing.T, version int)) {
	t.Helper()
	for _, version := range versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			test(t, version)
		})
	}
}

// TestIdleOutboxHoldsNoWAL: a quiet outbox in a busy database must not fill
// the disk.
func TestIdleOutboxHoldsNoWAL(t *testing.T) {
	t.Parallel()
	eachCluster(t, func(t *testing.T, db *pgtest.DB) {
		const most = 64 << 20 // bytes of WAL that the slot may hold after a checkpoint
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		b.StartStreaming(nil)
		b.Write(100, 10)
		b.Settle()
		b.Exec(`CREATE TABLE other (x text)`)
		b.Exec(`ALTER TABLE other ALTER x SET STORAGE PLAIN`)
		start := b.Confirmed()
		for b.Count(`SELECT (pg_current_wal_lsn() - $1::pg_lsn < 1024 * 1024 * 1024)::int`, start.String()) == 1 {
			b.Exec(`INSERT INTO other SELECT repeat('x', 7000) FROM generate_series(1, 7000)`)
		}
		b.Settle()
		b.Exec(`CHECKPOINT`)
		b.Wait("the slot to let the WAL go", func() bool {
			return b.Count(`SELECT (pg_current_wal_lsn() - restart_lsn)::bigint FROM pg_replication_slots WHERE slot_name = $1`, b.Slot) <= most
		})
		b.Write(100, 10)
		b.Finish(harness.Allow{})
	}, "max_wal_size = 4GB", "checkpoint_timeout = 1h")
}

// TestWalSenderTimeout: without a time-out, and with one that is shorter than
// the relay's usual pauses, an idle stream lives on.
func TestWalSenderTimeout(t *testing.T) {
	t.Parallel()
	for _, timeout := range []string{"0", "2s"} {
		t.Run(timeout, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
				b.Exec(fmt.Sprintf(`ALTER DATABASE %s SET wal_sender_timeout = '%s'`, db.Name, timeout))
				relay := b.StartStreaming(nil)
				b.Write(100, 10)
				b.Settle()
				walsender := b.Walsender()
				b.WaitSeconds(5)
				b.Write(100, 10)
				b.Finish(harness.Allow{})
				if now := b.Walsender(); now != walsender {
					t.Errorf("walsender %d now, %d before: the connection did not survive", now, walsender)
				}
				if code, _ := relay.Terminate(); code != 0 {
					t.Errorf("exit code %d after SIGTERM, want 0", code)
				}
			})
		})
	}
}
