// Package sink publishes events to Kafka: it encodes them into batches, one
// open batch per partition, sends these with acks=all and says what became of
// each event.
//
// It owns the Kafka client, the producer identity and the sequence numbers.
// Every partition has a worker of its own with one batch in flight, so
// partitions do not wait for each other and a partition's log has the order of
// Publish. A batch is sent again, byte for byte, until the broker answers for
// it; the worker never moves past it (I5, I7). An event is reported as acked
// only after the broker's answer (I6), and nothing is sent unless Permit has
// just said so (I9).
//
// On failure: what is the broker's fault is tried again without end and costs
// no event anything; a record that is at fault is found, refused and left out,
// and the others are published in order; a topic that does not exist, or is
// denied, refuses its events and no others. Conditions for a person are
// reported through Outcomes.Trouble while the sink goes on trying. An error of
// Run ends the session.
package sink

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/segmentio/kafka-go/sasl"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// Config says how to publish. All fields are required unless said otherwise.
type Config struct {
	Brokers  []string // host:port
	ClientID string
	TLS      *tls.Config    // nil: plain text
	SASL     sasl.Mechanism // nil: no login

	Compression  record.Compression
	Linger       time.Duration // wait for more after something is due; 0: none
	BatchBytes   int           // a batch is closed before it grows beyond, uncompressed
	BatchRecords int
	MaxRequests  int // produce requests at a time

	RequestTimeout time.Duration
	DialTimeout    time.Duration
	IdleTimeout    time.Duration
	MetadataTTL    time.Duration
	BackoffMin     time.Duration
	BackoffMax     time.Duration

	// UnknownTopicGrace is how long events wait for a topic that the cluster
	// does not have, from the first time it said so.
	UnknownTopicGrace time.Duration
	// WaitingEvents and WaitingBytes end the wait for unknown topics early,
	// once that much waits. 0: no limit.
	WaitingEvents int
	WaitingBytes  int

	Identity Identity
	Record   record.Config
}

// Outcomes takes reports. Its methods are called from several goroutines and
// must not block. They take the slices over.
type Outcomes interface {
	// Acked reports events whose records are in the log (acks=all), those of
	// a partition in order.
	Acked(refs []event.Ref)
	// Refused reports events that were not published, and why.
	Refused(refs []event.Ref, f event.Failure)
	// Trouble reports a condition for a person; nil: there is none any more.
	Trouble(b *fault.Blocked)
}

// Pins keeps the number of partitions that keys are spread over, per topic.
type Pins interface {
	// Pin returns the pinned count, after pinning present if there was none.
	// fault.ErrFenced ends the session; any other error may pass.
	Pin(ctx context.Context, topic string, present int) (pinned int, err error)
}

// Deps are the parts that a Publisher works with. All are required.
type Deps struct {
	Outcomes Outcomes
	Pins     Pins
	// Permit is called before each produce request. It returns nil when the
	// relay may publish, waits while that is uncertain, and returns an error
	// (fault.ErrFenced) when leadership is gone.
	Permit  func(context.Context) error
	Metrics *Metrics
	Log     *slog.Logger
}

// Publisher publishes the events of one session. See the package comment.
type Publisher struct {
	cfg        Config
	deps       Deps
	cluster    *cluster
	broker     broker // the cluster, but for tests
	identities *identities
	troubles   *troubles
	requests   chan struct{} // a slot per produce request in flight
	kick       chan struct{} // one slot: topics have something to look at

	mu      sync.Mutex // guards all below, and the partitions' queues
	format  *record.Format
	name    []byte // scratch: the topic of the event at hand
	topics  map[string]*topic
	dirty   []*partition     // have had data since the last Flush
	spawn   func(*partition) // starts a worker; nil unless running
	free    []*record.Batch  // empty batches to reuse
	freed   int              // bytes that free holds on to
	waiting backlog          // of all topics together
	refused []refusal        // to report at the end of the call
}

// backlog is an amount of events.
type backlog struct{ events, bytes int }

// refusal is a report to be made when the lock is free.
type refusal struct {
	refs    []event.Ref
	failure event.Failure
}

// maxFree bounds what unused batches may hold on to, in bytes.
const maxFree = 8 << 20

// New validates cfg and deps. It does no I/O.
func New(cfg Config, deps Deps) (*Publisher, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configuring the Kafka publisher: %w", err)
	}
	if deps.Outcomes == nil || deps.Pins == nil || deps.Permit == nil || deps.Metrics == nil || deps.Log == nil {
		return nil, errors.New("configuring the Kafka publisher: a dependency is missing")
	}
	format, err := record.NewFormat(cfg.Record)
	if err != nil {
		return nil, fmt.Errorf("configuring Kafka records: %w", err)
	}
	c := newCluster(&cfg)
	return newPublisher(cfg, deps, format, c, c), nil
}

func newPublisher(cfg Config, deps Deps, format *record.Format, c *cluster, b broker) *Publisher {
	return &Publisher{
		cfg: cfg, deps: deps, format: format,
		cluster: c, broker: b,
		identities: newIdentities(cfg.Identity, b, deps.Metrics, deps.Log),
		troubles:   &troubles{outcomes: deps.Outcomes},
		requests:   make(chan struct{}, cfg.MaxRequests),
		kick:       make(chan struct{}, 1),
		topics:     map[string]*topic{},
	}
}

func (c *Config) validate() error {
	positive := []struct {
		name  string
		value int64
	}{
		{"BatchBytes", int64(c.BatchBytes)}, {"BatchRecords", int64(c.BatchRecords)}, {"MaxRequests", int64(c.MaxRequests)},
		{"RequestTimeout", int64(c.RequestTimeout)}, {"DialTimeout", int64(c.DialTimeout)},
		{"IdleTimeout", int64(c.IdleTimeout)}, {"MetadataTTL", int64(c.MetadataTTL)},
		{"UnknownTopicGrace", int64(c.UnknownTopicGrace)},
		{"BackoffMin", int64(c.BackoffMin)}, {"BackoffMax", int64(c.BackoffMax)},
	}
	for _, p := range positive {
		if p.value <= 0 {
			return fmt.Errorf("%s must be positive", p.name)
		}
	}
	if c.Linger < 0 || c.WaitingEvents < 0 || c.WaitingBytes < 0 {
		return errors.New("a negative Linger, WaitingEvents or WaitingBytes")
	}
	if len(c.Brokers) == 0 {
		return errors.New("at least one broker is required")
	}
	if c.BackoffMin > c.BackoffMax {
		return errors.New("BackoffMin must not exceed BackoffMax")
	}
	if c.Compression < record.None || c.Compression > record.Zstd {
		return fmt.Errorf("unknown compression %v", c.Compression)
	}
	if c.Identity != Idempotent && c.Identity != None {
		return errors.New("a producer identity is required")
	}
	return nil
}

// Run publishes until its context ends; it may be called once. What has no answer by
// then stays unreported: the connections are closed under it. It returns nil
// then, fault.ErrFenced when leadership is gone, and no other errors than
// those of Permit.
func (p *Publisher) Run(parent context.Context) error {
	group, ctx := errgroup.WithContext(parent)
	stop := context.AfterFunc(ctx, p.cluster.close)
	defer stop()
	p.mu.Lock()
	p.spawn = func(part *partition) {
		w := newWorker(p, part)
		group.Go(func() error { return w.run(ctx) })
	}
	p.mu.Unlock()

	group.Go(func() error { return p.watchTopics(ctx) })
	<-ctx.Done()
	p.mu.Lock()
	p.spawn = nil
	p.mu.Unlock()
	err := group.Wait()
	p.deps.Metrics.setConnected(false)
	if parent.Err() != nil && !errors.Is(err, fault.ErrFenced) {
		return nil
	}
	return err
}

// Publish encodes events into the open batches of their partitions and keeps
// nothing of them. It takes one lock and never waits for Kafka: the caller
// bounds what is in flight. Called by one goroutine only. Events that cannot
// be records are reported as refused before it returns.
func (p *Publisher) Publish(events []event.Event) {
	now := time.Now().UnixMilli()
	p.mu.Lock()
	for i := range events {
		p.publish(&events[i], now)
	}
	refused := p.takeRefused()
	p.mu.Unlock()
	p.report(refused)
}

// publish puts one event where it has to go. The lock is held.
func (p *Publisher) publish(e *event.Event, now int64) {
	p.name = p.format.AppendTopic(p.name[:0], e)
	t := p.topics[string(p.name)]
	if t == nil {
		if t = p.newTopic(e); t == nil {
			return
		}
	}
	switch {
	case len(e.Topic) > 0 && !t.rowMayName:
		p.refuse(e.Ref, record.FailTopicNotAllowed())
	case t.state == topicReady:
		p.add(t, e, now)
	case t.state == topicRefused:
		p.refuse(e.Ref, t.failure)
	default:
		p.wait(t, e)
	}
}

// add encodes e into the open batch of its partition. The lock is held.
func (p *Publisher) add(t *topic, e *event.Event, now int64) {
	r, failure := p.format.Record(e, now)
	if failure != nil {
		p.refuse(e.Ref, *failure)
		return
	}
	part := t.partitions[p.format.Partition(r, int32(len(t.partitions)))]
	b := part.open
	if b != nil && (b.Len() >= p.cfg.BatchRecords || b.Grown(r) > t.batchBytes(p.cfg.BatchBytes)) {
		part.full = append(part.full, b)
		p.wake(part)
		b = nil
	}
	if b == nil {
		b = p.newBatch()
		part.open = b
	}
	b.Add(r, e.Ref)
	if !part.dirty {
		part.dirty = true
		p.dirty = append(p.dirty, part)
	}
}

// Flush wakes the workers of the partitions that got something since the last
// Flush. It never blocks.
func (p *Publisher) Flush() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flush()
}

// flush is Flush with the lock held.
func (p *Publisher) flush() {
	for _, part := range p.dirty {
		part.dirty = false
		part.due = true
		p.wake(part)
	}
	p.dirty = p.dirty[:0]
}

// wake makes sure that a worker looks at part. The lock is held.
func (p *Publisher) wake(part *partition) {
	if !part.started {
		if p.spawn == nil {
			return
		}
		part.started = true
		p.spawn(part)
	}
	select {
	case part.wake <- struct{}{}:
	default: // it has not looked since the last time
	}
}

// take returns the next batch of part, nil if there is none to be sent now.
// A batch that is not full is left to grow until it is flushed.
func (p *Publisher) take(part *partition) *record.Batch {
	p.mu.Lock()
	defer p.mu.Unlock()
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
func (p *Publisher) newBatch() *record.Batch {
	n := len(p.free) - 1
	if n < 0 {
		return new(record.Batch)
	}
	b := p.free[n]
	p.free[n] = nil
	p.free = p.free[:n]
	p.freed -= b.Cap()
	return b
}

// recycle takes back a batch whose bytes nobody can be reading any more.
func (p *Publisher) recycle(b *record.Batch) {
	b.Reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.freed+b.Cap() <= maxFree {
		p.free = append(p.free, b)
		p.freed += b.Cap()
	}
}

// refuse notes that an event is refused. The lock is held.
func (p *Publisher) refuse(ref event.Ref, f event.Failure) {
	if n := len(p.refused); n > 0 && p.refused[n-1].failure == f {
		p.refused[n-1].refs = append(p.refused[n-1].refs, ref)
		return
	}
	p.refused = append(p.refused, refusal{refs: []event.Ref{ref}, failure: f})
}

// takeRefused returns what report has to report. The lock is held.
func (p *Publisher) takeRefused() []refusal {
	refused := p.refused
	p.refused = nil
	return refused
}

// report reports refusals. The lock must be free: Outcomes is not ours.
func (p *Publisher) report(refused []refusal) {
	for _, r := range refused {
		p.deps.Outcomes.Refused(r.refs, r.failure)
	}
}

// limit is the smaller of two limits of which 0 means that it is not known.
func limit(a, b int) int {
	return cmp.Or(min(a, b), a, b)
}
