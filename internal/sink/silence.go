package sink

import (
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// This file is about a partition that does not answer while others do. Its
// events must not fill the line for the others, so they are held on their
// rows. The batch in the worker's hands is held as well and goes on being
// sent, byte for byte: it may be in the log already, and its answer shows that
// the partition is back.
//
// When it shows that the batch is in the log, the caller is told of the ordered
// events. The others are due again by then, under a due time that nobody here
// knows, so their rows cannot be written: they are remembered, and acknowledged
// when they are handed over again.

// failing notes that the batch in the worker's hands could not be published.
func (q *queues) failing(part *partition) {
	q.mu.Lock()
	defer q.mu.Unlock()
	part.failing = true
}

// decided notes that the broker has decided about a batch, which is taken back
// unless it is nil.
func (q *queues) decided(part *partition, b *record.Batch) {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	part.failing, part.decided = false, now
	if b != nil {
		q.recycleLocked(b)
	}
}

// anyAnswers reports whether a partition got an answer since that time and has
// not failed after it. When none has, the cluster is to be waited for. The lock
// is held.
func (q *queues) anyAnswers(since time.Time) bool {
	for _, t := range q.topics {
		for _, part := range t.partitions {
			if !part.failing && part.decided.After(since) {
				return true
			}
		}
	}
	return false
}

// silence holds the events of part if other partitions got answers since that
// time: those of the batches in hand, in order, and those in its queue. It
// takes back all batches but the first.
func (q *queues) silence(part *partition, inHand []*record.Batch, since time.Time) (done bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.anyAnswers(since) {
		return false
	}
	part.silent = true
	q.setSilent(q.silent + 1)
	batches := append(inHand, part.full...)
	if part.open != nil {
		batches = append(batches, part.open)
	}
	for i, b := range batches {
		for _, ref := range b.Refs() {
			q.hold(ref, event.HeldByPartition)
		}
		if i > 0 {
			q.recycleLocked(b)
		}
	}
	part.full, part.open = nil, nil
	q.report()
	return true
}

// reopen lets the events of part pass again.
func (q *queues) reopen(part *partition) {
	q.mu.Lock()
	defer q.mu.Unlock()
	part.silent = false
	q.setSilent(q.silent - 1)
}

func (q *queues) setSilent(n int) {
	q.silent = n
	q.metrics.held.Set(float64(n))
	q.outcomes.Silent(n)
}

// silence gives up waiting with everything else for d's answer, once that has
// been due for the grace time while other partitions got theirs. While no
// broker is heard of at all, that time does not run.
func (w *worker) silence(d *delivery) {
	if d.probe || w.cfg.PartitionGrace == 0 {
		return
	}
	if !w.heard() {
		d.since = time.Now()
	}
	waited := time.Since(d.since)
	if waited < w.cfg.PartitionGrace {
		return
	}
	inHand := []*record.Batch{d.batch}
	for i := len(w.todo) - 1; i >= 0; i-- {
		inHand = append(inHand, w.todo[i])
	}
	if !w.queues.silence(w.part, inHand, d.since) {
		return
	}
	w.todo = w.todo[:0]
	d.probe = true
	w.untrouble() // not for a person: the others flow
	w.log.Warn("the partition does not answer while others do: its events are held on their rows", "for", waited)
}

// finishProbe deals with the answer for a batch whose events have been held.
// What the answer does not settle comes again with its row.
func (w *worker) finishProbe(d *delivery, v verdict) {
	untracked := make([]event.Ref, 0, d.batch.Len())
	for _, ref := range d.batch.Refs() {
		ref.Seq = event.Untracked
		untracked = append(untracked, ref)
	}
	if v.class == classDone {
		w.count(len(untracked))
		w.queues.lateAck(untracked)
	} else if bad := w.blame(d, v); bad != nil {
		w.queues.refuseHeld(untracked, bad, w.failure(d, v))
	}
	w.queues.reopen(w.part)
	w.log.Info("the partition answers again: its events are published", "after", time.Since(d.since))
}

// lateAck takes note of events that have been held and are in the log.
func (q *queues) lateAck(refs []event.Ref) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, ref := range refs {
		if ref.Ordered {
			q.reports.acked = append(q.reports.acked, ref)
		} else {
			q.appended[ref.ID] = struct{}{}
		}
	}
	q.report()
}

// ackAppended acknowledges an event that was handed over before and is in the
// log. The lock is held.
func (q *queues) ackAppended(ref *event.Ref) bool {
	if len(q.appended) == 0 {
		return false
	}
	if _, appended := q.appended[ref.ID]; !appended {
		return false
	}
	delete(q.appended, ref.ID)
	q.reports.acked = append(q.reports.acked, *ref)
	return true
}

// refuseHeld refuses those at the indexes bad of events that have been held,
// of each aggregate the first.
func (q *queues) refuseHeld(refs []event.Ref, bad []int, f event.Failure) {
	q.mu.Lock()
	defer q.mu.Unlock()
	stopped := aggregates{}
	for _, i := range bad {
		if !stopped.has(&refs[i]) {
			q.refuse(refs[i], f)
			stopped.add(&refs[i])
		}
	}
	q.report()
}
