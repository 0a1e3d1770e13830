package sink

import (
	"context"
	"errors"
	"log/slog"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// Identity is how the broker recognises a batch that it has seen before.
type Identity uint8

// The identities.
const (
	// Idempotent: a resent batch is stored once. Steps down to None, with a
	// warning, where the broker does not permit it.
	Idempotent Identity = iota + 1
	// None: an answer that gets lost can leave a second copy in the log.
	None
)

// ParseIdentity reads the name of an identity: idempotent, none.
func ParseIdentity(name string) (Identity, error) {
	switch name {
	case "idempotent":
		return Idempotent, nil
	case "none":
		return None, nil
	}
	return 0, errors.New("unknown producer identity " + name + ": use idempotent or none")
}

// identities hands out producer ids. The partitions share one; a partition
// that needs a new one moves on to the latest, which nobody has used there.
// So an id is used in a partition for one run of sequence numbers only, from
// 0. Safe for concurrent use.
type identities struct {
	broker  broker
	metrics *Metrics
	log     *slog.Logger

	turn     chan struct{} // one slot: whoever holds it owns the fields below
	identity Identity
	latest   record.Producer
}

func newIdentities(identity Identity, b broker, m *Metrics, log *slog.Logger) *identities {
	i := &identities{
		broker: b, metrics: m, log: log, turn: make(chan struct{}, 1), identity: identity, latest: record.NoProducer,
	}
	m.setIdentity(identity)
	return i
}

// next returns an identity other than the one with this id, with sequence 0.
// An error is the broker's, or what kept its answer away: ask again later.
func (i *identities) next(ctx context.Context, id int64) (record.Producer, error) {
	select {
	case i.turn <- struct{}{}:
		defer func() { <-i.turn }()
	case <-ctx.Done():
		return record.NoProducer, ctx.Err()
	}
	if i.identity == None {
		return record.NoProducer, nil
	}
	if i.latest.ID >= 0 && i.latest.ID != id {
		return i.latest, nil
	}
	p, err := i.broker.newProducer(ctx)
	switch {
	case errors.Is(err, kafka.ClusterAuthorizationFailed), errors.Is(err, kafka.TransactionalIDAuthorizationFailed):
		i.identity = None
		i.metrics.setIdentity(None)
		i.log.Warn("no right to a producer id: publishing without idempotence, so a lost answer can leave a duplicate; "+
			"grant WRITE on the topics, or IDEMPOTENT_WRITE on the cluster before Kafka 3.0", "err", safe(err))
		return record.NoProducer, nil
	case err != nil:
		return record.NoProducer, err
	}
	i.latest = p
	return p, nil
}
