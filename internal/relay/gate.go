package relay

import (
	"cmp"

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
	kinds [256]kindMarks // by policy
	// anyKind: all aggregates under some policy are blocked.
	anyKind bool
	most    int // marks
	// busy are the aggregates with something under way.
	busy map[uint64]*aggregate
	// touched names, for each aggregate with something settled since the last
	// look at it, the row that was.
	touched map[uint64]int64
	// Aggregates with a park begun or settled since a question was asked that
	// is still running: its answer may be older than that. nil while none runs.
	whileLooking map[uint64]bool // at the first rows of touched ones
	whileReading map[uint64]bool // requeued rows
	round        uint32          // of the sweep
	queue        releaseQueue
	later        []*release // to be queued at the next tick
	pages        int        // pages of held rows that are being read
	waiting      int        // events that wait in memory
	waitingBytes int64
	silent       int // partitions that do not answer
}

// maxMarks bounds the memory of the gate, to about 50 MB.
const maxMarks = 1_000_000

// maxTouched bounds what one tick after the other looks at; the sweep finds the
// others.
const maxTouched = 100_000

// kindMarks is about all aggregates under one policy. With too many of them
// blocked, all count as blocked, known or not, until a sweep finds that there
// are few again.
type kindMarks struct {
	n   int  // in marks
	all bool // all are blocked
	// sweeping: this sweep began after all were blocked, so at its end the
	// marks are complete, if there are not too many again.
	sweeping bool
}

// mark is what is known of an aggregate with parked rows.
type mark struct {
	kind  uint8
	round uint32 // the sweep that saw it last
	// silent: its partition does not answer, a release would come to nothing.
	silent bool
}

// aggregate is what is under way for one.
type aggregate struct {
	parking map[event.Seq]position // on their way to the rows
	release *release               // its held rows are being published; nil: no
	waiting []event.Event          // behind its last held rows
	// parked: a park was begun or settled since the last page of held rows was
	// asked for.
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
	return gate{most: maxMarks, marks: map[uint64]mark{}, busy: map[uint64]*aggregate{}, touched: map[uint64]int64{}}
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

// idle reports whether every event may pass.
func (g *gate) idle() bool { return len(g.marks) == 0 && !g.anyKind }

// knows reports whether events of an aggregate have to wait.
func (g *gate) knows(hash uint64, kind uint8) bool {
	_, known := g.marks[hash]
	return known || g.kinds[kind].all
}

// block closes the gate for an aggregate that has a parked row, or is to have
// one.
func (g *gate) block(hash uint64, kind uint8) {
	k := &g.kinds[kind]
	m, known := g.marks[hash]
	if !known {
		switch {
		case k.all && !k.sweeping:
			return
		case len(g.marks) >= g.most:
			if biggest := g.biggestKind(); biggest != kind {
				g.closeKind(biggest)
				break
			}
			g.closeKind(kind)
			return
		}
		k.n++
	}
	g.marks[hash] = mark{kind: kind, round: g.round, silent: m.silent}
}

func (g *gate) biggestKind() (kind uint8) {
	for i := range g.kinds {
		if g.kinds[i].n > g.kinds[kind].n {
			kind = uint8(i)
		}
	}
	return kind
}

// closeKind blocks all aggregates under a policy.
func (g *gate) closeKind(kind uint8) {
	k := &g.kinds[kind]
	k.all, k.sweeping, g.anyKind = true, false, true
	for hash, m := range g.marks {
		if m.kind == kind {
			delete(g.marks, hash)
		}
	}
	k.n = 0
}

// beginSweep and endSweep open the gate again for policies that have few
// blocked aggregates left.
func (g *gate) beginSweep() {
	g.round++
	for i := range g.kinds {
		g.kinds[i].sweeping = g.kinds[i].all
	}
}

func (g *gate) endSweep() {
	g.anyKind = false
	for i := range g.kinds {
		k := &g.kinds[i]
		switch {
		case k.all && k.sweeping && k.n <= g.most/2:
			k.all = false
		case k.all && k.sweeping:
			g.closeKind(uint8(i))
		}
		k.sweeping = false
		g.anyKind = g.anyKind || k.all
	}
}

// forget opens the gate for an aggregate.
func (g *gate) forget(hash uint64) {
	if m, known := g.marks[hash]; known {
		g.kinds[m.kind].n--
		delete(g.marks, hash)
	}
	delete(g.touched, hash)
}

// park takes note of a row on its way to be parked.
func (g *gate) park(ref *event.Ref) {
	a := g.at(ref.Aggregate)
	a.parking[ref.Seq] = positionOf(ref)
	g.changed(ref.Aggregate, a)
	g.block(ref.Aggregate, ref.Kind)
}

// setSilent notes that the partition of an aggregate does not answer.
func (g *gate) setSilent(hash uint64) {
	if m, known := g.marks[hash]; known {
		m.silent = true
		g.marks[hash] = m
	}
}

// changed makes answers that may be older than a park worth nothing.
func (g *gate) changed(hash uint64, a *aggregate) {
	a.parked = true
	if m, known := g.marks[hash]; known {
		m.round = g.round // the sweep may be past its place
		g.marks[hash] = m
	}
	for _, meanwhile := range []map[uint64]bool{g.whileLooking, g.whileReading} {
		if meanwhile != nil {
			meanwhile[hash] = true
		}
	}
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
		at, parking := a.parking[ref.Seq]
		if parking {
			delete(a.parking, ref.Seq)
			g.changed(ref.Aggregate, a)
		}
		if r := a.release; r != nil {
			if parking {
				r.notPast(at)
			}
			r.stale = r.stale || !parking && !r.inFlight[ref.Seq]
			delete(r.inFlight, ref.Seq)
			g.queue.add(r)
		}
		g.tidy(ref.Aggregate)
	}
	if g.knows(ref.Aggregate, ref.Kind) && len(g.touched) < maxTouched {
		g.touched[ref.Aggregate] = ref.ID
	}
}
