package statusback_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/internal/statusback"
)

var past = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TestParkWithoutAnAttempt: what is held or parked for later keeps its attempts
// and what is known of them.
func TestParkWithoutAnAttempt(t *testing.T) {
	t.Parallel()
	const (
		untouched = "send_status = 0 AND attempts = 4 AND error_code = 'X' AND error_message = 'as it was' AND "
		held      = untouched + "next_attempt_at = 'infinity' AND "
		later     = untouched + "next_attempt_at > now() + interval '50 minutes' AND next_attempt_at <= now() + interval '1 hour' AND "
	)
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		cases := []struct {
			name   string
			set    string // before
			due    event.Due
			lsn    uint64
			action event.Action
			want   string
		}{
			{"held", "", event.Due{}, 0x1_0000_0005, event.ParkHeld, held + "commit_lsn = '1/5'"},
			{"held in its old place", ", next_attempt_at = '2026-01-02 03:04:05Z', commit_lsn = '0/9'",
				event.DueAt(past), 0x1_0000_0005, event.ParkHeld, held + "commit_lsn = '0/9'"},
			{"held in a place that only the row knows", ", commit_lsn = '0/9'", event.Due{}, 0, event.ParkHeld, held + "commit_lsn = '0/9'"},
			{"held already", ", next_attempt_at = 'infinity', commit_lsn = '0/9'",
				event.DueInfinity(), 9, event.ParkHeld, held + "commit_lsn = '0/9'"},
			{"later", "", event.Due{}, 0x1_0000_0005, event.ParkLater, later + "commit_lsn = '1/5'"},
			{"later, without a place", "", event.Due{}, 0, event.ParkLater, later + "commit_lsn IS NULL"},
			{"later, in its old place", ", next_attempt_at = '2026-01-02 03:04:05Z', commit_lsn = '0/9'",
				event.DueAt(past), 0x1_0000_0005, event.ParkLater, later + "commit_lsn = '0/9'"},
			{"later, after a release", ", next_attempt_at = 'infinity', commit_lsn = '0/9'",
				event.DueInfinity(), 9, event.ParkLater, later + "commit_lsn = '0/9'"},
		}
		refs := f.insert(t, len(cases))
		parks := make([]event.Park, len(cases))
		for i, c := range cases {
			refs[i].Due, refs[i].CommitLSN = c.due, lsn(c.lsn)
			parks[i] = event.Park{Ref: refs[i], Action: c.action, Delay: time.Hour}
			f.exec(t, "UPDATE outbox SET attempts = 4, error_code = 'X', error_message = 'as it was'"+c.set+" WHERE id = $1", refs[i].ID)
		}
		f.Park(parks)
		f.out.waitResolved(t, refs)
		for i, c := range cases {
			if f.count(t, c.want+" AND id = "+id(refs[i])) != 1 {
				t.Errorf("%s: the row is %s, want %s", c.name, f.rows(t)[i], c.want)
			}
		}
		if n := f.writes(t, "HELD", "ok"); n != float64(len(cases)) {
			t.Errorf("counted %v rows as HELD, want %d", n, len(cases))
		}
	})
}

// TestHeldBySomebodyElse: a hold undoes nothing that others did.
func TestHeldBySomebodyElse(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		cases := []struct{ name, set string }{
			{"failed", "send_status = 3, next_attempt_at = 'infinity'"},
			{"sent", "send_status = 2"},
			{"requeued", "next_attempt_at = '2026-01-02 03:04:06Z'"},
		}
		refs := f.insert(t, 2*len(cases)+2)
		for i := range 2 * len(cases) {
			f.exec(t, "UPDATE outbox SET "+cases[i/2].set+" WHERE id = $1", refs[i].ID)
		}
		f.exec(t, "DELETE FROM outbox WHERE id >= $1", refs[2*len(cases)].ID)
		before := f.rows(t)
		for i := range refs {
			f.Park(parksOf(refs[i:i+1], []event.Action{event.ParkHeld, event.ParkLater}[i%2]))
		}
		f.out.waitResolved(t, refs)
		for i, row := range f.rows(t) {
			if row != before[i] {
				t.Errorf("%s: the row became %s, was %s", cases[i/2].name, row, before[i])
			}
		}
		if stale, gone := f.writes(t, "HELD", "stale"), f.writes(t, "HELD", "gone"); stale != 6 || gone != 2 {
			t.Errorf("counted %v stale rows and %v that are gone, want 6 and 2", stale, gone)
		}
	})
}

// TestHeldAlreadyNeedsNoStatement: not even the lock of somebody else matters.
func TestHeldAlreadyNeedsNoStatement(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, patient)
		refs := f.insert(t, 2)
		f.exec(t, "UPDATE outbox SET next_attempt_at = 'infinity', commit_lsn = '0/5'")
		refs[0].Due, refs[1].Due = event.DueInfinity(), event.DueInfinity()
		f.begin(t, "SELECT FROM outbox FOR UPDATE")
		f.Park(parksOf(refs, event.ParkHeld))
		f.out.waitResolved(t, refs)
	})
}

// TestHeldWithoutAPlace: such a row could never be released. It breaks the
// contract and ends the session; the rest of its batch is written.
func TestHeldWithoutAPlace(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 5)
		refs[2].CommitLSN = 0
		before := f.rows(t)[2]
		f.Park(parksOf(refs, event.ParkHeld))
		if err := f.wait(t); err == nil || !strings.Contains(err.Error(), "holding outbox row "+id(refs[2])+": ") {
			t.Errorf("Run: %v, want it to name the row", err)
		}
		f.out.waitResolved(t, without([]int64{refs[2].ID}, refs))
		if n := f.count(t, "next_attempt_at = 'infinity'"); n != 4 {
			t.Errorf("%d rows are held, want 4", n)
		}
		if row := f.rows(t)[2]; row != before {
			t.Errorf("the row became %s, was %s", row, before)
		}
	})
}

// TestSentOfAReleasedRow compares infinity.
func TestSentOfAReleasedRow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 3)
		f.exec(t, "UPDATE outbox SET next_attempt_at = 'infinity', commit_lsn = '0/5'")
		f.exec(t, "UPDATE outbox SET send_status = 3 WHERE id = $1", refs[2].ID)
		for i := range refs {
			refs[i].Due, refs[i].XID = event.DueInfinity(), 0 // as read from the table
		}
		f.Sent(refs)
		f.out.waitResolved(t, refs)
		if n := f.count(t, isSent); n != 2 {
			t.Errorf("%d rows are SENT, want the 2 that were held", n)
		}
	})
}

// follower is what comes after a hold: the batch in doubt, of which the row was
// a part, is answered.
func follower(ref event.Ref) event.Ref {
	ref.Seq, ref.Due = ref.Seq+1000, event.DueInfinity()
	return ref
}

// TestSentAfterAHold: both are in the mailbox, and the row ends as SENT,
// whatever delays the hold.
func TestSentAfterAHold(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		delay func(t *testing.T, f *fixture, ref event.Ref) (end func())
	}{
		{"nothing", func(*testing.T, *fixture, event.Ref) func() { return func() {} }},
		{"a lock", func(t *testing.T, f *fixture, ref event.Ref) func() {
			lock := f.begin(t, "SELECT FROM outbox WHERE id = $1 FOR UPDATE", ref.ID)
			return func() {
				f.waitWrites(t, "HELD", "locked", 1)
				commit(t, lock)
			}
		}},
		{"a trigger", func(t *testing.T, f *fixture, ref event.Ref) func() {
			f.raise(t, "NEW.id = "+id(ref), "RAISE 'no'")
			return func() {
				f.waitWrites(t, "HELD", "error", 1)
				f.exec(t, "DROP TRIGGER user_trigger ON outbox")
			}
		}},
		{"a trigger that suppresses", func(t *testing.T, f *fixture, ref event.Ref) func() {
			f.raise(t, "NEW.id = "+id(ref), "RETURN NULL")
			return func() {
				f.out.waitTrouble(t, "table.triggers")
				f.exec(t, "DROP TRIGGER user_trigger ON outbox")
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				// One batch, however slow this machine is.
				f := setup(t, db, func(c *statusback.Config) { c.Batch, c.Interval = 6, time.Hour })
				refs := f.insert(t, 2)
				after := []event.Ref{follower(refs[0]), follower(refs[1])}
				other := f.insert(t, 2)
				end := test.delay(t, f, refs[0])
				f.Park(parksOf(refs, event.ParkHeld))
				f.Sent(after)
				f.Sent(other)
				end()
				f.out.waitResolved(t, refs, after, other)
				if n := f.count(t, isSent); n != 4 {
					t.Errorf("%d rows are SENT, want 4: %q", n, f.rows(t))
				}
				if n := f.writes(t, "SENT", "stale"); n != 0 {
					t.Errorf("%v writes of SENT came before the hold", n)
				}
			})
		})
	}
}

// TestFailureAfterAHold: the batch in doubt is refused. The attempt is counted
// once, and what follows it comes after it.
func TestFailureAfterAHold(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, func(c *statusback.Config) { c.Batch, c.Interval = 4, time.Hour })
		refs := f.insert(t, 1)
		failed := []event.Ref{follower(refs[0])}
		sent := []event.Ref{follower(failed[0])}
		held := []event.Ref{follower(sent[0])}
		f.Park(append(parksOf(refs, event.ParkHeld), parksOf(failed, event.ParkFailed)...))
		f.Sent(sent)
		f.Park(parksOf(held, event.ParkHeld))
		f.out.waitResolved(t, refs, failed, sent, held)
		if n := f.count(t, "send_status = 3 AND attempts = 1 AND next_attempt_at = 'infinity' AND commit_lsn = '1/5'"); n != 1 {
			t.Errorf("the row is %s, want FAILED with one attempt", f.rows(t)[0])
		}
	})
}

// TestHoldsOverFaults: the connection is killed in the middle of a hold, and
// of what follows it; rows that are not visible yet are held when they are.
func TestHoldsOverFaults(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, patient)
		refs := f.insert(t, 20)
		after := []event.Ref{follower(refs[3]), follower(refs[4])}
		tx, err := db.Conn(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		rows, err := tx.Query(t.Context(), insertSQL, 2)
		if err != nil {
			t.Fatal(err)
		}
		unseen := refsOf(t, rows)
		lock := f.begin(t, "SELECT FROM outbox WHERE id = $1 FOR UPDATE", refs[3].ID)
		f.Park(parksOf(refs, event.ParkHeld))
		f.Park(parksOf(unseen, event.ParkLater))
		f.Sent(after)
		for range 3 {
			f.exec(t, "SELECT pg_terminate_backend($1)", f.waits(t))
		}
		commit(t, lock)
		f.waitWrites(t, "HELD", "invisible", 3)
		commit(t, tx)
		f.out.waitResolved(t, refs, after, unseen)
		for _, want := range []struct {
			condition string
			rows      int
		}{
			{isSent, 2},
			{"send_status = 0 AND next_attempt_at = 'infinity' AND commit_lsn = '1/5' AND attempts = 0", 18},
			{"send_status = 0 AND next_attempt_at > now() AND isfinite(next_attempt_at) AND commit_lsn = '1/5' AND attempts = 0", 2},
		} {
			if n := f.count(t, want.condition); n != want.rows {
				t.Errorf("%d rows with %s, want %d", n, want.condition, want.rows)
			}
		}
	})
}

// TestLostAnswerOfAHold: it was committed, and somebody requeued the row before
// the statement is repeated. That survives.
func TestLostAnswerOfAHold(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		p, f, first := throughProxy(t, db)
		prepared := f.insert(t, 1) // a new statement would wait for its preparation
		f.Park(parksOf(prepared, event.ParkHeld))
		f.out.waitResolved(t, first, prepared)

		p.swallow()
		refs := f.insert(t, 2)
		f.Park(parksOf(refs, event.ParkHeld))
		pgtest.Eventually(t, "the rows to be held", func() bool { return f.count(t, "next_attempt_at = 'infinity'") == 3 },
			func() string { return fmt.Sprint(f.rows(t)) })
		f.exec(t, "UPDATE outbox SET next_attempt_at = '2026-01-02 03:04:05Z' WHERE id = $1", refs[0].ID)
		before := f.rows(t)
		p.cut()
		f.out.waitResolved(t, first, prepared, refs)
		if diff := cmp.Diff(before, f.rows(t)); diff != "" {
			t.Errorf("rows (-before +after):\n%s", diff)
		}
	})
}
