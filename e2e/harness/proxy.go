package harness

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// Proxy stands between a Kafka client and a broker and can swallow the answers
// to produce requests: the broker has stored the batch, the client cannot
// know. It is safe for concurrent use.
type Proxy struct {
	target   string
	listener net.Listener
	toCut    atomic.Int64
	cut      atomic.Int64
	wg       sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // nil once the proxy is closed
	held  chan struct{}     // not nil: requests wait until it is closed
	hold  bool              // hold requests from the next cut on
}

// StartProxy listens on a free port of loopback and forwards to target.
func StartProxy(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting the proxy: %w", err)
	}
	p := &Proxy{target: target, listener: l, conns: map[net.Conn]bool{}}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where clients connect.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// CutAnswers swallows the next n answers to produce requests, each with its
// connection.
func (p *Proxy) CutAnswers(n int) { p.toCut.Store(int64(n)) }

// CutAnswerAndHold swallows the next answer to a produce request, and from
// then on lets no request pass until Resume: time for the test to change what
// the broker will say to the request when it comes again.
func (p *Proxy) CutAnswerAndHold() {
	p.mu.Lock()
	p.hold = true
	p.mu.Unlock()
	p.CutAnswers(1)
}

// Resume ends the hold.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = false
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
}

// pass waits while requests are held.
func (p *Proxy) pass() {
	p.mu.Lock()
	held := p.held
	p.mu.Unlock()
	if held != nil {
		<-held
	}
}

// Cut is how many answers have been swallowed.
func (p *Proxy) Cut() int { return int(p.cut.Load()) }

// Close ends all connections and waits for the proxy's goroutines.
func (p *Proxy) Close() {
	p.Resume()
	p.listener.Close()
	p.mu.Lock()
	for c := range p.conns {
		c.Close()
	}
	p.conns = nil
	p.mu.Unlock()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil { // the broker is down: so the client sees it
			client.Close()
			continue
		}
		if !p.track(client, server) {
			return
		}
		l := &link{proxy: p, client: client, server: server, produce: map[uint32]bool{}}
		p.wg.Go(l.requests)
		p.wg.Go(l.answers)
	}
}

// track remembers connections to close; false when the proxy is closed.
func (p *Proxy) track(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.conns == nil {
			c.Close()
			continue
		}
		p.conns[c] = true
	}
	return p.conns != nil
}

// link is one client's connection and the one behind it.
type link struct {
	proxy          *Proxy
	client, server net.Conn

	mu      sync.Mutex
	produce map[uint32]bool // correlation ids of produce requests without answer
}

func (l *link) close() {
	l.client.Close()
	l.server.Close()
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	delete(l.proxy.conns, l.client)
	delete(l.proxy.conns, l.server)
}

const (
	apiProduce = 0
	maxFrame   = 128 << 20 // bytes, over Kafka's own limit
)

// requests forwards whole requests: api key, version, correlation id, rest.
func (l *link) requests() {
	defer l.close()
	for {
		frame, err := readFrame(l.client, 8)
		if err != nil {
			return
		}
		l.proxy.pass()
		if binary.BigEndian.Uint16(frame[4:]) == apiProduce {
			l.mu.Lock()
			l.produce[binary.BigEndian.Uint32(frame[8:])] = true
			l.mu.Unlock()
		}
		if _, err := l.server.Write(frame); err != nil {
			return
		}
	}
}

// answers forwards whole answers: correlation id, rest.
func (l *link) answers() {
	defer l.close()
	for {
		frame, err := readFrame(l.server, 4)
		if err != nil {
			return
		}
		id := binary.BigEndian.Uint32(frame[4:])
		l.mu.Lock()
		produce := l.produce[id]
		delete(l.produce, id)
		l.mu.Unlock()
		if produce && l.proxy.takeCut() {
			return
		}
		if _, err := l.client.Write(frame); err != nil {
			return
		}
	}
}

// takeCut tells whether the answer at hand is to be swallowed.
func (p *Proxy) takeCut() bool {
	for {
		n := p.toCut.Load()
		if n <= 0 {
			return false
		}
		if p.toCut.CompareAndSwap(n, n-1) {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hold && p.held == nil {
		p.held = make(chan struct{})
	}
	p.cut.Add(1)
	return true
}

// readFrame reads one length-prefixed frame of at least least bytes, with its
// length.
func readFrame(r io.Reader, least int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n < least || n > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes", n)
	}
	frame := make([]byte, 4+n)
	copy(frame, head[:])
	_, err := io.ReadFull(r, frame[4:])
	return frame, err
}
