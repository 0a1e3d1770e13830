package relay

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"slices"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// gate keeps the order of an aggregate when one of its events could not be
// published: what comes later is held until it is that event's turn no more.
// It knows the aggregates that have, or may have, a parked row, and is rebuilt
// from the table at the start of a session. The line's goroutine owns it.
//
// While nothing is parked it costs the line one look at an empty map a batch.
type gate struct {
	marks map[uint64]mark
	// busy are the aggregates with something under way.
	busy map[uint64]*aggregate
	// touched names, for each aggregate with something settled since the last
	// look at it, the row that was.
	touched map[uint64]int64
	// parkedMeanwhile are aggregates with a park begun since the running
	// question about touched ones was asked; nil while none runs.
	parkedMeanwhile map[uint64]bool
	round           uint32 // of the sweep
	queue           releaseQueue
	later           []*release // to be queued at the next tick
	pages           int        // pages of held rows that are being read
	waiting         int        // events that wait in memory
	waitingBytes    int64
	silent          int // partitions that do not answer
}

// mark is what is known of an aggregate with parked rows.
type mark struct {
	// upTo: events below this number were handed over before the line knew,
	// so that the publisher may still hold some of them back.
	upTo  event.Seq
	round uint32 // the sweep that saw it last
	// silent: its partition does not answer, a release would come to nothing.
	silent bool
}

// aggregate is what is under way for one.
type aggregate struct {
	parking map[event.Seq]position // on their way to the rows
	release *release               // its held rows are being published; nil: no
	waiting []event.Event          // behind its last held rows
	// parked: one was begun since the last page of held rows was asked for.
	parked bool
}

// position orders the rows of an aggregate.
type position struct {
	lsn pglogrepl.LSN
	id  int64
}

func positionOf(ref *event.Ref) position { return position{ref.CommitLSN, ref.ID} }

func (p position) before(q position) bool {
	return cmp.Or(cmp.Compare(p.lsn, q.lsn), cmp.Compare(p.id, q.id)) < 0
}

func newGate() gate {
	return gate{marks: map[uint64]mark{}, busy: map[uint64]*aggregate{}, touched: map[uint64]int64{}}
}

func (g *gate) at(hash uint64) *aggregate {
	a := g.busy[hash]
	if a == nil {
		a = &aggregate{parking: map[event.Seq]position{}}
		g.busy[hash] = a
	}
	return a
}

// tidy forgets an aggregate with nothing under way.
func (g *gate) tidy(hash uint64) {
	if a := g.busy[hash]; a != nil && len(a.parking) == 0 && a.release == nil && len(a.waiting) == 0 {
		delete(g.busy, hash)
	}
}

// block closes the gate for an aggregate.
func (g *gate) block(hash uint64, next event.Seq) {
	g.marks[hash] = mark{upTo: next, round: g.round, silent: g.marks[hash].silent}
}

// park takes note of a row on its way to be parked. The sweep that runs may be
// past its place.
func (g *gate) park(ref *event.Ref) {
	a := g.at(ref.Aggregate)
	a.parking[ref.Seq] = positionOf(ref)
	a.parked = true
	if g.parkedMeanwhile != nil {
		g.parkedMeanwhile[ref.Aggregate] = true
	}
	if m, known := g.marks[ref.Aggregate]; known {
		m.round = g.round
		g.marks[ref.Aggregate] = m
	}
}

// clear reports whether a row of an aggregate may go out, if no earlier one is
// parked in the table: no earlier one is on its way to be parked either.
func (g *gate) clear(hash uint64, p position, answered event.Seq) bool {
	return g.marks[hash].upTo <= answered && p.before(g.firstParking(hash))
}

// firstParking is the smallest position that is on its way to be parked.
func (g *gate) firstParking(hash uint64) position {
	first := position{1<<64 - 1, 1<<63 - 1}
	if a := g.busy[hash]; a != nil {
		for _, p := range a.parking {
			if p.before(first) {
				first = p
			}
		}
	}
	return first
}

// settled takes note of a resolved event.
func (g *gate) settled(ref *event.Ref) {
	if a := g.busy[ref.Aggregate]; a != nil {
		delete(a.parking, ref.Seq)
		if r := a.release; r != nil {
			delete(r.inFlight, ref.Seq)
			g.queue.add(r)
		}
		g.tidy(ref.Aggregate)
	}
	if _, known := g.marks[ref.Aggregate]; known {
		g.touched[ref.Aggregate] = ref.ID
	}
}

// seed makes the hashes of aggregates differ from process to process.
var seed = maphash.MakeSeed()

// typeOf is what the line knows of an aggregate type: of the last one, as
// events of one type mostly come together.
type typeOf struct {
	name  []byte
	hash  uint64
	kind  uint8
	block bool
}

func (l *line) typeOf(name []byte) *typeOf {
	if t := &l.lastType; t.hash == 0 || !bytes.Equal(t.name, name) {
		t.name = append(t.name[:0], name...)
		t.hash = maphash.Bytes(seed, name)*0x9e3779b97f4a7c15 | 1
		t.kind, t.block = l.policy.Of(name)
	}
	return &l.lastType
}

// identify says to which aggregate an event belongs, and whether it has a
// place in its order.
func (l *line) identify(ev *event.Event) {
	t := l.typeOf(ev.AggregateType)
	ev.Aggregate = t.hash + maphash.Bytes(seed, ev.AggregateID)
	ev.Kind = t.kind
	ev.Ordered = t.block && ev.CommitLSN != 0
}

// admit hands events over, but those that must wait.
func (l *line) admit(events []event.Event) {
	if len(l.gate.marks) > 0 {
		events = slices.DeleteFunc(events, l.holdBack)
	}
	if len(events) > 0 {
		l.parts.Publisher.Publish(events)
	}
	l.writeHolds()
}

// holdBack makes an event wait if it must.
func (l *line) holdBack(ev event.Event) bool {
	if _, known := l.gate.marks[ev.Aggregate]; !known || !ev.Ordered {
		return false
	}
	a := l.gate.at(ev.Aggregate)
	if a.release != nil && a.release.closing && l.hasRoom(&ev) {
		a.waiting = append(a.waiting, ev.Clone())
		l.gate.waiting++
		l.gate.waitingBytes += int64(ev.Bytes)
		return true
	}
	l.holdWaiting(ev.Aggregate, a)
	l.bytes -= int64(ev.Bytes)
	l.hold(ev.Ref)
	return true
}

// hasRoom reports whether another event may wait in memory.
func (l *line) hasRoom(ev *event.Event) bool {
	return l.gate.waiting < l.cfg.InflightEvents/4 && l.gate.waitingBytes+int64(ev.Bytes) <= l.cfg.InflightBytes/4
}

// holdWaiting holds what waits in memory on its rows instead.
func (l *line) holdWaiting(hash uint64, a *aggregate) {
	for i := range a.waiting {
		l.bytes -= int64(a.waiting[i].Bytes)
		l.hold(a.waiting[i].Ref)
	}
	l.forgetWaiting(a)
	if a.release != nil {
		a.release.closing = false
	}
}

func (l *line) forgetWaiting(a *aggregate) {
	l.gate.waiting -= len(a.waiting)
	for i := range a.waiting {
		l.gate.waitingBytes -= int64(a.waiting[i].Bytes)
	}
	a.waiting = nil
}

// hold lets an event wait on its row, which writeHolds writes.
func (l *line) hold(ref event.Ref) {
	l.answered(ref.Seq)
	l.park(event.Park{Ref: ref, Action: event.ParkHeld})
}

// park notes a row to be parked; writeHolds hands those on.
func (l *line) park(p event.Park) {
	if p.Ordered {
		l.gate.park(&p.Ref)
	}
	l.parks = append(l.parks, p)
}

// writeHolds hands the parks that have gathered to the recorder.
func (l *line) writeHolds() {
	if len(l.parks) > 0 {
		l.parts.Recorder.Park(l.parks)
		l.parks = nil // they are the recorder's now
	}
}

// block closes the gate for the aggregate of an event that is parked, or is to
// be; guard tells the publisher.
func (l *line) block(ref *event.Ref) {
	l.gate.block(ref.Aggregate, l.ledger.Next())
	if a := l.gate.busy[ref.Aggregate]; a != nil {
		l.endRelease(ref.Aggregate, a)
	}
}

// refused takes events that the publisher could not publish.
func (l *line) refused(r refusal) {
	var guard []uint64
	for i := range r.refs {
		ref := &r.refs[i]
		if !l.takeBack(ref) {
			continue
		}
		if ref.Ordered {
			l.block(ref)
			guard = append(guard, ref.Aggregate)
		}
		l.park(l.attempt(*ref, r.failure))
	}
	l.guard(guard)
}

// heldBack takes events that the publisher did not publish for others' sake.
func (l *line) heldBack(h held) {
	var guard []uint64
	for i := range h.refs {
		ref := &h.refs[i]
		l.answered(ref.Seq)
		l.bytes -= int64(ref.Bytes)
		if !ref.Ordered {
			l.park(event.Park{Ref: *ref, Action: event.ParkLater, Delay: l.cfg.HeldRetry})
			continue
		}
		l.block(ref)
		guard = append(guard, ref.Aggregate)
		if h.why == event.HeldByPartition {
			m := l.gate.marks[ref.Aggregate]
			m.silent = true
			l.gate.marks[ref.Aggregate] = m
		}
		if ref.Due.IsInfinity() { // its row says so already
			l.settle(*ref)
			continue
		}
		l.park(event.Park{Ref: *ref, Action: event.ParkHeld})
	}
	l.guard(guard)
}

func (l *line) guard(aggregates []uint64) {
	if len(aggregates) > 0 {
		slices.Sort(aggregates)
		l.parts.Publisher.Guard(slices.Compact(aggregates))
	}
	l.writeHolds()
}

// takeBack takes an event over that the publisher is done with. One that is
// reported for the second time is held on its row: it is tracked anew, if its
// row is known well enough to be written.
func (l *line) takeBack(ref *event.Ref) bool {
	if ref.Seq != event.Untracked {
		l.answered(ref.Seq)
		l.bytes -= int64(ref.Bytes)
		return true
	}
	if !ref.Ordered {
		return false // it is due again by itself
	}
	ref.Seq, ref.Due = l.track(), event.DueInfinity()
	l.answered(ref.Seq)
	return true
}
