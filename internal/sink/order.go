package sink

import (
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// This file keeps later events of an aggregate from passing one that was
// refused (I5). From the moment in which an ordered event is refused, its
// aggregate is closed: what is behind it in its partition is taken out of the
// queue and reported as held, and what is handed over is held at once. Guard
// opens the aggregate again: by then the caller holds back what must wait.
// So nothing is to be asked of events that are in a queue, and an aggregate is
// remembered only for as long as its refusal is on its way to the caller.

// refusal is a report to be made.
type refusal struct {
	refs    []event.Ref
	failure event.Failure
}

// reports are what became of events, collected while the lock is held.
type reports struct {
	refused []refusal
	acked   []event.Ref
	held    [2][]event.Ref // by event.Reason
}

// isClosed reports whether an earlier event of ref's aggregate was refused or
// held and the caller does not know yet. The lock is held.
func (q *queues) isClosed(ref *event.Ref) bool {
	if len(q.closed) == 0 || !ref.Ordered {
		return false
	}
	_, closed := q.closed[ref.Aggregate]
	return closed
}

// guard opens aggregates.
func (q *queues) guard(aggregates []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, a := range aggregates {
		delete(q.closed, a)
	}
}

// refuse notes that an event is refused and closes its aggregate. The lock is
// held.
func (q *queues) refuse(ref event.Ref, f event.Failure) {
	q.close(&ref)
	if n := len(q.reports.refused); n > 0 && q.reports.refused[n-1].failure == f {
		q.reports.refused[n-1].refs = append(q.reports.refused[n-1].refs, ref)
		return
	}
	q.reports.refused = append(q.reports.refused, refusal{refs: []event.Ref{ref}, failure: f})
}

// hold notes that an event is held and closes its aggregate. The lock is held.
func (q *queues) hold(ref event.Ref, why event.Reason) {
	q.close(&ref)
	q.reports.held[why] = append(q.reports.held[why], ref)
}

func (q *queues) close(ref *event.Ref) {
	if ref.Ordered {
		q.closed[ref.Aggregate] = struct{}{}
	}
}

// report makes the reports, causes first: what is held for the order comes
// behind something refused or held for its partition. The lock is held, so that
// the cause is with the caller before anybody can see that the aggregate is
// closed.
func (q *queues) report() {
	for _, r := range q.reports.refused {
		q.outcomes.Refused(r.refs, r.failure)
	}
	if len(q.reports.acked) > 0 {
		q.outcomes.Acked(q.reports.acked)
	}
	for _, why := range []event.Reason{event.HeldByPartition, event.HeldByOrder} {
		if refs := q.reports.held[why]; len(refs) > 0 {
			q.outcomes.Held(refs, why)
		}
	}
	q.reports = reports{}
}

// refuseIn refuses the records of b at the indexes bad and holds what must not
// pass them: what comes later of their aggregates in b, in the batches behind
// it (the first one last), in the queue of its partition and among the waiting
// events of its topic. Of several bad ones of an aggregate the first takes the
// attempt. It returns what is left of b, nil if nothing is, and of behind.
func (q *queues) refuseIn(part *partition, b *record.Batch, bad []int, f event.Failure, behind []*record.Batch) (*record.Batch, []*record.Batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	stopped := aggregates{}
	keep := make([]bool, b.Len())
	for i, ref := range b.Refs() {
		isBad := len(bad) > 0 && bad[0] == i
		if isBad {
			bad = bad[1:]
		}
		switch {
		case stopped.has(&ref):
			q.hold(ref, event.HeldByOrder)
		case isBad:
			q.refuse(ref, f)
			stopped.add(&ref)
		default:
			keep[i] = true
		}
	}
	if len(stopped) > 0 {
		behind = q.holdAll(behind, stopped)
		q.holdQueued(part, stopped)
	}
	q.report()
	return subset(b, keep), behind
}

// aggregates is a set of them.
type aggregates map[uint64]struct{}

// has reports whether ref must wait for one of the set.
func (a aggregates) has(ref *event.Ref) bool {
	_, found := a[ref.Aggregate]
	return found && ref.Ordered
}

func (a aggregates) add(ref *event.Ref) {
	if ref.Ordered {
		a[ref.Aggregate] = struct{}{}
	}
}

// holdQueued holds what the queue of part, and the list of its topic, have of
// stopped aggregates. The lock is held.
func (q *queues) holdQueued(part *partition, stopped aggregates) {
	part.full = q.holdAll(part.full, stopped)
	if part.open != nil {
		part.open = q.holdSome(part.open, stopped)
	}
	t := part.topic
	if len(t.waiting) == 0 {
		return
	}
	var left []event.Event
	for _, e := range q.takeWaiting(t) {
		if stopped.has(&e.Ref) {
			q.hold(e.Ref, event.HeldByOrder)
			continue
		}
		left = append(left, e)
	}
	q.putWaiting(t, left)
}

// holdAll does holdSome for batches. The lock is held.
func (q *queues) holdAll(batches []*record.Batch, stopped aggregates) []*record.Batch {
	left := batches[:0]
	for _, b := range batches {
		if b = q.holdSome(b, stopped); b != nil {
			left = append(left, b)
		}
	}
	clear(batches[len(left):])
	return left
}

// holdSome holds what a batch, of which nothing was ever sent, has of stopped
// aggregates, and returns what is left; nil if nothing is. The lock is held.
func (q *queues) holdSome(b *record.Batch, stopped aggregates) *record.Batch {
	keep := make([]bool, b.Len())
	held := 0
	for i, ref := range b.Refs() {
		keep[i] = !stopped.has(&ref)
		if !keep[i] {
			q.hold(ref, event.HeldByOrder)
			held++
		}
	}
	if held == 0 {
		return b
	}
	left := subset(b, keep)
	q.recycleLocked(b)
	return left
}

// subset returns a new batch of the records to keep, nil if there are none.
func subset(b *record.Batch, keep []bool) *record.Batch {
	left := b.Subset(func(i int) bool { return keep[i] })
	if left.Len() == 0 {
		return nil
	}
	return left
}
