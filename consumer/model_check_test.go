package consumer

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// modelStory is what the checker knows of an event. It is guarded by the
// world's lock.
type modelStory struct {
	event   outbox.ID
	row     int64
	key     string
	part    int
	first   int64 // offset of its first record; negative: none yet
	script  []modelDeed
	deleted bool

	exempted  string // why its place in the order is not checked; empty: it is
	attempts  []*modelAttempt
	claims    map[int32]string // who won which generation
	doubtful  []string         // processes that won it in doubt
	effect    bool             // a handler has had its effect
	present   []int32          // generations that a query told about it
	absent    []int32          // and those that it told about no effect
	notBefore time.Time        // the delay that was asked for last, by the database's clock
	outcome   time.Time        // when it was seen to have its outcome last, although it has none now
}

// exempt takes the event out of the check of the order.
func (s *modelStory) exempt(why string) {
	if s.exempted == "" {
		s.exempted = why
	}
}

// attempt returns the one under a claim, nil if there was none.
func (s *modelStory) attempt(generation int32) *modelAttempt {
	for _, a := range s.attempts {
		if a.generation == generation {
			return a
		}
	}
	return nil
}

// left notes that an event with an outcome is about to have none any more. The
// lock is held.
func (w *modelWorld) left(s *modelStory, row *modelRow) {
	if w.table.settled(row) {
		s.outcome = time.Now()
	}
}

// settled reports whether an event has had an outcome at some time since then.
// The lock is held.
func (w *modelWorld) settled(s *modelStory, since time.Time) bool {
	if row := w.table.rows[s.event]; row != nil && w.table.settled(row) {
		return true
	}
	return !s.outcome.IsZero() && !s.outcome.Before(since)
}

// inQuarantine reports whether a record is there. The lock is held.
func (w *modelWorld) inQuarantine(part int, offset int64) bool {
	return slices.ContainsFunc(w.kept, func(k *modelKept) bool { return k.Partition == part && k.Offset == offset })
}

// committing checks an offset that is about to be committed (K1). The lock is
// held.
func (w *modelWorld) committing(part int, offset int64) {
	assigned := w.group.assigned[part]
	for _, rec := range w.logs[part].records {
		if rec.Offset < assigned.from || rec.Offset >= offset || w.inQuarantine(part, rec.Offset) {
			continue
		}
		since := rec.at
		if assigned.at.After(since) {
			since = assigned.at
		}
		s := w.stories[rec.event]
		if s == nil || !w.settled(s, since) {
			w.violated("K1", "offset %d of %d is past the record at %d, which has no outcome", offset, part, rec.Offset)
		}
	}
}

// claimed notes a claim that was won. The lock is held.
func (w *modelWorld) claimed(p *modelProcess, h store.Held) {
	s := w.stories[h.EventID]
	s.claims[h.Generation] = p.owner
	if code := w.table.rows[s.event].code; code == store.CodeAbandoned || code == store.CodeAmbiguous {
		s.doubtful = append(s.doubtful, p.owner)
	}
	w.trace("%s claims %d, generation %d", p.owner, s.row, h.Generation)
}

// takenOver checks a take-over (K2): the one before has had to end, as far as it
// could hear. The lock is held.
func (w *modelWorld) takenOver(p *modelProcess, taken modelTaken) {
	s := w.stories[taken.won.EventID]
	w.trace("%s takes over %d, generation %d, parked %v", p.owner, s.row, taken.won.Generation, taken.parked)
	if !taken.parked {
		w.claimed(p, taken.won.Held())
	}
	for _, a := range s.attempts {
		if a.ended {
			continue
		}
		if a.p == p && !p.over || a.alive() {
			w.violated("K2", "%s takes over row %d while its handler runs in %s", p.owner, s.row, a.p.owner)
		}
	}
}

// alive reports whether a handler runs that has not been told to end. The lock
// is held.
func (a *modelAttempt) alive() bool { return !a.ended && !a.p.stands() && a.ctx.Err() == nil }

// began checks the start of a handler, and returns what it is to do.
func (w *modelWorld) began(p *modelProcess, ctx context.Context, ev *Event) (*modelAttempt, modelDeed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stories[ev.ID]
	a := &modelAttempt{p: p, s: s, generation: ev.Claim.won.Generation, number: ev.Attempt, ctx: ctx}
	if !p.over {
		w.trace("%s starts %d, attempt %d, in doubt %v", p.owner, s.row, ev.Attempt, ev.Ambiguous)
		w.starting(a, ev)
	}
	s.attempts = append(s.attempts, a)
	if n := len(s.attempts); n <= len(s.script) && !w.mended {
		return a, s.script[n-1]
	}
	return a, succeeds
}

// starting checks whether an attempt may start. One that is told at once to end
// has no claim, and does nothing. The lock is held.
func (w *modelWorld) starting(a *modelAttempt, ev *Event) {
	s, p := a.s, a.p
	for _, other := range s.attempts {
		if !other.ended && other.p == p {
			w.violated("K2", "row %d has two handlers in %s", s.row, p.owner)
		}
	}
	if a.ctx.Err() != nil {
		return
	}
	row := w.table.rows[s.event]
	now := w.table.clock()
	if row == nil && !s.deleted || row != nil && (row.status != outbox.Consuming || row.generation != a.generation || !row.lease.After(now)) {
		w.violated("K2", "%s handles row %d without its claim: %v", p.owner, s.row, row)
	}
	if row != nil && row.generation == a.generation {
		doubt := row.code == store.CodeAbandoned || row.code == store.CodeAmbiguous
		if ev.Attempt != row.attempts+1 || ev.Ambiguous != doubt {
			w.violated("attempts", "the handler was told attempt %d, in doubt %v: %v", ev.Attempt, ev.Ambiguous, row)
		}
	}
	if doubtful := w.setup.Policy == policyHold || w.setup.Policy == policyQuery && !slices.Contains(s.absent, a.generation); ev.Ambiguous && doubtful {
		w.violated("policy", "row %d is handled, although it is in doubt", s.row)
	}
	if now.Before(s.notBefore) {
		w.violated("delay", "row %d is handled %v too early", s.row, s.notBefore.Sub(now))
	}
	for _, other := range w.stories {
		w.besides(a, other)
	}
}

// besides checks the start of an attempt against another event (K2, K7). The
// lock is held.
func (w *modelWorld) besides(a *modelAttempt, other *modelStory) {
	s := a.s
	for _, o := range other.attempts {
		switch {
		case !o.alive():
		case other == s:
			w.violated("K2", "row %d has a handler in %s and one in %s", s.row, o.p.owner, a.p.owner)
		case other.key == s.key && other.exempted == "" && s.exempted == "":
			w.violated("K7", "row %d starts while row %d of the same key is handled", s.row, other.row)
		}
	}
	sameLane := other.key == s.key || other.part == s.part && w.setup.Concurrency == 1
	if other == s || !sameLane || other.exempted != "" || s.exempted != "" || other.first > s.first || other.first < 0 {
		return
	}
	if !w.passable(a.p, other) {
		w.violated("K7", "row %d starts before row %d, which has no outcome", s.row, other.row)
	}
}

// passable reports whether events behind one may start: it has its outcome, or
// that is on its way. The lock is held.
func (w *modelWorld) passable(p *modelProcess, s *modelStory) bool {
	if row := w.table.rows[s.event]; row != nil && w.table.settled(row) || w.inQuarantine(s.part, s.first) {
		return true
	}
	if w.setup.Policy != policyRepeat && slices.Contains(s.doubtful, p.owner) {
		return true // the policy may decide before there is an attempt
	}
	return slices.ContainsFunc(s.attempts, func(a *modelAttempt) bool { return a.p == p && a.final() })
}

// final reports whether an attempt has ended in an outcome that need not be
// recorded for others to start.
func (a *modelAttempt) final() bool {
	if !a.ended || a.inTx {
		return false
	}
	setup := a.p.w.setup
	own := a.own()
	switch {
	case a.err == nil && !a.panicked, own != nil && (own.verdict == data || own.verdict == doubtful):
		return true
	case own != nil && own.verdict == delayed, a.cutOff():
		return false
	}
	return a.inDoubt() && setup.Policy != policyRepeat || setup.MaxAttempts > 0 && a.number >= setup.MaxAttempts
}

// cutOff reports whether the handler failed because it was told to end.
func (a *modelAttempt) cutOff() bool {
	own := a.own()
	if a.err == nil && !a.panicked || own != nil && own.verdict != system && own.verdict != ambiguous {
		return false
	}
	return errors.Is(a.cause, errStopping) || errors.Is(a.cause, ErrClaimLost)
}

// inDoubt reports whether the handler's error leaves its effect in doubt.
func (a *modelAttempt) inDoubt() bool {
	own := a.own()
	return own != nil && own.verdict == ambiguous || errors.Is(a.cause, errTimeout) && !errors.Is(a.err, ErrNotStarted)
}

func (a *modelAttempt) own() *outcomeError {
	var own *outcomeError
	errors.As(a.err, &own)
	return own
}

// returned notes the end of a handler.
func (w *modelWorld) returned(a *modelAttempt, err error, panicked bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a.ended, a.err, a.cause, a.panicked = true, err, context.Cause(a.ctx), panicked
	if own := a.own(); err == nil && !panicked || own != nil && own.verdict == ambiguous {
		a.s.effect = a.s.effect || !a.p.over
	}
	if !a.p.over {
		w.trace("%s ends %d: %v", a.p.owner, a.s.row, err)
	}
}
