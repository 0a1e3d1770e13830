package consumer

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// memory is all that a line asks of where claims are kept.
type memory interface {
	keeper
	Claim(ctx context.Context, refs []store.Ref) ([]store.Claim, error)
	TakeOver(ctx context.Context, ref store.Ref) (c store.Claim, parked, ok bool, err error)
	States(ctx context.Context, refs []store.Ref) ([]store.State, error)
	DoneNow(ctx context.Context, held []store.Held) (kept, locked []store.Held, err error)
	HandBack(ctx context.Context, held []store.Held) error
}

// renewer extends claims.
type renewer interface {
	Renew(ctx context.Context, held []store.Held) (renewed, locked []store.Held, err error)
}

// Waits between two looks at a row.
const (
	soon          = 10 * time.Millisecond
	ownWait       = 100 * time.Millisecond // for a handler of this process
	liveWait      = 2 * time.Second        // for one of another
	notSentFirst  = time.Second
	notSentLast   = 30 * time.Second
	missingPause  = 2 * time.Second
	databaseFirst = 100 * time.Millisecond
	databaseLast  = 5 * time.Second
	blockedWait   = 30 * time.Second
	delayLook     = 30 * time.Second // at a delayed one: a person may have changed it
	lockedWait    = time.Second      // for an outcome whose row somebody has locked
	// slowWait is when a statement counts as trouble to people.
	slowWait = time.Second
)

// claiming is the engine of handlers that run under a claim.
type claiming struct{ *Consumer }

// acquire claims the events of a chunk with as few statements as it can.
func (c claiming) acquire(ctx context.Context, items []*item) {
	ctx, cancel := context.WithTimeout(ctx, c.opt.statementWait)
	defer cancel()
	defer c.tenures.ask(items)()
	rest, err := c.claim(ctx, items)
	if err == nil && len(rest) > 0 {
		if err = c.explain(ctx, rest, c.decide); err == nil {
			err = c.claimFree(ctx, rest)
		}
	}
	if err != nil {
		c.putOff(items, err)
	}
}

// putOff sets aside the items about which the database did not answer.
func (c *Consumer) putOff(items []*item, err error) {
	c.trouble(c.working, err)
	for _, it := range items {
		if it.then == acquiring {
			it.unsure = true // the claim may have been won
			it.look(databaseTrouble)
			it.wait(backoff(databaseFirst, databaseLast, it.tries), WaitingDatabase)
		}
	}
}

// databaseTrouble counts, in item.look, the tries that the database did not
// answer.
const databaseTrouble store.Kind = -1

// claim returns the items that were not claimed.
func (c *Consumer) claim(ctx context.Context, items []*item) ([]*item, error) {
	refs := make([]store.Ref, len(items))
	for i, it := range items {
		refs[i] = it.ref()
	}
	before := time.Now()
	claims, err := c.memory.Claim(ctx, refs)
	if err != nil {
		return nil, err
	}
	c.opt.observer.Claimed(time.Since(before))
	won := make(map[outbox.ID]store.Claim, len(claims))
	for _, claim := range claims {
		won[claim.EventID] = claim
	}
	rest := items[:0:0]
	for _, it := range items {
		if claim, ok := won[it.ev.ID]; ok {
			c.hold(it, claim, before)
		} else {
			rest = append(rest, it)
		}
	}
	return rest, nil
}

// hold makes an item ready under a claim that was asked for at a time.
func (c *Consumer) hold(it *item, claim store.Claim, asked time.Time) {
	it.then, it.tries, it.unsure = ready, 0, false
	it.claim = newClaim(claim, c.memory)
	it.live = c.tenures.add(claim.Held(), asked)
	it.ev.Claim, it.ev.Attempt, it.ev.Ambiguous = it.claim, claim.Attempts+1, claim.Ambiguous()
	c.misses.hit()
}

// explain reads why events could not be claimed, and acts on it.
func (c *Consumer) explain(ctx context.Context, items []*item, decide func(context.Context, *item, store.State) error) error {
	refs := make([]store.Ref, len(items))
	for i, it := range items {
		refs[i] = it.ref()
	}
	states, err := c.memory.States(ctx, refs)
	if err != nil {
		return err
	}
	for i, it := range items {
		if err := decide(ctx, it, states[i]); err != nil {
			return err
		}
	}
	return nil
}

// claimFree claims once more what could have been claimed a moment ago. What
// cannot be even now is locked by somebody, and comes again.
func (c claiming) claimFree(ctx context.Context, items []*item) error {
	var free []*item
	for _, it := range items {
		if it.then == acquiring {
			free = append(free, it)
		}
	}
	if len(free) == 0 {
		return nil
	}
	rest, err := c.claim(ctx, free)
	if err != nil {
		return err
	}
	for _, it := range rest {
		it.look(store.Free)
		it.wait(backoff(soon, liveWait, it.tries), it.claimedElsewhere())
	}
	return nil
}

// decide is the table of what 0 rows of a claim mean.
func (c *Consumer) decide(ctx context.Context, it *item, s store.State) error {
	if s.Kind != store.Missing {
		c.misses.hit()
	}
	if claimed := s.Kind == store.Live || s.Kind == store.Abandoned; !claimed || s.ClaimedBy != c.owner {
		c.tenures.forget(it.ev.ID, s.Generation)
	}
	if c.unknowing(it, s) {
		return c.giveUp(ctx, it, s)
	}
	switch s.Kind {
	case store.Free: // claimed once more, with all others of the chunk
	case store.Delayed:
		c.count(it, Deferred)
		it.wait(min(s.Left, delayLook), WaitingDelay)
	case store.Live:
		it.look(store.Live)
		c.count(it, Deferred)
		if c.tenures.runs(it.ev.ID) {
			it.wait(ownWait, WaitingClaim)
		} else {
			it.wait(max(soon, min(s.Left, liveWait)), WaitingClaim)
		}
	case store.Abandoned:
		return c.takeOver(ctx, it)
	case store.NotSent:
		c.notSent(it)
	case store.Finished:
		it.then = done
		c.count(it, Duplicate)
	case store.Unpublished:
		it.reject(store.ReasonStateConflict, "the row is FAILED before it was published")
	default:
		return c.missing(ctx, it)
	}
	return nil
}

// unknowing reports whether the event is held by a claim of this process that
// nobody here knows of: the statement that won it had no answer. It may also be
// that of another line, of an earlier generation of the group or of a partition
// that has the event, too, or of a retry from the quarantine.
func (c *Consumer) unknowing(it *item, s store.State) bool {
	return it.unsure && (s.Kind == store.Live || s.Kind == store.Abandoned) && s.ClaimedBy == c.owner &&
		!c.tenures.known(it.ev.ID, s.Generation)
}

// giveUp hands back a claim under which nothing was started: otherwise the event
// would look as if an attempt had ended without an outcome.
func (c *Consumer) giveUp(ctx context.Context, it *item, s store.State) error {
	if err := c.memory.HandBack(ctx, []store.Held{{Ref: it.ref(), Generation: s.Generation}}); err != nil {
		return err
	}
	it.unsure = false
	it.wait(0, "")
	return nil
}

// takeOver takes a claim whose lease is over, unless its handler still runs
// here: it may ignore its context, and one event has one handler at a time.
func (c *Consumer) takeOver(ctx context.Context, it *item) error {
	if c.tenures.runs(it.ev.ID) {
		it.wait(ownWait, WaitingClaim)
		return nil
	}
	before := time.Now()
	claim, parked, ok, err := c.memory.TakeOver(ctx, it.ref())
	switch {
	case err != nil:
		return err
	case parked:
		it.then = done
		c.count(it, FailedSystem)
		c.log.Error("the event is FAILED: its attempts end without an outcome, as their processes die", "event_id", it.ev.ID,
			"topic", it.rec.Topic, "partition", it.rec.Number, "offset", it.rec.Offset, "code", store.CodeAbandoned)
	case ok:
		c.hold(it, claim, before)
	default: // taken by another, or locked
		it.look(store.Abandoned)
		it.wait(backoff(soon, liveWait, it.tries), it.claimedElsewhere())
	}
	return nil
}

// notSent waits for the relay, without limit.
func (c *Consumer) notSent(it *item) {
	waited := it.look(store.NotSent)
	c.count(it, NotSentYet)
	if waited < c.opt.notSentWait {
		it.wait(min(backoff(soon, c.opt.notSentWait, it.tries), max(soon, c.opt.notSentWait-waited)), "")
		return
	}
	it.wait(min(notSentLast, max(notSentFirst, waited/2)), WaitingNotSent)
}

const missingMessage = "no row has this id and event id"

// missing waits for a row that may not be visible yet, then gives the record up
// to the quarantine, unless the records around it have no rows either.
func (c *Consumer) missing(ctx context.Context, it *item) error {
	it.look(store.Missing)
	age := it.lent.Sub(it.since) // as of the question: its answer may have taken long
	c.misses.miss(it.ev.ID)
	if age < c.opt.missingWait {
		it.wait(min(backoff(soon, missingPause, it.tries), max(soon, c.opt.missingWait-age)), WaitingMissing)
		return nil
	}
	if err := c.lookAround(ctx, it); err != nil {
		return err
	}
	if c.misses.tooMany() {
		it.wait(blockedWait, BlockedWrongDatabase)
	} else {
		it.reject(store.ReasonMissing, missingMessage)
	}
	return nil
}

// lookAround asks for the events behind one that is missing.
func (c *Consumer) lookAround(ctx context.Context, it *item) error {
	if len(it.behind) == 0 {
		return nil
	}
	states, err := c.memory.States(ctx, it.behind)
	if err != nil {
		return err
	}
	for i, s := range states {
		if s.Kind == store.Missing {
			c.misses.miss(it.behind[i].EventID)
		} else {
			c.misses.hit()
		}
	}
	return nil
}

// count tells the Observer, once for each outcome in a row.
func (c *Consumer) count(it *item, o Outcome) {
	if it.countedAs != o {
		it.countedAs = o
		c.opt.observer.Records(it.rec.Topic, o, 1)
	}
}
