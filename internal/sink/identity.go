package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// Identity is how the broker recognises a batch that it has seen before, and
// who sends it.
type Identity uint8

// The identities. Where the brokers do not permit one, the publisher steps
// down to the next, with a warning, until its end.
const (
	// Fenced: as Idempotent, under a transactional id. A later publisher with
	// the same id makes the broker refuse this one's batches, in each
	// partition that it has written to.
	Fenced Identity = iota + 1
	// Idempotent: a resent batch is stored once.
	Idempotent
	// None: an answer that gets lost can leave a second copy in the log.
	None
)

// ParseIdentity reads the name of an identity: fenced, idempotent, none.
func ParseIdentity(name string) (Identity, error) {
	switch name {
	case "fenced":
		return Fenced, nil
	case "idempotent":
		return Idempotent, nil
	case "none":
		return None, nil
	}
	return 0, errors.New("unknown producer identity " + name + ": use fenced, idempotent or none")
}

const (
	// renewEvery is the time between two renewals of a fenced identity: the
	// brokers forget one by default seven days after it was last asked for,
	// however much is published under it. It then protects from nobody.
	renewEvery = 12 * time.Hour
	// coordinatorPatience is how long a cluster may have no coordinator for a
	// transactional id before it counts as one that cannot have any.
	coordinatorPatience = 30 * time.Second
)

// grant is what a broker has granted: a producer id with an epoch, and the
// next sequence number in a partition. The zero value is not valid.
type grant struct {
	record.Producer
	fenced bool // a newer epoch in a partition is another publisher's
}

// nobody is publishing without an identity.
var nobody = grant{Producer: record.NoProducer}

func (g *grant) same(as *grant) bool { return g.ID == as.ID && g.Epoch == as.Epoch }

// identities hands out producer ids and epochs. The partitions share one; each
// moves on to the latest, never back, and only with a batch that is new. So an
// epoch is used in a partition for one run of sequence numbers only, from 0.
// Safe for concurrent use.
type identities struct {
	broker          broker
	permit          func(context.Context) error
	transactionalID string // empty unless the identity is a fenced one
	renewEvery      time.Duration
	backoffMin      time.Duration
	backoffMax      time.Duration
	metrics         *Metrics
	log             *slog.Logger
	pulse           *pulse.Board

	latest atomic.Pointer[grant] // read by all, written by whoever has the turn
	fenced sync.Once             // counts the loss of leadership

	turn     chan struct{} // one slot: whoever holds it owns the fields below
	identity Identity
	missing  time.Time // since when there is no coordinator; zero: that is not known
}

func newIdentities(cfg *Config, deps Deps, b broker) *identities {
	i := &identities{
		broker: b, permit: deps.Permit, renewEvery: renewEvery,
		backoffMin: cfg.BackoffMin, backoffMax: cfg.BackoffMax, metrics: deps.Metrics, log: deps.Log, pulse: deps.Pulse,
		turn: make(chan struct{}, 1), identity: cfg.Identity,
	}
	if cfg.Identity == Fenced {
		i.transactionalID = cfg.TransactionalID
	}
	i.latest.Store(&nobody)
	i.metrics.setIdentity(cfg.Identity)
	return i
}

// run takes a fenced identity over from whoever had it, at once, and renews it
// in time. It returns nil when there is nothing to renew or ctx has ended, and
// an error that ends the session when somebody else has taken it over.
func (i *identities) run(ctx context.Context) error {
	if i.transactionalID == "" {
		return nil
	}
	beat := i.pulse.Start("producer identity")
	defer beat.End()
	retry := newBackoff(i.backoffMin, i.backoffMax)
	failing := false
	have := nobody
	for {
		// A partition may have needed a renewal since: that one counts.
		g, err := i.next(ctx, &have, beat)
		wait := i.renewEvery
		switch {
		case ctx.Err() != nil, err == nil && !g.fenced:
			return nil
		case endsSession(err):
			return err
		case err != nil:
			wait = retry.NextBackOff()
			if !failing {
				i.log.Warn("the producer identity cannot be had: trying again", "transactional_id", i.transactionalID, "err", safe(err))
			}
		default:
			have = g
			retry.Reset()
		}
		failing = err != nil
		if sleep(ctx, wait) != nil {
			return nil
		}
	}
}

func (i *identities) take(ctx context.Context) error {
	select {
	case i.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (i *identities) give() { <-i.turn }

// moved reports whether there is a later identity than this one.
func (i *identities) moved(have *grant) bool { return !i.latest.Load().same(have) }

// next returns the latest identity, with sequence 0, after getting a new one
// if have is the latest. An error that ends the session is fault.ErrFenced or
// a *fault.Blocked; any other is the broker's, or what kept its answer away:
// ask again later.
func (i *identities) next(ctx context.Context, have *grant, beat *pulse.Beat) (grant, error) {
	beat.Rest()                  // the lease and the others, who are waited for, have beats of their own
	if i.transactionalID != "" { // it is taken from whoever has it: only the leader may

		if err := i.permit(ctx); err != nil {
			return nobody, fmt.Errorf("asking for the permit to take the producer identity: %w", err)
		}
	}
	if err := i.take(ctx); err != nil {
		return nobody, err
	}
	defer i.give()
	if i.moved(have) {
		return *i.latest.Load(), nil
	}
	beat.Work()
	g, err := i.ask(ctx)
	beat.Rest()
	switch {
	case err == nil:
		i.latest.Store(&g)
		return g, nil
	case i.identity == Fenced && isSuperseded(err):
		return nobody, i.superseded(ctx, err)
	}
	return nobody, err
}

// ask asks the broker for a new identity and steps down where it must. The
// turn is held.
func (i *identities) ask(ctx context.Context) (grant, error) {
	for i.identity != None {
		own, id := record.NoProducer, ""
		if i.identity == Fenced {
			own, id = i.latest.Load().Producer, i.transactionalID
		}
		p, err := i.broker.initProducer(ctx, id, own)
		switch {
		case err == nil:
			i.missing = time.Time{}
			i.tell(own, p)
			return grant{Producer: p, fenced: i.identity == Fenced}, nil
		case !i.stepDown(own, err):
			return nobody, err
		}
	}
	return nobody, nil
}

// tell logs what has become of a fenced identity. The turn is held.
func (i *identities) tell(own, p record.Producer) {
	if i.identity != Fenced {
		return
	}
	log := i.log.With("transactional_id", i.transactionalID, "producer_id", p.ID, "epoch", p.Epoch)
	switch {
	case own.ID < 0:
		log.Info("producer identity taken over")
	case own.ID != p.ID:
		log.Warn("the producer identity has a new id: the brokers had forgotten it, or its epochs were used up; they would have accepted batches of a former leader")
	default:
		log.Info("producer identity renewed")
	}
}

// stepDown goes over to a lesser identity if this answer says that the present
// one cannot be had, and reports whether it does. The turn is held.
func (i *identities) stepDown(own record.Producer, err error) bool {
	denied := errors.Is(err, kafka.TransactionalIDAuthorizationFailed) || errors.Is(err, kafka.ClusterAuthorizationFailed)
	switch {
	case i.identity == Fenced && denied:
		i.identity = Idempotent
		i.log.Warn("no right to the transactional id: publishing with plain idempotence, so the lease alone holds a former leader off; "+
			"grant WRITE and DESCRIBE on the transactional id and restart, or set kafka.identity to idempotent",
			"transactional_id", i.transactionalID, "err", safe(err))
	case i.identity == Fenced && own.ID < 0 && i.noCoordinator(err):
		i.identity = Idempotent
		i.log.Warn("the cluster has no coordinator for transactional ids: publishing with plain idempotence, so the lease alone holds a former leader off; "+
			"see whether the topic __transaction_state can exist (transaction.state.log.replication.factor against the number of brokers) and restart, "+
			"or set kafka.identity to idempotent", "transactional_id", i.transactionalID, "err", safe(err))
	case i.identity == Idempotent && denied:
		i.identity = None
		i.log.Warn("no right to a producer id: publishing without idempotence, so a lost answer can leave a duplicate; "+
			"grant WRITE on the topics, or IDEMPOTENT_WRITE on the cluster before Kafka 3.0", "err", safe(err))
	default:
		return false
	}
	i.metrics.setIdentity(i.identity)
	return true
}

// noCoordinator reports whether the cluster has had none for long enough.
func (i *identities) noCoordinator(err error) bool {
	if !errors.Is(err, kafka.GroupCoordinatorNotAvailable) && !errors.Is(err, kafka.NotCoordinatorForGroup) {
		return false
	}
	if i.missing.IsZero() {
		i.missing = time.Now()
	}
	return time.Since(i.missing) >= coordinatorPatience
}

// isSuperseded reports whether the broker knows a newer epoch than ours.
func isSuperseded(err error) bool {
	return errors.Is(err, kafka.InvalidProducerEpoch) || errors.Is(err, kafka.ProducerFenced)
}

// superseded is what ends the session when the broker knows a newer epoch than
// ours: fault.ErrFenced, as another instance leads. But while the lease is
// renewed none does, so whoever took the identity over is no standby of ours.
func (i *identities) superseded(ctx context.Context, answer error) error {
	i.fenced.Do(i.metrics.fenced.Inc)
	if err := i.permit(ctx); err != nil {
		return fmt.Errorf("%s: %w", safe(answer), err)
	}
	return sharedIDTrouble(i.transactionalID, answer)
}

// endsSession reports whether an error is for the session to end with.
func endsSession(err error) bool {
	return errors.Is(err, fault.ErrFenced) || fault.AsBlocked(err) != nil
}

func newBackoff(first, longest time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(first),
		backoff.WithMaxInterval(longest),
		backoff.WithRandomizationFactor(0.5),
		backoff.WithMultiplier(2),
		backoff.WithMaxElapsedTime(0), // never gives up
	)
}
