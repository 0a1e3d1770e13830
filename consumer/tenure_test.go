package consumer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func held(n int32) store.Held {
	return store.Held{Ref: store.Ref{RowID: int64(n), EventID: outbox.ID{15: byte(n)}}, Generation: n}
}

// TestHandlerEndsBeforeTheLease: the client never believes longer than the row,
// however long the statement took.
func TestHandlerEndsBeforeTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ts := newTenures(30 * time.Second)
		asked := time.Now()
		<-time.After(5 * time.Second) // the answer takes that long
		tn := ts.add(held(1), asked)
		ctx, end := ts.run(t.Context(), held(1).EventID, tn)
		defer end()
		<-ctx.Done()
		if got := time.Since(asked); got != 28*time.Second {
			t.Errorf("the handler ended %v after the claim was asked for, want 28s", got)
		}
		if !errors.Is(context.Cause(ctx), ErrClaimLost) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
	})
}

func TestRenewalExtends(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ts := newTenures(30 * time.Second)
		start := time.Now()
		tn := ts.add(held(1), start)
		ctx, end := ts.run(t.Context(), held(1).EventID, tn)
		defer end()
		<-time.After(20 * time.Second)
		if lost := ts.renewed(ts.list(), []store.Held{held(1)}, nil, time.Now()); lost != 0 {
			t.Fatalf("%d lost", lost)
		}
		<-ctx.Done()
		if got := time.Since(start); got != 48*time.Second {
			t.Errorf("the handler ended after %v, want 48s", got)
		}
	})
}

func TestLostClaimEndsItsHandler(t *testing.T) {
	t.Parallel()
	ts := newTenures(30 * time.Second)
	mine, other := ts.add(held(1), time.Now()), ts.add(held(2), time.Now())
	ctx, end := ts.run(t.Context(), held(1).EventID, mine)
	defer end()
	if lost := ts.renewed(ts.list(), []store.Held{held(2)}, nil, time.Now()); lost != 1 {
		t.Fatalf("%d lost", lost)
	}
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), ErrClaimLost) {
		t.Errorf("cause %v", context.Cause(ctx))
	}
	if usable, lost := ts.standing(mine); usable || !lost {
		t.Errorf("the lost claim: usable %v, lost %v", usable, lost)
	}
	if usable, lost := ts.standing(other); !usable || lost {
		t.Errorf("the other claim: usable %v, lost %v", usable, lost)
	}
}

// TestSettlingIsNotLost: a renewal that does not find a claim whose end is being
// written means nothing.
func TestSettlingIsNotLost(t *testing.T) {
	t.Parallel()
	ts := newTenures(30 * time.Second)
	tn := ts.add(held(1), time.Now())
	ts.settle(tn)
	if lost := ts.renewed(ts.list(), nil, nil, time.Now()); lost != 0 {
		t.Fatalf("%d lost", lost)
	}
	ts.remove(tn)
	if len(ts.list()) != 0 {
		t.Error("a removed claim is still renewed")
	}
}

// TestOverdueClaimDoesNotStart: neither usable nor lost, as while the database
// is away.
func TestOverdueClaimDoesNotStart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ts := newTenures(30 * time.Second)
		tn := ts.add(held(1), time.Now())
		<-time.After(28 * time.Second)
		if usable, lost := ts.standing(tn); usable || lost {
			t.Fatalf("usable %v, lost %v", usable, lost)
		}
		ts.renewed(ts.list(), []store.Held{held(1)}, nil, time.Now())
		if usable, _ := ts.standing(tn); !usable {
			t.Error("not usable after a renewal")
		}
	})
}

// TestLockedRowIsNotExtended: a claim whose row somebody has locked is neither
// lost nor believed in for longer.
func TestLockedRowIsNotExtended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ts := newTenures(30 * time.Second)
		start := time.Now()
		tn := ts.add(held(1), start)
		ctx, end := ts.run(t.Context(), held(1).EventID, tn)
		defer end()
		<-time.After(20 * time.Second)
		if lost := ts.renewed(ts.list(), nil, []store.Held{held(1)}, time.Now()); lost != 0 {
			t.Fatalf("%d lost", lost)
		}
		<-ctx.Done()
		if got := time.Since(start); got != 28*time.Second {
			t.Errorf("the handler ended after %v, want 28s", got)
		}
	})
}

// TestClaimLostBeforeItsHandlerRuns: between the look at it and the start.
func TestClaimLostBeforeItsHandlerRuns(t *testing.T) {
	t.Parallel()
	ts := newTenures(30 * time.Second)
	tn := ts.add(held(1), time.Now())
	ts.renewed(ts.list(), nil, nil, time.Now())
	ctx, end := ts.run(t.Context(), held(1).EventID, tn)
	defer end()
	if !errors.Is(context.Cause(ctx), ErrClaimLost) {
		t.Errorf("cause %v", context.Cause(ctx))
	}
}

func TestRuns(t *testing.T) {
	t.Parallel()
	ts := newTenures(30 * time.Second)
	id := outbox.NewID()
	_, first := ts.run(t.Context(), id, nil)
	_, second := ts.run(t.Context(), id, nil)
	for i, want := range []bool{true, true, false} {
		if got := ts.runs(id); got != want {
			t.Fatalf("after %d ends: runs %v", i, got)
		}
		if i == 0 {
			first()
		} else if i == 1 {
			second()
		}
	}
}

func TestMarginOfShortLeases(t *testing.T) {
	t.Parallel()
	for lease, want := range map[time.Duration]time.Duration{
		30 * time.Second: 2 * time.Second, 6 * time.Second: 2 * time.Second, 3 * time.Second: time.Second,
	} {
		if got := newTenures(lease).margin(); got != want {
			t.Errorf("lease %v: %v, want %v", lease, got, want)
		}
	}
}

// TestSuspendedMachine: while a machine sleeps, or its hypervisor stops it, the
// monotonic clock may stand still. Awake again, no handler starts under a claim
// whose lease is over, until a renewal tells whose it is. A clock that is set back
// proves nothing.
func TestSuspendedMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			asleep time.Duration
			want   bool
		}{{0, true}, {28*time.Second - 1, true}, {28 * time.Second, false}, {time.Hour, false}, {-time.Hour, true}} {
			ts := newTenures(30 * time.Second)
			tn := ts.add(held(1), time.Now())
			tn.wall = tn.wall.Add(-c.asleep)
			if usable, lost := ts.standing(tn); usable != c.want || lost {
				t.Errorf("after a sleep of %v: usable %v, lost %v", c.asleep, usable, lost)
			}
			ts.renewed(ts.list(), []store.Held{held(1)}, nil, time.Now())
			if usable, _ := ts.standing(tn); !usable {
				t.Errorf("after a sleep of %v and a renewal: not usable", c.asleep)
			}
		}
	})
}
