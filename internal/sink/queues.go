package sink

import (
	"cmp"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// queues holds the events on their way to the workers: encoded in batches by
// partition, or as copies while their topic is not resolved. One lock guards
// all of it; it is taken once per call of Publish and once per batch.
type queues struct {
	cfg      *Config
	outcomes Outcomes
	metrics  *Metrics
	log      *slog.Logger
	kick     chan struct{} // one slot: the watcher has something to look at

	mu      sync.Mutex
	format  *record.Format
	name    []byte // scratch: the topic of the event at hand
	topics  map[string]*topic
	dirty   []*partition     // have had data since the last flush
	spawn   func(*partition) // starts a worker; nil unless running
	free    []*record.Batch  // empty batches to reuse
	freed   int              // bytes that free holds on to
	waiting backlog          // of all topics together
	closed  aggregates       // of which something was refused or held and not guarded yet
	silent  int              // partitions that are
	// appended are events in the log whose rows do not say so yet: see silence.go.
	appended map[int64]struct{}
	reports  reports
}

// backlog is an amount of events.
type backlog struct{ events, bytes int }

// maxFree bounds what unused batches may hold on to, in bytes.
const maxFree = 8 << 20

// topic is what is known of a topic. The queues' lock guards what changes.
type topic struct {
	name       string
	rowMayName bool // a row's own topic column may say so
	state      topicStatus
	failure    event.Failure // why its events are refused (topicRefused)
	pinned     int           // partitions that keys are spread over, from topicReady on
	partitions []*partition  // at least as many; a worker stays with its partition
	waiting    []event.Event // copies, in order, until it is ready or refused
	missing    time.Time     // since when the cluster does not have it; zero: it does
	asked      int64         // when an event was last refused for it, milliseconds
	maxBytes   int           // max.message.bytes; 0: not known
	read       time.Time     // when maxBytes was asked for
	resumed    time.Time     // when a drain was last given up
}

type topicStatus uint8

const (
	topicNew topicStatus = iota // not resolved: its events wait
	topicReady
	topicDraining // as topicNew, until its queues are empty
	topicRefused
)

// partition is the queue of one partition, guarded by the queues' lock.
type partition struct {
	topic  *topic
	number int32

	full    []*record.Batch // closed batches, oldest first
	open    *record.Batch   // nil: none
	due     bool            // open is to be sent even if it is not full
	dirty   bool            // listed in queues.dirty
	started bool            // it has a worker
	busy    bool            // the worker has a batch in its hands
	failing bool            // and its last attempt failed
	decided time.Time       // when the broker last decided about one
	silent  bool            // its events are held: it does not answer while others do
	wake    chan struct{}   // one slot: there is something to look at
}

// String names the partition for people.
func (part *partition) String() string { return part.topic.name + "/" + strconv.Itoa(int(part.number)) }

func newQueues(cfg *Config, format *record.Format, deps Deps) *queues {
	return &queues{
		cfg: cfg, format: format, outcomes: deps.Outcomes, metrics: deps.Metrics, log: deps.Log,
		kick: make(chan struct{}, 1), topics: map[string]*topic{}, closed: aggregates{}, appended: map[int64]struct{}{},
	}
}

// attach sets what starts a worker. Nobody starts one after attach(nil).
func (q *queues) attach(spawn func(*partition)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spawn = spawn
}

// nudge makes the watcher look at the topics now.
func (q *queues) nudge() {
	select {
	case q.kick <- struct{}{}:
	default: // it is about to
	}
}

// publish takes events over.
func (q *queues) publish(events []event.Event, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	millis := now.UnixMilli()
	for i := range events {
		q.put(&events[i], millis)
	}
	q.report()
}

// put puts one event where it has to go. The lock is held.
func (q *queues) put(e *event.Event, now int64) {
	if q.isClosed(&e.Ref) {
		q.hold(e.Ref, event.HeldByOrder)
		return
	}
	q.name = q.format.AppendTopic(q.name[:0], e)
	t := q.topics[string(q.name)]
	if t == nil {
		if t = q.newTopic(e); t == nil {
			return
		}
	}
	switch {
	case len(e.Topic) > 0 && !t.rowMayName:
		q.refuse(e.Ref, record.FailTopicNotAllowed())
	case t.state == topicReady:
		q.encode(t, e, now)
	case t.state == topicRefused:
		t.asked = now
		q.turnAway(t, e, now)
	default:
		q.wait(t, e, now)
	}
}

// newTopic makes the topic of e, whose name is in q.name, or refuses e. The
// lock is held.
func (q *queues) newTopic(e *event.Event) *topic {
	name := string(q.name)
	allowed := q.format.Allowed(name)
	switch {
	case len(e.Topic) > 0 && !allowed:
		q.refuse(e.Ref, record.FailTopicNotAllowed())
		return nil
	case !record.ValidTopic(q.name):
		q.refuse(e.Ref, record.FailTopicName())
		return nil
	}
	t := &topic{name: name, rowMayName: allowed}
	q.topics[name] = t
	q.nudge()
	return t
}

// encode adds e to the open batch of its partition, unless it is in the log
// already. The lock is held.
func (q *queues) encode(t *topic, e *event.Event, now int64) {
	if q.ackAppended(&e.Ref) {
		return
	}
	r, failure := q.format.Record(e, now)
	if failure != nil {
		q.refuse(e.Ref, *failure)
		return
	}
	part := t.partitions[q.format.Partition(r, int32(t.pinned))]
	if part.silent {
		q.hold(e.Ref, event.HeldByPartition)
		return
	}
	b := part.open
	if b != nil && (b.Len() >= q.cfg.BatchRecords || b.Grown(r) > smaller(q.cfg.BatchBytes, t.maxBytes)) {
		part.full = append(part.full, b)
		q.wake(part)
		b = nil
	}
	if b == nil {
		b = q.newBatch()
		part.open = b
	}
	b.Add(r, e.Ref)
	if !part.dirty {
		part.dirty = true
		q.dirty = append(q.dirty, part)
	}
}

// smaller is the smaller of two limits, of which b may be 0: not known.
func smaller(a, b int) int { return min(a, cmp.Or(b, a)) }

// wait keeps a copy of e until its topic can be used. The lock is held.
func (q *queues) wait(t *topic, e *event.Event, now int64) {
	q.putWaiting(t, []event.Event{e.Clone()})
	tooMany := q.cfg.WaitingEvents > 0 && q.waiting.events > q.cfg.WaitingEvents ||
		q.cfg.WaitingBytes > 0 && q.waiting.bytes > q.cfg.WaitingBytes
	switch {
	case !tooMany:
	case !t.missing.IsZero():
		q.refuseTopic(t, failTopicUnknown(t.name))
	case t.state == topicDraining:
		q.resume(t, now)
	}
}

// putWaiting adds copies to the waiting events of t. The lock is held.
func (q *queues) putWaiting(t *topic, events []event.Event) {
	t.waiting = append(t.waiting, events...)
	q.waiting.events += len(events)
	for i := range events {
		q.waiting.bytes += int(events[i].Bytes)
	}
}

// takeWaiting empties the queue of waiting events. The lock is held.
func (q *queues) takeWaiting(t *topic) []event.Event {
	events := t.waiting
	t.waiting = nil
	q.waiting.events -= len(events)
	for i := range events {
		q.waiting.bytes -= int(events[i].Bytes)
	}
	return events
}

// refuseTopic refuses what waits for t and what comes from now on; workers
// refuse what is in their queues. The lock is held.
func (q *queues) refuseTopic(t *topic, f event.Failure) {
	t.state, t.failure, t.asked = topicRefused, f, time.Now().UnixMilli()
	for _, e := range q.takeWaiting(t) {
		if q.isClosed(&e.Ref) {
			q.hold(e.Ref, event.HeldByOrder)
			continue
		}
		q.turnAway(t, &e, t.asked)
	}
	q.flushLocked()
	q.log.Warn("refusing events until their topic can be used", "topic", t.name, "error_code", f.Code)
}

// turnAway refuses an event of a refused topic. If its partition still has
// earlier ones, its turn comes when the worker refuses those: of an aggregate
// the first one takes the attempt. The lock is held.
func (q *queues) turnAway(t *topic, e *event.Event, now int64) {
	r, failure := q.format.Record(e, now)
	if failure == nil && t.pinned > 0 {
		if part := t.partitions[q.format.Partition(r, int32(t.pinned))]; part.busy || part.open != nil || len(part.full) > 0 {
			q.encode(t, e, now)
			return
		}
	}
	q.refuse(e.Ref, t.failure)
}

// reconsider lets the events of refused topics wait again: while no broker
// answers nobody knows that a topic is still missing, and an outage must not
// cost an attempt.
func (q *queues) reconsider() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range q.topics {
		t.missing = time.Time{}
		if t.state == topicRefused {
			t.state = topicNew
		}
	}
}

// openTopic lets events pass, first those that wait, spread over so many
// partitions.
func (q *queues) openTopic(t *topic, pinned int, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.state == topicRefused {
		q.log.Info("the topic can be used again", "topic", t.name)
	}
	t.missing = time.Time{}
	for i := len(t.partitions); i < pinned; i++ {
		t.partitions = append(t.partitions, &partition{topic: t, number: int32(i), wake: make(chan struct{}, 1)})
	}
	t.pinned = pinned
	q.encodeWaiting(t, now.UnixMilli())
	q.flushLocked()
	q.report()
}

// encodeWaiting makes t ready and gives what waits to the partitions. The lock
// is held.
func (q *queues) encodeWaiting(t *topic, now int64) {
	t.state = topicReady
	for _, e := range q.takeWaiting(t) {
		if q.isClosed(&e.Ref) {
			q.hold(e.Ref, event.HeldByOrder)
			continue
		}
		q.encode(t, &e, now)
	}
}

// flush makes due what the partitions have got since the last flush.
func (q *queues) flush() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.flushLocked()
}

func (q *queues) flushLocked() {
	for _, part := range q.dirty {
		part.dirty = false
		part.due = true
		q.wake(part)
	}
	q.dirty = q.dirty[:0]
}

// wake makes sure that a worker looks at part. The lock is held.
func (q *queues) wake(part *partition) {
	if !part.started {
		if q.spawn == nil {
			return
		}
		part.started = true
		q.spawn(part)
	}
	select {
	case part.wake <- struct{}{}:
	default: // it has not looked since the last time
	}
}

// take returns the next batch of part, nil if there is none to be sent now.
// A batch that is not full is left to grow until it is flushed.
func (q *queues) take(part *partition) *record.Batch {
	q.mu.Lock()
	defer q.mu.Unlock()
	b := q.next(part)
	part.busy = b != nil
	if !part.busy && part.topic.state == topicDraining {
		q.nudge()
	}
	return b
}

// next takes the next batch out of part's queue. The lock is held.
func (q *queues) next(part *partition) *record.Batch {
	if len(part.full) > 0 {
		b := part.full[0]
		n := copy(part.full, part.full[1:])
		part.full[n] = nil
		part.full = part.full[:n]
		return b
	}
	if !part.due {
		return nil
	}
	b := part.open
	part.open, part.due = nil, false
	return b
}

// newBatch returns an empty batch. The lock is held.
func (q *queues) newBatch() *record.Batch {
	n := len(q.free) - 1
	if n < 0 {
		return new(record.Batch)
	}
	b := q.free[n]
	q.free[n] = nil
	q.free = q.free[:n]
	q.freed -= b.Cap()
	return b
}

// recycleLocked takes back a batch whose bytes nobody can be reading any more.
// The lock is held.
func (q *queues) recycleLocked(b *record.Batch) {
	b.Reset()
	if q.freed+b.Cap() <= maxFree {
		q.free = append(q.free, b)
		q.freed += b.Cap()
	}
}

// refusalOf returns the failure for which t's events are refused at present.
func (q *queues) refusalOf(t *topic) (f event.Failure, refused bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return t.failure, t.state == topicRefused
}

// sizeLimit returns the size limit of t, 0 if it is not known, and whether it
// was read just now: it may have been changed since.
func (q *queues) sizeLimit(t *topic) (maxBytes int, fresh bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return t.maxBytes, time.Since(t.read) < limitFresh
}

// doubtLimit makes the watcher read the size limit of t again.
func (q *queues) doubtLimit(t *topic) {
	q.mu.Lock()
	defer q.mu.Unlock()
	t.read = time.Time{}
	q.nudge()
}
