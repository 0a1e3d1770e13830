package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/decoder"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/ledger"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

// batchEvents is how many events go to the publisher, or to a lookup, at once:
// about those of a gulp.
const batchEvents = 1024

// flushBytes of WAL without a pause of the server wake the publisher.
const flushBytes = 512 << 10

// ErrInvariant is a broken invariant of the relay itself. It is the only
// error of the line that no retry can mend.
var ErrInvariant = errors.New("broken invariant")

// line is the one straight line of a session:
//
//	receive -> decode -> track -> publish -> ack -> SENT -> resolve -> watermark -> save -> confirm
//
// It is owned by one goroutine, that of run: everything that others have to
// say comes through the inbox or a gulp. When the process dies between any
// two steps, the slot still stands before what was not resolved.
type line struct {
	cfg    Config
	parts  *Parts
	tenure Tenure
	inbox  *Inbox
	board  *board
	m      *metrics
	policy Policy
	log    *slog.Logger
	spawn  func(func() error) // a goroutine of this session
	ledger *ledger.Ledger
	// What is being read. Invariant: holding is true while the gulp's buffer
	// is ours; rest is the part of it that was not consumed yet.
	gulp    event.Gulp
	rest    []byte
	holding bool

	msg    decoder.Message
	xid    uint64 // of the open transaction, widened
	commit pglogrepl.LSN
	batch  []event.Event // tracked, not handed over yet; views into the gulp

	bytes     int64 // of events not acknowledged yet
	full      bool  // above the high mark, waiting for the low one
	unflushed int   // WAL bytes since the publisher was woken
	offered   pglogrepl.LSN
	saved     pglogrepl.LSN

	// Questions to the table, beside the stream.
	answers     chan answer
	pass        *pass          // nil unless under way
	passed      map[int64]bool // rows of a pass that are not resolved
	window      *window        // nil once its probe is back
	reconcile   *reconcile     // nil between two rounds
	reconcileAt <-chan time.Time
	// Requeued rows: tracked and waiting to be read; how many are being read;
	// and, by id, the due time under which one is in flight.
	requeues         []event.Ref
	reading          int
	requeuedInFlight map[int64]event.Due
	// Rows that were settled while some are being read; nil while none is.
	settledMeanwhile map[int64]bool

	// Order of aggregates with parked rows, and what is to be parked.
	gate     gate
	parks    []event.Park
	lastType typeOf
	rebuilt  bool // the gate knows what was parked before this session
	// The sweep over aggregates with parked rows.
	sweepAt    <-chan time.Time
	sweepOn    func() // reads its next page
	sweeping   bool
	sweepAgain bool

	heartbeat *heartbeat // nil unless a probe of its kind is on its way
	beat      *pulse.Beat

	accepting atomic.Bool // the scheduler may requeue rows
	stuck     bool        // nothing can be published
	broken    error       // an invariant is
	draining  bool
	cut       bool             // for the stream has ended: budget is renewed
	cause     error            // why the session ends, if it is not a stop
	budget    <-chan time.Time // ends the draining
	received  counts
}

// counts are added to the metrics once a gulp.
type counts struct {
	events, delayed, foreign int
}

func newLine(cfg Config, p *Parts, t Tenure, in *Inbox) *line {
	return &line{
		cfg: cfg, parts: p, tenure: t, inbox: in,
		ledger:           ledger.New(),
		gate:             newGate(),
		batch:            make([]event.Event, 0, batchEvents),
		xid:              p.XMax,
		answers:          make(chan answer, 16),
		requeuedInFlight: map[int64]event.Due{},
	}
}

// run drives the line until stop is closed, the stream ends, the session must
// end in order, or ctx ends. In all but the last case it receives nothing
// more, waits until what is in flight is resolved, and saves and confirms the
// position. A stop, and an end in order, wait no longer than the drain timeout,
// and what follows the end of the stream no longer than cutBudget tells.
func (l *line) run(ctx context.Context, stop <-chan struct{}) error {
	defer l.letGo()
	l.board.set(Recovering, nil)
	l.startSweep(ctx)
	l.beat = l.cfg.Beats.Start("line")
	defer l.beat.End()
	probeTick := time.NewTicker(l.cfg.ProbeEvery)
	defer probeTick.Stop()
	tick := time.NewTicker(l.cfg.Tick)
	defer tick.Stop()
	for !l.drained() {
		l.beat.Work()
		if err := l.advance(ctx); err != nil {
			return err
		}
		l.offer()
		l.board.pace(l.ledger.Pending(), l.gulps() == nil, l.ledger.Oldest())
		l.beat.Rest()
		select {
		case g, ok := <-l.gulps():
			if !ok {
				l.streamEnded()
				continue
			}
			l.gulp, l.rest, l.holding = g, g.Frames, true
		case <-l.inbox.ready:
			if err := l.collect(ctx); err != nil {
				return err
			}
		case a := <-l.answers:
			if err := l.answered(a); err != nil {
				return err
			}
		case <-tick.C:
			l.renewBudget()
			l.tick(ctx)
		case <-l.sweepAt:
			l.continueSweep(ctx)
		case <-l.reconcileAt:
			l.startReconcile(ctx)
		case <-l.pass.overdue():
			l.pass.leave()
		case <-probeTick.C:
			l.sendHeartbeat(ctx)
		case <-stop:
			stop = nil
			l.board.set(Draining, nil)
			l.drainWithin(l.cfg.DrainTimeout)
		case <-l.budget:
			l.log.Warn("drain timeout: what is in flight stays with the slot", "in_flight", l.ledger.Pending(), "stream_ended", l.cut)
			return l.cause
		case <-ctx.Done():
			return nil
		}
	}
	return l.cause
}

// begin starts to publish, once the gate knows what is parked.
func (l *line) begin(ctx context.Context) {
	if l.parts.OpenPass != nil {
		l.startPass(ctx)
	} else {
		l.openWindow(ctx)
	}
}

// advance does what can be done without waiting.
func (l *line) advance(ctx context.Context) error {
	if err := l.consumeGulp(ctx); err != nil {
		return err
	}
	l.read(ctx)
	l.advanceReleases(ctx)
	l.advancePass(ctx)
	l.advanceReconcile(ctx)
	l.m.inflight(l.ledger.Pending(), l.bytes)
	l.m.blocked.Set(float64(len(l.gate.marks)))
	l.writeParks()
	l.accepting.Store(!l.full && !l.draining && l.pass == nil && !l.stuck)
	return nil
}

// gulps is the stream while the line can take something from it.
func (l *line) gulps() <-chan event.Gulp {
	if l.holding || l.draining || l.pass != nil || !l.rebuilt {
		return nil
	}
	return l.parts.Source.Gulps()
}

// drain stops receiving. What was read but not handed over is forgotten: it
// stays with the slot.
func (l *line) drain() {
	l.draining = true
	l.parts.Publisher.Flush()
}

// drainWithin drains, for at most that long.
func (l *line) drainWithin(d time.Duration) {
	if l.budget == nil || l.cut {
		l.budget, l.cut = time.After(d), false
	}
	l.drain()
}

// cutBudget bounds the draining after the end of the stream, during which nothing
// is streamed. What is left by then waits for something of its own, such as a
// lock on its row, or a partition that does not answer while no other is asked:
// it must not keep everything else waiting.
const cutBudget = time.Minute

// ended is a context that has: whoever is asked with it must not wait.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (l *line) streamEnded() {
	l.cut, l.budget = true, time.After(cutBudget)
	l.drain()
}

// renewBudget lets the time after the end of the stream count only while Kafka
// and PostgreSQL are there. A new session would get no further without them, and
// publish again what may be in the log, or is without SENT.
func (l *line) renewBudget() {
	if l.cut && (l.stuck || l.tenure.Permit(ended) != nil) {
		l.budget = time.After(cutBudget)
	}
}

// failBudget bounds the draining of a session that must end: what makes it end
// may also keep the write-back from ending.
const failBudget = 5 * time.Second

// fail ends the session in order.
func (l *line) fail(err error) {
	if l.cause == nil {
		l.cause = err
	}
	if b := fault.AsBlocked(err); b != nil {
		l.board.set(Blocked, b)
	}
	l.drainWithin(failBudget)
}

// drained reports whether the line has come to rest: everything that was
// handed over is resolved, and its position saved and permitted to be
// confirmed.
func (l *line) drained() bool {
	kept := len(l.batch) + len(l.requeues) + l.reading + l.gate.waiting // with the slot
	return l.draining && l.ledger.Pending() == kept && l.saved >= l.ledger.Watermark()
}

func (l *line) letGo() {
	if l.holding {
		l.gulp.Release()
		l.holding = false
	}
}

// consumeGulp goes as far as the limits and the lookup window allow.
func (l *line) consumeGulp(ctx context.Context) error {
	for l.holding && !l.full && !l.draining && !l.window.busy() {
		if len(l.rest) == 0 {
			l.dispatch(ctx)
			if l.window.busy() {
				return nil
			}
			l.endGulp()
			return nil
		}
		frame, rest, err := cutFrame(l.rest)
		if err != nil {
			return err
		}
		l.rest = rest
		l.consume(ctx, frame)
	}
	return nil
}

// cutFrame takes the payload of the first CopyData message.
func cutFrame(b []byte) (payload, rest []byte, err error) {
	if len(b) < 5 || b[0] != 'd' {
		return nil, nil, fmt.Errorf("%w: a gulp does not begin with a CopyData message", ErrInvariant)
	}
	end := 1 + uint64(binary.BigEndian.Uint32(b[1:]))
	if end < 5 || end > uint64(len(b)) {
		return nil, nil, fmt.Errorf("%w: a gulp does not hold whole messages", ErrInvariant)
	}
	return b[5:end], b[end:], nil
}

func (l *line) endGulp() {
	l.unflushed += len(l.gulp.Frames)
	if l.gulp.Paused || l.unflushed >= flushBytes {
		l.flush()
	}
	l.m.received(l.received)
	if l.received.events > 0 {
		l.board.tookIn()
	}
	l.received = counts{}
	l.letGo()
}

func (l *line) flush() {
	l.unflushed = 0
	l.parts.Publisher.Flush()
}

// consume takes one message of the stream. One that cannot be read is met again
// at each try, so the session ends in order.
func (l *line) consume(ctx context.Context, frame []byte) {
	if err := l.parts.Decoder.Decode(frame, &l.msg); err != nil {
		l.fail(&fault.Blocked{
			Reason: "table.columns",
			What:   err.Error(),
			Remedy: "correct the table, or map its columns with outbox.columns; a row that was written before stays in the WAL as it was: if this one still cannot be read then, " +
				"stop all relays of the slot and run: cdc-relay slot recreate --confirm <slot.name>: what is READY is then published from the table; nothing has been passed over",
			Err: err,
		})
		return
	}
	switch l.msg.Kind {
	case decoder.Begin:
		l.xid = decoder.Widen(l.msg.XID, l.xid)
		l.commit = l.msg.CommitLSN
		l.ledger.Begin(l.msg.CommitTime)
	case decoder.Insert:
		l.insert(ctx)
	case decoder.Commit:
		l.ledger.Seal(l.msg.EndLSN)
		l.committed(l.msg.EndLSN)
		l.board.received.Store(uint64(l.msg.EndLSN))
	case decoder.Keepalive:
		l.ledger.AdvanceIdle(l.msg.ServerEnd)
		l.board.server.Store(uint64(l.msg.ServerEnd))
		l.board.received.Store(uint64(l.msg.ServerEnd))
	case decoder.Logical:
		l.message(ctx)
	}
}

// insert takes an inserted row. Only READY rows that are due at once are
// events: a delayed one is delivered again when due, and any other status is
// a restored or moved row.
func (l *line) insert(ctx context.Context) {
	ev := &l.msg.Event
	switch {
	case ev.Status != ready:
		l.received.foreign++
		return
	case !ev.Due.IsNull():
		l.received.delayed++
		return
	}
	ev.Seq, ev.XID, ev.CommitLSN = l.ledger.Track(), l.xid, l.commit
	l.identify(ev)
	l.batch = append(l.batch, *ev)
	l.bytes += int64(ev.Bytes)
	l.received.events++
	if len(l.batch) == cap(l.batch) {
		l.dispatch(ctx)
	}
	l.makeRoom(ctx)
}

// makeRoom closes the line when it is full: what is in hand and what is pending
// must go out then, or room never comes back.
func (l *line) makeRoom(ctx context.Context) {
	if l.measure(); l.full {
		l.dispatch(ctx)
		l.flush()
	}
}

// measure closes the line above the high marks.
func (l *line) measure() {
	l.full = l.bytes >= l.cfg.InflightBytes || l.ledger.Pending() >= l.cfg.InflightEvents
}

// dispatch hands the batch over, through the lookup window while it is open.
func (l *line) dispatch(ctx context.Context) {
	switch {
	case len(l.batch) == 0 || l.window.busy():
	case l.window != nil:
		l.lookUp(ctx)
	default:
		l.admit(l.batch)
		l.batch = l.batch[:0]
	}
}

// breathe reopens the line below the low mark, three quarters of the limits:
// reopening for each event would cost a wake-up each.
func (l *line) breathe() {
	if l.bytes <= l.cfg.InflightBytes/4*3 && l.ledger.Pending() <= l.cfg.InflightEvents/4*3 {
		l.full = false
	}
}

// offer gives the watermark to the lease, which saves it before it may be
// confirmed (invariant I2).
func (l *line) offer() {
	w := l.ledger.Watermark()
	if w <= l.offered {
		return
	}
	l.offered = w
	l.board.moved(w)
	l.tenure.Offer(w)
}
