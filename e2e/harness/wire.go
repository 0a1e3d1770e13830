package harness

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// Wire is the network between a relay and PostgreSQL, which can be cut. It is
// safe for concurrent use.
type Wire struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
}

// StartWire returns a network to the server of dsn, until the test ends, and
// the DSN that goes through it.
func StartWire(t testing.TB, dsn string) (w *Wire, through string) {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatalf("parsing the test's DSN: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("starting the wire: %v", err)
	}
	w = &Wire{target: u.Host, listener: l, conns: map[net.Conn]bool{}}
	w.wg.Go(w.accept)
	t.Cleanup(func() {
		l.Close()
		w.Cut()
		w.wg.Wait()
	})
	u.Host = l.Addr().String()
	return w, u.String()
}

// Cut ends all connections and lets none be made until Mend.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = true
	for c := range w.conns {
		c.Close()
	}
	clear(w.conns)
}

// Mend lets connections be made again.
func (w *Wire) Mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = false
}

func (w *Wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return // the test has ended
		}
		if err := w.join(client); err != nil {
			client.Close()
		}
	}
}

func (w *Wire) join(client net.Conn) error {
	server, err := net.Dial("tcp", w.target)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		server.Close()
		return fmt.Errorf("the wire is cut")
	}
	w.conns[client], w.conns[server] = true, true
	w.wg.Go(func() { w.carry(server, client) })
	w.wg.Go(func() { w.carry(client, server) })
	return nil
}

func (w *Wire) carry(to, from net.Conn) {
	_, _ = io.Copy(to, from) // ends with either side
	to.Close()
	from.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, to)
	delete(w.conns, from)
}
