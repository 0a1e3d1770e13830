package statusback_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/internal/statusback"
)

// patient makes the recorder wait for locks as long as the test needs.
func patient(c *statusback.Config) { c.Database.LockTimeout = patience }

// TestTakeoverWaits: a write-back that waits for a row lock passed the fence,
// so a bump of the epoch waits for it: no write is committed after the bump.
func TestTakeoverWaits(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, patient)
		refs := f.insert(t, 3)
		lock := f.begin(t, "SELECT FROM outbox WHERE id = $1 FOR UPDATE", refs[1].ID)
		f.Sent(refs)
		recorder := f.waits(t)

		successor := db.Conn(t)
		bumped := make(chan error, 1)
		go func() {
			_, err := successor.Exec(t.Context(), "UPDATE cdc_relay_slot SET epoch = epoch + 1")
			bumped <- err
		}()
		pgtest.Eventually(t, "the bump to wait for the write-back", func() bool {
			var waits bool
			err := f.conn.QueryRow(t.Context(), "SELECT $1 = ANY (pg_blocking_pids($2))", recorder, successor.PgConn().PID()).Scan(&waits)
			return err == nil && waits
		}, func() string { return "it does not" })
		if n := f.count(t, "send_status <> 0"); n != 0 {
			t.Errorf("%d rows are written although one is locked", n)
		}

		commit(t, lock)
		if err := <-bumped; err != nil {
			t.Fatal(err)
		}
		f.out.waitResolved(t, refs)
		f.Sent(f.insert(t, 1))
		if err := f.wait(t); !errors.Is(err, fault.ErrFenced) {
			t.Errorf("Run after the bump: %v", err)
		}
		if n := f.count(t, "send_status = 2"); n != len(refs) {
			t.Errorf("%d rows are SENT, want %d", n, len(refs))
		}
	})
}

// TestLockedRow: one locked row does not hold the others back, in any form.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 100)
		requeued, retried, failed, held, later := f.insert(t, 2), f.insert(t, 2), f.insert(t, 2), f.insert(t, 2), f.insert(t, 2)
		due := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		f.exec(t, "UPDATE outbox SET next_attempt_at = $1 WHERE id = ANY ($2)", due, ids(requeued))
		locked := []int64{refs[40].ID, requeued[0].ID, retried[0].ID, failed[0].ID, held[0].ID, later[0].ID}
		lock := f.begin(t, "SELECT FROM outbox WHERE id = ANY ($1) FOR UPDATE", locked)
		f.Sent(refs)
		f.Sent(withDue(requeued, due))
		f.Park(parksOf(retried, event.ParkRetry))
		f.Park(parksOf(failed, event.ParkFailed))
		f.Park(append(parksOf(held, event.ParkHeld), parksOf(later, event.ParkLater)...))
		others := without(locked, refs, requeued, retried, failed, held, later)
		f.out.waitResolved(t, others)

		f.out.waitTrouble(t, "table.locked")
		more := f.insert(t, 10) // still go on
		f.Sent(more)
		f.out.waitResolved(t, others, more)

		commit(t, lock)
		f.out.waitResolved(t, refs, requeued, retried, failed, held, later, more)
		f.out.waitTrouble(t, "")
		if n := f.count(t, "send_status = 2"); n != len(refs)+len(requeued)+len(more) {
			t.Errorf("%d rows are SENT", n)
		}
		if n := f.count(t, "next_attempt_at IS NOT NULL AND commit_lsn IS NOT NULL"); n != 8 {
			t.Errorf("%d of 8 rows are parked", n)
		}
	})
}

// TestForeignKeyCheck: the lock of a foreign key's check stops no write-back,
// not even the form that leaves locked rows out.
func TestForeignKeyCheck(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 3)
		f.begin(t, "SELECT FROM outbox WHERE id = $1 FOR KEY SHARE", refs[0].ID)
		lock := f.begin(t, "SELECT FROM outbox WHERE id = $1 FOR UPDATE", refs[1].ID)
		f.Sent(refs)
		f.out.waitResolved(t, without([]int64{refs[1].ID}, refs))
		commit(t, lock)
		f.out.waitResolved(t, refs)
	})
}

// TestLockedTable: nothing can be written or asked, until it can.
func TestLockedTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 10)
		lock := f.begin(t, "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
		f.Sent(refs)
		f.waitWrites(t, "SENT", "locked", 20)
		commit(t, lock)
		f.out.waitResolved(t, refs)
		f.out.waitTrouble(t, "")
	})
}

// TestRemedyOfALock: it finds whoever holds the lock, also if that is one on the
// slot's row, which every statement takes.
func TestRemedyOfALock(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"row":      "SELECT FROM outbox FOR UPDATE",
		"the slot": "SELECT FROM cdc_relay_slot FOR UPDATE",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				f := setup(t, db)
				refs := f.insert(t, 1)
				lock := f.begin(t, sql)
				f.Sent(refs)
				_, query, _ := strings.Cut(f.out.waitTrouble(t, "table.locked").Remedy, "find it: ")
				query, _, _ = strings.Cut(query, ";")
				var found bool
				err := f.conn.QueryRow(t.Context(), "SELECT $1 IN (SELECT pid FROM ("+query+") q)", lock.Conn().PgConn().PID()).Scan(&found)
				if err != nil || !found {
					t.Errorf("%s: found: %t, %v", query, found, err)
				}
				commit(t, lock)
				f.out.waitResolved(t, refs)
			})
		})
	}
}

// TestEndLetsTheStatementFinish: an ack that is being written is not thrown
// away when Run has to end.
func TestEndLetsTheStatementFinish(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, patient)
		refs := f.insert(t, 2)
		lock := f.begin(t, "SELECT FROM outbox WHERE id = $1 FOR UPDATE", refs[0].ID)
		f.Sent(refs)
		f.waits(t)
		f.stop()
		commit(t, lock)
		if err := f.end(t); err != nil {
			t.Errorf("Run: %v", err)
		}
		f.out.waitResolved(t, refs)
	})
}
