package relay

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// State is what the relay is doing, in the words of the status page, the
// metrics and the documents.
type State string

// The states of a relay.
const (
	Starting   State = "starting"   // not leading yet, or setting up a session
	Standby    State = "standby"    // another instance leads
	Recovering State = "recovering" // publishing READY rows from the table, or looking up what the slot repeats
	Streaming  State = "streaming"  // the line runs
	Degraded   State = "degraded"   // the line runs, and something waits for a person
	Blocked    State = "blocked"    // alive, but a person must act
	Draining   State = "draining"   // stopping: waits for what is in flight
)

// states is all of them, for the metric.
var states = []State{Starting, Standby, Recovering, Streaming, Degraded, Blocked, Draining}

// leads reports whether the line runs in this state.
func (s State) leads() bool { return s == Recovering || s == Streaming || s == Draining }

// Status is a snapshot for people and tests.
type Status struct {
	State  State
	Since  time.Time
	Reason string // doctor id of what a person should look at, empty if none
	What   string
	Remedy string
	Leader bool
	Epoch  int64
	Positions
	Pace
}

// Pace tells how the line gets on. Times are zero before the first of what
// they tell of in this session.
type Pace struct {
	EventAt  time.Time // when an event, or a probe of ours, was last taken in
	MovedAt  time.Time // when the watermark last moved, or there was something in flight again
	InFlight int       // events that are not resolved
	HeldBack bool      // nothing is taken from the stream at present
	// Oldest is when the oldest unresolved event was committed, by the
	// server's clock; zero if there is none or that is not known.
	Oldest time.Time
}

// Positions are the relay's marks in the WAL, 0 when not known.
type Positions struct {
	Received  pglogrepl.LSN // end of the last transaction or keepalive read
	Watermark pglogrepl.LSN // everything below is resolved
	Saved     pglogrepl.LSN // watermark committed to cdc_relay_lease
	Confirmed pglogrepl.LSN // permitted to be confirmed to the server
	Server    pglogrepl.LSN // end of WAL as the server last told
}

// board holds the status; the line writes its positions without a lock.
type board struct {
	received, watermark, saved, confirmed, server atomic.Uint64

	// Pace, times in microseconds since the Unix epoch.
	eventAt, movedAt, inFlight, oldest atomic.Int64
	heldBack                           atomic.Bool

	mu       sync.Mutex
	status   Status
	streamed bool // the last session got past its lookup window
	troubles map[string]*fault.Blocked
	onChange func(from, to Status)
}

func newBoard(onChange func(from, to Status)) *board {
	return &board{
		status:   Status{State: Starting, Since: time.Now()},
		troubles: map[string]*fault.Blocked{},
		onChange: onChange,
	}
}

// set enters a state. Blocked comes with its condition; any other state
// forgets the last one.
func (b *board) set(state State, cause *fault.Blocked) {
	b.update(func(s *Status) {
		b.streamed = b.streamed || state == Streaming
		s.State, s.Reason, s.What, s.Remedy = state, "", "", ""
		if cause != nil {
			s.Reason, s.What, s.Remedy = cause.Reason, cause.What, cause.Remedy
		}
	})
}

func (b *board) lead(epoch int64) {
	b.update(func(s *Status) {
		b.streamed = false
		s.Leader, s.Epoch = true, epoch
	})
}

// hasStreamed reports whether the last session came as far as the stream, past
// its lookup window.
func (b *board) hasStreamed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.streamed
}

// unlead forgets what belonged to the session.
func (b *board) unlead() {
	for _, p := range []*atomic.Uint64{&b.received, &b.watermark, &b.saved, &b.confirmed, &b.server} {
		p.Store(0)
	}
	for _, p := range []*atomic.Int64{&b.eventAt, &b.movedAt, &b.inFlight, &b.oldest} {
		p.Store(0)
	}
	b.heldBack.Store(false)
	b.update(func(s *Status) {
		s.Leader = false
		clear(b.troubles)
	})
}

// tookIn notes that something of ours has come, whichever way.
func (b *board) tookIn() { b.eventAt.Store(time.Now().UnixMicro()) }

func (b *board) moved(watermark pglogrepl.LSN) {
	b.watermark.Store(uint64(watermark))
	b.movedAt.Store(time.Now().UnixMicro())
}

// pace notes how the line stands before it waits.
func (b *board) pace(inFlight int, heldBack bool, oldest int64) {
	if before := b.inFlight.Swap(int64(inFlight)); before == 0 && inFlight > 0 {
		b.movedAt.Store(time.Now().UnixMicro())
	}
	b.heldBack.Store(heldBack)
	b.oldest.Store(oldest)
}

// trouble notes what an edge reports while it keeps trying.
func (b *board) trouble(edge string, t *fault.Blocked) {
	b.update(func(*Status) { b.troubles[edge] = t })
}

func (b *board) update(f func(*Status)) {
	b.mu.Lock()
	before := b.effective()
	f(&b.status)
	after := b.effective()
	changed := before.State != after.State || before.Reason != after.Reason
	if changed {
		b.status.Since = time.Now()
		after.Since = b.status.Since
	}
	b.mu.Unlock()
	if changed {
		b.onChange(before, after)
	}
}

// effective is the status with the troubles of the edges in it: no publishing
// makes a streaming relay blocked, anything else degraded.
func (b *board) effective() Status {
	s := b.status
	if !s.State.leads() {
		return s
	}
	for _, edge := range troubleOrder {
		t := b.troubles[edge]
		if t == nil {
			continue
		}
		switch {
		case edge == publisherTrouble && s.State != Draining:
			s.State = Blocked
		case s.State == Streaming:
			s.State = Degraded
		}
		s.Reason, s.What, s.Remedy = t.Reason, t.What, t.Remedy
		break
	}
	return s
}

// snapshot is safe for concurrent use.
func (b *board) snapshot() Status {
	b.mu.Lock()
	s := b.effective()
	b.mu.Unlock()
	s.Positions = Positions{
		Received:  pglogrepl.LSN(b.received.Load()),
		Watermark: pglogrepl.LSN(b.watermark.Load()),
		Saved:     pglogrepl.LSN(b.saved.Load()),
		Confirmed: pglogrepl.LSN(b.confirmed.Load()),
		Server:    pglogrepl.LSN(b.server.Load()),
	}
	s.Pace = Pace{
		EventAt:  micros(&b.eventAt),
		MovedAt:  micros(&b.movedAt),
		InFlight: int(b.inFlight.Load()),
		HeldBack: b.heldBack.Load(),
		Oldest:   micros(&b.oldest),
	}
	return s
}

func micros(n *atomic.Int64) time.Time {
	if at := n.Load(); at != 0 {
		return time.UnixMicro(at)
	}
	return time.Time{}
}
