package consumer

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// settle records outcomes again and again while the claims last.
func (c claiming) settle(ctx context.Context, items []*item) {
	tenures := make([]*tenure, len(items))
	for i, it := range items {
		tenures[i] = it.live
	}
	c.tenures.settle(tenures...)
	defer c.tenures.remove(tenures...)
	for try := 1; ; try++ {
		err := c.record(ctx, items)
		if err == nil {
			return
		}
		c.trouble(ctx, err)
		pause := backoff(databaseFirst, databaseLast, try)
		last := c.tenures.lasting(tenures).Add(c.tenures.margin()) // renewals go on
		if ctx.Err() != nil || time.Now().Add(pause).After(last) {
			break
		}
		pauseFor(ctx, pause)
	}
	// Whether the outcome is recorded, the row will say.
	for _, it := range items {
		if it.then == settling {
			it.wait(databaseFirst, WaitingDatabase)
		}
	}
}

// record tries once to record what is not recorded yet. A row that somebody has
// locked does not keep it from the others.
func (c *Consumer) record(ctx context.Context, items []*item) error {
	var finished, given []*item
	for _, it := range items {
		switch {
		case it.then != settling:
		case it.out.end == succeed:
			finished = append(finished, it)
		case it.out.end == handBack:
			given = append(given, it)
		}
	}
	locked := c.recordDone(ctx, finished)
	if locked != nil && !store.IsLocked(locked) {
		return locked
	}
	if err := c.recordHandBack(ctx, given); err != nil {
		return err
	}
	for _, it := range items {
		if it.then != settling {
			continue
		}
		if err := c.recordOther(ctx, it); err != nil && !store.IsLocked(err) {
			return err
		} else if err != nil {
			locked = err
		}
	}
	return locked
}

// recordOther records an outcome that needs a statement of its own.
func (c *Consumer) recordOther(ctx context.Context, it *item) error {
	switch it.out.end {
	case proved:
		return c.recordProof(ctx, it)
	case fail:
		return c.recordFailure(ctx, it, it.out)
	case release:
		return c.recordRelease(ctx, it, it.out)
	default:
		return nil
	}
}

func (c *Consumer) recordDone(ctx context.Context, items []*item) error {
	if len(items) == 0 {
		return nil
	}
	kept, err := c.memory.Done(ctx, heldBy(items))
	if len(items) > 1 && store.IsLocked(err) {
		return c.recordEach(ctx, items)
	}
	if err != nil {
		return err
	}
	ours := make(map[store.Held]bool, len(kept))
	for _, h := range kept {
		ours[h] = true
	}
	for _, it := range items {
		c.closed(it, ours[it.live.held], it.out.counted)
	}
	return nil
}

// recordEach is for a batch of which somebody has a row locked: the others are
// not to wait.
func (c *Consumer) recordEach(ctx context.Context, items []*item) error {
	var locked error
	for _, it := range items {
		if err := c.recordDone(ctx, []*item{it}); err != nil && !store.IsLocked(err) {
			return err
		} else if err != nil {
			locked = err
		}
	}
	return locked
}

func (c *Consumer) recordHandBack(ctx context.Context, items []*item) error {
	if len(items) == 0 {
		return nil
	}
	if err := c.memory.HandBack(ctx, heldBy(items)); err != nil {
		return err
	}
	for _, it := range items {
		it.wait(0, "")
	}
	return nil
}

// recordProof looks whether the transaction in which the handler ended the
// claim was committed.
func (c *Consumer) recordProof(ctx context.Context, it *item) error {
	states, err := c.memory.States(ctx, []store.Ref{it.ref()})
	if err != nil {
		return err
	}
	if states[0].Kind == store.Finished {
		c.closed(it, true, Consumed)
		return nil
	}
	o := c.again(it, store.CodeSystem, "the handler ended the claim in a transaction that was not committed", nil)
	if o.end == fail {
		return c.recordFailure(ctx, it, o)
	}
	return c.recordRelease(ctx, it, o)
}

func (c *Consumer) recordFailure(ctx context.Context, it *item, o outcome) error {
	ok, err := c.memory.Fail(ctx, store.Failure{Held: it.live.held, Code: o.code, Message: o.message})
	if err == nil {
		c.closed(it, ok, o.counted)
	}
	return err
}

func (c *Consumer) recordRelease(ctx context.Context, it *item, o outcome) error {
	ok, err := c.memory.Release(ctx, store.Release{Held: it.live.held, Delay: o.delay, Code: o.code, Message: o.message})
	if err != nil {
		return err
	}
	if !ok {
		c.closed(it, false, o.counted)
		return nil
	}
	c.opt.observer.Records(it.rec.Topic, o.counted, 1)
	it.wait(o.delay, WaitingDelay)
	return nil
}

// closed ends an item whose outcome is recorded, or whose claim turned out to
// be lost: what became of the event its row will say.
func (c *Consumer) closed(it *item, ours bool, counted Outcome) {
	if ours {
		it.then = done
		c.opt.observer.Records(it.rec.Topic, counted, 1)
		return
	}
	if _, known := c.tenures.standing(it.live); !known { // else the renewal has told
		c.opt.observer.ClaimLost()
	}
	c.log.Warn("an outcome was not recorded: the claim was lost", "event_id", it.ev.ID, "topic", it.rec.Topic,
		"partition", it.rec.Number, "offset", it.rec.Offset)
	it.wait(0, "")
}

func heldBy(items []*item) []store.Held {
	held := make([]store.Held, len(items))
	for i, it := range items {
		held[i] = it.live.held
	}
	return held
}

// pauseFor waits, or less if ctx ends.
func pauseFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
