package relay

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// collect takes what the edges have reported.
func (l *line) collect(ctx context.Context) error {
	mail := l.inbox.take()
	for edge, t := range mail.troubles {
		l.board.trouble(edge, t)
		if edge == publisherTrouble {
			l.stuck = t != nil
		}
	}
	for _, refs := range mail.acked {
		l.acked(refs)
	}
	for _, r := range mail.refused {
		l.refused(r)
	}
	for _, h := range mail.held {
		l.heldBack(h)
	}
	if mail.silent != nil {
		l.partitionsSilent(ctx, *mail.silent)
	}
	for _, refs := range mail.resolved {
		if err := l.resolve(refs); err != nil {
			return err
		}
	}
	if mail.failed != nil {
		l.fail(mail.failed)
	}
	if mail.saved > l.saved {
		l.saved = mail.saved
		l.board.saved.Store(uint64(l.saved))
		l.parts.Source.Confirm(l.saved)
		l.board.confirmed.Store(uint64(l.saved))
	}
	l.breathe()
	return l.broken
}

// acked takes events that are in Kafka.
func (l *line) acked(refs []event.Ref) {
	l.measureEndToEnd(refs)
	for i := range refs {
		l.takeBack(&refs[i])
	}
	l.parts.Recorder.Sent(refs)
}

// settle resolves an event that needs no write.
func (l *line) settle(ref event.Ref) {
	if err := l.resolve([]event.Ref{ref}); err != nil && l.broken == nil {
		l.broken = err
	}
}

// resolve settles events in the ledger.
func (l *line) resolve(refs []event.Ref) error {
	var requeued []int64
	for i := range refs {
		if err := l.ledger.Resolve(refs[i].Seq); err != nil {
			return fmt.Errorf("%w: %w", ErrInvariant, err)
		}
		if !l.gate.idle() || len(l.gate.busy) > 0 {
			l.gate.settled(&refs[i])
		}
		if len(l.passed) > 0 {
			delete(l.passed, refs[i].ID)
		}
		if refs[i].Due.IsNull() {
			continue
		}
		if l.requeuedInFlight[refs[i].ID] == refs[i].Due {
			delete(l.requeuedInFlight, refs[i].ID)
			requeued = append(requeued, refs[i].ID)
			if l.settledMeanwhile != nil {
				l.settledMeanwhile[refs[i].ID] = true
			}
		}
	}
	if requeued != nil {
		l.parts.Scheduler.Settled(requeued)
	}
	return nil
}

// measureEndToEnd observes the time from commit to ack of the first event of a
// batch, which waited longest, if this is its first attempt.
func (l *line) measureEndToEnd(refs []event.Ref) {
	if len(refs) == 0 || !refs[0].Due.IsNull() || refs[0].Attempts > 0 {
		return
	}
	if committed := l.ledger.Committed(refs[0].Seq); committed != 0 {
		l.m.endToEnd.Observe(max(0, time.Since(time.UnixMicro(committed)).Seconds()))
	}
}

// refused takes events that the publisher could not publish.
func (l *line) refused(r refusal) {
	var guard []uint64
	for i := range r.refs {
		ref := &r.refs[i]
		if !l.takeBack(ref) {
			continue
		}
		if ref.Ordered {
			l.block(ref)
			guard = append(guard, ref.Aggregate)
		}
		l.park(l.attempt(*ref, r.failure))
	}
	l.guard(guard)
}

// heldBack takes events that the publisher did not publish for others' sake.
func (l *line) heldBack(h held) {
	var guard []uint64
	for i := range h.refs {
		ref := &h.refs[i]
		l.bytes -= int64(ref.Bytes)
		if !ref.Ordered {
			l.park(event.Park{Ref: *ref, Action: event.ParkLater, Delay: l.cfg.HeldRetry})
			continue
		}
		l.block(ref)
		guard = append(guard, ref.Aggregate)
		if h.why == event.HeldByPartition {
			l.gate.setSilent(ref.Aggregate)
		}
		if ref.Due.IsInfinity() { // its row says so already
			l.settle(*ref)
			continue
		}
		l.hold(*ref)
	}
	l.guard(guard)
}

func (l *line) guard(aggregates []uint64) {
	if len(aggregates) > 0 {
		slices.Sort(aggregates)
		l.parts.Publisher.Guard(slices.Compact(aggregates))
	}
	l.writeParks()
}

// takeBack takes an event over that the publisher is done with. One that is
// reported for the second time is held on its row: it is tracked anew, if its
// row is known well enough to be written.
func (l *line) takeBack(ref *event.Ref) bool {
	if ref.Seq != event.Untracked {
		l.bytes -= int64(ref.Bytes)
		return true
	}
	if !ref.Ordered {
		return false // it is due again by itself
	}
	ref.Seq, ref.Due = l.ledger.Track(), event.DueInfinity()
	l.gate.park(ref) // a release must not read the row before it is written
	return true
}

// attempt decides what a failed attempt means for a row.
func (l *line) attempt(ref event.Ref, f event.Failure) event.Park {
	delay, failed := l.policy.Next(ref.Kind, ref.Attempts, f)
	if !failed {
		return event.Park{Ref: ref, Action: event.ParkRetry, Failure: f, Delay: delay}
	}
	l.m.failed(f.Class)
	l.log.Warn("an event is FAILED and waits for a person: cdc-relay failed show tells more",
		"id", ref.ID, "attempts", ref.Attempts+1, "class", f.Class.String(), "error_code", f.Code)
	return event.Park{Ref: ref, Action: event.ParkFailed, Failure: f}
}
