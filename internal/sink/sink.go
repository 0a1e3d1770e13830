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
// denied, refuses its events and no others. Later ordered events of a refused
// one's aggregate are held until Guard (order.go). A partition that does not
// answer while others do holds its events, and its batch in doubt is the probe
// for its return (silence.go). Conditions for a person are
// reported through Outcomes.Trouble while the sink goes on trying. An error of
// Run ends the session.
//
// With a fenced identity a Publisher takes the slot's transactional id over when
// it begins to run, and the broker refuses its predecessor's batches from then on
// wherever this one has written (identity.go). Being refused itself ends the
// session.
//
// Four parts share the work: queues (what is to be sent, under one lock),
// sender (what the workers send with), watcher (what is known of topics, and
// over how many partitions their keys are spread), and identities.
package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// Outcomes takes reports. Its methods are called from several goroutines and
// must not block, nor call the Publisher: its lock may be held. They take the
// slices over.
type Outcomes interface {
	// Acked reports events whose records are in the log (acks=all), those of
	// a partition in order.
	Acked(refs []event.Ref)
	// Refused reports events that were not published, and why.
	Refused(refs []event.Ref, f event.Failure)
	// Held reports events that were not published though nothing is wrong
	// with them. When their batch is in doubt, another report about them may
	// follow: its refs are event.Untracked then. One that is not Ordered, and
	// is in the log after all, is reported as acked when it is handed over again.
	Held(refs []event.Ref, why event.Reason)
	// Silent reports how many partitions hold their events at present because
	// they do not answer, whenever that changes.
	Silent(partitions int)
	// Trouble reports a condition for a person; nil: there is none any more.
	Trouble(b *fault.Blocked)
}

// Pins keeps the number of partitions that keys are spread over, per topic.
type Pins interface {
	// Pin returns the pinned count, after pinning present if there was none.
	// fault.ErrFenced ends the session; any other error may pass.
	Pin(ctx context.Context, topic string, present int) (pinned int, err error)
	// Wanted returns the counts that a person wants to be pinned instead, by
	// topic. The map is the caller's.
	Wanted(ctx context.Context) (map[string]int, error)
	// Repin pins wanted, if that is still what is wanted, and returns what is
	// pinned then. fault.ErrFenced ends the session; any other error may pass.
	Repin(ctx context.Context, topic string, wanted int) (pinned int, err error)
}

// Deps are the parts that a Publisher works with. All but Pulse are required.
type Deps struct {
	Outcomes Outcomes
	Pins     Pins
	// Permit is called before each produce request. It returns nil when the
	// relay may publish, waits while that is uncertain, and returns an error
	// (fault.ErrFenced) when leadership is gone. It is called once more, with
	// a context that has ended, when the request is about to be written: then
	// it must not wait, and return nil only if the relay may publish.
	Permit  func(context.Context) error
	Metrics *Metrics
	Log     *slog.Logger
	// Pulse gets the beats of the partitions' workers and of the watcher. It
	// may be nil.
	Pulse *pulse.Board
}

// Publisher publishes the events of one session. See the package comment.
type Publisher struct {
	queues  *queues
	sender  *sender
	watcher *watcher
	metrics *Metrics
	close   func() // ends all requests; may be called again
}

// New validates cfg and deps. It does no I/O.
func New(cfg Config, deps Deps) (*Publisher, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configuring the Kafka publisher: %w", err)
	}
	if deps.Outcomes == nil || deps.Pins == nil || deps.Permit == nil || deps.Metrics == nil || deps.Log == nil {
		return nil, errors.New("configuring the Kafka publisher: a dependency is missing")
	}
	c := newCluster(&cfg)
	return assemble(cfg, deps, c, c, c.close)
}

// assemble puts the parts together around a broker and a catalog.
func assemble(cfg Config, deps Deps, b broker, c catalog, end func()) (*Publisher, error) {
	format, err := record.NewFormat(cfg.Record)
	if err != nil {
		return nil, fmt.Errorf("configuring Kafka records: %w", err)
	}
	q := newQueues(&cfg, format, deps)
	t := &troubles{outcomes: deps.Outcomes}
	return &Publisher{
		queues: q,
		sender: newSender(&cfg, deps, b, q, t, func() bool { return heardLately(c, cfg.MetadataTTL) }),
		watcher: &watcher{
			catalog: c, broker: b, queues: q, troubles: t, pins: deps.Pins, metrics: deps.Metrics, log: deps.Log,
			pulse: deps.Pulse, ttl: cfg.MetadataTTL, grace: cfg.UnknownTopicGrace,
		},
		metrics: deps.Metrics,
		close:   end,
	}, nil
}

// Run publishes until its context ends; it may be called once. What has no
// answer by then stays unreported: the connections are closed under it. It
// returns nil then, and before that only an error that ends the session:
// fault.ErrFenced when leadership is gone, a *fault.Blocked when somebody else
// publishes under the same transactional id, or whatever else Permit returned.
func (p *Publisher) Run(parent context.Context) error {
	group, ctx := errgroup.WithContext(parent)
	p.queues.attach(func(part *partition) {
		w := newWorker(p.sender, part)
		group.Go(func() error { return w.run(ctx) })
	})
	group.Go(func() error { return p.watcher.run(ctx) })
	group.Go(func() error { return p.sender.identities.run(ctx) })

	<-ctx.Done()
	p.queues.attach(nil)
	p.close() // ends what is waiting for an answer
	err := group.Wait()
	p.close() // and what was begun in that moment
	p.metrics.setConnected(false)
	p.metrics.held.Set(0)
	if parent.Err() != nil && !errors.Is(err, fault.ErrFenced) {
		return nil
	}
	return err
}

// Publish encodes events into the open batches of their partitions and keeps
// nothing of them. It takes one lock and never waits for Kafka: the caller
// bounds what is in flight. Called by one goroutine only. Events that cannot
// be records are reported as refused before it returns.
func (p *Publisher) Publish(events []event.Event) { p.queues.publish(events, time.Now()) }

// Flush wakes the workers of the partitions that got something since the last
// Flush. It never blocks.
func (p *Publisher) Flush() { p.queues.flush() }

// Guard tells that the caller knows of parked events of these aggregates: see
// relay.Publisher. It is to follow each report of a refused or held event that
// is Ordered. Called by the goroutine that publishes.
func (p *Publisher) Guard(aggregates []uint64) { p.queues.guard(aggregates) }
