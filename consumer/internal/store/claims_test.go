package store_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// roughly compares durations to within a few seconds: they are of the
// database's clock, a moment ago.
var roughly = cmp.Comparer(func(a, b time.Duration) bool { return a-b < 5*time.Second && b-a < 5*time.Second })

func TestLifeOfAClaim(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		ref := f.event(t)
		claim := f.claim(t, ref)
		if diff := cmp.Diff(store.Claim{Ref: ref, Generation: 1}, claim, roughly); diff != "" {
			t.Errorf("the claim (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(row{Status: 5, Generation: 1, By: "me", Leased: true}, f.row(t, ref)); diff != "" {
			t.Errorf("claimed (-want +got):\n%s", diff)
		}
		held := []store.Held{claim.Held()}
		if alive, _, err := f.Renew(t.Context(), held); err != nil || !cmp.Equal(alive, held) {
			t.Errorf("renewing: %v, %v", alive, err)
		}
		if kept, err := f.Done(t.Context(), held); err != nil || !cmp.Equal(kept, held) {
			t.Errorf("completing: %v, %v", kept, err)
		}
		if diff := cmp.Diff(row{Status: 4, Generation: 1, By: "me", Finished: true}, f.row(t, ref)); diff != "" {
			t.Errorf("done (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(store.State{Kind: store.Finished, Generation: 1}, f.state(t, ref)); diff != "" {
			t.Errorf("state (-want +got):\n%s", diff)
		}
	})
}

// TestWhatCanBeClaimed goes through all that a row or receipt may hold.
func TestWhatCanBeClaimed(t *testing.T) {
	t.Parallel()
	const live, over = "STATUS = 5, claimed_by = 'you', lease_until = clock_timestamp() + interval '10 s'",
		"STATUS = 5, claimed_by = 'you', lease_until = clock_timestamp() - interval '1 ms'"
	cases := []struct {
		name string
		set  string
		want store.State
		rows bool // of outbox rows only
	}{
		{"free", "STATUS = 2", store.State{Kind: store.Free}, false},
		{"due", "STATUS = 2, next_attempt_at = clock_timestamp() - interval '1 ms'", store.State{Kind: store.Free}, false},
		{"delayed", "STATUS = 2, next_attempt_at = clock_timestamp() + interval '10 s'",
			store.State{Kind: store.Delayed, Left: 10 * time.Second}, false},
		{"claimed", live, store.State{Kind: store.Live, Left: 10 * time.Second, ClaimedBy: "you"}, false},
		{"abandoned", over, store.State{Kind: store.Abandoned, ClaimedBy: "you"}, false},
		{"claimed without a lease", "STATUS = 5", store.State{Kind: store.Abandoned}, false},
		{"consumed", "STATUS = 4, finished_at = now()", store.State{Kind: store.Finished}, false},
		{"its failure is recorded", "STATUS = 3, next_attempt_at = 'infinity'", store.State{Kind: store.Finished}, false},
		{"waived", "STATUS = 3, finished_at = now()", store.State{Kind: store.Finished}, false},
		{"READY", "STATUS = 0, sent_at = NULL", store.State{Kind: store.NotSent}, true},
		{"to be published again", "STATUS = 0, sent_at = NULL, next_attempt_at = now()", store.State{Kind: store.NotSent}, true},
		{"INPROGRESS", "STATUS = 1, sent_at = NULL", store.State{Kind: store.NotSent}, true},
		{"not published", "STATUS = 3, sent_at = NULL, next_attempt_at = 'infinity'", store.State{Kind: store.Unpublished}, true},
		{"not published and waived", "STATUS = 3, sent_at = NULL, finished_at = now()", store.State{Kind: store.Finished}, true},
		{"never due", "STATUS = 2, next_attempt_at = 'infinity', commit_lsn = '0/1'",
			store.State{Kind: store.Delayed, Left: 24 * time.Hour}, true},
	}
	each(t, func(t *testing.T, f *fixture) {
		for _, test := range cases {
			if test.rows && f.kind.receipts() {
				continue
			}
			t.Run(test.name, func(t *testing.T) {
				for how, claim := range map[string]func(store.Ref) (bool, error){
					"in a chunk": func(ref store.Ref) (bool, error) {
						list, err := f.Claim(t.Context(), []store.Ref{ref})
						return len(list) == 1 && list[0].Ref == ref, err
					},
					"alone": func(ref store.Ref) (bool, error) {
						claim, ok, err := f.ClaimOne(t.Context(), ref)
						return ok && claim.Ref == ref, err
					},
				} {
					ref := f.prepared(t, test.set)
					if diff := cmp.Diff(test.want, f.state(t, ref), roughly); diff != "" {
						t.Errorf("state (-want +got):\n%s", diff)
					}
					before := f.row(t, ref)
					ok, err := claim(ref)
					if err != nil || ok != (test.want.Kind == store.Free) {
						t.Errorf("claimed %s: %v, %v", how, ok, err)
					}
					if after := f.row(t, ref); !ok && after != before {
						t.Errorf("not claimed %s, but changed:\n%s", how, cmp.Diff(before, after))
					}
				}
			})
		}
	})
}

// prepared makes an event with what it holds.
func (f *fixture) prepared(t *testing.T, set string) store.Ref {
	t.Helper()
	ref := f.event(t)
	if f.kind.receipts() {
		if _, err := f.admin.Exec(t.Context(), "INSERT INTO outbox_receipt (event_id, purpose) VALUES ($1, 'mail')", ref.EventID); err != nil {
			t.Fatal(err)
		}
	}
	f.set(t, ref, set)
	return ref
}

func TestEventsWithoutARow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		if f.kind.receipts() {
			if s := f.state(t, store.Ref{EventID: outbox.NewID()}); s != (store.State{Kind: store.Free}) {
				t.Errorf("an event without a receipt: %v", s)
			}
			return
		}
		known := f.event(t)
		row := f.rowID(t, known)
		for name, ref := range map[string]store.Ref{
			"no such event":         {EventID: outbox.NewID()},
			"no such row":           {RowID: row + 1000, EventID: known.EventID},
			"the row of another":    {RowID: row, EventID: outbox.NewID()},
			"neither row nor event": {RowID: row + 1000, EventID: outbox.NewID()},
		} {
			if s := f.state(t, ref); s != (store.State{Kind: store.Missing}) {
				t.Errorf("%s: %v", name, s)
			}
			if list, err := f.Claim(t.Context(), []store.Ref{ref}); len(list) > 0 || err != nil {
				t.Errorf("%s: claimed %v, %v", name, list, err)
			}
			if _, ok, err := f.ClaimOne(t.Context(), ref); ok || err != nil {
				t.Errorf("%s: claimed %v, %v", name, ok, err)
			}
		}
	})
}

func (f *fixture) rowID(t *testing.T, ref store.Ref) (id int64) {
	t.Helper()
	if err := f.admin.QueryRow(t.Context(), "SELECT id FROM outbox WHERE event_id = $1", ref.EventID).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// TestChunks: one statement claims what is free of many, and States answers in
// the order of the question.
func TestChunks(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		refs := f.events(t, 6)
		f.claim(t, refs[1])
		done := f.claim(t, refs[3])
		if _, err := f.Done(t.Context(), []store.Held{done.Held()}); err != nil {
			t.Fatal(err)
		}
		asked := append(slices.Clone(refs), refs[0]) // named twice
		list, err := f.Claim(t.Context(), asked)
		if err != nil {
			t.Fatal(err)
		}
		got := map[store.Ref]int{}
		for _, c := range list {
			got[c.Ref] += int(c.Generation)
		}
		if diff := cmp.Diff(map[store.Ref]int{refs[0]: 1, refs[2]: 1, refs[4]: 1, refs[5]: 1}, got); diff != "" {
			t.Errorf("claimed (-want +got):\n%s", diff)
		}
		states, err := f.States(t.Context(), []store.Ref{refs[5], refs[3], refs[1], refs[3]})
		if err != nil {
			t.Fatal(err)
		}
		kinds := []store.Kind{}
		for _, s := range states {
			kinds = append(kinds, s.Kind)
		}
		if diff := cmp.Diff([]store.Kind{store.Live, store.Finished, store.Live, store.Finished}, kinds); diff != "" {
			t.Errorf("states (-want +got):\n%s", diff)
		}
		if list, err := f.Claim(t.Context(), nil); list != nil || err != nil {
			t.Errorf("claiming nothing: %v, %v", list, err)
		}
	})
}

// TestMixedChunk: some records carry their row's id, others do not.
func TestMixedChunk(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, kinds[0])
		refs := f.events(t, 4)
		refs[1].RowID, refs[2].RowID = 0, 0
		wrong := []store.Ref{
			{RowID: refs[3].RowID, EventID: refs[0].EventID},
			{RowID: refs[3].RowID, EventID: f.event(t).EventID},
		}
		list, err := f.Claim(t.Context(), append(wrong, refs...))
		if err != nil || len(list) != len(refs) {
			t.Fatalf("claimed %v, %v", list, err)
		}
		var held []store.Held
		for _, c := range list {
			if !slices.Contains(refs, c.Ref) {
				t.Errorf("claimed as %v, which names another row", c.Ref)
			}
			held = append(held, c.Held())
		}
		kept, err := f.Done(t.Context(), held)
		less := func(a, b store.Held) bool { return a.EventID.String() < b.EventID.String() }
		if diff := cmp.Diff(held, kept, cmpopts.SortSlices(less)); err != nil || diff != "" {
			t.Errorf("completed: %v (-want +got):\n%s", err, diff)
		}
	})
}

func TestEndsOfAnAttempt(t *testing.T) {
	t.Parallel()
	const message = "a sentence"
	cases := []struct {
		name string
		end  func(ctx context.Context, f *fixture, h store.Held) (bool, error)
		want row
	}{
		{"done", func(ctx context.Context, f *fixture, h store.Held) (bool, error) {
			kept, err := f.Done(ctx, []store.Held{h})
			return len(kept) == 1, err
		}, row{Status: 4, Finished: true, By: "me"}},
		{"failed", func(ctx context.Context, f *fixture, h store.Held) (bool, error) {
			return f.Fail(ctx, store.Failure{Held: h, Code: "APP_X", Message: message})
		}, row{Status: 3, Attempts: 1, Next: "never", Code: "APP_X", Message: message, By: "me"}},
		{"released", func(ctx context.Context, f *fixture, h store.Held) (bool, error) {
			return f.Release(ctx, store.Release{Held: h, Delay: time.Minute, Code: store.CodeSystem, Message: message})
		}, row{Status: 2, Attempts: 1, Next: "later", Code: store.CodeSystem, Message: message}},
		{"released, due at once", func(ctx context.Context, f *fixture, h store.Held) (bool, error) {
			return f.Release(ctx, store.Release{Held: h, Code: store.CodePanic})
		}, row{Status: 2, Attempts: 1, Next: "now", Code: store.CodePanic}},
		{"handed back", func(ctx context.Context, f *fixture, h store.Held) (bool, error) {
			return true, f.HandBack(ctx, []store.Held{h})
		}, row{Status: 2}},
	}
	each(t, func(t *testing.T, f *fixture) {
		for _, test := range cases {
			t.Run(test.name, func(t *testing.T) {
				claim := f.taken(t)
				test.want.Generation = 1
				if ok, err := test.end(t.Context(), f, claim.Held()); !ok || err != nil {
					t.Errorf("%v, %v", ok, err)
				}
				if diff := cmp.Diff(test.want, f.row(t, claim.Ref)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	})
}

// TestStaleOwners: once somebody else has the event, or it has an outcome, the
// one who had it before changes nothing.
func TestStaleOwners(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		for _, now := range []struct{ name, set string }{
			{"taken over", "claim_generation = 2, claimed_by = 'you'"},
			{"consumed by another", "STATUS = 4, claim_generation = 2"},
			{"consumed by itself", "STATUS = 4"},
			{"released", "STATUS = 2, lease_until = NULL"},
			{"failed", "STATUS = 3, next_attempt_at = 'infinity'"},
		} {
			t.Run(now.name, func(t *testing.T) {
				stale := f.taken(t).Held()
				f.set(t, stale.Ref, now.set)
				before := f.row(t, stale.Ref)
				f.checkLost(t, stale)
				if diff := cmp.Diff(before, f.row(t, stale.Ref)); diff != "" {
					t.Errorf("it was changed:\n%s", diff)
				}
			})
		}
	})
}

func (f *fixture) checkLost(t *testing.T, stale store.Held) {
	t.Helper()
	if alive, _, err := f.Renew(t.Context(), []store.Held{stale}); len(alive) > 0 || err != nil {
		t.Errorf("renewed: %v, %v", alive, err)
	}
	if kept, err := f.Done(t.Context(), []store.Held{stale}); len(kept) > 0 || err != nil {
		t.Errorf("done: %v, %v", kept, err)
	}
	if ok, err := f.Fail(t.Context(), store.Failure{Held: stale, Code: "APP_X"}); ok || err != nil {
		t.Errorf("failed: %v, %v", ok, err)
	}
	if ok, err := f.Release(t.Context(), store.Release{Held: stale, Code: store.CodeSystem}); ok || err != nil {
		t.Errorf("released: %v, %v", ok, err)
	}
	if err := f.HandBack(t.Context(), []store.Held{stale}); err != nil {
		t.Errorf("handed back: %v", err)
	}
}

// TestBatchesWithLostClaims: the others of the batch are completed.
func TestBatchesWithLostClaims(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		first, lost, last := f.taken(t).Held(), f.taken(t).Held(), f.taken(t).Held()
		f.set(t, lost.Ref, "claim_generation = 7")
		less := func(a, b store.Held) bool { return a.EventID.String() < b.EventID.String() }
		want := []store.Held{first, last}
		alive, _, err := f.Renew(t.Context(), []store.Held{first, lost, last})
		if diff := cmp.Diff(want, alive, cmpopts.SortSlices(less)); err != nil || diff != "" {
			t.Errorf("renewed: %v (-want +got):\n%s", err, diff)
		}
		kept, err := f.Done(t.Context(), []store.Held{first, lost, last})
		if diff := cmp.Diff(want, kept, cmpopts.SortSlices(less)); err != nil || diff != "" {
			t.Errorf("done: %v (-want +got):\n%s", err, diff)
		}
	})
}

// TestTakeOver: an abandoned event is taken over until it has been abandoned
// AbandonLimit times, the last two in a row.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		claim := f.taken(t)
		if _, _, ok, err := f.TakeOver(t.Context(), claim.Ref); ok || err != nil {
			t.Fatalf("taken over while its lease lasts: %v, %v", ok, err)
		}
		for n := 1; n < limit; n++ {
			f.expire(t, claim.Ref)
			next, parked, ok, err := f.TakeOver(t.Context(), claim.Ref)
			want := store.Claim{Ref: claim.Ref, Generation: int32(n + 1), Attempts: n, ErrorCode: store.CodeAbandoned}
			if diff := cmp.Diff(want, next, roughly); parked || !ok || err != nil || diff != "" {
				t.Fatalf("abandoned %d times: parked %v, ok %v, %v (-want +got):\n%s", n, parked, ok, err, diff)
			}
			if !next.Ambiguous() {
				t.Error("it is not ambiguous")
			}
		}
		f.expire(t, claim.Ref)
		if _, parked, ok, err := f.TakeOver(t.Context(), claim.Ref); !parked || !ok || err != nil {
			t.Fatalf("abandoned %d times: parked %v, ok %v, %v", limit, parked, ok, err)
		}
		want := row{Status: 3, Generation: limit + 1, Attempts: limit, By: "me", Next: "never", Code: store.CodeAbandoned,
			Message: "an attempt ended without an outcome"}
		if diff := cmp.Diff(want, f.row(t, claim.Ref)); diff != "" {
			t.Errorf("parked (-want +got):\n%s", diff)
		}
		if s := f.state(t, claim.Ref); s.Kind != store.Finished {
			t.Errorf("state: %v", s)
		}
	})
}

// TestOneCrashInALongOutage: releases use attempts too, but break the chain of
// abandonments, and an event in doubt stays so.
func TestOneCrashInALongOutage(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		claim := f.taken(t)
		check := func(n int, wantCode string, ambiguous bool) {
			t.Helper()
			if _, err := f.Release(t.Context(), store.Release{Held: claim.Held(), Code: store.CodeSystem, Message: "down"}); err != nil {
				t.Fatal(err)
			}
			claim = f.claim(t, claim.Ref)
			if claim.Attempts != n || claim.ErrorCode != wantCode || claim.Ambiguous() != ambiguous {
				t.Fatalf("after %d attempts: %+v", n, claim)
			}
		}
		for n := 1; n <= 2*limit; n++ {
			check(n, store.CodeSystem, false)
		}
		for n := 2*limit + 1; n < 4*limit; n += 2 {
			f.expire(t, claim.Ref)
			next, parked, ok, err := f.TakeOver(t.Context(), claim.Ref)
			if parked || !ok || err != nil || next.Attempts != n {
				t.Fatalf("abandoned as attempt %d: %+v, parked %v, ok %v, %v", n, next, parked, ok, err)
			}
			claim = next
			check(n+1, store.CodeAmbiguous, true)
		}
	})
}

// TestClaimsKeepWhatIsKnown: a retry tells what the attempts before it left.
func TestClaimsKeepWhatIsKnown(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		since := "sent_at"
		if f.kind.receipts() {
			since = "created_at"
		}
		ref := f.prepared(t, "STATUS = 2, attempts = 4, claim_generation = 9, error_code = 'CONSUMER_PANIC', "+
			since+" = clock_timestamp() - interval '2 h'")
		want := store.Claim{Ref: ref, Generation: 10, Attempts: 4, ErrorCode: store.CodePanic, Age: 2 * time.Hour}
		if diff := cmp.Diff(want, f.claim(t, ref), roughly); diff != "" {
			t.Errorf("in a chunk (-want +got):\n%s", diff)
		}
		f.set(t, ref, "STATUS = 2")
		want.Generation++
		one, ok, err := f.ClaimOne(t.Context(), ref)
		if diff := cmp.Diff(want, one, roughly); !ok || err != nil || diff != "" {
			t.Errorf("alone: %v, %v (-want +got):\n%s", ok, err, diff)
		}
	})
}

func TestRenewExtends(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		held := f.taken(t).Held()
		for _, left := range []string{"3 s", "-3 s"} { // over, but nobody has taken the event
			f.set(t, held.Ref, "lease_until = clock_timestamp() + interval '"+left+"'")
			if alive, _, err := f.Renew(t.Context(), []store.Held{held}); err != nil || !cmp.Equal(alive, []store.Held{held}) {
				t.Errorf("%s left: alive %v, %v", left, alive, err)
			}
			if s := f.state(t, held.Ref); s.Kind != store.Live || s.Left < lease-5*time.Second || s.Left > lease {
				t.Errorf("%s left, after the renewal: %+v", left, s)
			}
		}
	})
}

// TestInATransaction: what a handler's transaction has done counts when it
// commits.
func TestInATransaction(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		held := f.taken(t).Held()
		for _, commit := range []bool{false, true} {
			tx, err := f.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if kept, err := f.in(tx).Done(t.Context(), []store.Held{held}); len(kept) != 1 || err != nil {
				t.Errorf("done in the transaction: %v, %v", kept, err)
			}
			if s := f.state(t, held.Ref); s.Kind != store.Live {
				t.Errorf("before its end: %+v", s)
			}
			end, want := tx.Rollback, store.Live
			if commit {
				end, want = tx.Commit, store.Finished
			}
			if err := end(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s := f.state(t, held.Ref); s.Kind != want {
				t.Errorf("commit %v: %+v", commit, s)
			}
		}
	})
}

// in is the claims of f on a transaction.
func (f *fixture) in(tx pgx.Tx) claims {
	if r, ok := f.claims.(*store.Receipts); ok {
		return r.On(tx)
	}
	return f.claims.(*store.Rows).On(tx)
}
