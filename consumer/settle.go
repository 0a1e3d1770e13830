package consumer

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// settle records outcomes again and again while the claims last. Those whose rows
// somebody has locked come back as they were, for others not to wait.
func (c claiming) settle(ctx context.Context, items []*item) {
	tenures := make([]*tenure, len(items))
	for i, it := range items {
		tenures[i] = it.live
	}
	c.tenures.settle(tenures...)
	for try := 1; ; try++ {
		for _, it := range items {
			it.repeated = try > 1
		}
		err := c.recordWithin(ctx, items)
		if err == nil {
			break
		}
		c.trouble(ctx, err)
		pause := backoff(databaseFirst, databaseLast, try)
		last := c.tenures.lasting(tenures).Add(c.tenures.margin()) // renewals go on
		if ctx.Err() != nil || time.Now().Add(pause).After(last) {
			break
		}
		pauseFor(ctx, pause)
	}
	for _, it := range items {
		switch it.then {
		case ended: // later
			continue
		case settling: // whether the outcome is recorded, the row will say
			it.wait(databaseFirst, WaitingDatabase)
			if it.out.end == handBack { // nothing was started, so nobody relies on the claim
				it.unsure = true
				c.tenures.forget(it.ev.ID, it.live.held.Generation)
			}
		default:
			c.tenures.forget(it.ev.ID, it.live.held.Generation)
		}
		c.tenures.remove(it.live)
	}
}

// recordWithin bounds a try: a connection may be dead without anybody knowing.
func (c *Consumer) recordWithin(ctx context.Context, items []*item) error {
	ctx, cancel := context.WithTimeout(ctx, c.opt.statementWait)
	defer cancel()
	return c.record(ctx, items)
}

// record tries once to record what is not recorded yet.
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
	if err := c.recordDone(ctx, finished); err != nil {
		return err
	}
	if err := c.recordHandBack(ctx, given); err != nil {
		return err
	}
	for _, it := range items {
		if it.then != settling {
			continue
		}
		if err := c.recordOther(ctx, it); store.IsLocked(err) {
			it.locked()
		} else if err != nil {
			return err
		}
	}
	return nil
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
	kept, locked, err := c.memory.DoneNow(ctx, heldBy(items))
	if err != nil {
		return err
	}
	ours := make(map[store.Held]bool, len(items))
	for _, h := range kept {
		ours[h] = true
	}
	for _, h := range locked {
		ours[h] = false
	}
	for _, it := range items {
		recorded, found := ours[it.live.held]
		if found && !recorded {
			it.locked()
		} else if err := c.closed(ctx, it, recorded, it.out); err != nil {
			return err
		}
	}
	return nil
}

func (c *Consumer) recordHandBack(ctx context.Context, items []*item) error {
	if len(items) == 0 {
		return nil
	}
	err := c.memory.HandBack(ctx, heldBy(items))
	if err != nil && !store.IsLocked(err) {
		return err
	}
	for _, it := range items {
		if err == nil {
			it.wait(0, "")
		} else {
			it.locked()
		}
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
	if s := states[0]; s.Kind == store.Finished && s.Generation == it.live.held.Generation {
		return c.closed(ctx, it, true, outcome{end: succeed, counted: Consumed})
	}
	o := c.again(it, store.CodeSystem, "the handler ended the claim in a transaction that was not committed", nil)
	if o.end == fail {
		return c.recordFailure(ctx, it, o)
	}
	return c.recordRelease(ctx, it, o)
}

func (c *Consumer) recordFailure(ctx context.Context, it *item, o outcome) error {
	ok, err := c.memory.Fail(ctx, store.Failure{Held: it.live.held, Code: o.code, Message: o.message})
	if err != nil {
		return err
	}
	return c.closed(ctx, it, ok, o)
}

func (c *Consumer) recordRelease(ctx context.Context, it *item, o outcome) error {
	ok, err := c.memory.Release(ctx, store.Release{Held: it.live.held, Delay: o.delay, Code: o.code, Message: o.message})
	if err != nil {
		return err
	}
	return c.closed(ctx, it, ok, o)
}

// closed ends an item whose outcome is recorded, or whose claim turned out to be
// lost: what became of the event its row will say.
func (c *Consumer) closed(ctx context.Context, it *item, ours bool, o outcome) error {
	if !ours && it.repeated {
		var err error
		if ours, err = c.recordedBefore(ctx, it); err != nil {
			return err
		}
	}
	switch {
	case ours && o.end == release:
		c.opt.observer.Records(it.rec.Topic, o.counted, 1)
		it.wait(min(o.delay, delayLook), WaitingDelay)
	case ours:
		it.then = done
		c.opt.observer.Records(it.rec.Topic, o.counted, 1)
	default:
		if _, known := c.tenures.standing(it.live); !known { // else the renewal has told
			c.opt.observer.ClaimLost()
		}
		c.log.Warn("an outcome was not recorded: the claim was lost", "event_id", it.ev.ID, "topic", it.rec.Topic,
			"partition", it.rec.Number, "offset", it.rec.Offset)
		it.wait(0, "")
	}
	return nil
}

// recordedBefore looks whether an earlier try, whose answer was lost, has ended
// the claim: it is still the last one, and nobody holds it.
func (c *Consumer) recordedBefore(ctx context.Context, it *item) (bool, error) {
	states, err := c.memory.States(ctx, []store.Ref{it.ref()})
	if err != nil {
		return false, err
	}
	s := states[0]
	return s.Generation == it.live.held.Generation && s.Kind != store.Live && s.Kind != store.Abandoned && s.Kind != store.Missing, nil
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
