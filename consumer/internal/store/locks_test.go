package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestManyClaimers: each of 100 events is claimed once, whoever asks.
func TestManyClaimers(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		refs := f.events(t, 100)
		won := make([][]store.Claim, 4)
		var wg sync.WaitGroup
		for i := range won {
			wg.Go(func() {
				for {
					list, err := f.Claim(t.Context(), refs)
					if err != nil {
						t.Error(err)
					}
					if won[i] = append(won[i], list...); len(list) == 0 {
						return
					}
				}
			})
		}
		wg.Wait()
		times := map[store.Ref]int{}
		for i := range won {
			for _, c := range won[i] {
				times[c.Ref]++
				if c.Generation != 1 {
					t.Errorf("%v has generation %d", c.Ref, c.Generation)
				}
			}
		}
		for _, ref := range refs {
			if times[ref] != 1 {
				t.Errorf("%v was claimed %d times", ref, times[ref])
			}
		}
	})
}

// TestRacesForOneEvent: of all that ask at the same time one gets it.
func TestRacesForOneEvent(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		ref := f.event(t)
		race := func(do func() (bool, error)) (winners int) {
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					ok, err := do()
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					defer mu.Unlock()
					if ok {
						winners++
					}
				})
			}
			wg.Wait()
			return winners
		}
		if n := race(func() (bool, error) { _, ok, err := f.ClaimOne(t.Context(), ref); return ok, err }); n != 1 {
			t.Errorf("claimed %d times", n)
		}
		f.expire(t, ref)
		if n := race(func() (bool, error) { _, _, ok, err := f.TakeOver(t.Context(), ref); return ok, err }); n != 1 {
			t.Errorf("taken over %d times", n)
		}
		held := store.Held{Ref: ref, Generation: 2}
		if n := race(func() (bool, error) {
			kept, err := f.Done(t.Context(), []store.Held{held})
			return len(kept) == 1, err
		}); n != 1 {
			t.Errorf("completed %d times", n)
		}
	})
}

// locked holds a lock on the row of an event, in a transaction of somebody
// else's, until the test ends it.
func (f *fixture) locked(t *testing.T, ref store.Ref) pgx.Tx {
	t.Helper()
	tx, err := f.db.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tag, err := tx.Exec(t.Context(), "SELECT FROM "+f.kind.table+" WHERE event_id = $1 FOR UPDATE", ref.EventID)
	if err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("locking a row: %v, %v", tag, err)
	}
	return tx
}

// TestLockedRows: neither the claim of a chunk nor a renewal waits for one; what
// concerns one event does, up to lock_timeout.
func TestLockedRows(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		free, busy := f.prepared(t, "STATUS = 2"), f.prepared(t, "STATUS = 2")
		f.locked(t, busy)
		list, err := f.Claim(t.Context(), []store.Ref{busy, free})
		if err != nil || len(list) != 1 || list[0].Ref != free {
			t.Errorf("claimed %v, %v; want the one that is not locked", list, err)
		}
		if s := f.state(t, busy); s.Kind != store.Free {
			t.Errorf("state of the locked one: %+v", s)
		}
		impatient := f.owned(f.impatient(t), "me")
		_, ok, err := impatient.ClaimOne(t.Context(), busy)
		if answer := (*pgconn.PgError)(nil); ok || !errors.As(err, &answer) || answer.Code != "55P03" {
			t.Errorf("claimed alone: %v, %v; want a lock timeout", ok, err)
		}
	})
}

// impatient is a connection of the consumer that waits for no lock.
func (f *fixture) impatient(t *testing.T) *pgx.Conn {
	t.Helper()
	conf := f.pool.Config().ConnConfig
	conf.RuntimeParams["lock_timeout"] = "1ms"
	conn, err := pgx.ConnectConfig(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// TestRenewBesideAHandlersTransaction: a handler may end the claim in a
// transaction that is open for long. The renewal of the others does not wait for
// it, and does not take its claim for lost.
func TestRenewBesideAHandlersTransaction(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		ending, other := f.taken(t).Held(), f.taken(t).Held()
		f.set(t, ending.Ref, "lease_until = clock_timestamp() + interval '10 s'")
		f.set(t, other.Ref, "lease_until = clock_timestamp() + interval '10 s'")
		tx := f.locked(t, ending.Ref)
		renewed, locked, err := f.Renew(t.Context(), []store.Held{ending, other})
		if err != nil || !cmp.Equal(renewed, []store.Held{other}) || !cmp.Equal(locked, []store.Held{ending}) {
			t.Errorf("renewed %v, locked %v, %v", renewed, locked, err)
		}
		kept, locked, err := f.DoneNow(t.Context(), []store.Held{ending})
		if err != nil || len(kept) != 0 || !cmp.Equal(locked, []store.Held{ending}) {
			t.Errorf("done at once: %v, locked %v, %v", kept, locked, err)
		}
		if left := f.state(t, other.Ref).Left; left < lease-5*time.Second {
			t.Errorf("the other's lease lasts %v", left)
		}
		if left := f.state(t, ending.Ref).Left; left > 10*time.Second {
			t.Errorf("the lease of the locked one lasts %v", left)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if kept, err := f.Done(t.Context(), []store.Held{ending, other}); len(kept) != 2 || err != nil {
			t.Errorf("done: %v, %v", kept, err)
		}
	})
}

// TestClaimBesideAnUncommittedSENT: the record can arrive before the relay's
// write-back is committed. That is not waited for, and told apart.
func TestClaimBesideAnUncommittedSENT(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, kinds[0])
		ref := f.event(t)
		f.set(t, ref, "send_status = 0, sent_at = NULL")
		tx, err := f.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "UPDATE outbox SET send_status = 2, sent_at = now() WHERE id = $1", ref.RowID); err != nil {
			t.Fatal(err)
		}
		if list, err := f.Claim(t.Context(), []store.Ref{ref}); len(list) > 0 || err != nil {
			t.Errorf("claimed %v, %v", list, err)
		}
		if s := f.state(t, ref); s.Kind != store.NotSent {
			t.Errorf("state: %+v", s)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.claim(t, ref)
	})
}

// TestConcurrentChunksOfReceipts: two who make the receipts of the same events,
// in opposite orders, do not block each other for good.
func TestConcurrentChunksOfReceipts(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, kinds[2])
		for range 20 {
			there := f.events(t, 50)
			back := make([]store.Ref, len(there))
			for i, ref := range there {
				back[len(back)-1-i] = ref
			}
			var wg sync.WaitGroup
			total := make([]int, 2)
			for i, refs := range [][]store.Ref{there, back} {
				wg.Go(func() {
					list, err := f.Claim(t.Context(), refs)
					if err != nil {
						t.Error(err)
					}
					total[i] = len(list)
				})
			}
			wg.Wait()
			if total[0]+total[1] != len(there) {
				t.Errorf("claimed %v of %d", total, len(there))
			}
		}
	})
}
