package retrysched

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memTable is a table in which rows are due from a time on. Each requeue
// writes 100 bytes of WAL.
type memTable struct {
	mu        sync.Mutex
	start     time.Time
	due       map[int64]time.Duration // since start
	retried   map[int64]bool
	end       pglogrepl.LSN
	confirmed pglogrepl.LSN
	lags      bool // the slot stays where it is
	batch     int
	fails     int                // so many statements fail
	running   func(rows []int64) // called while the statement runs
	log       []requeueAt        // what was requeued when
	looked    []time.Duration    // when
	asked     int                // for positions
	failure   error              // of all statements
}

type requeueAt struct {
	At time.Duration
	ID int64
}

func (m *memTable) positions(context.Context) (end, confirmed pglogrepl.LSN, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	if !m.lags {
		m.confirmed = m.end
	}
	return m.end, m.confirmed, m.failure
}

func (m *memTable) requeue(_ context.Context, except []int64) (rows []requeued, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Since(m.start)
	m.looked = append(m.looked, now)
	if m.fails > 0 {
		m.fails--
		return nil, errors.New("the connection is lost")
	}
	if m.failure != nil {
		return nil, m.failure
	}
	var ids []int64
	for id, due := range m.due {
		if due <= now && !slices.Contains(except, id) && len(rows) < m.batch {
			rows = append(rows, requeued{id: id, retry: m.retried[id]})
			m.log = append(m.log, requeueAt{now, id})
			ids = append(ids, id)
		}
	}
	m.end += 100
	if m.running != nil {
		m.running(ids)
	}
	return rows, nil
}

// change changes the table as somebody else would.
func (m *memTable) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
}

// times are when somebody looked for due rows.
func (m *memTable) times() []time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.looked)
}

// sorted is the log by time and id.
func (m *memTable) sorted() []requeueAt {
	m.mu.Lock()
	defer m.mu.Unlock()
	log := slices.Clone(m.log)
	slices.SortFunc(log, func(a, b requeueAt) int { return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.ID, b.ID)) })
	return log
}

// bench is a scheduler on a memTable in a bubble. Its tick is a second, its
// patience ten.
type bench struct {
	*Scheduler
	table *memTable
	err   error
	stop  func()
	done  chan struct{}
}

func run(t *testing.T, table *memTable, accepting func() bool) *bench {
	t.Helper()
	table.start, table.batch = time.Now(), 100
	b := &bench{table: table, done: make(chan struct{})}
	b.Scheduler = New(Config{Tick: time.Second, Patience: 10 * time.Second, Batch: 100}, slog.New(slog.DiscardHandler),
		NewMetrics(prometheus.NewRegistry()))
	b.Scheduler.table = b.table
	ctx, cancel := context.WithCancel(t.Context())
	b.stop = func() {
		cancel()
		<-b.done
	}
	if accepting == nil {
		accepting = func() bool { return true }
	}
	go func() {
		defer close(b.done)
		b.err = b.Run(ctx, accepting)
	}()
	return b
}

// until lets the bubble's time go on.
func (b *bench) until(at time.Duration) {
	<-time.After(at - time.Since(b.table.start))
	synctest.Wait()
}

func (b *bench) wantLog(t *testing.T, want ...requeueAt) {
	t.Helper()
	if diff := gocmp.Diff(want, b.table.sorted()); diff != "" {
		t.Errorf("requeued (-want +got):\n%s", diff)
	}
}

func at(seconds int, id int64) requeueAt { return requeueAt{time.Duration(seconds) * time.Second, id} }

func TestDueRowsAreRequeuedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &memTable{due: map[int64]time.Duration{1: 0, 2: 2500 * time.Millisecond, 3: time.Hour}, retried: map[int64]bool{2: true}}, nil)
		b.until(2500 * time.Millisecond)
		b.Returned([]int64{1})
		b.until(20 * time.Second)
		b.wantLog(t, at(1, 1), at(3, 2), at(13, 2)) // 2 was lost
		b.Settled([]int64{1})                       // it failed again and is due again
		b.until(21500 * time.Millisecond)
		b.wantLog(t, at(1, 1), at(3, 2), at(13, 2), at(21, 1))
		if retry, delayed := testutil.ToFloat64(b.m.retry), testutil.ToFloat64(b.m.delayed); retry != 2 || delayed != 2 {
			t.Errorf("counted %v retries and %v delayed rows, want 2 each", retry, delayed)
		}
		b.stop()
		if b.err != nil {
			t.Errorf("Run: %v", b.err)
		}
	})
}

// A message that was slow is not a lost one: it comes when the slot gets there.
func TestALaggingSlotLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &memTable{due: map[int64]time.Duration{1: 0}, lags: true}, nil)
		b.until(10 * time.Minute)
		b.wantLog(t, at(1, 1))
		b.Returned([]int64{1})
		b.until(20 * time.Minute)
		var before, after int
		b.table.change(func() { before = b.table.asked })
		b.until(21 * time.Minute)
		b.table.change(func() { after = b.table.asked })
		if before != after {
			t.Error("asked for positions while no message is to come")
		}
		b.wantLog(t, at(1, 1))
		b.stop()
	})
}

// While the slot lags behind, messages do not come back. Requeueing went on, and
// each row was remembered, and named in each statement: millions that were due, for
// as long as the lag lasted.
func TestALaggingSlotIsNotFilledUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const rows = 2*mostBatches*100 + 50
		due := map[int64]time.Duration{}
		for id := range int64(rows) {
			due[id+1] = 0
		}
		b := run(t, &memTable{due: due, lags: true}, nil)
		b.until(10 * time.Minute)
		if n := len(b.table.sorted()); n != mostBatches*100 {
			t.Errorf("%d rows were requeued, want %d", n, mostBatches*100)
		}
		b.table.change(func() { b.table.lags = false })
		for n := range 12 * 60 { // the slot gets there
			var came []int64
			b.table.change(func() {
				for _, r := range b.table.log {
					if _, there := due[r.ID]; there {
						came = append(came, r.ID)
						delete(due, r.ID)
					}
				}
			})
			b.Returned(came)
			b.Settled(came)
			b.until(10*time.Minute + time.Duration(n+1)*time.Second)
		}
		if n := len(b.table.sorted()); n != rows {
			t.Errorf("%d rows were requeued, want all %d, once", n, rows)
		}
		b.stop()
		if b.err != nil {
			t.Errorf("Run: %v", b.err)
		}
	})
}

func TestThreeLostRequeuesMeanThatTheTriggerIsGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &memTable{due: map[int64]time.Duration{7: 0}}, nil)
		<-b.done
		// A requeue is lost when the patience is over at a tick.
		b.wantLog(t, at(1, 7), at(11, 7), at(21, 7))
		if took := time.Since(b.table.start); took != 31*time.Second {
			t.Errorf("ended after %v, want 31s", took)
		}
		if blocked := fault.AsBlocked(b.err); blocked == nil || blocked.Reason != "table.trigger" {
			t.Errorf("Run: %v, want blocked: table.trigger", b.err)
		}
	})
}

// A message that comes back in the end starts the count anew.
func TestALateMessageForgivesLostOnes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &memTable{due: map[int64]time.Duration{7: 0}}, nil)
		b.until(25 * time.Second)
		b.Returned([]int64{7})
		b.Settled([]int64{7})
		b.until(48 * time.Second)
		b.wantLog(t, at(1, 7), at(11, 7), at(21, 7), at(26, 7), at(36, 7), at(46, 7))
		b.stop()
		if b.err != nil {
			t.Errorf("Run: %v", b.err)
		}
	})
}

// A row that is not due any more, because somebody skipped it, is forgotten.
func TestALostRowThatIsNotDueAnyMoreIsForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &memTable{due: map[int64]time.Duration{7: 0}}, nil)
		b.until(5 * time.Second)
		b.table.change(func() { delete(b.table.due, 7) })
		b.until(30 * time.Second)
		b.stop()
		if len(b.rows) != 0 {
			t.Errorf("still remembered: %v", b.rows)
		}
	})
}

// The message may come back, and the row be settled, before the statement's
// answer is read: then nothing is left to wait for.
func TestAMessageFasterThanTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &memTable{due: map[int64]time.Duration{6: 0, 7: 0}}, nil)
		running := func(rows []int64) {
			b.Returned(rows)
			if slices.Contains(rows, 7) { // it fails again
				b.table.due[7] = time.Since(b.table.start) + 4*time.Second
				b.Settled([]int64{7})
			}
		}
		b.table.change(func() { b.table.running = running })
		b.until(10 * time.Second)
		b.wantLog(t, at(1, 6), at(1, 7), at(5, 7), at(9, 7))
		b.stop()
	})
}

// A row that a person has requeued is in flight once its message is back.
func TestRowsRequeuedByOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &memTable{}, nil)
		b.Returned([]int64{5})
		b.table.change(func() { b.table.due = map[int64]time.Duration{5: 0} })
		b.until(time.Minute)
		b.wantLog(t)
		b.Settled([]int64{5})
		b.until(61 * time.Second)
		b.wantLog(t, at(61, 5))
		b.stop()
	})
}

func TestNothingIsRequeuedWhileTheLineDoesNotAccept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		b := run(t, &memTable{due: map[int64]time.Duration{1: 0}}, func() bool { return time.Since(start) > 10*time.Second })
		b.until(10 * time.Second)
		b.wantLog(t)
		if looked := b.table.times(); len(looked) != 0 {
			t.Errorf("looked for due rows at %v", looked)
		}
		b.until(11 * time.Second)
		b.wantLog(t, at(11, 1))
		b.stop()
	})
}

func TestErrorsOfTheDatabaseAreTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &memTable{due: map[int64]time.Duration{1: 0}, fails: 20}, nil)
		b.until(200 * time.Second)
		looked := b.table.times()
		if len(looked) < 22 || looked[21]-looked[20] != time.Second {
			t.Errorf("looked at %v, want 20 failures within 200 s and then each second", looked)
		}
		if log := b.table.sorted(); len(log) == 0 || log[0].At != looked[20] {
			t.Errorf("requeued: %v, want the row as soon as the statement succeeds", log)
		}
		b.stop()
	})
}

func TestWhatNoTryCanMendEndsTheScheduler(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{fault.ErrFenced, &fault.Blocked{Reason: "pg.connect"}} {
		synctest.Test(t, func(t *testing.T) {
			b := run(t, &memTable{failure: failure}, nil)
			<-b.done
			if !errors.Is(b.err, failure) {
				t.Errorf("Run: %v, want %v", b.err, failure)
			}
		})
	}
}
