package sink

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// topic is what the sink knows of a topic. The publisher's lock guards it,
// but for name and rowMayName, which never change, and for what is marked as
// the watcher's.
type topic struct {
	name       string
	rowMayName bool // a row's own topic column may say so
	state      topicStatus
	failure    event.Failure // why its events are refused (topicRefused)
	partitions []*partition  // as many as pinned, from topicReady on
	maxBytes   int           // max.message.bytes; 0: not known
	waiting    []event.Event // copies, in order, until it is ready or refused

	missing time.Time // since when the cluster does not have it; zero: it does (watcher's)
	pinned  int       // 0: not pinned yet (watcher's)
	read    time.Time // when maxBytes was asked for (watcher's)
}

type topicStatus uint8

const (
	topicNew topicStatus = iota // not resolved: its events wait
	topicReady
	topicRefused
)

// partition is the queue of one partition, guarded by the publisher's lock.
type partition struct {
	topic  *topic
	number int32
	label  string // topic/number, for people

	full    []*record.Batch // closed batches, oldest first
	open    *record.Batch   // nil: none
	due     bool            // open is to be sent even if it is not full
	dirty   bool            // listed in Publisher.dirty
	started bool            // it has a worker
	wake    chan struct{}   // one slot: there is something to look at
}

func newPartition(t *topic, number int32) *partition {
	return &partition{
		topic: t, number: number, label: t.name + "/" + strconv.Itoa(int(number)), wake: make(chan struct{}, 1),
	}
}

// batchBytes is the size beyond which a batch is closed.
func (t *topic) batchBytes(configured int) int { return limit(configured, t.maxBytes) }

// newTopic makes the topic of e, whose name is in p.name, or refuses e. The
// lock is held.
func (p *Publisher) newTopic(e *event.Event) *topic {
	name := string(p.name)
	allowed := p.format.Allowed(name)
	switch {
	case len(e.Topic) > 0 && !allowed:
		p.refuse(e.Ref, record.FailTopicNotAllowed())
		return nil
	case !record.ValidTopic(p.name):
		p.refuse(e.Ref, record.FailTopicName())
		return nil
	}
	t := &topic{name: name, rowMayName: allowed}
	p.topics[name] = t
	p.nudge()
	return t
}

// nudge makes the watcher look at the topics now.
func (p *Publisher) nudge() {
	select {
	case p.kick <- struct{}{}:
	default: // it is about to
	}
}

// wait keeps a copy of e until its topic is resolved. The lock is held.
func (p *Publisher) wait(t *topic, e *event.Event) {
	t.waiting = append(t.waiting, copyEvent(e))
	p.waiting.events++
	p.waiting.bytes += int(e.Bytes)
	tooMany := p.cfg.WaitingEvents > 0 && p.waiting.events > p.cfg.WaitingEvents ||
		p.cfg.WaitingBytes > 0 && p.waiting.bytes > p.cfg.WaitingBytes
	if tooMany && !t.missing.IsZero() {
		p.refuseTopic(t, failTopicUnknown(t.name))
	}
}

// copyEvent copies e with the bytes that it only borrows.
func copyEvent(e *event.Event) event.Event {
	c := *e
	views := []*[]byte{&c.AggregateType, &c.AggregateID, &c.EventType, &c.ContentType, &c.Payload, &c.Headers, &c.Topic}
	size := 0
	for _, v := range views {
		size += len(*v)
	}
	buf := make([]byte, 0, size)
	for _, v := range views {
		start := len(buf)
		buf = append(buf, *v...)
		*v = buf[start:len(buf):len(buf)]
	}
	return c
}

// takeWaiting empties the queue of waiting events. The lock is held.
func (p *Publisher) takeWaiting(t *topic) []event.Event {
	events := t.waiting
	t.waiting = nil
	p.waiting.events -= len(events)
	for i := range events {
		p.waiting.bytes -= int(events[i].Bytes)
	}
	return events
}

// refuseTopic refuses what waits for t and what comes from now on. Its
// workers refuse what is in their queues. The lock is held.
func (p *Publisher) refuseTopic(t *topic, f event.Failure) {
	t.state, t.failure = topicRefused, f
	for _, e := range p.takeWaiting(t) {
		p.refuse(e.Ref, f)
	}
	for _, part := range t.partitions {
		if part.open != nil || len(part.full) > 0 {
			part.due = true
			p.wake(part)
		}
	}
	p.deps.Log.Warn("events for this topic are refused until it can be used", "topic", t.name, "error_code", f.Code)
}

// openTopic lets events pass, first those that wait. The lock is held.
func (p *Publisher) openTopic(t *topic) {
	if t.partitions == nil {
		for i := range t.pinned {
			t.partitions = append(t.partitions, newPartition(t, int32(i)))
		}
	}
	if t.state == topicRefused {
		p.deps.Log.Info("the topic can be used again", "topic", t.name)
	}
	t.state = topicReady
	now := time.Now().UnixMilli()
	for _, e := range p.takeWaiting(t) {
		p.add(t, &e, now)
	}
	p.flush()
}

// The codes of topic failures.
const (
	codeTopicUnknown = "TOPIC_UNKNOWN"
	codeTopicDenied  = "TOPIC_DENIED"
)

func failTopicUnknown(name string) event.Failure {
	return event.Failure{
		Class:   event.ClassTopic,
		Code:    codeTopicUnknown,
		Message: fmt.Sprintf("topic %s does not exist, or the relay has no right to see it: create it or grant DESCRIBE", name),
	}
}

func failTopicDenied(name string) event.Failure {
	return event.Failure{
		Class:   event.ClassTopic,
		Code:    codeTopicDenied,
		Message: fmt.Sprintf("the relay's login may not write to topic %s: grant WRITE and DESCRIBE on it", name),
	}
}

const (
	// limitsAge is how old a topic's size limit may get.
	limitsAge = 30 * time.Second
	// limitFresh is how old it may be to refuse a record without asking the broker.
	limitFresh = 2 * time.Second
)

// connectPatience is how long no broker may answer before that is for a person.
const connectPatience = 30 * time.Second

// watchTopics resolves the topics that events wait for and looks after the
// others, until ctx ends. It is the only goroutine that asks about topics.
func (p *Publisher) watchTopics(ctx context.Context) error {
	tick := time.NewTicker(p.cfg.MetadataTTL)
	defer tick.Stop()
	unreachable := time.Now() // since when; zero: it is reachable
	for {
		states, err := p.cluster.topics(context.WithoutCancel(ctx), p.topicNames())
		if ctx.Err() != nil {
			return nil
		}
		unreachable = p.checkConnection(err, unreachable)
		if err == nil {
			if err := p.checkTopics(ctx, states); err != nil {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-p.kick:
		case <-ctx.Done():
			return nil
		}
	}
}

func (p *Publisher) topicNames() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := make([]string, 0, len(p.topics))
	for name := range p.topics {
		names = append(names, name)
	}
	return names
}

// checkConnection reports whether the cluster can be reached, given what the
// last request for metadata met and since when it could not be reached.
func (p *Publisher) checkConnection(err error, since time.Time) time.Time {
	const subject = "connection"
	now := time.Now()
	// The client answers from memory once it has known the cluster, so the
	// absence of an error proves nothing: something must be heard as well.
	quiet := now.Sub(p.cluster.conns.lastHeard())
	if err == nil && quiet < 3*p.cfg.MetadataTTL+time.Second {
		p.deps.Metrics.setConnected(true)
		p.troubles.clear(subject)
		if !since.IsZero() {
			p.deps.Log.Info("connected to Kafka")
		}
		return time.Time{}
	}
	p.deps.Metrics.setConnected(false)
	if since.IsZero() {
		since = now
		p.deps.Log.Warn("the Kafka cluster cannot be reached", "err", err)
		p.cluster.refresh() // to learn the true cause
	}
	if now.Sub(since) >= connectPatience || err != nil && classify(err).blocked != "" {
		p.troubles.set(subject, connectTrouble(err))
	}
	return since
}

// checkTopics moves each topic on according to what the cluster says of it.
// An error ends the session.
func (p *Publisher) checkTopics(ctx context.Context, states map[string]topicState) error {
	p.readLimits(ctx, states)
	for name, s := range states {
		p.mu.Lock()
		t := p.topics[name]
		p.mu.Unlock()
		if err := p.checkTopic(ctx, t, s); err != nil {
			return err
		}
	}
	return nil
}

func (p *Publisher) checkTopic(ctx context.Context, t *topic, s topicState) error {
	if s.err != nil {
		p.topicMissing(t, s.err)
		return nil
	}
	if t.pinned == 0 {
		pinned, err := p.deps.Pins.Pin(ctx, t.name, s.partitions)
		switch {
		case errors.Is(err, fault.ErrFenced):
			return fmt.Errorf("pinning the partitions of topic %s: %w", t.name, err)
		case ctx.Err() != nil:
			return nil
		case err != nil:
			p.deps.Log.Warn("pinning the partitions of a topic: its events wait", "topic", t.name, "err", err)
			return nil
		}
		t.pinned = pinned
	}
	p.deps.Metrics.setPartitions(t.name, t.pinned, s.partitions)
	subject := "topic " + t.name
	if s.partitions < t.pinned {
		p.troubles.set(subject, partitionsTrouble(t, s.partitions))
		return nil
	}
	p.troubles.clear(subject)
	p.mu.Lock()
	t.missing = time.Time{}
	if t.state != topicReady {
		p.openTopic(t)
	}
	refused := p.takeRefused()
	p.mu.Unlock()
	p.report(refused)
	return nil
}

// topicMissing notes that the cluster does not show t, and refuses its events
// once that has been so for long enough.
func (p *Publisher) topicMissing(t *topic, err error) {
	p.mu.Lock()
	now := time.Now()
	if t.missing.IsZero() {
		t.missing = now
	}
	if t.state != topicRefused {
		if errors.Is(err, kafka.TopicAuthorizationFailed) {
			p.refuseTopic(t, failTopicDenied(t.name))
		} else if now.Sub(t.missing) >= p.cfg.UnknownTopicGrace {
			p.refuseTopic(t, failTopicUnknown(t.name))
		}
	}
	refused := p.takeRefused()
	p.mu.Unlock()
	p.report(refused)
}

func partitionsTrouble(t *topic, present int) *fault.Blocked {
	return &fault.Blocked{
		Reason: checkPartitions,
		What:   fmt.Sprintf("topic %s has %d partitions, fewer than the %d that keys were spread over", t.name, present, t.pinned),
		Remedy: fmt.Sprintf("give it %d partitions again, or run: cdc-relay topics repin %s --confirm %d", t.pinned, t.name, present),
	}
}

// readLimits reads the size limits that are not known or old. Without the
// right to, the broker's refusals tell them.
func (p *Publisher) readLimits(ctx context.Context, states map[string]topicState) {
	now := time.Now()
	var stale []string
	p.mu.Lock()
	for name, s := range states {
		if t := p.topics[name]; s.err == nil && now.Sub(t.read) >= limitsAge {
			t.read = now
			stale = append(stale, name)
		}
	}
	p.mu.Unlock()
	if len(stale) == 0 {
		return
	}
	limits, err := p.cluster.maxBytes(context.WithoutCancel(ctx), stale)
	if err != nil {
		p.deps.Log.Debug("reading the size limits of topics", "err", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range stale {
		p.topics[name].maxBytes = limits[name]
	}
}

// doubtLimit returns the size limit of t and makes the watcher read it again:
// it has just been the reason for a refusal.
func (p *Publisher) doubtLimit(t *topic) (maxBytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t.read = time.Time{}
	p.nudge()
	return t.maxBytes
}
