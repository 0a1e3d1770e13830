package statusback

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	answer := func(code string) error { return fmt.Errorf("x: %w", &pgconn.PgError{Code: code}) }
	for _, test := range []struct {
		name string
		err  error
		want verdict
	}{
		{"none", nil, wrote},
		{"no answer", errLost, lost},
		{"broken pipe", errors.New("broken pipe"), lost},
		{"another server", fmt.Errorf("x: %w", fault.ErrFenced), fenced},
		{"refused login", fmt.Errorf("x: %w", &fault.Blocked{Reason: "pg.connect", Err: answer("28P01")}), denied},
		{"lock", answer("55P03"), lockedOut},
		{"time-out", answer("57014"), again},
		{"deadlock", answer("40P01"), again},
		{"disk full", answer("53100"), again},
		{"I/O error", answer("58030"), again},
		{"internal error", answer("XX000"), again},
		{"no table", answer("42P01"), denied},
		{"no column", answer("42703"), denied},
		{"no privilege, or a policy", answer("42501"), rowRefused},
		{"trigger", answer("P0001"), rowRefused},
		{"constraint", answer("23514"), rowRefused},
		{"strange code", answer("?"), rowRefused},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := verdictOf(test.err); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

func TestClassify(t *testing.T) {
	t.Parallel()
	at := event.DueAtMicros(5)
	for _, test := range []struct {
		name string
		due  event.Due // as last seen
		row  rowState
		want fate
	}{
		{"as it was", event.Due{}, rowState{found: true, visible: true}, unchanged},
		{"as it was, requeued", at, rowState{found: true, visible: true, due: at}, unchanged},
		{"sent", event.Due{}, rowState{found: true, visible: true, status: outbox.Sent}, settled},
		{"polled", event.Due{}, rowState{found: true, visible: true, status: outbox.InProgress}, settled},
		{"failed", event.Due{}, rowState{found: true, visible: true, status: outbox.Failed, due: event.DueInfinity()}, settled},
		{"parked", event.Due{}, rowState{found: true, visible: true, due: at}, settled},
		{"requeued at another time", at, rowState{found: true, visible: true, due: event.DueAtMicros(6)}, settled},
		{"not parked any more", at, rowState{found: true, visible: true}, settled},
		{"deleted", event.Due{}, rowState{visible: true}, gone},
		{"not there yet", event.Due{}, rowState{}, invisible},
		{"there in an older version", at, rowState{found: true, due: event.DueInfinity()}, invisible},
		{"released and sent", event.DueInfinity(), rowState{found: true, visible: true, status: outbox.Sent}, settled},
		{"released, as it was", event.DueInfinity(), rowState{found: true, visible: true, due: event.DueInfinity(), placed: true}, unchanged},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got := classify(write{Ref: event.Ref{Due: test.due}}, test.row); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// A row can be held if it has a place, or gets one.
func TestClassifyAHold(t *testing.T) {
	t.Parallel()
	row, placed := rowState{found: true, visible: true}, rowState{found: true, visible: true, placed: true}
	for _, test := range []struct {
		name   string
		action event.Action
		lsn    pglogrepl.LSN
		row    rowState
		want   fate
	}{
		{"no place", event.ParkHeld, 0, row, unplaced},
		{"a place of the row's own", event.ParkHeld, 0, placed, unchanged},
		{"a place of the event's", event.ParkHeld, 5, row, unchanged},
		{"not visible yet", event.ParkHeld, 0, rowState{}, invisible},
		{"sent", event.ParkHeld, 0, rowState{found: true, visible: true, status: outbox.Sent}, settled},
		{"later", event.ParkLater, 0, row, unchanged},
		{"retried", event.ParkRetry, 0, row, unchanged},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			w := write{Ref: event.Ref{CommitLSN: test.lsn}, park: &event.Park{Action: test.action}}
			if got := classify(w, test.row); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}
}

// Each write is told apart by its id, whatever the order of the answer.
func TestSplit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfDistinct(rapid.Int64Range(-50, 50), rapid.ID[int64]).Draw(t, "ids")
		changed := slices.DeleteFunc(slices.Clone(all), func(int64) bool { return rapid.Bool().Draw(t, "leave") })
		writes := make([]write, len(all))
		for i, id := range all {
			writes[i].ID = id
		}
		order(writes)
		var got, want []int64
		split(writes, slices.Clone(changed), func(w write, done bool) {
			if done {
				got = append(got, w.ID)
			}
		})
		want = append(want, changed...)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestOrder(t *testing.T) {
	t.Parallel()
	park, fail := &event.Park{}, &event.Park{Action: event.ParkFailed}
	hold, later := &event.Park{Action: event.ParkHeld}, &event.Park{Action: event.ParkLater}
	due := event.DueAtMicros(1)
	want := []write{
		{Ref: event.Ref{ID: 1}}, {Ref: event.Ref{ID: 9}},
		{Ref: event.Ref{ID: 2, Due: due}}, {Ref: event.Ref{ID: 8, Due: due}},
		{Ref: event.Ref{ID: 3}, park: park}, {Ref: event.Ref{ID: 7, Due: due}, park: park},
		{Ref: event.Ref{ID: 4}, park: fail},
		{Ref: event.Ref{ID: 2, Due: due}, park: hold}, {Ref: event.Ref{ID: 3}, park: hold},
		{Ref: event.Ref{ID: 1}, park: later},
		{Ref: event.Ref{ID: 1, Due: event.DueInfinity()}, park: hold},
		{Ref: event.Ref{ID: 5}, why: whyLocked}, {Ref: event.Ref{ID: 6}, why: whyLocked},
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	order(got)
	if !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestMailboxIsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := Config{Batch: 3, Interval: 5 * time.Millisecond}
		start := time.Now()
		m := newMailbox()
		if at := m.due(cfg); !at.IsZero() {
			t.Errorf("empty: due at %v", at.Sub(start))
		}
		<-time.After(time.Second)
		m.sent(make([]event.Ref, 1))
		<-time.After(2 * time.Millisecond)
		m.park(make([]event.Park, 1))
		if at := m.due(cfg).Sub(start); at != time.Second+5*time.Millisecond {
			t.Errorf("two of three: due at %v, want when the first has waited", at)
		}
		m.sent(make([]event.Ref, 1))
		if at := m.due(cfg); at.After(time.Now()) {
			t.Errorf("a batch: due at %v, want at once", at.Sub(start))
		}
		writes := m.take(nil)
		if len(writes) != 3 || !m.due(cfg).IsZero() {
			t.Errorf("took %d, due %v", len(writes), m.due(cfg))
		}
		m.sent(make([]event.Ref, 2))
		other := m.take(writes) // whose buffer is filled next
		m.sent(make([]event.Ref, 1))
		if last := m.take(other); len(other) != 2 || len(last) != 1 {
			t.Errorf("took %d and %d, want 2 and 1", len(other), len(last))
		}
	})
}

func TestWaitlistDelays(t *testing.T) {
	t.Parallel()
	ms := time.Millisecond
	for _, test := range []struct {
		name string
		why  reason
		want []time.Duration // of the first tries
	}{
		{"invisible", whyInvisible, []time.Duration{ms, 2 * ms, 4 * ms, 8 * ms, 16 * ms, 32 * ms, 64 * ms, 128 * ms, 256 * ms, 512 * ms, 1024 * ms, 1024 * ms}},
		{"locked", whyLocked, []time.Duration{time.Second, time.Second, time.Second}},
		{"failed", whyFailed, []time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var l waitlist
				writes := []write{{Ref: event.Ref{ID: 1}}}
				var got []time.Duration
				for range test.want {
					l.add(writes, test.why)
					got = append(got, time.Until(l.next))
					if early := l.take(l.next.Add(-1)); early != nil {
						t.Error("due too early")
					}
					if writes = l.take(l.next); len(writes) != 1 || !l.next.IsZero() {
						t.Fatalf("took %d, next %v", len(writes), l.next)
					}
				}
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestWaitlistStartsOverForAnotherReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l waitlist
		l.add([]write{{why: whyInvisible, tries: 9}}, whyUnchanged)
		if got := time.Until(l.next); got != time.Millisecond {
			t.Errorf("after another reason: due in %v", got)
		}
		l = waitlist{}
		l.again([]write{{why: whyLocked, tries: 2}}) // a lost connection says nothing about the row
		if w := l.take(time.Now()); len(w) != 1 || !w[0].locked() || w[0].tries != 2 {
			t.Errorf("after a lost connection: %+v", w)
		}
	})
}

func TestTroubleOfWaiting(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		w    write
		want string
	}{
		{"invisible for long", write{why: whyInvisible, tries: 1000}, ""},
		{"locked", write{why: whyLocked, tries: patienceLocked - 1}, ""},
		{"locked for long", write{why: whyLocked, tries: patienceLocked}, "table.locked"},
		{"unchanged", write{why: whyUnchanged, tries: patienceUnchanged - 1}, ""},
		{"unchanged for long", write{why: whyUnchanged, tries: patienceUnchanged}, "table.triggers"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var l waitlist
			l.add([]write{test.w}, test.w.why)
			got := ""
			if b := l.trouble(pg.Table{Schema: "a", Name: "b"}); b != nil {
				got = b.Reason
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			l.take(l.next)
			if b := l.trouble(pg.Table{}); b != nil {
				t.Errorf("empty: %v", b)
			}
		})
	}
}

func TestNewChecks(t *testing.T) {
	t.Parallel()
	good := Config{Table: pg.Table{Schema: "a", Name: "b"}, Slot: "s", Session: event.Session{Epoch: 1}}
	for _, test := range []struct {
		name   string
		change func(*Config)
		ok     bool
	}{
		{"defaults", func(*Config) {}, true},
		{"large batch", func(c *Config) { c.Batch = 10000 }, true},
		{"no slot", func(c *Config) { c.Slot = "" }, false},
		{"no table", func(c *Config) { c.Table.Name = "" }, false},
		{"no epoch", func(c *Config) { c.Session.Epoch = 0 }, false},
		{"negative batch", func(c *Config) { c.Batch = -1 }, false},
		{"batch over the largest", func(c *Config) { c.Batch, c.MaxBatch = 10, 5 }, false},
		{"negative interval", func(c *Config) { c.Interval = -1 }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			cfg := good
			test.change(&cfg)
			if _, err := New(cfg, nil, discard, nil); (err == nil) != test.ok {
				t.Errorf("error %v", err)
			}
		})
	}
}

// Ids go to the driver without an allocation each.
func TestIDsDoNotAllocate(t *testing.T) {
	m := pgtype.NewMap()
	writes := make([]write, 1000)
	buf := make([]byte, 0, 64*1024)
	encode := func() {
		var err error
		if buf, err = m.Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, idArray(writes), buf[:0]); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(100, encode); n > 20 {
		t.Errorf("%v allocations for %d ids", n, len(writes))
	}
	writes[1].ID = 7
	encode()
	var got []int64
	if err := m.Scan(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, buf, &got); err != nil || len(got) != 1000 || got[1] != 7 {
		t.Errorf("%v, %v", got, err)
	}
}

// The mailbox is on the hot line: its buffers are used again.
func TestMailboxDoesNotAllocate(t *testing.T) {
	m := newMailbox()
	refs := make([]event.Ref, 500)
	var buffer []write
	cycle := func() {
		m.sent(refs)
		m.sent(refs)
		buffer = m.take(buffer)
	}
	cycle()
	cycle()
	if n := testing.AllocsPerRun(100, cycle); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}
