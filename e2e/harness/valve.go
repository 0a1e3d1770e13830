package harness

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"testing"
)

// Valve stands between a Kafka client and a broker and can hold produce
// requests on their way, or the answers to them. It is safe for concurrent use.
type Valve struct {
	target   string
	listener net.Listener
	wg       sync.WaitGroup

	mu       sync.Mutex
	conns    map[net.Conn]bool
	closed   bool
	produced int // produce requests that have come
	held     int // requests and answers that wait
	holding  Direction
	open     chan struct{} // closed while nothing is held
}

// Direction is a way through a valve.
type Direction int

// The directions.
const (
	Neither Direction = iota
	Requests
	Answers
)

// StartValve listens on a free port of loopback and forwards to target, until
// the test ends.
func StartValve(t testing.TB, target string) *Valve {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("starting the valve: %v", err)
	}
	v := &Valve{target: target, listener: l, conns: map[net.Conn]bool{}, open: make(chan struct{})}
	close(v.open)
	v.wg.Go(v.accept)
	t.Cleanup(v.close)
	return v
}

// StartValvedBroker makes a broker that the relay reaches through a valve. It
// ends with the test.
func StartValvedBroker(t testing.TB) (Kafka, *Valve) {
	t.Helper()
	direct, controller, valved := freeAddr(t), freeAddr(t), freeAddr(t)
	valve := StartValve(t, valved)
	n := newNode(t, direct, fmt.Sprintf(brokerSettings, direct, valved, controller, valve.Addr(), "PLAINTEXT"))
	n.format(clusterID(), "--standalone")
	n.Start()
	return Kafka{Relay: valve.Addr(), Test: direct}, valve
}

// Addr is where clients connect.
func (v *Valve) Addr() string { return v.listener.Addr().String() }

// Hold holds back what goes in one direction from now on.
func (v *Valve) Hold(d Direction) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.holding, v.open = d, make(chan struct{})
}

// Release lets everything pass.
func (v *Valve) Release() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.holding != Neither {
		v.holding = Neither
		close(v.open)
	}
}

// Cut ends all connections, with what is being held.
func (v *Valve) Cut() {
	v.mu.Lock()
	for c := range v.conns {
		c.Close()
	}
	v.mu.Unlock()
	v.Release()
}

// Held is how many requests or answers are being held.
func (v *Valve) Held() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.held
}

// Produced is how many produce requests have come so far.
func (v *Valve) Produced() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.produced
}

func (v *Valve) close() {
	v.listener.Close()
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.Cut()
	v.wg.Wait()
}

func (v *Valve) accept() {
	for {
		client, err := v.listener.Accept()
		if err != nil {
			return // closed
		}
		server, err := net.Dial("tcp", v.target)
		if err != nil { // the broker is down: so the client sees it
			client.Close()
			continue
		}
		p := &pipe{valve: v, client: client, server: server, produce: map[uint32]bool{}}
		if !p.join() {
			return
		}
		v.wg.Go(p.requests)
		v.wg.Go(p.answers)
	}
}

// pass waits while that direction is held.
func (v *Valve) pass(d Direction) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.holding != d {
		return
	}
	open := v.open
	v.held++
	v.mu.Unlock()
	<-open
	v.mu.Lock()
	v.held--
}

// pipe is one client's connection through a valve.
type pipe struct {
	valve          *Valve
	client, server net.Conn

	mu      sync.Mutex
	produce map[uint32]bool // correlation ids of produce requests without answer
}

// join makes the valve know the connection; false when it is closed.
func (p *pipe) join() bool {
	p.valve.mu.Lock()
	defer p.valve.mu.Unlock()
	if p.valve.closed {
		p.client.Close()
		p.server.Close()
		return false
	}
	p.valve.conns[p.client], p.valve.conns[p.server] = true, true
	return true
}

func (p *pipe) close() {
	p.client.Close()
	p.server.Close()
	p.valve.mu.Lock()
	defer p.valve.mu.Unlock()
	delete(p.valve.conns, p.client)
	delete(p.valve.conns, p.server)
}

// requests forwards whole requests: api key, version, correlation id, rest.
func (p *pipe) requests() {
	defer p.close()
	for {
		frame, err := readFrame(p.client, 8)
		if err != nil {
			return
		}
		if binary.BigEndian.Uint16(frame[4:]) == apiProduce {
			p.note(binary.BigEndian.Uint32(frame[8:]))
			p.valve.pass(Requests)
		}
		if _, err := p.server.Write(frame); err != nil {
			return
		}
	}
}

// note takes note of a produce request.
func (p *pipe) note(id uint32) {
	p.mu.Lock()
	p.produce[id] = true
	p.mu.Unlock()
	p.valve.mu.Lock()
	p.valve.produced++
	p.valve.mu.Unlock()
}

// answers forwards whole answers: correlation id, rest.
func (p *pipe) answers() {
	defer p.close()
	for {
		frame, err := readFrame(p.server, 4)
		if err != nil {
			return
		}
		id := binary.BigEndian.Uint32(frame[4:])
		p.mu.Lock()
		produce := p.produce[id]
		delete(p.produce, id)
		p.mu.Unlock()
		if produce {
			p.valve.pass(Answers)
		}
		if _, err := p.client.Write(frame); err != nil {
			return
		}
	}
}
