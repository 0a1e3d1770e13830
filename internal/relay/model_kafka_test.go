package relay

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// modelPartitions is how many partitions each topic has; a topic is named as
// its aggregate type.
const modelPartitions = 2

// modelPartition names a partition.
type modelPartition struct {
	topic  string
	number int
}

func modelPartitionOf(typ, agg string) modelPartition {
	return modelPartition{typ, int(agg[len(agg)-1]) % modelPartitions}
}

// modelFault is what is wrong with a record.
type modelFault struct {
	permanent bool
	times     int // how often it is refused; 0: not, -1: until it is mended
}

// modelKafka is the cluster, guarded by the world's lock.
type modelKafka struct {
	log      []int64 // ids in the order of all appends
	faults   map[int64]modelFault
	denied   map[string]bool         // topics
	silent   map[modelPartition]bool // do not answer
	answered map[modelPartition]int  // decided batches
}

func newModelKafka() modelKafka {
	return modelKafka{
		faults: map[int64]modelFault{}, denied: map[string]bool{},
		silent: map[modelPartition]bool{}, answered: map[modelPartition]int{},
	}
}

// mend takes everything away that is wrong with the cluster and its records.
func (w *modelWorld) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.kafka.faults)
	clear(w.kafka.denied)
	clear(w.kafka.silent)
}

// modelPublisher keeps the contract of Publisher, with a worker and one batch
// in flight for each partition.
type modelPublisher struct {
	w     *modelWorld
	term  *modelTenure
	out   PublisherInbox
	grace time.Duration // of a silent partition

	mu     sync.Mutex
	random *modelRandom
	closed modelAggregates // something of them was refused or held, and the line has not said Guard since
	queues map[modelPartition]*modelQueue
	silent int // partitions whose events are held
	// appended are events without a place in an order that are in the log, which
	// became known after they had been held.
	appended map[int64]bool
}

// modelQueue is the queue of one partition, guarded by the publisher's lock.
type modelQueue struct {
	name    modelPartition
	todo    [][]event.Ref // parts of a batch, of which nothing was sent, the first one last
	events  []event.Ref
	flushed int  // of events, those that may go out
	silent  bool // events are held instead of queued
	wake    chan struct{}
}

// modelAggregates is a set of them.
type modelAggregates map[uint64]bool

// has reports whether an event has to wait for one of the set.
func (a modelAggregates) has(ref event.Ref) bool { return ref.Ordered && a[ref.Aggregate] }

func (a modelAggregates) add(ref event.Ref) {
	if ref.Ordered {
		a[ref.Aggregate] = true
	}
}

func newModelPublisher(w *modelWorld, term *modelTenure, out PublisherInbox, grace time.Duration) *modelPublisher {
	p := &modelPublisher{
		w: w, term: term, out: out, grace: grace, random: w.random("publisher"),
		closed: modelAggregates{}, queues: map[modelPartition]*modelQueue{}, appended: map[int64]bool{},
	}
	for _, name := range modelAllPartitions() {
		p.queues[name] = &modelQueue{name: name, wake: make(chan struct{}, 1)}
	}
	return p
}

var modelDenied = event.Failure{Class: event.ClassTopic, Code: "TOPIC_DENIED", Message: "denied"}

// Publish is called by one goroutine only.
func (p *modelPublisher) Publish(events []event.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range events {
		ref, topic := events[i].Ref, string(events[i].AggregateType)
		p.w.trace("handed over %d", ref.ID)
		q := p.queues[modelPartitionOf(topic, string(events[i].AggregateID))]
		switch {
		case p.closed.has(ref):
			p.hold([]event.Ref{ref}, event.HeldByOrder)
		case p.appended[ref.ID]:
			delete(p.appended, ref.ID)
			p.report("acked", []event.Ref{ref}, p.out.Acked)
		case q.silent:
			p.hold([]event.Ref{ref}, event.HeldByPartition)
		case p.w.topicDenied(topic):
			p.refuse(q, []event.Ref{ref}, modelDenied)
		default:
			q.events = append(q.events, ref)
		}
	}
}

func (w *modelWorld) topicDenied(topic string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kafka.denied[topic]
}

// refuse refuses events that come after each other in a partition, but of an
// aggregate only the first ordered one; what is behind it is held. The lock is
// held.
func (p *modelPublisher) refuse(q *modelQueue, refs []event.Ref, f event.Failure) {
	var refused, held []event.Ref
	stopped := modelAggregates{}
	for _, ref := range refs {
		if stopped.has(ref) {
			held = append(held, ref)
			continue
		}
		refused = append(refused, ref)
		stopped.add(ref)
		p.closed.add(ref)
	}
	p.w.refused(p.term, refused)
	p.report("refused", refused, func(refs []event.Ref) { p.out.Refused(refs, f) })
	p.hold(append(held, q.takeOut(stopped)...), event.HeldByOrder)
}

// takeOut removes the events of aggregates from a queue.
func (q *modelQueue) takeOut(stopped modelAggregates) (out []event.Ref) {
	for i := len(q.todo) - 1; i >= 0; i-- {
		q.todo[i] = slices.DeleteFunc(slices.Clone(q.todo[i]), func(ref event.Ref) bool {
			if stopped.has(ref) {
				out = append(out, ref)
			}
			return stopped.has(ref)
		})
	}
	var kept []event.Ref
	flushed := q.flushed
	for i, ref := range q.events {
		if !stopped.has(ref) {
			kept = append(kept, ref)
			continue
		}
		out = append(out, ref)
		if i < flushed {
			q.flushed--
		}
	}
	q.events = kept
	return out
}

// hold holds events: what comes later of their aggregates must not pass them.
// The lock is held.
func (p *modelPublisher) hold(refs []event.Ref, why event.Reason) {
	for _, ref := range refs {
		p.closed.add(ref)
	}
	p.w.gaveBack(refs)
	p.report([]string{"held by order", "held by partition"}[why], refs, func(refs []event.Ref) { p.out.Held(refs, why) })
}

// gaveBack notes that these events were not published, so that those of a type
// that does not block may be passed.
func (w *modelWorld) gaveBack(refs []event.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, ref := range refs {
		w.stories[ref.ID].back = true
	}
}

// refused counts refusals, unless nobody is there to take note of them.
func (w *modelWorld) refused(term *modelTenure, refs []event.Ref) {
	w.gaveBack(refs)
	w.mu.Lock()
	defer w.mu.Unlock()
	if term.over {
		return
	}
	for _, ref := range refs {
		w.stories[ref.ID].refused++
	}
}

// report reports in one call or several.
func (p *modelPublisher) report(what string, refs []event.Ref, call func([]event.Ref)) {
	for len(refs) > 0 {
		n := len(refs)
		if p.random.chance(30) {
			n = p.random.upTo(n)
		}
		p.w.trace("%s %v", what, modelIDs(refs[:n]))
		call(slices.Clone(refs[:n]))
		refs = refs[n:]
	}
}

func modelIDs(refs []event.Ref) (ids []int64) {
	for _, ref := range refs {
		ids = append(ids, ref.ID)
	}
	return ids
}

// Flush lets what is queued go out.
func (p *modelPublisher) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.queues {
		if q.flushed = len(q.events); q.flushed > 0 {
			q.ring()
		}
	}
}

func (q *modelQueue) ring() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Guard lets pass what is handed over from now on.
func (p *modelPublisher) Guard(aggregates []uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.w.trace("guard")
	for _, a := range aggregates {
		delete(p.closed, a)
	}
}

// Run publishes until its context ends.
func (p *modelPublisher) Run(parent context.Context) error {
	group, ctx := errgroup.WithContext(parent)
	for _, name := range modelAllPartitions() {
		worker := &modelWorker{modelPublisher: p, q: p.queues[name], random: p.w.random(fmt.Sprint("worker ", name))}
		group.Go(func() error { return worker.run(ctx) })
	}
	return ignoreEnd(parent, group.Wait())
}

func modelAllPartitions() []modelPartition {
	var all []modelPartition
	for _, topic := range modelTypes {
		for n := range modelPartitions {
			all = append(all, modelPartition{topic, n})
		}
	}
	return all
}
