// Package kafkaconn makes connections to Kafka that can all be ended at once,
// which is the only way to end a request that waits for its answer, and a client
// on them that asks for the cluster's layout when it is told to.
package kafkaconn

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// DialFunc makes a TCP connection, as [net.Dialer.DialContext] does.
type DialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// Conns makes TCP connections and keeps track of them. Safe for concurrent use.
type Conns struct {
	dial   DialFunc
	heard  atomic.Int64    // Unix nanoseconds; 0: nothing yet
	ctx    context.Context // ends when they are closed
	cancel context.CancelFunc

	mu   sync.Mutex
	open map[*conn]struct{}
}

// ErrClosed is what [Conns.Dial] returns after Close.
var ErrClosed = errors.New("the connections to the brokers are closed")

// New returns Conns that makes connections by dial. It makes none yet.
func New(dial DialFunc) *Conns {
	c := &Conns{dial: dial, open: map[*conn]struct{}{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Dial makes a connection, which lasts until it is closed, or all are. It is a
// [DialFunc].
func (c *Conns) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	raw, err := c.dial(ctx, network, address)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.Closed():
		if err == nil {
			_ = raw.Close() // unused
		}
		return nil, ErrClosed
	case err != nil:
		return nil, err
	}
	made := &conn{Conn: raw, owner: c}
	c.open[made] = struct{}{}
	return made, nil
}

// Close closes all connections and lets no new ones come. It may be called again.
func (c *Conns) Close() {
	c.cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	for open := range c.open {
		_ = open.Conn.Close() // its user sees the error that matters
	}
	clear(c.open)
}

// Closed reports whether Close was called.
func (c *Conns) Closed() bool { return c.ctx.Err() != nil }

// Context ends with Close.
func (c *Conns) Context() context.Context { return c.ctx }

// LastHeard is when something last came in on any of them; zero if nothing did.
func (c *Conns) LastHeard() time.Time {
	if n := c.heard.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

// conn is a connection that notes when something comes in.
type conn struct {
	net.Conn
	owner *Conns
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.owner.heard.Store(time.Now().UnixNano())
	}
	return n, err
}

func (c *conn) Close() error {
	c.owner.mu.Lock()
	delete(c.owner.open, c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}
