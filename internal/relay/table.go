package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// readRows is how many requeued rows are read at once.
const readRows = 512

// answer is what a question to the table leads to, on the line's goroutine.
type answer struct {
	then func() error
	err  error
}

// ask puts a question to the table, beside the line, and repeats it until it
// is answered: leadership decides about the end of a session, not a broken
// connection. then runs on the line's goroutine. At most cap(answers) questions
// are asked at a time.
func (l *line) ask(ctx context.Context, doing string, question, then func() error) {
	l.spawn(func() error {
		err := l.persist(ctx, doing, question)
		if ctx.Err() == nil { // else the session is over and nobody waits
			l.answers <- answer{then, err}
		}
		return nil
	})
}

// answered goes on with an answer. A question that only a person can make
// answerable ends the session in order: it is asked again at each try.
func (l *line) answered(a answer) error {
	switch {
	case a.err == nil:
		return a.then()
	case errors.Is(a.err, fault.ErrFenced):
		return a.err
	}
	l.fail(a.err)
	return nil
}

func (l *line) persist(ctx context.Context, doing string, question func() error) error {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	return backoff.RetryNotify(func() error {
		err := question()
		if final(err) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(b, ctx), func(err error, _ time.Duration) {
		l.log.Warn(doing, "err", err)
	})
}

// probe is a message of our own, known by a random id: any other one under
// the prefix is ignored, as anybody may emit one.
type probe []byte

func (l *line) emitProbe(ctx context.Context) probe {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails, says its contract
	l.ask(ctx, "emitting a probe message", func() error { return l.parts.Rows.Probe(ctx, id) }, nothing)
	return fmt.Appendf(nil, "%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

func nothing() error { return nil }

// message takes a logical message. Messages are hints that anybody may emit:
// what is not ours is counted and ignored, and of a requeue only the id counts.
func (l *line) message(ctx context.Context) {
	m := &l.msg
	switch {
	case !m.Transactional:
		l.m.ignored("not_transactional")
	case string(m.Prefix) == l.cfg.ProbePrefix:
		l.probed(ctx, m.Content)
	case string(m.Prefix) == l.cfg.RequeuePrefix:
		l.requeued(ctx, m.Content)
	default:
		l.m.ignored("foreign")
	}
}

func (l *line) probed(ctx context.Context, content []byte) {
	switch {
	case l.window != nil && string(content) == string(l.window.probe):
		l.passWindow(ctx)
	case l.reconcile != nil && string(content) == string(l.reconcile.probe):
		l.reconcile.seen = true
	case l.heartbeat != nil && string(content) == string(l.heartbeat.probe):
		l.m.probeRoundtrip.Observe(time.Since(l.heartbeat.sent).Seconds())
		l.heartbeat = nil
	default:
		l.m.ignored("unknown_probe")
		return
	}
	l.board.tookIn()
}

// heartbeat is a probe on its way, which shows that the slot delivers even while
// nobody writes.
type heartbeat struct {
	probe probe
	sent  time.Time
}

// sendHeartbeat emits a probe unless one is still on its way, or the stream is not
// read.
func (l *line) sendHeartbeat(ctx context.Context) {
	if l.heartbeat == nil && l.pass == nil && !l.draining {
		l.heartbeat = &heartbeat{probe: l.emitProbe(ctx), sent: time.Now()}
	}
}

// requeued tracks a row that is to be read and published. The slot does not
// pass its message before the row is resolved.
func (l *line) requeued(ctx context.Context, content []byte) {
	id, ok := parseID(content)
	if !ok {
		l.m.ignored("malformed")
		return
	}
	l.requeues = append(l.requeues, event.Ref{Seq: l.ledger.Track(), ID: id, XID: l.xid})
	l.makeRoom(ctx)
}

// parseID reads the content of a requeue message: a positive int8 in decimal,
// as the trigger writes it.
func parseID(b []byte) (id int64, ok bool) {
	const longest = 19
	if len(b) == 0 || len(b) > longest || b[0] == '0' {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		id = id*10 + int64(c-'0')
	}
	return id, id > 0 // 19 digits may overflow, to a negative number
}

// read asks for requeued rows, a few at a time and beside the stream. What the
// stream brought before them must have been handed over or held: it may be of
// the same aggregate and, after a crash, earlier in its order.
func (l *line) read(ctx context.Context) {
	if len(l.requeues) == 0 || len(l.batch) > 0 || l.reading > 0 || l.draining || l.bytes >= l.cfg.InflightBytes {
		return
	}
	n := min(len(l.requeues), readRows)
	refs := append([]event.Ref(nil), l.requeues[:n]...)
	l.requeues = l.requeues[:copy(l.requeues, l.requeues[n:])]
	l.reading, l.settledMeanwhile, l.gate.whileReading = n, map[int64]bool{}, map[uint64]bool{}
	var found []event.Found
	l.ask(ctx, "reading requeued rows", func() (err error) {
		found, err = l.parts.Rows.Read(ctx, refs, l.cfg.InflightBytes/4)
		return err
	}, func() error { return l.haveRead(refs, found) })
}

// haveRead publishes the rows that are READY and due, and resolves the rest.
func (l *line) haveRead(refs []event.Ref, found []event.Found) error {
	if l.draining {
		return nil // they stay with the slot
	}
	if len(found) == 0 || len(found) > len(refs) {
		return fmt.Errorf("%w: of %d requeued rows %d were read", ErrInvariant, len(refs), len(found))
	}
	meanwhile := l.settledMeanwhile
	parked := l.gate.whileReading
	l.reading, l.settledMeanwhile, l.gate.whileReading = 0, nil, nil
	again := append([]event.Ref(nil), refs[len(found):]...)
	var due []event.Event
	var returned, settled []int64
	for i := range found {
		ev := &found[i].Event
		if found[i].Fate == event.FatePublish && meanwhile[ev.ID] {
			// The answer may be older than what has settled the row: ask again.
			again = append(again, refs[i])
			continue
		}
		returned = append(returned, refs[i].ID)
		switch {
		case found[i].Fate != event.FatePublish:
			settled = append(settled, refs[i].ID)
		case l.requeuedInFlight[ev.ID] == ev.Due: // it is in flight already
		default:
			l.requeuedInFlight[ev.ID] = ev.Due
			if !l.mayGo(ev, found[i].Behind, parked) {
				l.hold(ev.Ref)
				continue
			}
			l.bytes += int64(ev.Bytes)
			due = append(due, *ev)
			continue
		}
		if found[i].Fate == event.FateGone {
			l.m.ignored("unknown_id")
		}
		if err := l.resolve(refs[i : i+1]); err != nil {
			return err
		}
	}
	l.requeues = append(again, l.requeues...)
	l.parts.Scheduler.Returned(returned)
	l.parts.Scheduler.Settled(settled)
	if len(due) > 0 {
		l.m.receivedVia("requeue", len(due))
		l.board.tookIn()
		l.parts.Publisher.Publish(due)
		l.flush()
	}
	l.writeParks()
	l.measure()
	l.breathe()
	return l.broken
}

// mayGo reports whether a requeued row is its aggregate's first, in the table and
// among what is on its way there. Whichever way, later events of the aggregate
// wait for it.
func (l *line) mayGo(ev *event.Event, behind bool, parkedMeanwhile map[uint64]bool) bool {
	l.identify(ev)
	if !ev.Ordered {
		return true
	}
	l.gate.block(ev.Aggregate, ev.Kind)
	return !behind && !parkedMeanwhile[ev.Aggregate] && positionOf(&ev.Ref).before(l.gate.firstParking(ev.Aggregate))
}
