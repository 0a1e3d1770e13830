package group

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
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
type link struct {
	client    *kafka.Client
	transport *kafka.Transport
	conns     *connections

	mu          sync.Mutex
	refreshed   time.Time
	refreshRate time.Duration // at most one refresh in this time
}

// newLink makes a link for some topics, or for all if none is named. It learns
// within ttl what has changed in the cluster.
func newLink(cfg Config, topics []string, ttl time.Duration) *link {
	conns := newConnections()
	transport := &kafka.Transport{
		Dial:           conns.dial,
		DialTimeout:    loginTimeout,
		IdleTimeout:    idleTimeout,
		MetadataTTL:    ttl,
		MetadataTopics: topics,
		ClientID:       cfg.ClientID,
		TLS:            cfg.TLS,
		SASL:           cfg.SASL,
		Context:        conns.ctx,
	}
	return &link{
		client:      &kafka.Client{Addr: kafka.TCP(cfg.Brokers...), Timeout: clientTimeout, Transport: transport},
		transport:   transport,
		conns:       conns,
		refreshRate: ttl,
	}
}

// close ends all connections, and with them the requests on them.
func (l *link) close() {
	l.conns.close()
	l.transport.CloseIdleConnections()
}

// heal makes the next request ask for the cluster's layout first, if an error
// may mean that it has changed: nothing else makes the library do so before its
// time.
func (l *link) heal(err error) {
	if err == nil || !outdated(err) {
		return
	}
	l.mu.Lock()
	now := time.Now()
	due := now.Sub(l.refreshed) >= l.refreshRate
	if due {
		l.refreshed = now
	}
	l.mu.Unlock()
	if due {
		l.transport.CloseIdleConnections()
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

// connections makes and keeps track of TCP connections: a request that waits for
// its answer cannot be ended any other way.
type connections struct {
	dialer func(ctx context.Context, network, address string) (net.Conn, error)
	ctx    context.Context // ends when they are closed
	cancel context.CancelFunc

	mu   sync.Mutex
	open map[*connection]struct{}
}

var errClosed = errors.New("the connections to the brokers are closed")

func newConnections() *connections {
	c := &connections{dialer: (&net.Dialer{Timeout: dialTimeout}).DialContext, open: map[*connection]struct{}{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

func (c *connections) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	raw, err := c.dialer(ctx, network, address)
	if err != nil {
		return nil, err
	}
	conn := &connection{Conn: raw, owner: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed() {
		_ = raw.Close() // unused
		return nil, errClosed
	}
	c.open[conn] = struct{}{}
	return conn, nil
}

// close closes all connections and lets no new ones come.
func (c *connections) close() {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		_ = conn.Conn.Close() // its user sees the error that matters
	}
	clear(c.open)
}

func (c *connections) closed() bool { return c.ctx.Err() != nil }

type connection struct {
	net.Conn
	owner *connections
}

func (c *connection) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.open, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}
