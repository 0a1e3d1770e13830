package statusback_test

import (
	"errors"
	"math"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/internal/statusback"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const isSent = "send_status = 2 AND sent_at IS NOT NULL AND attempts = 0 AND next_attempt_at IS NULL AND commit_lsn IS NULL"

func TestSent(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 9000) // more than one statement holds
		f.Sent(refs[:1])
		for rest := refs[1:]; len(rest) > 0; {
			n := min(len(rest), 700)
			f.Sent(rest[:n])
			rest = rest[n:]
		}
		f.out.waitResolved(t, refs)
		if n := f.count(t, isSent); n != len(refs) {
			t.Errorf("%d rows are SENT, want %d", n, len(refs))
		}
		if n := f.writes(t, "SENT", "ok"); n != float64(len(refs)) {
			t.Errorf("counted %v rows, want %d", n, len(refs))
		}
	})
}

// TestSentOfARequeuedRow has a time to the microsecond to compare.
func TestSentOfARequeuedRow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 3)
		due := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
		f.exec(t, "UPDATE outbox SET next_attempt_at = $1, attempts = 3, commit_lsn = '1/5', error_code = 'X'", due)
		for i := range refs {
			refs[i].Due = event.DueAt(due)
		}
		f.Sent(refs)
		f.out.waitResolved(t, refs)
		if n := f.count(t, isSent+" AND error_code = 'X'"); n != len(refs) {
			t.Errorf("%d rows are SENT, want %d", n, len(refs))
		}
	})
}

// TestRequeuedForMinusInfinity: a person may mean "at once" by it. Its row was
// published and could not be written, with an error that blamed a trigger, and the
// slot did not pass it any more.
func TestRequeuedForMinusInfinity(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 2)
		f.exec(t, "UPDATE outbox SET next_attempt_at = '-infinity', attempts = 3, commit_lsn = '1/5'")
		for i := range refs {
			refs[i].Due = event.DueAtMicros(math.MinInt64)
		}
		f.Sent(refs[:1])
		f.Park([]event.Park{{Ref: refs[1], Action: event.ParkRetry, Delay: time.Hour}})
		f.out.waitResolved(t, refs)
		if n, parked := f.count(t, isSent), f.count(t, "attempts = 4 AND next_attempt_at > now()"); n != 1 || parked != 1 {
			t.Errorf("%d rows are SENT and %d parked, want one of each", n, parked)
		}
	})
}

// TestSettledBySomebodyElse: nothing that others did is undone.
func TestSettledBySomebodyElse(t *testing.T) {
	t.Parallel()
	past := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		cases := []struct {
			name string
			set  string
			due  event.Due // as the recorder saw it
		}{
			{"a consumer was faster", "send_status = 5, claim_generation = 1", event.Due{}},
			{"consumed", "send_status = 4", event.Due{}},
			{"an earlier write whose answer was lost", "send_status = 2", event.Due{}},
			{"failed", "send_status = 3, next_attempt_at = 'infinity'", event.Due{}},
			{"parked", "next_attempt_at = now() + interval '1 hour'", event.Due{}},
			{"held", "next_attempt_at = 'infinity', commit_lsn = '0/5'", event.DueAt(past)},
			{"requeued again", "next_attempt_at = '2026-01-02 03:04:06Z'", event.DueAt(past)},
			{"no longer parked", "next_attempt_at = NULL", event.DueAt(past)},
			{"a microsecond later", "next_attempt_at = '2026-01-02 03:04:05.000001Z'", event.DueAt(past)},
		}
		refs := f.insert(t, len(cases))
		for i, c := range cases {
			refs[i].Due = c.due
			f.exec(t, "UPDATE outbox SET error_message = $1, "+c.set+" WHERE id = $2", c.name, refs[i].ID)
		}
		before := f.rows(t)
		fresh := f.insert(t, 2)
		f.Sent(append(append([]event.Ref{}, fresh...), refs...))
		f.out.waitResolved(t, refs, fresh)
		if n := f.writes(t, "SENT", "stale"); n != float64(len(cases)) {
			t.Errorf("counted %v stale rows, want %d", n, len(cases))
		}
		for i, row := range f.rows(t)[:len(before)] {
			if row != before[i] {
				t.Errorf("%s: the row became %s, was %s", cases[i].name, row, before[i])
			}
		}
		if n := f.count(t, isSent); n != len(fresh)+0 {
			t.Errorf("%d rows are SENT, want those %d that were READY", n, len(fresh))
		}
	})
}

func TestGone(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 3)
		f.exec(t, "DELETE FROM outbox WHERE id = $1", refs[1].ID)
		f.Sent(refs)
		f.out.waitResolved(t, refs)
		if n := f.metric(t, "cdc_relay_rows_gone_total"); n != 1 {
			t.Errorf("counted %v rows as gone, want 1", n)
		}
	})
}

// TestInvisible: the WAL of a row can be there before the row is visible.
func TestInvisible(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		tx, err := db.Conn(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		rows, err := tx.Query(t.Context(), insertSQL, 2)
		if err != nil {
			t.Fatal(err)
		}
		refs := refsOf(t, rows)
		later := event.Ref{Seq: 1 << 40, ID: 1 << 40, XID: refs[0].XID + 1<<33} // beyond every snapshot
		f.Sent([]event.Ref{later})
		f.Sent(refs)
		f.waitWrites(t, "SENT", "invisible", 12)
		f.out.waitResolved(t) // nothing
		commit(t, tx)
		f.out.waitResolved(t, refs)
		if n := f.count(t, isSent); n != len(refs) {
			t.Errorf("%d rows are SENT, want %d", n, len(refs))
		}
	})
}

// TestInvisibleRequeue: the row is there, in the version before its requeue.
func TestInvisibleRequeue(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 1)
		f.exec(t, "UPDATE outbox SET next_attempt_at = 'infinity', commit_lsn = '0/5'")
		due := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		tx := f.begin(t, "UPDATE outbox SET next_attempt_at = $1", due)
		var xid int64
		if err := tx.QueryRow(t.Context(), "SELECT pg_current_xact_id()::text::bigint").Scan(&xid); err != nil {
			t.Fatal(err)
		}
		refs[0].XID, refs[0].Due = uint64(xid), event.DueAt(due)
		f.Sent(refs)
		f.waitWrites(t, "SENT", "invisible", 3)
		f.out.waitResolved(t)
		commit(t, tx)
		f.out.waitResolved(t, refs)
		if n := f.count(t, isSent); n != 1 {
			t.Error("the row is not SENT")
		}
	})
}

func TestPark(t *testing.T) {
	t.Parallel()
	past := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	failure := event.Failure{Class: event.ClassRecord, Code: "RECORD_TOO_LARGE", Message: "it is too large"}
	const reason = " AND error_code = 'RECORD_TOO_LARGE' AND error_message = 'it is too large'"
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
			{"first attempt", "", event.Due{}, 0x1_0000_0005, event.ParkRetry,
				"send_status = 0 AND attempts = 1 AND commit_lsn = '1/5' AND next_attempt_at > now() + interval '50 minutes' AND next_attempt_at <= now() + interval '1 hour'"},
			{"no position", "", event.Due{}, 0, event.ParkRetry,
				"send_status = 0 AND attempts = 1 AND commit_lsn IS NULL AND next_attempt_at > now()"},
			{"a later attempt keeps the position", "next_attempt_at = '2026-01-02 03:04:05Z', attempts = 4, commit_lsn = '0/9'",
				event.DueAt(past), 0x1_0000_0005, event.ParkRetry,
				"send_status = 0 AND attempts = 5 AND commit_lsn = '0/9' AND next_attempt_at > now()"},
			{"failed", "", event.Due{}, 0x1_0000_0005, event.ParkFailed,
				"send_status = 3 AND attempts = 1 AND commit_lsn = '1/5' AND next_attempt_at = 'infinity'"},
			{"failed without a position", "", event.Due{}, 0, event.ParkFailed,
				"send_status = 3 AND attempts = 1 AND commit_lsn IS NULL AND next_attempt_at = 'infinity'"},
			{"failed at last", "next_attempt_at = '2026-01-02 03:04:05Z', attempts = 9", event.DueAt(past), 7, event.ParkFailed,
				"send_status = 3 AND attempts = 10 AND commit_lsn = '0/7' AND next_attempt_at = 'infinity'"},
		}
		refs := f.insert(t, len(cases))
		parks := make([]event.Park, len(cases))
		for i, c := range cases {
			refs[i].Due, refs[i].CommitLSN = c.due, lsn(c.lsn)
			parks[i] = event.Park{Ref: refs[i], Failure: failure, Action: c.action, Delay: time.Hour}
			if c.set != "" {
				f.exec(t, "UPDATE outbox SET "+c.set+" WHERE id = $1", refs[i].ID)
			}
		}
		f.Park(parks)
		f.out.waitResolved(t, refs)
		for i, c := range cases {
			if f.count(t, c.want+reason+" AND id = "+id(refs[i])) != 1 {
				t.Errorf("%s: the row is %s, want %s", c.name, f.rows(t)[i], c.want)
			}
		}
		if retry, failed := f.writes(t, "RETRY", "ok"), f.writes(t, "FAILED", "ok"); retry != 3 || failed != 3 {
			t.Errorf("counted %v rows as RETRY and %v as FAILED, want 3 and 3", retry, failed)
		}
	})
}

// TestStaleEpoch: an instance that lost the slot writes nothing, in no form.
func TestStaleEpoch(t *testing.T) {
	t.Parallel()
	due := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, test := range []struct {
		name  string
		bump  string
		due   event.Due
		write func(f *fixture, ref event.Ref)
	}{
		{"sent", "epoch = epoch + 1", event.Due{}, sent},
		{"sent, another owner", "owner = gen_random_uuid()", event.Due{}, sent},
		{"sent after a requeue", "epoch = epoch + 1", event.DueAt(due), sent},
		{"retry", "epoch = epoch + 1", event.Due{}, func(f *fixture, ref event.Ref) {
			f.Park([]event.Park{{Ref: ref, Delay: time.Hour}})
		}},
		{"failed", "epoch = epoch + 1", event.Due{}, func(f *fixture, ref event.Ref) {
			f.Park([]event.Park{{Ref: ref, Action: event.ParkFailed}})
		}},
		{"held", "epoch = epoch + 1", event.Due{}, func(f *fixture, ref event.Ref) {
			f.Park([]event.Park{{Ref: ref, Action: event.ParkHeld}})
		}},
		{"later", "epoch = epoch + 1", event.DueAt(due), func(f *fixture, ref event.Ref) {
			f.Park([]event.Park{{Ref: ref, Action: event.ParkLater, Delay: time.Hour}})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				f := setup(t, db)
				refs := f.insert(t, 1)
				if at, ok := test.due.Time(); ok {
					f.exec(t, "UPDATE outbox SET next_attempt_at = $1", at)
				}
				refs[0].Due = test.due
				before := f.rows(t)[0]
				f.exec(t, "UPDATE cdc_relay_slot SET "+test.bump)
				test.write(f, refs[0])
				if err := f.wait(t); !errors.Is(err, fault.ErrFenced) {
					t.Errorf("Run: %v", err)
				}
				if row := f.rows(t)[0]; row != before {
					t.Errorf("the row became %s, was %s", row, before)
				}
				f.out.waitResolved(t)
			})
		})
	}
}

func sent(f *fixture, ref event.Ref) { f.Sent([]event.Ref{ref}) }

// TestAnotherServer: what was learnt from one server is not written to another.
func TestAnotherServer(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, func(c *statusback.Config) { c.Session.SystemID++ })
		f.Sent(f.insert(t, 1))
		if err := f.wait(t); !errors.Is(err, fault.ErrFenced) {
			t.Errorf("Run: %v", err)
		}
		if n := f.count(t, "send_status = 0"); n != 1 {
			t.Error("the row was written")
		}
	})
}
