package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

const (
	// limitsAge is how old a topic's size limit may get.
	limitsAge = 30 * time.Second
	// limitFresh is how old it may be to refuse a record without asking the broker.
	limitFresh = 2 * time.Second
	// forgetAfter is how long a topic that is not there is remembered unused.
	forgetAfter = 10 * time.Minute
	// connectPatience is how long no broker may answer before a person is called.
	connectPatience = 30 * time.Second
)

// catalog is what the watcher needs of Kafka.
type catalog interface {
	// topics tells about the topics of these names. The error is the true
	// reason why the cluster cannot be reached; that there is none does not
	// prove that it can be reached now, since answers may come from memory.
	topics(ctx context.Context, names []string) (map[string]topicState, error)
	// maxBytes reads max.message.bytes of these topics. Topics whose
	// configuration may not be read are left out.
	maxBytes(ctx context.Context, names []string) (map[string]int, error)
	// lastHeard is when a broker last sent anything; zero: never.
	lastHeard() time.Time
}

// topicState is what the cluster says about a topic.
type topicState struct {
	partitions int
	err        error // kafka.UnknownTopicOrPartition: not there, or not ours to see
}

// watcher resolves the topics that events wait for and looks after the others
// and the connection. Its goroutine is the only one that asks about topics.
type watcher struct {
	catalog  catalog
	broker   broker
	queues   *queues
	troubles *troubles
	pins     Pins
	metrics  *Metrics
	log      *slog.Logger
	pulse    *pulse.Board
	ttl      time.Duration // between two looks, and of the client's memory
	grace    time.Duration // for unknown topics

	pinned      map[string]int
	repins      repinner
	unreachable time.Time // since when the cluster does not answer; zero: it does
}

// run watches until ctx ends, or fault.ErrFenced.
func (w *watcher) run(ctx context.Context) error {
	tick := time.NewTicker(w.ttl)
	defer tick.Stop()
	w.pinned = map[string]int{}
	w.repins = repinner{told: map[string]int{}, present: map[string]int{}}
	w.unreachable = time.Now()
	beat := w.pulse.Start("topic watcher")
	defer beat.End()
	for {
		beat.Work()
		if err := w.look(ctx, beat); err != nil || ctx.Err() != nil {
			return err
		}
		beat.Rest()
		select {
		case <-tick.C:
		case <-w.queues.kick:
		case <-ctx.Done():
			return nil
		}
	}
}

// look asks once about the cluster and its topics.
func (w *watcher) look(ctx context.Context, beat *pulse.Beat) error {
	topics := w.topics()
	names := make([]string, 0, len(topics))
	for _, t := range topics {
		names = append(names, t.name)
	}
	states, err := w.catalog.topics(ctx, names)
	if ctx.Err() != nil {
		return nil
	}
	if !w.connection(err, time.Now()) {
		w.queues.reconsider()
		return nil
	}
	w.readLimits(ctx, topics, states)
	w.readWanted(ctx)
	for _, t := range topics {
		beat.Work() // each may ask the database
		if err := w.topic(ctx, t, states[t.name]); err != nil {
			return err
		}
	}
	return nil
}

func (w *watcher) topics() []*topic {
	w.queues.mu.Lock()
	defer w.queues.mu.Unlock()
	topics := make([]*topic, 0, len(w.queues.topics))
	for _, t := range w.queues.topics {
		topics = append(topics, t)
	}
	return topics
}

// connection judges whether the cluster can be reached, given what the last
// question met with.
func (w *watcher) connection(err error, now time.Time) (reachable bool) {
	const subject = "connection"
	if err == nil && heardLately(w.catalog, w.ttl) {
		if !w.unreachable.IsZero() {
			w.log.Info("the Kafka cluster answers")
		}
		w.unreachable = time.Time{}
		w.metrics.setConnected(true)
		w.troubles.clear(subject)
		return true
	}
	w.metrics.setConnected(false)
	if w.unreachable.IsZero() {
		w.unreachable = now
		w.log.Warn("the Kafka cluster does not answer", "err", safe(err))
		w.broker.refresh() // the next question then meets the true cause
	}
	if now.Sub(w.unreachable) >= connectPatience || classify(err).blocked != "" {
		w.troubles.set(subject, connectTrouble(err))
	}
	return false
}

// topic moves t on according to what the cluster says of it. An error ends
// the session.
func (w *watcher) topic(ctx context.Context, t *topic, s topicState) error {
	subject := "topic " + t.name
	switch {
	case s.err == nil && s.partitions > 0:
	case errors.Is(s.err, kafka.TopicAuthorizationFailed):
		w.troubles.clear(subject) // it is its events' affair now
		w.missing(t, failTopicDenied(t.name), 0)
		return nil
	case errors.Is(s.err, kafka.UnknownTopicOrPartition):
		w.troubles.clear(subject)
		w.missing(t, failTopicUnknown(t.name), w.grace)
		return nil
	default: // it is being created, or the broker does not know yet
		return nil
	}
	draining := false
	pinned, err := w.pin(ctx, t, s.partitions)
	if err == nil {
		pinned, draining, err = w.repin(ctx, t, pinned, s.partitions)
	}
	if errors.Is(err, fault.ErrFenced) {
		return err
	}
	if err != nil {
		if ctx.Err() == nil {
			w.log.Warn("the events of a topic wait", "err", err)
		}
		return nil
	}
	if draining {
		return nil
	}
	w.metrics.setPartitions(t.name, pinned, s.partitions)
	w.tellMore(t, pinned, s.partitions)
	if s.partitions < pinned {
		w.troubles.set(subject, partitionsTrouble(t.name, pinned, s.partitions))
		return nil
	}
	w.troubles.clear(subject)
	if !w.usable(t) {
		w.queues.openTopic(t, pinned, time.Now())
	}
	return nil
}

func (w *watcher) pin(ctx context.Context, t *topic, present int) (int, error) {
	if n := w.pinned[t.name]; n > 0 {
		return n, nil
	}
	n, err := w.pins.Pin(ctx, t.name, present)
	if err != nil {
		return 0, fmt.Errorf("pinning the partitions of topic %s: %w", t.name, err)
	}
	w.pinned[t.name] = n
	return n, nil
}

// usable reports whether events of t pass, and notes that t is not missing.
func (w *watcher) usable(t *topic) bool {
	w.queues.mu.Lock()
	defer w.queues.mu.Unlock()
	t.missing = time.Time{}
	return t.state == topicReady
}

// missing notes that the cluster does not show t. Once that has been so for
// the grace time its events are refused, and one that never had partitions is
// forgotten when nobody asks for it any more: rows can name any number of
// topics.
func (w *watcher) missing(t *topic, f event.Failure, grace time.Duration) {
	q := w.queues
	q.mu.Lock()
	now := time.Now()
	first := t.missing.IsZero()
	if first {
		t.missing = now
	}
	switch {
	case t.state != topicRefused && now.Sub(t.missing) >= grace:
		q.refuseTopic(t, f)
	case t.state == topicRefused && t.partitions == nil && now.Sub(time.UnixMilli(t.asked)) > forgetAfter:
		delete(q.topics, t.name)
	}
	q.report()
	q.mu.Unlock()
	if first && grace > 0 {
		w.log.Warn("a topic is not there: its events wait", "topic", t.name, "for", grace)
	}
}

// readLimits reads the size limits that are not known or old. Without the
// right to, the broker's refusals have to do.
func (w *watcher) readLimits(ctx context.Context, topics []*topic, states map[string]topicState) {
	q := w.queues
	now := time.Now()
	var names []string
	q.mu.Lock()
	topics = slices.DeleteFunc(slices.Clone(topics), func(t *topic) bool {
		return states[t.name].err != nil || now.Sub(t.read) < limitsAge
	})
	for _, t := range topics {
		t.read = now
		names = append(names, t.name)
	}
	q.mu.Unlock()
	if len(topics) == 0 {
		return
	}
	limits, err := w.catalog.maxBytes(ctx, names)
	if err != nil {
		w.log.Debug("reading the size limits of topics", "err", safe(err))
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range topics {
		t.maxBytes = limits[t.name]
	}
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
		Message: fmt.Sprintf("topic %s does not exist, or the relay may not see it: create it or grant DESCRIBE", name),
	}
}

func failTopicDenied(name string) event.Failure {
	return event.Failure{
		Class:   event.ClassTopic,
		Code:    codeTopicDenied,
		Message: fmt.Sprintf("the relay's login may not write to topic %s: grant WRITE and DESCRIBE on it", name),
	}
}

func partitionsTrouble(name string, pinned, present int) *fault.Blocked {
	return &fault.Blocked{
		Reason: checkPartitions,
		What:   fmt.Sprintf("topic %s has %d partitions, fewer than the %d that keys were spread over", name, present, pinned),
		Remedy: fmt.Sprintf("give it %d partitions again; or, if keys may move to others, cdc-relay topics repin %s --confirm %d, and restart the relay", pinned, name, present),
	}
}
