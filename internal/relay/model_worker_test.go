package relay

import (
	"context"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// modelBatch is how many records a batch has at most.
const modelBatch = 6

// modelRetry is the pause between two requests that get no answer.
const modelRetry = 300 * time.Millisecond

// modelWorker publishes the batches of one partition, one after the other.
type modelWorker struct {
	*modelPublisher
	q      *modelQueue
	random *modelRandom
}

func (k *modelWorker) run(ctx context.Context) error {
	for {
		select {
		case <-k.q.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
		for batch := k.take(); batch != nil; batch = k.take() {
			if err := k.settle(ctx, batch); err != nil {
				return err
			}
		}
	}
}

// take returns the next batch, nil if there is none to be sent now.
func (k *modelWorker) take() []event.Ref {
	k.mu.Lock()
	defer k.mu.Unlock()
	ready := max(k.q.flushed, len(k.q.events)/modelBatch*modelBatch)
	if ready == 0 {
		return nil
	}
	n := min(ready, k.random.upTo(modelBatch))
	batch := slices.Clone(k.q.events[:n])
	k.q.events = slices.Delete(k.q.events, 0, n)
	k.q.flushed = max(0, k.q.flushed-n)
	return batch
}

// settle publishes a batch, or whatever of it can be published, in order.
func (k *modelWorker) settle(ctx context.Context, batch []event.Ref) error {
	k.push(batch)
	for part := k.pop(); part != nil; part = k.pop() {
		if err := k.deliver(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// push puts a part before all others.
func (k *modelWorker) push(part []event.Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.q.todo = append(k.q.todo, part)
}

// pop takes the next part that is to be sent, nil if there is none.
func (k *modelWorker) pop() []event.Ref {
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(k.q.todo) > 0 {
		last := len(k.q.todo) - 1
		part := k.q.todo[last]
		k.q.todo = k.q.todo[:last]
		switch {
		case len(part) == 0:
		case k.w.topicDenied(k.q.name.topic):
			k.refuse(k.q, part, modelDenied)
		default:
			return part
		}
	}
	return nil
}

// modelVerdict is what the broker decides about a batch.
type modelVerdict struct {
	decided   bool
	offenders []int // nil: the batch is in the log
	permanent bool
}

// deliver sends a part of a batch until the broker has decided about it.
func (k *modelWorker) deliver(ctx context.Context, part []event.Ref) error {
	var since time.Time // of the first request
	others, appended := 0, false
	for {
		if err := k.term.Permit(ctx); err != nil {
			return err
		}
		if err := modelPause(ctx, k.random.latency()); err != nil {
			return err
		}
		v, over := k.produce(part, &appended)
		if over {
			<-ctx.Done()
			return ctx.Err()
		}
		if v.decided {
			return k.decide(ctx, part, v)
		}
		if since.IsZero() {
			since, others = time.Now(), k.w.answeredElsewhere(k.q.name)
		}
		if time.Since(since) >= k.grace && k.w.answeredElsewhere(k.q.name) > others {
			k.goSilent(part)
		}
		if err := modelPause(ctx, modelRetry); err != nil {
			return err
		}
	}
}

// produce is a request. The answer of one that was appended may be missing.
func (k *modelWorker) produce(part []event.Ref, appended *bool) (v modelVerdict, over bool) {
	w := k.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if k.term.over {
		return v, true
	}
	silent := w.kafka.silent[k.q.name]
	if silent && !k.random.chance(30) {
		return v, false // it did not even arrive
	}
	if !*appended {
		v.offenders, v.permanent = w.offenders(part, k.random.chance(50))
		if v.offenders == nil {
			*appended = true
			for _, e := range part {
				w.kafka.log = append(w.kafka.log, e.ID)
				w.appended(e.ID)
			}
		}
	}
	if silent {
		return modelVerdict{}, false
	}
	w.kafka.answered[k.q.name]++
	v.decided = true
	return v, false
}

// offenders returns the records of a batch that the broker refuses, nil if
// there are none: those of one kind, for the broker finds one kind of error
// before the other. The lock is held.
func (w *modelWorld) offenders(part []event.Ref, permanentFirst bool) (bad []int, permanent bool) {
	for _, permanent := range []bool{permanentFirst, !permanentFirst} {
		for i, e := range part {
			if f := w.kafka.faults[e.ID]; f.times != 0 && f.permanent == permanent {
				bad = append(bad, i)
			}
		}
		if bad != nil {
			return bad, permanent
		}
	}
	return nil, false
}

// answeredElsewhere counts the decisions of other partitions.
func (w *modelWorld) answeredElsewhere(name modelPartition) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other, count := range w.kafka.answered {
		if other != name {
			n += count
		}
	}
	return n
}

// goSilent holds the batch in doubt and what is queued behind it.
func (k *modelWorker) goSilent(part []event.Ref) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.q.silent {
		return
	}
	k.w.doubted(part)
	k.q.silent = true
	k.setSilent(1)
	held := slices.Clone(part)
	for i := len(k.q.todo) - 1; i >= 0; i-- {
		held = append(held, k.q.todo[i]...)
	}
	k.hold(append(held, k.q.events...), event.HeldByPartition)
	k.q.todo, k.q.events, k.q.flushed = nil, nil, 0
}

// setSilent tells about one silent partition more or less. The lock is held.
func (k *modelWorker) setSilent(change int) {
	k.modelPublisher.silent += change
	k.w.trace("%d partitions are silent", k.modelPublisher.silent)
	k.out.Silent(k.modelPublisher.silent)
}

// doubted notes that nobody may be told what becomes of events without a place
// in an order.
func (w *modelWorld) doubted(part []event.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range part {
		if !e.Ordered {
			w.stories[e.ID].loose = true
		}
	}
}

// decide reports what became of a part, or of those that are at fault.
func (k *modelWorker) decide(ctx context.Context, part []event.Ref, v modelVerdict) error {
	probe := k.untrack(part)
	switch {
	case v.offenders == nil:
		if err := modelPause(ctx, k.random.latency()/4); err != nil { // the answer is on its way
			return err
		}
		k.ack(part)
	case len(part) > 1 && k.random.chance(30): // the broker does not say which
		if half := len(part) / 2; !probe {
			k.push(part[half:])
			k.push(part[:half])
		}
	default:
		k.blame(part, v, probe)
	}
	if probe {
		k.open()
	}
	return nil
}

// untrack takes the numbers from a batch that has been reported as held. What
// its answer does not settle comes again with its row.
func (k *modelWorker) untrack(part []event.Ref) (probe bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.q.silent {
		for i := range part {
			part[i].Seq = event.Untracked
		}
	}
	return k.q.silent
}

// open lets a partition that was silent take events again.
func (k *modelWorker) open() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.q.silent = false
	k.setSilent(-1)
}

// ack reports records that are in the log.
func (k *modelWorker) ack(part []event.Ref) {
	k.w.acked(part)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.report("acked", slices.DeleteFunc(slices.Clone(part), func(ref event.Ref) bool {
		late := ref.Seq == event.Untracked && !ref.Ordered
		if late {
			k.appended[ref.ID] = true
		}
		return late
	}), k.out.Acked)
}

func (w *modelWorld) acked(refs []event.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ref := range refs {
		w.stories[ref.ID].acked = true
	}
}

// blame refuses the records at fault and holds the later ones of their
// aggregates. The others are to be sent again, unless they are held already.
func (k *modelWorker) blame(part []event.Ref, v modelVerdict, probe bool) {
	k.w.blamed(part, v.offenders)
	var bad, good []event.Ref
	stopped := modelAggregates{}
	for i, ref := range part {
		switch behind := stopped.has(ref); {
		case slices.Contains(v.offenders, i) && !behind, behind && !probe:
			bad = append(bad, ref)
			stopped.add(ref)
		case !probe:
			good = append(good, ref)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse(k.q, bad, event.Failure{Class: event.ClassRecord, Code: "RECORD_INVALID", Message: "invalid", Permanent: v.permanent})
	k.q.todo = append(k.q.todo, good)
}

// blamed counts what is only refused so many times.
func (w *modelWorld) blamed(part []event.Ref, offenders []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range offenders {
		if f := w.kafka.faults[part[i].ID]; f.times > 0 {
			f.times--
			w.kafka.faults[part[i].ID] = f
		}
	}
}

// modelPause waits, unless ctx ends.
func modelPause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
