package statusback_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between a client and a server and can lose what the server
// says.
type proxy struct {
	listener net.Listener
	server   string
	silent   atomic.Bool
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(t *testing.T, server string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, server: server}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// swallow loses what the server says from now on, while what the client says
// arrives.
func (p *proxy) swallow() { p.silent.Store(true) }

// cut closes all connections; new ones work.
func (p *proxy) cut() {
	p.silent.Store(false)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.server)
		if err != nil {
			client.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, client, server)
		p.mu.Unlock()
		p.wg.Go(func() { io.Copy(server, client) })
		p.wg.Go(func() { io.Copy(unlessSilent{client, &p.silent}, server) })
	}
}

type unlessSilent struct {
	io.Writer
	silent *atomic.Bool
}

func (w unlessSilent) Write(b []byte) (int, error) {
	if w.silent.Load() {
		return len(b), nil
	}
	return w.Writer.Write(b)
}
