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

// checked is a world with two events of one key, that are SENT, and processes
// that do nothing by themselves.
type checked struct {
	*modelWorld
	p, q *modelProcess
}

func newChecked() *checked {
	c := &checked{modelWorld: newModelWorld(modelProgram{Setup: modelSetup{Concurrency: 1, Lease: 30, MaxAttempts: 3}})}
	for _, to := range []**modelProcess{&c.p, &c.q} {
		*to = &modelProcess{w: c.modelWorld, owner: string(rune('p' + len(c.all))), random: c.newRandom(), dead: make(chan struct{})}
		c.all = append(c.all, *to)
	}
	c.insert(0, 2, nil, 0, 0)
	elapse(time.Minute)
	synctest.Wait()
	return c
}

func (c *checked) story(n int) *modelStory { return c.stories[c.events[n]] }
func (c *checked) row(n int) *modelRow     { return c.table.rows[c.events[n]] }

// claim claims an event for a process.
func (c *checked) claim(p *modelProcess, n int) store.Held {
	won := c.table.claim(p.owner, []store.Ref{{EventID: c.events[n]}})
	c.claimed(p, won[0].Held())
	return won[0].Held()
}

// start starts a handler under a claim.
func (c *checked) start(ctx context.Context, p *modelProcess, h store.Held, doubt bool) *modelAttempt {
	won := store.Claim{Ref: h.Ref, Generation: h.Generation}
	a, _ := c.began(p, ctx, &Event{ID: h.EventID, Attempt: c.table.rows[h.EventID].attempts + 1, Ambiguous: doubt, Claim: &Claim{won: won}})
	return a
}

// consume does all of that, and ends it well.
func (c *checked) consume(p *modelProcess, n int) {
	h := c.claim(p, n)
	c.returned(c.start(context.Background(), p, h, false), nil, false)
	c.table.doneNow([]store.Held{h})
	c.done(p, h)
}

// expire lets the lease of an event end.
func (c *checked) expire(n int) { c.row(n).lease = c.table.clock().Add(-time.Second) }

func (c *checked) takeOver(p *modelProcess, n int) store.Held {
	won, parked, ok := c.table.takeOver(p.owner, store.Ref{EventID: c.events[n]})
	c.takenOver(p, modelTaken{won, parked, ok})
	return won.Held()
}

// TestModelChecker shows that each rule of TestModel can be broken.
func TestModelChecker(t *testing.T) {
	t.Parallel()
	ctx, over := context.Background(), func() context.Context {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(ErrClaimLost)
		return ctx
	}()
	broken := errors.New("broken")
	end := func(c *checked, err error) store.Held {
		h := c.claim(c.p, 0)
		c.returned(c.start(ctx, c.p, h, false), err, false)
		return h
	}
	for _, test := range []struct {
		name string
		do   func(c *checked)
		want string // rule; empty: nothing is wrong
	}{
		{"all is well", func(c *checked) { c.consume(c.p, 0); c.consume(c.p, 1); c.committing(0, 2) }, ""},
		{"an offset past a SENT row", func(c *checked) { c.committing(0, c.story(0).first+1) }, "K1"},
		{"an offset past a replayed row", func(c *checked) {
			c.consume(c.p, 0)
			c.left(c.story(0), c.row(0))
			c.row(0).status = outbox.Ready
			elapse(time.Second)
			c.append(c.story(0))
			c.committing(0, c.logs[0].end)
		}, "K1"},
		{"a quarantined record", func(c *checked) {
			c.remove(0)
			c.keep(store.Record{Offset: c.story(0).first, Reason: store.ReasonMissing, EventID: c.events[0]})
			c.committing(0, c.story(0).first+1)
		}, ""},
		{"a record that is quarantined although there is a row", func(c *checked) {
			c.keep(store.Record{Offset: c.story(0).first, Reason: store.ReasonMissing, EventID: c.events[0]})
		}, "K4"},
		{"a quarantined record is resolved without an outcome", func(c *checked) {
			c.retried(&modelKept{Stored: store.Stored{Record: store.Record{EventID: c.events[0]}}})
		}, "K4"},
		{"a handler without a claim", func(c *checked) { h := c.claim(c.p, 0); h.Generation++; c.start(ctx, c.p, h, false) }, "K2"},
		{"a handler whose lease is over", func(c *checked) { h := c.claim(c.p, 0); c.expire(0); c.start(ctx, c.p, h, false) }, "K2"},
		{"a handler that is told to end at once", func(c *checked) { h := c.claim(c.p, 0); c.expire(0); c.start(over, c.p, h, false) }, ""},
		{"two handlers in a process", func(c *checked) { h := c.claim(c.p, 0); c.start(over, c.p, h, false); c.start(over, c.p, h, false) }, "K2"},
		{"a take-over while the handler runs", func(c *checked) { c.start(ctx, c.p, c.claim(c.p, 0), false); c.expire(0); c.takeOver(c.q, 0) }, "K2"},
		{"a take-over after the handler was told to end", func(c *checked) { c.start(over, c.p, c.claim(c.p, 0), false); c.expire(0); c.takeOver(c.q, 0) }, ""},
		{"a take-over in the same process, after the handler was told to end", func(c *checked) {
			c.start(over, c.p, c.claim(c.p, 0), false)
			c.expire(0)
			c.takeOver(c.p, 0)
		}, "K2"},
		{"a take-over after the process died", func(c *checked) {
			c.start(ctx, c.p, c.claim(c.p, 0), false)
			c.p.over = true
			c.expire(0)
			c.start(ctx, c.q, c.takeOver(c.q, 0), true)
		}, ""},
		{"two handlers of a key", func(c *checked) {
			c.start(ctx, c.p, c.claim(c.p, 0), false)
			c.row(0).status = outbox.Consumed
			c.start(ctx, c.q, c.claim(c.q, 1), false)
		}, "K7"},
		{"out of order", func(c *checked) { c.start(ctx, c.p, c.claim(c.p, 1), false) }, "K7"},
		{"out of order in another process", func(c *checked) { end(c, nil); c.start(ctx, c.q, c.claim(c.q, 1), false) }, "K7"},
		{"behind one whose outcome is on its way", func(c *checked) { end(c, nil); c.start(ctx, c.p, c.claim(c.p, 1), false) }, ""},
		{"behind one that is to be repeated", func(c *checked) { end(c, broken); c.start(ctx, c.p, c.claim(c.p, 1), false) }, "K7"},
		{"before its time", func(c *checked) { c.story(0).notBefore = c.table.clock().Add(time.Second); end(c, nil) }, "delay"},
		{"a wrong number of attempts", func(c *checked) {
			h := c.claim(c.p, 0)
			c.began(c.p, ctx, &Event{ID: h.EventID, Attempt: 2, Claim: &Claim{won: store.Claim{Ref: h.Ref, Generation: 1}}})
		}, "attempts"},
		{"doubt that is not told", func(c *checked) {
			h := c.claim(c.p, 0)
			c.row(0).code = store.CodeAbandoned
			c.start(ctx, c.p, h, false)
		}, "attempts"},
		{"a repetition that the policy does not want", func(c *checked) {
			c.setup.Policy = policyHold
			h := c.claim(c.p, 0)
			c.row(0).code = store.CodeAbandoned
			c.start(ctx, c.p, h, true)
		}, "policy"},
		{"CONSUMED without a handler", func(c *checked) { c.done(c.p, c.claim(c.p, 0)) }, "outcome"},
		{"CONSUMED after a failure", func(c *checked) { c.done(c.p, end(c, broken)) }, "outcome"},
		{"ended by another process", func(c *checked) { c.done(c.q, end(c, nil)) }, "K3"},
		{"handed back", func(c *checked) { c.handedBack(c.p, []store.Held{c.claim(c.p, 0)}) }, ""},
		{"handed back after the start", func(c *checked) { c.handedBack(c.p, []store.Held{end(c, nil)}) }, "outcome"},
		{"FAILED with the wrong code", func(c *checked) {
			c.failed(c.p, store.Failure{Held: end(c, DataError("APP_BAD", broken)), Code: store.CodeSystem})
		}, "outcome"},
		{"FAILED with the handler's code", func(c *checked) {
			c.failed(c.p, store.Failure{Held: end(c, DataError("APP_BAD", broken)), Code: "APP_BAD"})
		}, ""},
		{"FAILED too early", func(c *checked) { c.failed(c.p, store.Failure{Held: end(c, broken), Code: store.CodeSystem}) }, "outcome"},
		{"released", func(c *checked) {
			c.released(c.p, store.Release{Held: end(c, broken), Code: store.CodeSystem, Delay: modelRetryDelay(1)})
		}, ""},
		{"released for too long", func(c *checked) {
			c.released(c.p, store.Release{Held: end(c, broken), Code: store.CodeSystem, Delay: time.Hour})
		}, "outcome"},
		{"released after the last attempt", func(c *checked) {
			c.row(0).attempts = 2
			c.released(c.p, store.Release{Held: end(c, broken), Code: store.CodeSystem, Delay: modelRetryDelay(3)})
		}, "outcome"},
		{"released after a success", func(c *checked) {
			c.released(c.p, store.Release{Held: end(c, nil), Code: store.CodeSystem, Delay: modelRetryDelay(1)})
		}, "outcome"},
		{"a process that does not stop", func(c *checked) { c.p.stop = func() {}; c.p.end(); elapse(time.Hour); close(c.p.dead) }, "stop"},
		{"left SENT", func(c *checked) {
			c.consume(c.p, 0)
			c.group.committed = [2]int64{c.logs[0].end, c.logs[1].end}
			c.atEnd()
		}, "end"},
		{"an offset is left behind", func(c *checked) { c.consume(c.p, 0); c.consume(c.p, 1); c.atEnd() }, "end"},
		{"FAILED for no reason", func(c *checked) {
			c.consume(c.p, 0)
			c.row(1).status = outbox.Failed
			c.group.committed = [2]int64{c.logs[0].end, c.logs[1].end}
			c.atEnd()
		}, "end"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c := newChecked()
				test.do(c)
				if got := c.violations(); len(got) == 0 != (test.want == "") || len(got) > 0 && got[0].Rule != test.want {
					t.Errorf("broken: %v, want %q", got, test.want)
				}
			})
		})
	}
}
