package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// The tests of this file are faults that a review has found, one each.

// TestRolledBackIsNeverInDoubt: the effect of a transaction that failed is not
// there, whatever the handler calls it and a policy says.
func TestRolledBackIsNeverInDoubt(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	b := newBed(t, 18, func(context.Context, *Event) error { return nil }).inTx(func(ctx context.Context, tx pgx.Tx, ev *Event) error {
		if err := insertEffect(ctx, tx, ev); err != nil {
			return err
		}
		if n.Add(1) == 1 {
			return Ambiguous(errors.New("no answer"))
		}
		return nil
	}, Ambiguity(Query(func(context.Context, *Event) (Found, error) { return Present, nil })))
	id := b.put("a")[0]
	b.start()
	b.await(1)
	if r := b.receipt(id, "stock"); r.Status != outbox.Consumed || r.Attempts != 1 || b.effects() != 1 {
		t.Errorf("receipt %+v, %d effects", r, b.effects())
	}
}

// TestOneHandlerOfAKeyAlsoAfterALostClaim: the first event of a key comes back
// while the second one's handler runs.
func TestOneHandlerOfAKeyAlsoAfterALostClaim(t *testing.T) {
	t.Parallel()
	var (
		b       *bed
		ids     []outbox.ID
		running atomic.Int32
	)
	entered, leave := make(chan struct{}), make(chan struct{})
	b = newBed(t, 18, func(_ context.Context, ev *Event) error {
		if ev.AggregateID == "x" {
			return nil
		}
		if running.Add(1) > 1 {
			t.Error("two handlers of one key at once")
		}
		defer running.Add(-1)
		switch {
		case ev.ID == ids[0] && ev.Attempt == 1: // another process takes the claim over, and dies
			b.exec("UPDATE outbox SET claim_generation = claim_generation + 1, lease_until = now() WHERE event_id = $1", ids[0])
		case ev.ID == ids[1]:
			close(entered)
			<-leave
		}
		return nil
	}, Concurrency(2))
	b.swap = func(m memory) memory { return &lateDone{m, entered} }
	ids = b.put("k", "k")
	b.start()
	<-entered
	pgtest.Eventually(t, "the first one to be claimed again", func() bool { return b.row(ids[0]).Generation == 3 }, b.state)
	another := b.put("x")[0] // which the line starts only after it has looked at the first one
	pgtest.Eventually(t, "another key", func() bool { return b.row(another).Status == outbox.Consumed }, b.state)
	close(leave)
	b.await(3)
}

// lateDone records no outcome until something has happened.
type lateDone struct {
	memory
	after <-chan struct{}
}

func (l *lateDone) DoneNow(ctx context.Context, held []store.Held) (kept, locked []store.Held, err error) {
	<-l.after
	return l.memory.DoneNow(ctx, held)
}

// TestHotKeysDoNotStarveOthers: their claims ahead leave room, while a handler
// runs and while some wait.
func TestHotKeysDoNotStarveOthers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		keys   []string
		handle func(release <-chan struct{}) error
	}{
		"one is slow": {[]string{"hot"}, func(release <-chan struct{}) error { <-release; return nil }},
		"some failed": {[]string{"hot 1", "hot 2", "hot 3", "hot 4", "hot 5", "hot 6"},
			func(<-chan struct{}) error { return Delay(time.Hour, errors.New("later")) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			release := make(chan struct{})
			defer close(release)
			b := newBed(t, 18, func(_ context.Context, ev *Event) error {
				if strings.HasPrefix(ev.AggregateID, "hot") {
					return tc.handle(release)
				}
				return nil
			}, Concurrency(4), Lease(time.Hour)) // or what waits for a third of it were handed back
			keys := slices.Concat(numbered(20), slices.Repeat(tc.keys, 180/len(tc.keys)), numbered(50))
			b.put(keys...)
			b.start()
			pgtest.Eventually(t, "all others", func() bool {
				var n int
				err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE send_status = 4 AND aggregate_id NOT LIKE 'hot%'`).Scan(&n)
				return err == nil && n == 70
			}, b.state)
		})
	}
}

func TestClaimsBehindASlowHandlerAreHandedBack(t *testing.T) {
	t.Parallel()
	g := newGated()
	b := newBed(t, 18, g.handle, Lease(3*time.Second))
	b.start()
	b.put("a")
	<-g.entered
	g.leave <- nil
	b.await(1) // now it is known how long a handler takes
	b.put(numbered(10)...)
	<-g.entered
	claimed := func() (n int) {
		if err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE send_status = 5`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	pgtest.Eventually(t, "claims ahead", func() bool { return claimed() > 1 }, b.state)
	pgtest.Eventually(t, "the others to be free", func() bool { return claimed() == 1 }, b.state)
	for range 10 {
		g.leave <- nil
	}
	b.await(11)
}

// lostAnswers loses the answer of the first claim or the first end of one.
type lostAnswers struct {
	memory
	claim, done atomic.Bool
}

var errLost = errors.New("unexpected EOF")

func (l *lostAnswers) Claim(ctx context.Context, refs []store.Ref) ([]store.Claim, error) {
	won, err := l.memory.Claim(ctx, refs)
	if l.claim.Swap(false) {
		return nil, errLost
	}
	return won, err
}

func (l *lostAnswers) DoneNow(ctx context.Context, held []store.Held) (kept, locked []store.Held, err error) {
	kept, locked, err = l.memory.DoneNow(ctx, held)
	if l.done.Swap(false) {
		return nil, nil, errLost
	}
	return kept, locked, err
}

// TestLostAnswerOfAClaim: nothing was started under it, so nothing is in doubt.
func TestLostAnswerOfAClaim(t *testing.T) {
	t.Parallel()
	var got calls
	b := newBed(t, 18, func(_ context.Context, ev *Event) error {
		got.add(ev)
		return nil
	}, Ambiguity(Hold))
	b.swap = func(m memory) memory {
		l := &lostAnswers{memory: m}
		l.claim.Store(true)
		return l
	}
	id := b.put("a")[0]
	b.start()
	b.await(1)
	b.want(id, consumed(2))
	if len(got.all()) != 1 {
		t.Errorf("%d calls", len(got.all()))
	}
}

// outcomes counts what is told of records.
type outcomes struct {
	lostClaims
	mu     sync.Mutex
	counts map[Outcome]int
}

func (o *outcomes) Records(_ string, what Outcome, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts[what] += n
}

func TestLostAnswerOfAnOutcome(t *testing.T) {
	t.Parallel()
	var got calls
	seen := &outcomes{counts: map[Outcome]int{}}
	b := newBed(t, 18, func(_ context.Context, ev *Event) error {
		got.add(ev)
		return nil
	}, Metrics(seen))
	b.swap = func(m memory) memory {
		l := &lostAnswers{memory: m}
		l.done.Store(true)
		return l
	}
	id := b.put("a")[0]
	b.start()
	b.await(1)
	b.want(id, consumed(1))
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if diff := cmp.Diff(map[Outcome]int{Consumed: 1}, seen.counts); diff != "" || seen.n.Load() != 0 || len(got.all()) != 1 {
		t.Errorf("%d calls, %d claims lost, outcomes (-want +got):\n%s", len(got.all()), seen.n.Load(), diff)
	}
}

// TestLockedRowAtItsEnd: the outcomes of others are recorded beside it.
func TestLockedRowAtItsEnd(t *testing.T) {
	t.Parallel()
	b := newBed(t, 18, func(context.Context, *Event) error { return nil }, Concurrency(4))
	ids := b.put(numbered(20)...)
	var locked *lockedRow
	locked, b.swap = keepLocked(ids[0], 1<<30)
	defer locked.times.Store(0)
	b.start()
	b.awaitReason(WaitingClaim)
	pgtest.Eventually(t, "all others", func() bool {
		var n int
		err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE send_status = 4`).Scan(&n)
		return err == nil && n == 19
	}, b.state)
	b.want(ids[0], row{outbox.Consuming, 1, 0, ""})
}

// TestTimeoutLeavesADoubt: an attempt that was cut off in its middle is not
// repeated where the policy forbids it.
func TestTimeoutLeavesADoubt(t *testing.T) {
	t.Parallel()
	var got calls
	b := newBed(t, 18, func(ctx context.Context, ev *Event) error {
		got.add(ev)
		<-ctx.Done()
		return ctx.Err()
	}, HandlerTimeout(20*time.Millisecond), Ambiguity(Hold))
	id := b.put("a")[0]
	b.start()
	b.await(1)
	if r := b.row(id); r.Status != outbox.Failed || r.Code != "CONSUMER_AMBIGUOUS" || len(got.all()) != 1 {
		t.Errorf("row %+v after %d calls", r, len(got.all()))
	}
}

// TestHandlerThatEndsItsTransaction: it must not, and is told by a delay, not by
// being called without end.
func TestHandlerThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	var n atomic.Int32
	b := newBed(t, 18, func(context.Context, *Event) error { return nil }).inTx(func(ctx context.Context, tx pgx.Tx, _ *Event) error {
		if n.Add(1) <= 2 {
			return tx.Rollback(ctx)
		}
		return nil
	})
	id := b.put("a")[0]
	b.start()
	b.await(1)
	if r := b.receipt(id, "stock"); r.Status != outbox.Consumed || r.Attempts != 2 {
		t.Errorf("receipt %+v", r)
	}
}

// TestPurposeOfAnotherMode: an attempt under a claim died, and now the purpose
// has a transactional handler.
func TestPurposeOfAnotherMode(t *testing.T) {
	t.Parallel()
	fail := true
	b := newBed(t, 18, func(context.Context, *Event) error { return nil }).inTx(func(ctx context.Context, tx pgx.Tx, ev *Event) error {
		if fail {
			fail = false
			return errors.New("not now")
		}
		return insertEffect(ctx, tx, ev)
	})
	id := b.put("a")[0]
	b.exec("INSERT INTO outbox_receipt (event_id, purpose, status, claim_generation, lease_until) VALUES ($1, 'stock', 5, 1, now())", id)
	b.start()
	b.await(1)
	if r := b.receipt(id, "stock"); r.Status != outbox.Consumed || b.effects() != 1 {
		t.Errorf("receipt %+v, %d effects", r, b.effects())
	}
}

// TestDeafHandlerIsAlone: it does not hear that its context has ended; its event
// was taken over elsewhere and given back, and is this process's again.
func TestDeafHandlerIsAlone(t *testing.T) {
	t.Parallel()
	var running atomic.Int32
	entered, leave := make(chan struct{}, 10), make(chan struct{})
	b := newBed(t, 18, func(context.Context, *Event) error {
		if running.Add(1) > 1 {
			t.Error("two handlers of one event at once")
		}
		defer running.Add(-1)
		entered <- struct{}{}
		<-leave
		return nil
	}, RevokeGrace(10*time.Millisecond))
	id := b.put("a")[0]
	b.start()
	<-entered
	b.revoke()
	<-b.p.released
	b.exec("UPDATE outbox SET send_status = 2, claim_generation = claim_generation + 1, lease_until = NULL")
	next := newPartition(b.c, group.Assignment{Partition: group.Partition{Topic: "t"}}, b.log)
	stop, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		next.run(nil, stop)
	}()
	pgtest.Eventually(t, "another claim", func() bool { return b.row(id).Generation == 3 }, b.state)
	close(leave)
	pgtest.Eventually(t, "the end", func() bool { return next.position.Load() == 1 }, b.state)
	close(stop)
	<-gone
	b.want(id, consumed(3))
}

func TestUnreadablePartitionIsStalled(t *testing.T) {
	t.Parallel()
	b := newBed(t, 18, func(context.Context, *Event) error { return nil })
	b.log.fail = &group.OffsetError{Partition: group.Partition{Topic: "t"}, Offset: 3, Start: 100, End: 5000}
	b.start()
	b.awaitReason(BlockedOffsetLost)
	b.c.membership([]*partition{b.p}, true, false)
	if h := b.c.Health(); !h.Joined || len(h.Stalled(0)) != 1 {
		t.Errorf("health %+v", h)
	}
}

// TestRowHeaderNamedLikeAnotherPresets: the relay's own come first.
func TestRowHeaderNamedLikeAnotherPresets(t *testing.T) {
	t.Parallel()
	for _, other := range []string{outbox.NewID().String(), "42"} {
		ev, bad := decode(group.Record{Headers: headers("event-id", someID, "event-type", "x", "id", other, "ce_type", "y")})
		if bad != nil || ev.ID.String() != someID || ev.Type != "x" {
			t.Errorf("event %s of type %s, %+v", ev.ID, ev.Type, bad)
		}
	}
}

func TestWindowIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	o := defaults()
	p := newPartition(&Consumer{opt: o}, group.Assignment{}, nil)
	for range 5 {
		p.backlog = append(p.backlog, group.Record{Value: make([]byte, windowBytes/2)})
	}
	p.fill()
	if len(p.window) != 2 || len(p.backlog) != 3 {
		t.Errorf("%d records in the window, %d behind it", len(p.window), len(p.backlog))
	}
	p.backlog[0].Value = make([]byte, 2*windowBytes)
	for _, it := range p.window {
		it.phase = done
	}
	p.advance()
	if p.fill(); len(p.window) != 1 || p.bytes != 2*windowBytes {
		t.Errorf("%d records of %d bytes in the window, want the large one", len(p.window), p.bytes)
	}
}

// TestWindowThatIsDoneAtOnce: nothing of it is on its way then that would bring
// the next one in.
func TestWindowThatIsDoneAtOnce(t *testing.T) {
	t.Parallel()
	const n = 600 // more than two windows
	for name, opts := range map[string][]Option{
		"duplicates": {},
		"filtered":   {Receipts("mail"), Horizon(time.Hour), Filter(func([]Header) bool { return false })},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, 18, func(context.Context, *Event) error { return nil }, opts...)
			var list []group.Record
			for i, id := range b.rows(outbox.Consumed, numbered(n)...) {
				rec := b.record(id, fmt.Sprint(i))
				list = append(list, rec)
			}
			b.log.add(list...) // one read brings them all
			b.start()
			b.await(n)
		})
	}
}

func TestFilterThatPanics(t *testing.T) {
	t.Parallel()
	b := newBed(t, 18, func(context.Context, *Event) error { return nil }, Receipts("mail"), Horizon(time.Hour),
		Filter(func([]Header) bool { panic("no such header") }))
	b.put("a")
	b.start()
	b.await(1)
	if diff := cmp.Diff(map[string]int{"BAD_HEADERS": 1}, b.quarantined()); diff != "" {
		t.Errorf("quarantine (-want +got):\n%s", diff)
	}
}

// TestRetriesThatWaitHideNoOthers: more than one look finds of them.
func TestRetriesThatWaitHideNoOthers(t *testing.T) {
	t.Parallel()
	b := newBed(t, 18, func(context.Context, *Event) error { return nil })
	for i, id := range b.rows(outbox.Ready, numbered(askedAtOnce)...) {
		b.quarantine(int64(i), id)
	}
	last := b.rows(outbox.Sent, "x")[0]
	b.quarantine(askedAtOnce, last)
	b.exec("UPDATE outbox_quarantine SET resolution = 'retry'")
	b.start()
	pgtest.Eventually(t, "the last one", func() bool { return b.row(last).Status == outbox.Consumed }, b.state)
}

// quarantine puts the record of an event away.
func (b *bed) quarantine(offset int64, id outbox.ID) {
	b.t.Helper()
	rec := b.record(id, "a")
	hs := make([]store.Header, len(rec.Headers))
	for i, h := range rec.Headers {
		hs[i] = store.Header(h)
	}
	q := store.NewQuarantine(b.pool, "outbox_quarantine", b.c.name())
	if err := q.Put(b.t.Context(), store.Record{Topic: "t", Offset: offset, Key: rec.Key, Value: rec.Value, Headers: hs, EventID: id,
		Time: time.Now(), Reason: "MISSING", Message: "x"}); err != nil {
		b.t.Fatal(err)
	}
}

// TestStopDrainsWhileTheGroupRebalances, and what a person has asked to be
// retried is drained too.
func TestStopDrainsWhileTheGroupRebalances(t *testing.T) {
	t.Parallel()
	g := newGated()
	b := newKafkaBed(t, g.handle, Drain(time.Hour), RevokeGrace(10*time.Millisecond))
	ids := b.rows(outbox.Sent, "in the log", "retried")
	b.produce(ids[:1], []string{"in the log"})
	b.quarantine(7, ids[1])
	b.exec("UPDATE outbox_quarantine SET resolution = 'retry'")
	ctx, stop := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- b.c.Run(ctx) }()
	<-g.entered
	<-g.entered
	stop()
	second, err := New(b.c.cfg, func(context.Context, *Event) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	others, stopOthers := context.WithCancel(t.Context())
	othersGone := make(chan error, 1)
	go func() { othersGone <- second.Run(others) }()
	pgtest.Eventually(t, "the second member", func() bool { return second.Health().Joined },
		func() string { return fmt.Sprintf("%+v", second.Health()) })
	g.leave <- nil
	g.leave <- nil
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	stopOthers()
	if err := <-othersGone; err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		b.want(id, consumed(1))
	}
}
