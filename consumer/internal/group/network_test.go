package group

import (
	"context"
	"net"
	"sync"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/kafkaconn"
)

// between puts something between a reader and its connections.
func between(r *Reader, wrap func(kafkaconn.DialFunc) kafkaconn.DialFunc) {
	transport := r.link.Transport.(*kafka.Transport)
	transport.Dial = wrap(transport.Dial)
}

// network is the way to the brokers, which can be closed.
type network struct {
	mu      sync.Mutex
	away    bool
	refused int
	conns   []net.Conn
}

func (n *network) dial(ctx context.Context, kind, address string) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.away {
		n.refused++
		return nil, &net.OpError{Op: "dial", Net: kind, Err: context.DeadlineExceeded}
	}
	c, err := (&net.Dialer{}).DialContext(ctx, kind, address)
	if err == nil {
		n.conns = append(n.conns, c)
	}
	return c, err
}

// goAway ends all connections and refuses new ones.
func (n *network) goAway() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away = true
	for _, c := range n.conns {
		_ = c.Close()
	}
}

func (n *network) comeBack() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away = false
}

func (n *network) refusals() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.refused
}
