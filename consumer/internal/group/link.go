package group

import (
	"errors"
	"net"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/cdc-relay/cdc-relay/internal/kafkaconn"
)

const (
	// dialTimeout is for the TCP connection, loginTimeout for that, TLS, the
	// versions and SASL together.
	dialTimeout  = 3 * time.Second
	loginTimeout = 5 * time.Second
	// idleTimeout stays below the brokers' 10 minutes and below what load
	// balancers allow; the library's half minute would log in again after each
	// quiet while.
	idleTimeout = 4 * time.Minute
	// clientTimeout is never 0: the library would then tell brokers to wait for
	// half a second only.
	clientTimeout = 10 * time.Second
)

// link is this program's connection to the cluster, by one Transport. Safe for
// concurrent use.
type link struct{ *kafkaconn.Client }

// newLink makes a link for some topics, or for all if none is named. It learns
// within ttl what has changed in the cluster.
//
// The Transport has a Context, as requests may begin after the end, and all of
// them have a deadline.
func newLink(cfg Config, topics []string, ttl time.Duration) *link {
	conns := newConns()
	return &link{kafkaconn.NewClient(cfg.Brokers, clientTimeout, conns, &kafka.Transport{
		DialTimeout:    loginTimeout,
		IdleTimeout:    idleTimeout,
		MetadataTTL:    ttl,
		MetadataTopics: topics,
		ClientID:       cfg.ClientID,
		TLS:            cfg.TLS,
		SASL:           cfg.SASL,
		Context:        conns.Context(),
	})}
}

func newConns() *kafkaconn.Conns {
	return kafkaconn.New((&net.Dialer{Timeout: dialTimeout}).DialContext)
}

// heal makes the next request ask for the cluster's layout first, if an error
// may mean that it has changed.
func (l *link) heal(err error) {
	if err != nil && outdated(err) {
		l.Refresh()
	}
}

// outdated reports whether the layout that a request was sent by may be an old
// one: the broker said so, or could not be reached at all.
func outdated(err error) bool {
	var code kafka.Error
	if errors.As(err, &code) {
		switch code {
		case kafka.NotLeaderForPartition, kafka.UnknownTopicOrPartition, kafka.LeaderNotAvailable, kafka.ReplicaNotAvailable,
			kafka.BrokerNotAvailable, kafka.KafkaStorageError, kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch, kafka.OffsetNotAvailable:
			return true
		}
		return false
	}
	var network *net.OpError
	return errors.As(err, &network) || errors.Is(err, protocol.ErrNoLeader) || errors.Is(err, protocol.ErrNoPartition)
}
