package consumer

import (
	"errors"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// The checks of this file are about what is written for an attempt. The lock is
// held in all of them.

// done checks that an event may be CONSUMED.
func (w *modelWorld) done(p *modelProcess, h store.Held) {
	s := w.stories[h.EventID]
	w.trace("%s: %d is CONSUMED", p.owner, s.row)
	w.owned(p, h)
	a := s.attempt(h.Generation)
	if slices.Contains(s.present, h.Generation) || a != nil && a.ended && a.err == nil && !a.panicked {
		return
	}
	w.violated("outcome", "row %d is CONSUMED, but its handler did not succeed", s.row)
}

// owned checks that a claim is ended by whoever won it (K3).
func (w *modelWorld) owned(p *modelProcess, h store.Held) {
	if s := w.stories[h.EventID]; s.claims[h.Generation] != p.owner {
		w.violated("K3", "%s ends generation %d of row %d, which %q won", p.owner, h.Generation, s.row, s.claims[h.Generation])
	}
}

// handedBack checks that nothing was started under claims that are handed back.
func (w *modelWorld) handedBack(p *modelProcess, held []store.Held) {
	for _, h := range held {
		s := w.stories[h.EventID]
		w.trace("%s hands back %d", p.owner, s.row)
		w.owned(p, h)
		if a := s.attempt(h.Generation); a != nil && !(a.ended && errors.Is(a.err, ErrNotStarted)) {
			w.violated("outcome", "row %d is handed back, but its handler was started", s.row)
		}
	}
}

// failed checks that an event may be FAILED, and the code.
func (w *modelWorld) failed(p *modelProcess, f store.Failure) {
	s := w.stories[f.EventID]
	w.trace("%s: %d is FAILED, %s", p.owner, s.row, f.Code)
	w.owned(p, f.Held)
	if want := w.failures(s, f); !slices.Contains(want, f.Code) {
		w.violated("outcome", "row %d is FAILED with %s, want one of %q", s.row, f.Code, want)
	}
}

// failures are the codes with which an event may be FAILED now.
func (w *modelWorld) failures(s *modelStory, f store.Failure) (codes []string) {
	last := w.setup.MaxAttempts > 0 && w.table.rows[s.event].attempts >= w.setup.MaxAttempts
	a := s.attempt(f.Generation)
	switch {
	case a == nil: // the policy did not let it start
		if w.setup.Policy == policyHold || last && w.setup.Policy == policyQuery {
			return []string{store.CodeAmbiguous}
		}
		return nil
	case !a.ended:
		return nil
	}
	own := a.own()
	switch {
	case own != nil && own.verdict == data:
		return []string{"APP_BAD"}
	case own != nil && own.verdict == doubtful:
		return []string{store.CodeAmbiguous}
	case a.err == nil && !a.panicked && !a.inTx, own != nil && own.verdict == delayed:
		return nil
	case w.setup.Policy == policyHold && a.inDoubt():
		return []string{store.CodeAmbiguous}
	case last:
		return w.codes(a)
	}
	return nil
}

// codes are those of an attempt that failed.
func (w *modelWorld) codes(a *modelAttempt) []string {
	switch {
	case a.inTx && a.err == nil:
		return []string{store.CodeSystem}
	case a.inDoubt():
		return []string{store.CodeAmbiguous}
	case a.panicked:
		return []string{store.CodePanic}
	default:
		return []string{store.CodeSystem}
	}
}

// released checks the delay and the code of an attempt that is to be repeated.
func (w *modelWorld) released(p *modelProcess, r store.Release) {
	s := w.stories[r.EventID]
	w.trace("%s releases %d for %v, %s", p.owner, s.row, r.Delay, r.Code)
	w.owned(p, r.Held)
	s.notBefore = w.table.clock().Add(r.Delay)
	a := s.attempt(r.Generation)
	switch {
	case a == nil && (w.setup.Policy != policyQuery || r.Code != store.CodeAmbiguous):
		w.violated("outcome", "row %d is released, but its handler did not start", s.row)
	case a == nil:
	case !a.ended:
		w.violated("outcome", "row %d is released while its handler runs", s.row)
	case a.err == nil && !a.panicked && !a.inTx:
		w.violated("outcome", "row %d is released, but its handler succeeded", s.row)
	default:
		w.releasedAfter(a, r)
	}
}

func (w *modelWorld) releasedAfter(a *modelAttempt, r store.Release) {
	own := a.own()
	want := w.codes(a)
	if w.setup.MaxAttempts > 0 && a.number >= w.setup.MaxAttempts {
		want = nil
	}
	delay := modelRetryDelay(a.number)
	switch {
	case own != nil && own.verdict == delayed:
		want, delay = []string{store.CodeSystem}, modelDelay
	case own != nil && (own.verdict == data || own.verdict == doubtful):
		want = nil
	case a.cutOff():
		want, delay = []string{store.CodeAmbiguous}, modelRetryDelay(1)
	}
	if !slices.Contains(want, r.Code) || r.Delay != delay {
		w.violated("outcome", "row %d is released for %v with %s, want %v and %q", a.s.row, r.Delay, r.Code, delay, want)
	}
}

// quarantined checks that a record may be given up.
func (w *modelWorld) quarantined(r store.Record) {
	s := w.stories[r.EventID]
	var ok bool
	switch r.Reason {
	case store.ReasonMissing:
		ok = s != nil && s.deleted
	case store.ReasonStateConflict:
		ok = s != nil && s.exempted != ""
	case store.ReasonNoEventID, store.ReasonBadHeaders:
		ok = s == nil
	}
	if !ok {
		w.violated("K4", "the record at %d of %d is quarantined as %s", r.Offset, r.Partition, r.Reason)
	}
}

// retried checks that a record of the quarantine may be resolved.
func (w *modelWorld) retried(k *modelKept) {
	s := w.stories[k.EventID]
	w.trace("quarantine row %d is resolved", k.ID)
	if s == nil || !w.settled(s, time.Time{}) {
		w.violated("K4", "quarantine row %d is resolved, but its event has no outcome", k.ID)
	}
}

// open returns the rows that are not at their end, but for FAILED ones, which
// wait for a person. The lock is held.
func (w *modelWorld) open() []*modelRow {
	return w.sorted(func(row *modelRow) bool { return row.status != outbox.Consumed && row.status != outbox.Failed })
}

// quiet reports whether nothing is left to do.
func (w *modelWorld) quiet() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for part := range w.logs {
		if w.group.committed[part] != w.logs[part].end {
			return false
		}
	}
	frozen := slices.ContainsFunc(w.running, (*modelProcess).stands)
	return len(w.open()) == 0 && !w.asking() && !frozen
}

// asking reports whether the retry of a quarantined record is still to come.
func (w *modelWorld) asking() bool {
	return slices.ContainsFunc(w.kept, func(k *modelKept) bool { return k.resolution == "retry" && !k.resolved })
}

// atEnd checks that nothing is left once everything is mended.
func (w *modelWorld) atEnd() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, row := range w.open() {
		w.violated("end", "left: %v", row)
	}
	for _, row := range w.sorted(func(row *modelRow) bool { return row.status == outbox.Failed }) {
		if row.code == "" && !row.since.IsZero() && !row.finished {
			w.violated("end", "FAILED without a reason: %v", row)
		}
	}
	for part, l := range w.logs {
		if w.group.committed[part] != l.end {
			w.violated("end", "partition %d is at %d of %d", part, w.group.committed[part], l.end)
		}
		for _, rec := range l.records {
			s := w.stories[rec.event]
			if (s == nil || !w.settled(s, time.Time{})) && !w.inQuarantine(part, rec.Offset) && !w.passedOver(s) {
				w.violated("K4", "the record at %d of %d has neither an outcome nor a place in the quarantine", rec.Offset, part)
			}
		}
	}
	if w.asking() {
		w.violated("end", "a record of the quarantine was not retried")
	}
}

// passedOver reports whether a person may have moved the offset past a record.
func (w *modelWorld) passedOver(s *modelStory) bool {
	return w.group.reset && (s == nil || s.exempted != "")
}
