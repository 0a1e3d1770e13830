package kafkaconn

import (
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// Client is a client of the library's on connections that can be ended. Safe for
// concurrent use.
type Client struct {
	*kafka.Client
	conns     *Conns
	transport *kafka.Transport

	mu        sync.Mutex
	refreshed time.Time
}

// NewClient returns a client of these brokers (host:port) whose requests may take
// timeout; 0 is no limit. It makes its connections by conns and has transport for
// its own: Dial is set here, MetadataTTL must be. It opens no connection.
//
// Whether transport.Context is to be that of conns depends on how requests end.
// With it Close is final, but a request that waits for the cluster's layout then
// waits on, for its own context. Without it Close ends that request too, but one
// that begins later makes a goroutine that lasts until another Close.
func NewClient(brokers []string, timeout time.Duration, conns *Conns, transport *kafka.Transport) *Client {
	transport.Dial = conns.Dial
	return &Client{
		Client:    &kafka.Client{Addr: kafka.TCP(brokers...), Timeout: timeout, Transport: transport},
		conns:     conns,
		transport: transport,
	}
}

// Close ends all connections, and with them the requests on them; one that begins
// later fails. It may be called again.
func (c *Client) Close() {
	c.conns.Close()
	c.transport.CloseIdleConnections()
}

// Refresh makes the next request ask for the cluster's layout first. It does
// nothing within the transport's MetadataTTL after the last one that did. It drops
// the idle connections: nothing else makes the library ask before its time.
func (c *Client) Refresh() {
	if c.due(time.Now()) {
		c.transport.CloseIdleConnections()
	}
}

// due reports whether there was no refresh for a while, and notes one if so.
func (c *Client) due(now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.refreshed) < c.transport.MetadataTTL {
		return false
	}
	c.refreshed = now
	return true
}

// LastHeard is when a broker last sent anything; zero if none ever did.
func (c *Client) LastHeard() time.Time { return c.conns.LastHeard() }
