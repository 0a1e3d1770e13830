package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// tenure is a claim of this process while it is relied on.
type tenure struct {
	held store.Held
	// until is when the process stops to believe in it, before the row does.
	until time.Time
	// wall is the same by the clock on the wall: the other one may stand still
	// while the machine sleeps.
	wall time.Time
	// settling: a statement that ends it is on its way, so a renewal that does
	// not find it means nothing.
	settling bool
	// lost: a renewal did not find it.
	lost bool
	// end ends the handler's context at until; nil before the handler runs.
	end    *time.Timer
	cancel context.CancelCauseFunc
}

// tenures are all claims of a process. They outlive generations of the group.
type tenures struct {
	lease time.Duration

	mu   sync.Mutex
	all  map[*tenure]struct{}
	busy map[outbox.ID]int // events whose handler runs
	// started is the generation under which an event's handler was started last,
	// until it is known what was recorded of that.
	started map[outbox.ID]int32
	// asking counts those parts of the process that ask for an event's claim: one
	// of them may have won it and not know yet.
	asking map[outbox.ID]int
}

func newTenures(lease time.Duration) *tenures {
	return &tenures{lease: lease, all: map[*tenure]struct{}{}, busy: map[outbox.ID]int{}, started: map[outbox.ID]int32{}, asking: map[outbox.ID]int{}}
}

// margin is how much earlier than the row's lease a handler's context ends.
func (ts *tenures) margin() time.Duration { return min(2*time.Second, ts.lease/3) }

// add begins a tenure whose claim was asked for at a time.
func (ts *tenures) add(held store.Held, asked time.Time) *tenure {
	t := &tenure{held: held}
	ts.believe(t, asked)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.all[t] = struct{}{}
	return t
}

// believe makes a tenure last for a lease that was asked for at a time.
func (ts *tenures) believe(t *tenure, asked time.Time) {
	t.until = asked.Add(ts.lease - ts.margin())
	t.wall = t.until.Round(0)
}

// remove ends tenures.
func (ts *tenures) remove(list ...*tenure) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range list {
		delete(ts.all, t)
	}
}

// run returns the context for the handler of an event, and a function to be
// called when it has returned. t is nil without a claim.
func (ts *tenures) run(parent context.Context, id outbox.ID, t *tenure) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.busy[id]++
	if t != nil {
		ts.started[id] = t.held.Generation
		t.cancel = cancel
		t.end = time.AfterFunc(time.Until(t.until), func() { cancel(ErrClaimLost) })
		if t.lost { // since it was looked at
			cancel(ErrClaimLost)
		}
	}
	return ctx, func() {
		ts.mu.Lock()
		defer ts.mu.Unlock()
		if t != nil {
			t.end.Stop()
			t.end, t.cancel = nil, nil
		}
		cancel(nil)
		if ts.busy[id]--; ts.busy[id] == 0 {
			delete(ts.busy, id)
		}
	}
}

// standing says whether a handler may start under t: usable while it is
// believed in, lost when somebody else has the event. Neither means that its
// renewal is overdue, as while the database is away.
func (ts *tenures) standing(t *tenure) (usable, lost bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	now := time.Now()
	return !t.lost && now.Before(t.until) && now.Round(0).Before(t.wall), t.lost
}

// runs reports whether a handler of the event runs in this process.
func (ts *tenures) runs(id outbox.ID) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.busy[id] > 0
}

// ask notes that the claims of events are asked for, until the function that it
// returns is called.
func (ts *tenures) ask(items []*item) (asked func()) {
	ts.count(items, 1)
	return func() { ts.count(items, -1) }
}

func (ts *tenures) count(items []*item, by int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, it := range items {
		if ts.asking[it.ev.ID] += by; ts.asking[it.ev.ID] == 0 {
			delete(ts.asking, it.ev.ID)
		}
	}
}

// known reports whether a part of the process other than the one that asks may
// rely on a claim: it holds it, or is about to; or it has started a handler under
// it, and what was recorded of that is not known.
func (ts *tenures) known(id outbox.ID, generation int32) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.started[id] == generation || ts.asking[id] > 1 {
		return true
	}
	for t := range ts.all {
		if t.held.EventID == id && t.held.Generation == generation {
			return true
		}
	}
	return false
}

// forget says that it is known what became of an event's claims up to a
// generation.
func (ts *tenures) forget(id outbox.ID, generation int32) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.started[id] <= generation {
		delete(ts.started, id)
	}
}

// settle marks tenures whose end is being written.
func (ts *tenures) settle(list ...*tenure) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range list {
		t.settling = true
	}
}

// lasting returns the latest time until which one of these is believed in.
func (ts *tenures) lasting(list []*tenure) time.Time {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	var last time.Time
	for _, t := range list {
		if t.until.After(last) {
			last = t.until
		}
	}
	return last
}

// list returns all tenures.
func (ts *tenures) list() []*tenure {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	list := make([]*tenure, 0, len(ts.all))
	for t := range ts.all {
		list = append(list, t)
	}
	return list
}

// renewed extends those of list that a statement sent at a time has renewed, and
// ends those that it did not find. Those whose rows are locked stay as they are:
// the client never believes longer than the row.
func (ts *tenures) renewed(list []*tenure, renewed, locked []store.Held, sent time.Time) (lost int) {
	extended := make(map[store.Held]bool, len(list))
	for _, h := range renewed {
		extended[h] = true
	}
	for _, h := range locked {
		extended[h] = false
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range list {
		yes, found := extended[t.held]
		_, still := ts.all[t]
		switch {
		case !still, !found && t.settling:
		case !found:
			delete(ts.all, t)
			t.lost = true
			if lost++; t.cancel != nil {
				t.cancel(ErrClaimLost)
			}
		case yes:
			ts.believe(t, sent)
			if t.end != nil {
				t.end.Reset(time.Until(t.until))
			}
		}
	}
	return lost
}

// renewChunk is how many claims one statement renews.
const renewChunk = 1000

// renewEvery is the time between two renewals, and what one may take at most.
func (c *Consumer) renewEvery() time.Duration { return c.opt.lease / 3 }

// renew renews all claims every third of the lease until ctx ends.
func (c *Consumer) renew(ctx context.Context) {
	tick := time.NewTicker(c.renewEvery())
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for list := c.tenures.list(); len(list) > 0; {
			n := min(renewChunk, len(list))
			c.renewSome(ctx, list[:n])
			list = list[n:]
		}
	}
}

func (c *Consumer) renewSome(ctx context.Context, list []*tenure) {
	held := make([]store.Held, len(list))
	for i, t := range list {
		held[i] = t.held
	}
	sent := time.Now()
	bounded, cancel := context.WithTimeout(ctx, c.renewEvery()) // a dead connection must not cost all claims
	defer cancel()
	renewed, locked, err := c.renewer.Renew(bounded, held)
	if err != nil {
		c.opt.observer.Renewed(false, len(list))
		c.trouble(ctx, err)
		return
	}
	lost := c.tenures.renewed(list, renewed, locked, sent)
	c.opt.observer.Renewed(true, len(renewed))
	if lost > 0 {
		c.opt.observer.Renewed(false, lost)
		for range lost {
			c.opt.observer.ClaimLost()
		}
		c.log.Warn("claims are lost: their leases ran out", "claims", lost)
	}
}
