// Package nettest is the network of tests: ports that stay free, and one between
// a client and a real server on which connections can die silently: what is sent
// vanishes, and neither end is told.
package nettest

import (
	"encoding/binary"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Network is what connections go through, to one server. It is safe for
// concurrent use.
type Network struct {
	server   string
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[*conn]struct{} // nil once the network is closed
	away  bool
}

// Listen makes a network to a server, host:port, until Close or the test's end.
// Its clients connect to Addr.
func Listen(t testing.TB, server string) *Network {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("making a network: %v", err)
	}
	n := &Network{server: server, listener: l, conns: map[*conn]struct{}{}}
	n.wg.Go(n.accept)
	t.Cleanup(n.Close)
	return n
}

// Postgres makes a network to the server of a configuration, and changes that so
// that it goes through the network.
func Postgres(t testing.TB, conf *pgconn.Config) *Network {
	t.Helper()
	n := Listen(t, net.JoinHostPort(conf.Host, strconv.Itoa(int(conf.Port))))
	at := n.listener.Addr().(*net.TCPAddr)
	conf.Host, conf.Port = at.IP.String(), uint16(at.Port)
	return n
}

// Addr is the server's address for clients, host:port.
func (n *Network) Addr() string { return n.listener.Addr().String() }

// Silence lets the connections that there are now die silently, in both
// directions, and returns how many. With keys only those are meant that have
// carried a request of Kafka with one of these api keys.
func (n *Network) Silence(keys ...int16) int {
	return n.silence(keys, func(c *conn) { c.mute(&c.requests); c.mute(&c.answers) })
}

// SilenceAnswers is Silence for what comes from the server: requests arrive.
func (n *Network) SilenceAnswers(keys ...int16) int {
	return n.silence(keys, func(c *conn) { c.mute(&c.answers) })
}

// GoAway silences all connections, and new ones get no answer either until
// ComeBack.
func (n *Network) GoAway() {
	n.setAway(true)
	n.Silence()
}

// ComeBack lets new connections live. Those that died stay dead.
func (n *Network) ComeBack() { n.setAway(false) }

func (n *Network) setAway(away bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.away = away
}

func (n *Network) silence(keys []int16, mute func(*conn)) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.lives(keys) {
			mute(c)
			count++
		}
	}
	return count
}

// Close ends all connections, those that died too, so that nobody waits for
// them any more.
func (n *Network) Close() {
	n.listener.Close()
	n.mu.Lock()
	for c := range n.conns {
		c.client.Close()
		c.server.Close()
	}
	n.conns = nil
	n.mu.Unlock()
	n.wg.Wait()
}

func (n *Network) accept() {
	for {
		client, err := n.listener.Accept()
		if err != nil {
			return // the test has ended
		}
		server, err := net.Dial("tcp", n.server)
		if err != nil { // the server is down: so the client sees it
			client.Close()
			continue
		}
		n.join(&conn{client: client, server: server, keys: map[int16]bool{}})
	}
}

func (n *Network) join(c *conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.conns == nil {
		c.client.Close()
		c.server.Close()
		return
	}
	c.requests, c.answers = n.away, n.away
	n.conns[c] = struct{}{}
	n.wg.Go(func() { c.carry(c.server, c.client, &c.requests, c.note) })
	n.wg.Go(func() { c.carry(c.client, c.server, &c.answers, func([]byte) {}) })
}

// conn is a client's connection and the one behind it.
type conn struct {
	client, server net.Conn

	mu                sync.Mutex
	requests, answers bool // vanish
	keys              map[int16]bool
	head              []byte // of a request that has not come in full
	rest              int    // bytes of it after its head
	over              bool   // an end has closed
}

func (c *conn) mute(direction *bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*direction = true
}

// lives reports whether it is open and, with keys, has carried one of them.
func (c *conn) lives(keys []int16) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	carried := func(key int16) bool { return c.keys[key] }
	return !c.over && (len(keys) == 0 || slices.ContainsFunc(keys, carried))
}

// carry moves bytes until either end has closed, and tells the other end so if
// that can still be heard.
func (c *conn) carry(to, from net.Conn, vanish *bool, note func([]byte)) {
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		note(buf[:n])
		c.mu.Lock()
		lost := *vanish
		c.over = c.over || err != nil
		c.mu.Unlock()
		switch {
		case lost && err != nil:
			return
		case lost:
			continue
		case n > 0:
			if _, failed := to.Write(buf[:n]); failed != nil {
				return
			}
		}
		if err != nil {
			to.Close()
			return
		}
	}
}

// requestHead is the length of a request and its api key.
const requestHead = 6

// note takes note of the api keys of requests, if it is Kafka's protocol.
func (c *conn) note(b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(b) > 0 {
		if c.rest > 0 {
			n := min(c.rest, len(b))
			c.rest, b = c.rest-n, b[n:]
			continue
		}
		n := min(requestHead-len(c.head), len(b))
		c.head, b = append(c.head, b[:n]...), b[n:]
		if len(c.head) == requestHead {
			c.keys[int16(binary.BigEndian.Uint16(c.head[4:]))] = true
			c.rest = max(0, int(int32(binary.BigEndian.Uint32(c.head)))-2)
			c.head = c.head[:0]
		}
	}
}
