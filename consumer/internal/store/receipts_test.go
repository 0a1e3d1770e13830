package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// eachReceipts runs a test of receipts on every version.
func eachReceipts(t *testing.T, test func(t *testing.T, f *fixture, r *store.Receipts)) {
	t.Helper()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, kinds[2])
		test(t, f, f.claims.(*store.Receipts))
	})
}

// TestEffects: what is known of an effect outlives the attempt.
func TestEffects(t *testing.T) {
	t.Parallel()
	eachReceipts(t, func(t *testing.T, f *fixture, r *store.Receipts) {
		for name, digest := range map[string][]byte{"a digest": {1, 0, 255}, "no digest": nil} {
			t.Run(name, func(t *testing.T) {
				claim := f.taken(t)
				for range 2 {
					if ok, changed, err := r.BeginEffect(t.Context(), claim.Held(), digest); !ok || changed || err != nil {
						t.Fatalf("begun: %v, changed %v, %v", ok, changed, err)
					}
				}
				if ok, changed, err := r.BeginEffect(t.Context(), claim.Held(), []byte{9}); !ok || !changed || err != nil {
					t.Errorf("another digest: %v, changed %v, %v", ok, changed, err)
				}
				if ok, err := r.SetProviderRef(t.Context(), claim.Held(), "m-1"); !ok || err != nil {
					t.Errorf("reference: %v, %v", ok, err)
				}
				next := f.again(t, claim)
				want := store.Claim{Ref: claim.Ref, Generation: 2, Attempts: 1, ErrorCode: store.CodeSystem, EffectBegun: true,
					Digest: append([]byte{}, digest...), ProviderRef: "m-1"}
				if diff := cmp.Diff(want, next, roughly); diff != "" || !next.Ambiguous() {
					t.Errorf("the next attempt, ambiguous %v (-want +got):\n%s", next.Ambiguous(), diff)
				}
				if ok, err := r.ClearEffect(t.Context(), next.Held()); !ok || err != nil {
					t.Errorf("cleared: %v, %v", ok, err)
				}
				if last := f.again(t, next); last.Ambiguous() || last.Digest != nil {
					t.Errorf("after a refusal: %+v", last)
				}
			})
		}
	})
}

// again releases a claim and claims the event again.
func (f *fixture) again(t *testing.T, c store.Claim) store.Claim {
	t.Helper()
	if ok, err := f.Release(t.Context(), store.Release{Held: c.Held(), Code: store.CodeSystem}); !ok || err != nil {
		t.Fatalf("released: %v, %v", ok, err)
	}
	return f.claim(t, c.Ref)
}

func TestEffectsOfALostClaim(t *testing.T) {
	t.Parallel()
	eachReceipts(t, func(t *testing.T, f *fixture, r *store.Receipts) {
		stale := f.taken(t).Held()
		f.set(t, stale.Ref, "claim_generation = 2")
		if ok, changed, err := r.BeginEffect(t.Context(), stale, nil); ok || changed || err != nil {
			t.Errorf("begun: %v, %v, %v", ok, changed, err)
		}
		if ok, err := r.ClearEffect(t.Context(), stale); ok || err != nil {
			t.Errorf("cleared: %v, %v", ok, err)
		}
		if ok, err := r.SetProviderRef(t.Context(), stale, "x"); ok || err != nil {
			t.Errorf("reference: %v, %v", ok, err)
		}
	})
}

// TestPurposes: several purposes of an event know nothing of each other.
func TestPurposes(t *testing.T) {
	t.Parallel()
	eachReceipts(t, func(t *testing.T, f *fixture, mail *store.Receipts) {
		bill := store.NewReceipts(f.pool, `"public"."outbox_receipt"`, "bill", "me", lease, limit)
		ref := f.event(t)
		first := f.claim(t, ref)
		list, err := bill.Claim(t.Context(), []store.Ref{ref})
		if err != nil || len(list) != 1 || list[0].Generation != 1 {
			t.Fatalf("claimed for the other purpose: %v, %v", list, err)
		}
		if kept, err := bill.Done(t.Context(), []store.Held{list[0].Held()}); len(kept) != 1 || err != nil {
			t.Errorf("done: %v, %v", kept, err)
		}
		if s := f.state(t, ref); s.Kind != store.Live {
			t.Errorf("state for the first purpose: %+v", s)
		}
		if alive, _, err := mail.Renew(t.Context(), []store.Held{first.Held()}); len(alive) != 1 || err != nil {
			t.Errorf("renewed: %v, %v", alive, err)
		}
	})
}

// TestTransactionalReceipt: the receipt and its effect commit together; it is
// for one transaction of all that try.
func TestTransactionalReceipt(t *testing.T) {
	t.Parallel()
	eachReceipts(t, func(t *testing.T, f *fixture, r *store.Receipts) {
		id := outbox.NewID()
		for n, test := range []struct {
			commit, first bool
		}{{false, true}, {true, true}, {true, false}} {
			tx, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			attempts, code, first, err := r.Insert(t.Context(), tx, id)
			if attempts != 0 || code != "" || first != test.first || err != nil {
				t.Errorf("transaction %d: %d, %q, %v, %v", n, attempts, code, first, err)
			}
			end := tx.Rollback
			if test.commit {
				end = tx.Commit
			}
			if err := end(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ref := store.Ref{EventID: id}
		if diff := cmp.Diff(row{Status: 4, Finished: true}, f.row(t, ref)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if s := f.state(t, ref); s.Kind != store.Finished {
			t.Errorf("state: %+v", s)
		}
	})
}

// TestConcurrentTransactionalReceipts: the second one waits for the first one's
// end.
func TestConcurrentTransactionalReceipts(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		end   string
		level pgx.TxIsoLevel
		first bool
		code  string
	}{
		{"commit", "COMMIT", pgx.ReadCommitted, false, ""},
		{"rollback", "ROLLBACK", pgx.ReadCommitted, true, ""},
		{"killed", "", pgx.ReadCommitted, true, ""},
		{"commit, repeatable read", "COMMIT", pgx.RepeatableRead, false, "40001"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			eachReceipts(t, func(t *testing.T, f *fixture, r *store.Receipts) {
				id := outbox.NewID()
				holder := f.db.Conn(t)
				if _, err := holder.Exec(t.Context(), "BEGIN"); err != nil {
					t.Fatal(err)
				}
				if _, _, first, err := r.Insert(t.Context(), holder, id); !first || err != nil {
					t.Fatalf("the first one: %v, %v", first, err)
				}
				tx, err := f.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: test.level})
				if err != nil {
					t.Fatal(err)
				}
				defer tx.Rollback(t.Context())
				type answer struct {
					first bool
					err   error
				}
				answers := make(chan answer, 1)
				go func() {
					_, _, first, err := r.Insert(t.Context(), tx, id)
					answers <- answer{first, err}
				}()
				f.awaitWaiter(t, tx.Conn().PgConn().PID())
				if test.end == "" {
					f.mustExec(t, fmt.Sprintf("SELECT pg_terminate_backend(%d)", holder.PgConn().PID()))
				} else if _, err := holder.Exec(t.Context(), test.end); err != nil {
					t.Fatal(err)
				}
				got := <-answers
				if code := codeOf(got.err); got.first != test.first || code != test.code || (got.err != nil) != (code != "") {
					t.Errorf("first %v, %v", got.first, got.err)
				}
			})
		})
	}
}

func codeOf(err error) string {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return answer.Code
	}
	return ""
}

// awaitWaiter returns when a session waits for a lock.
func (f *fixture) awaitWaiter(t *testing.T, pid uint32) {
	t.Helper()
	pgtest.Eventually(t, "the second transaction to wait", func() bool {
		var waits bool
		err := f.admin.QueryRow(t.Context(), "SELECT wait_event_type IS NOT DISTINCT FROM 'Lock' FROM pg_stat_activity WHERE pid = $1", pid).
			Scan(&waits)
		return err == nil && waits
	}, func() string { return "it does not" })
}

func (f *fixture) mustExec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := f.admin.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// TestFailuresBesideTheTransaction: what a failed attempt records outside its
// transaction holds for the next one.
func TestFailuresBesideTheTransaction(t *testing.T) {
	t.Parallel()
	eachReceipts(t, func(t *testing.T, f *fixture, r *store.Receipts) {
		ref := f.event(t)
		for n := 1; n <= 2; n++ {
			if ok, err := r.RecordDelay(t.Context(), ref.EventID, time.Hour, store.CodeSystem, "down"); !ok || err != nil {
				t.Fatalf("recording delay %d: %v, %v", n, ok, err)
			}
			want := row{Status: 2, Attempts: n, Next: "later", Code: store.CodeSystem, Message: "down"}
			if diff := cmp.Diff(want, f.row(t, ref)); diff != "" {
				t.Errorf("delay %d (-want +got):\n%s", n, diff)
			}
			if s := f.state(t, ref); s.Kind != store.Delayed || s.Left < 59*time.Minute {
				t.Errorf("state: %+v", s)
			}
		}
		if _, _, first, err := r.Insert(t.Context(), f.pool, ref.EventID); first || err != nil {
			t.Errorf("inserted while the delay runs: %v, %v", first, err)
		}
		f.set(t, ref, "next_attempt_at = clock_timestamp() - interval '1 ms'")
		if attempts, code, first, err := r.Insert(t.Context(), f.pool, ref.EventID); attempts != 2 || code != store.CodeSystem || !first || err != nil {
			t.Errorf("inserted after the delay: %d, %q, %v, %v", attempts, code, first, err)
		}
		if diff := cmp.Diff(row{Status: 4, Attempts: 2, Finished: true}, f.row(t, ref)); diff != "" {
			t.Errorf("done (-want +got):\n%s", diff)
		}
	})
}

// TestFailuresComeTooLate: an outcome that another attempt has recorded stays.
func TestFailuresComeTooLate(t *testing.T) {
	t.Parallel()
	eachReceipts(t, func(t *testing.T, f *fixture, r *store.Receipts) {
		for _, set := range []string{"status = 4", "status = 3, next_attempt_at = 'infinity'", "status = 3, finished_at = now()", "status = 5, lease_until = clock_timestamp() + interval '1 hour'"} {
			ref := f.prepared(t, set)
			before := f.row(t, ref)
			if ok, err := r.RecordFailure(t.Context(), ref.EventID, "APP_X", ""); ok || err != nil {
				t.Errorf("%s: failure recorded: %v, %v", set, ok, err)
			}
			if ok, err := r.RecordDelay(t.Context(), ref.EventID, 0, store.CodeSystem, ""); ok || err != nil {
				t.Errorf("%s: delay recorded: %v, %v", set, ok, err)
			}
			if _, _, first, err := r.Insert(t.Context(), f.pool, ref.EventID); first || err != nil {
				t.Errorf("%s: inserted: %v, %v", set, first, err)
			}
			if diff := cmp.Diff(before, f.row(t, ref)); diff != "" {
				t.Errorf("%s: changed:\n%s", set, diff)
			}
		}
	})
}

func TestRecordedFailure(t *testing.T) {
	t.Parallel()
	eachReceipts(t, func(t *testing.T, f *fixture, r *store.Receipts) {
		for name, ref := range map[string]store.Ref{"the first attempt": f.event(t), "a later one": f.prepared(t, "status = 2, attempts = 4")} {
			want := row{Status: 3, Attempts: 1, Next: "never", Code: "APP_X", Message: "bad"}
			if name != "the first attempt" {
				want.Attempts = 5
			}
			if ok, err := r.RecordFailure(t.Context(), ref.EventID, "APP_X", "bad"); !ok || err != nil {
				t.Errorf("%s: %v, %v", name, ok, err)
			}
			if diff := cmp.Diff(want, f.row(t, ref)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	})
}

// TestDriverModesOfReceipts: see TestDriverModes.
func TestDriverModesOfReceipts(t *testing.T) {
	t.Parallel()
	eachReceipts(t, func(t *testing.T, f *fixture, _ *store.Receipts) {
		for _, mode := range []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol} {
			pool := f.poolInMode(t, mode)
			r := store.NewReceipts(pool, `"public"."outbox_receipt"`, "mode", "me", lease, limit)
			list, err := r.Claim(t.Context(), f.events(t, 1))
			if err != nil || len(list) != 1 {
				t.Fatalf("%v: claimed %v, %v", mode, list, err)
			}
			held := list[0].Held()
			if ok, changed, err := r.BeginEffect(t.Context(), held, []byte{0, 1}); !ok || changed || err != nil {
				t.Errorf("%v: begun %v, %v, %v", mode, ok, changed, err)
			}
			if ok, err := r.ClearEffect(t.Context(), held); !ok || err != nil {
				t.Errorf("%v: cleared %v, %v", mode, ok, err)
			}
			if ok, err := r.SetProviderRef(t.Context(), held, "é'"); !ok || err != nil {
				t.Errorf("%v: reference %v, %v", mode, ok, err)
			}
			id := outbox.NewID()
			if ok, err := r.RecordDelay(t.Context(), id, 0, store.CodeSystem, "é'"); !ok || err != nil {
				t.Errorf("%v: delay %v, %v", mode, ok, err)
			}
			if attempts, _, first, err := r.Insert(t.Context(), pool, id); attempts != 1 || !first || err != nil {
				t.Errorf("%v: inserted %d, %v, %v", mode, attempts, first, err)
			}
			if ok, err := r.RecordFailure(t.Context(), outbox.NewID(), "APP_X", "é'"); !ok || err != nil {
				t.Errorf("%v: failure %v, %v", mode, ok, err)
			}
		}
	})
}
