package relay

import (
	"bytes"
	"hash/maphash"
	"slices"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

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
	if !l.gate.idle() {
		events = slices.DeleteFunc(events, l.holdBack)
	}
	if len(events) > 0 {
		l.parts.Publisher.Publish(events)
	}
	l.writeParks()
}

// holdBack makes an event wait if it must.
func (l *line) holdBack(ev event.Event) bool {
	if !ev.Ordered || !l.gate.knows(ev.Aggregate, ev.Kind) {
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

// hold lets an event wait on its row.
func (l *line) hold(ref event.Ref) {
	l.park(event.Park{Ref: ref, Action: event.ParkHeld})
}

// park notes a row to be parked; writeParks hands on what has gathered.
func (l *line) park(p event.Park) {
	if p.Ordered {
		l.gate.park(&p.Ref)
	}
	l.parks = append(l.parks, p)
}

// writeParks hands the parks that have gathered to the recorder, at the latest
// before the line waits.
func (l *line) writeParks() {
	if len(l.parks) > 0 {
		l.parts.Recorder.Park(l.parks)
		l.parks = nil // they are the recorder's now
	}
}

// block closes the gate for the aggregate of an event that is to be parked.
func (l *line) block(ref *event.Ref) {
	l.gate.block(ref.Aggregate, ref.Kind)
	if a := l.gate.busy[ref.Aggregate]; a != nil {
		l.endRelease(ref.Aggregate, a)
	}
}
