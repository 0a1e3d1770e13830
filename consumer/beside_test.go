package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// The tests of this file are about one event that two parts of one process have:
// lines of two partitions, or a line and a retry from the quarantine.

// besideKey marks the statements of a retry.
type besideKey struct{}

// lostFirst loses a claim of a line while it is told to, and calls then for each
// later one. The answer to a claim of a retry comes when slow is closed.
type lostFirst struct {
	memory
	lose  atomic.Bool
	later atomic.Int32 // claims of lines since then
	won   chan struct{}
	slow  chan struct{}
}

func (l *lostFirst) Claim(ctx context.Context, refs []store.Ref) ([]store.Claim, error) {
	if ctx.Value(besideKey{}) != nil {
		won, err := l.memory.Claim(ctx, refs)
		close(l.won)
		<-l.slow
		return won, err
	}
	if l.lose.CompareAndSwap(true, false) {
		return nil, errors.New("the answer is lost")
	}
	l.later.Add(1)
	return l.memory.Claim(ctx, refs)
}

// TestRetryKeepsItsClaimBesideALine: a line whose own claim had no answer finds
// the event claimed by its process. It was a retry that has won it, and that
// does not know yet.
func TestRetryKeepsItsClaimBesideALine(t *testing.T) {
	t.Parallel()
	var got calls
	b := newBed(t, 18, func(_ context.Context, ev *Event) error {
		got.add(ev)
		return nil
	})
	l := &lostFirst{won: make(chan struct{}), slow: make(chan struct{})}
	b.swap = func(m memory) memory { l.memory = m; return l }
	b.start()
	id := b.rows(outbox.Sent, "a")[0]
	rec := b.record(id, "a")
	retried := make(chan struct{})
	go func() {
		defer close(retried)
		b.c.retryOne(context.WithValue(b.c.working, besideKey{}, true), asStored(rec))
	}()
	<-l.won
	l.lose.Store(true)
	b.log.add(rec)
	pgtest.Eventually(t, "the line to have looked at the row twice", func() bool { return l.later.Load() >= 2 }, b.state)
	b.want(id, row{outbox.Consuming, 1, 0, ""})
	close(l.slow)
	<-retried
	b.await(1)
	b.want(id, consumed(1))
	if n := len(got.all()); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// asStored is a record as the quarantine has it.
func asStored(rec group.Record) store.Stored {
	stored := store.Stored{ID: 1, Record: store.Record{Topic: "t", Partition: 1, Offset: 7, Time: time.Now(), Key: rec.Key, Value: rec.Value}}
	for _, h := range rec.Headers {
		stored.Headers = append(stored.Headers, store.Header(h))
	}
	return stored
}

// unheard loses the answer to the first claim that was won.
type unheard struct {
	memory
	lost atomic.Bool
}

func (u *unheard) Claim(ctx context.Context, refs []store.Ref) ([]store.Claim, error) {
	won, err := u.memory.Claim(ctx, refs)
	if err == nil && u.lost.CompareAndSwap(false, true) {
		return nil, errors.New("the answer is lost")
	}
	return won, err
}

// TestRetryGivesUpAClaimWithoutAnAnswer: nothing was started under it, so the
// event is not in doubt, and no attempt is used.
func TestRetryGivesUpAClaimWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	b := newBed(t, 18, func(context.Context, *Event) error { return nil }, Ambiguity(Hold))
	b.swap = func(m memory) memory { return &unheard{memory: m} }
	b.start()
	id := b.rows(outbox.Sent, "a")[0]
	stored := asStored(b.record(id, "a"))
	for _, want := range []row{{outbox.Consuming, 1, 0, ""}, {outbox.Sent, 1, 0, ""}, consumed(2)} {
		b.c.retryOne(b.c.working, stored) // one look
		b.want(id, want)
	}
}

// TestLineKeepsItsClaimBesideAnotherLine: the same event is in two partitions, as
// after some were added. One line has claimed it and has not started it; the
// claim of the other one had no answer.
func TestLineKeepsItsClaimBesideAnotherLine(t *testing.T) {
	t.Parallel()
	g := newGated()
	b := newBed(t, 18, g.handle)
	l := &lostFirst{}
	b.swap = func(m memory) memory { l.memory = m; return l }
	b.start()
	b.put("a")
	<-g.entered
	g.leave <- nil
	b.await(1) // now it is known how long a handler takes, and more is claimed
	ids := b.rows(outbox.Sent, "b", "c")
	b.log.add(b.record(ids[0], "b"), b.record(ids[1], "c"))
	<-g.entered
	pgtest.Eventually(t, "a claim ahead", func() bool { return b.row(ids[1]).Status == outbox.Consuming }, b.state)

	other := &records{added: make(chan struct{})}
	p := newPartition(b.c, group.Assignment{Partition: group.Partition{Topic: "t", Number: 1}, Offset: -1}, other)
	gone := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(gone)
		p.run(nil, stop)
	}()
	l.lose.Store(true)
	before := l.later.Load()
	other.add(b.record(ids[1], "c"))
	pgtest.Eventually(t, "the other line to have looked at the row twice", func() bool { return l.later.Load() >= before+2 }, b.state)
	b.want(ids[1], row{outbox.Consuming, 1, 0, ""})
	g.leave <- nil
	g.leave <- nil
	b.await(3)
	pgtest.Eventually(t, "the other line to be done", func() bool { return p.position.Load() == 1 }, b.state)
	close(stop)
	<-gone
	b.want(ids[1], consumed(1))
	if diff := cmp.Diff(ids, g.all()[1:]); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
}

// lateClaim answers a claim later than its lease lasts.
type lateClaim struct {
	memory
	after      time.Duration
	handedBack atomic.Int32
}

func (l *lateClaim) Claim(_ context.Context, refs []store.Ref) ([]store.Claim, error) {
	<-time.After(l.after)
	return []store.Claim{{Ref: refs[0], Generation: 1}}, nil
}

func (l *lateClaim) HandBack(context.Context, []store.Held) error {
	l.handedBack.Add(1)
	return nil
}

// TestRetryDoesNotStartUnderAClaimThatIsOver: its answer came late, and somebody
// else may have taken the event over.
func TestRetryDoesNotStartUnderAClaimThatIsOver(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"in time": time.Second, "too late": 4 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ran := false
				c, err := New(Config{Brokers: []string{"127.0.0.1:1"}, Group: "g", Topics: []string{"t"}, DB: &pgxpool.Pool{}},
					func(context.Context, *Event) error { ran = true; return ErrNotStarted }, Lease(3*time.Second))
				if err != nil {
					t.Fatal(err)
				}
				handling, stop := context.WithCancelCause(t.Context())
				stop(errStopping) // so that what has run is handed back, too
				memory := &lateClaim{after: after}
				c.memory, c.engine, c.working, c.handling = memory, claiming{c}, t.Context(), handling
				it := c.item(group.Record{Headers: headers("ce_id", outbox.NewID().String())})
				c.passOnce(t.Context(), it)
				if want := after < c.opt.lease; ran != want || memory.handedBack.Load() != 1 || it.then != waiting {
					t.Errorf("ran %v, want %v; handed back %d times, phase %d", ran, want, memory.handedBack.Load(), it.then)
				}
				if n := len(c.tenures.list()); n != 0 {
					t.Errorf("%d claims are still renewed", n)
				}
			})
		})
	}
}

// silent answers nothing that ends a claim, until it is mended.
type silent struct {
	memory
	mended     bool
	handedBack []store.Held
}

func (s *silent) HandBack(_ context.Context, held []store.Held) error {
	if !s.mended {
		return errors.New("no answer")
	}
	s.handedBack = append(s.handedBack, held...)
	return nil
}

func (s *silent) Release(context.Context, store.Release) (bool, error) { return true, nil }

func (s *silent) TakeOver(context.Context, store.Ref) (c store.Claim, parked, ok bool, err error) {
	return c, false, false, nil
}

// TestHandBackWithoutAnAnswer: the handler said that it did nothing, and the
// database was away until the lease was over. The event is not in doubt, which
// with Hold a person would have to clear.
func TestHandBackWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, err := New(Config{Brokers: []string{"127.0.0.1:1"}, Group: "g", Topics: []string{"t"}, DB: &pgxpool.Pool{}},
			func(context.Context, *Event) error { return nil }, Lease(3*time.Second), Ambiguity(Hold))
		if err != nil {
			t.Fatal(err)
		}
		s := &silent{}
		c.memory, c.working, c.handling = s, t.Context(), t.Context()
		it := c.item(group.Record{Headers: headers("ce_id", outbox.NewID().String())})
		c.hold(it, store.Claim{Ref: it.ref(), Generation: 7}, time.Now())
		_, end := c.tenures.run(t.Context(), it.ev.ID, it.live)
		end()
		it.lend(settling)
		it.out = outcome{end: handBack}
		claiming{c}.settle(t.Context(), []*item{it})
		if it.then != waiting {
			t.Fatalf("phase %d", it.then)
		}
		s.mended = true
		if err := c.decide(t.Context(), it, store.State{Kind: store.Abandoned, ClaimedBy: c.owner, Generation: 7}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]store.Held{{Ref: it.ref(), Generation: 7}}, s.handedBack); diff != "" {
			t.Errorf("handed back (-want +got):\n%s", diff)
		}
	})
}

// crossed lets the first claim of several events win only the last one, and later
// claims none, until that has happened twice.
type crossed struct {
	memory
	wins atomic.Int32
}

func (x *crossed) Claim(ctx context.Context, refs []store.Ref) ([]store.Claim, error) {
	switch {
	case x.wins.Load() >= 2:
		return x.memory.Claim(ctx, refs)
	case len(refs) > 1:
		defer x.wins.Add(1)
		return x.memory.Claim(ctx, refs[len(refs)-1:])
	default:
		return nil, nil
	}
}

// TestLinesWithTheirEventsInAnotherOrder: two partitions have the same two events,
// each line has claimed the one that comes second there and waits for the other
// one. They waited for ever, and renewed what they had.
func TestLinesWithTheirEventsInAnotherOrder(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]Option{"by offset": nil, "by key": {Concurrency(4)}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got calls
			b := newBed(t, 18, func(_ context.Context, ev *Event) error {
				got.add(ev)
				return nil
			}, append(opts, Lease(9*time.Second))...)
			x := &crossed{}
			x.wins.Store(2)
			b.swap = func(m memory) memory { x.memory = m; return x }
			b.start()
			first := b.rows(outbox.Sent, "a", "a")
			b.log.add(b.record(first[0], "a"))
			other, log := b.beside(first[1])
			b.await(1) // now it is known how long handlers take, and more is claimed
			awaitEnd := func(n int64) {
				pgtest.Eventually(t, "the other line", func() bool { return other.position.Load() == n }, b.state)
			}
			awaitEnd(1)
			x.wins.Store(0)
			ids := b.rows(outbox.Sent, "a", "a")
			list := []group.Record{b.record(ids[0], "a"), b.record(ids[1], "a")}
			b.log.add(list...)
			log.add(list[1], list[0])
			b.await(3)
			awaitEnd(3)
			for _, id := range ids {
				if r := b.row(id); r.Status != outbox.Consumed || r.Attempts != 0 {
					t.Errorf("row %+v, want CONSUMED without another attempt", r)
				}
			}
			if n := len(got.all()); n != 4 || x.wins.Load() != 2 {
				t.Errorf("%d calls, %d claims were crossed", n, x.wins.Load())
			}
		})
	}
}
