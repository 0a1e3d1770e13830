package relay

import (
	"container/heap"
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// How held rows are released. That is a condition, not an event: an aggregate
// whose first parked row only waits for its release has nothing left to wait
// for, whoever brought that about. It is looked at every tick for aggregates
// with something settled since, and in a sweep over all of them at the start
// and now and then: a person may have changed or deleted rows.
const (
	sweepPage  = 1000                   // aggregates
	sweepPause = 100 * time.Millisecond // between two pages, but at the start
	headsPage  = 500                    // aggregates looked at at once
	heldPage   = 1000                   // rows of one aggregate
	maxPages   = 4                      // that are being read
	// maxReleases is how many aggregates may wait for their release before the
	// sweep pauses: it finds the others later.
	maxReleases = 2000
)

// release publishes the held rows of one aggregate, a page at a time from the
// front. The next page is read when all of the last one is settled. It may end
// between any two pages, or with the process: the rows stay parked until they
// are SENT.
type release struct {
	hash     uint64
	of       event.Aggregate
	inFlight map[event.Seq]bool
	asking   bool
	queued   bool
	turn     int
	// stale: a row of the aggregate was settled otherwise since the page was
	// asked for, which may show it as it was before.
	stale bool
	// first is the smallest position that was on its way to be parked at any
	// moment since the page was asked for: from there on the page may show rows
	// as they were before, even when that is settled again.
	first position
	// closing: the last held rows are in flight, so new events wait in memory.
	closing bool
	// last: no parked row was left behind the page that is in flight.
	last bool
}

// notPast keeps the page that is asked for from passing a position.
func (r *release) notPast(p position) {
	if p.before(r.first) {
		r.first = p
	}
}

// releaseQueue holds the releases whose next page is to be read: those of
// higher priority first, then in turn.
type releaseQueue struct {
	list  []*release
	turns int
}

func (q *releaseQueue) Len() int { return len(q.list) }

func (q *releaseQueue) Less(i, j int) bool {
	a, b := q.list[i], q.list[j]
	if a.of.Priority != b.of.Priority {
		return a.of.Priority > b.of.Priority
	}
	return a.turn < b.turn
}

func (q *releaseQueue) Swap(i, j int) { q.list[i], q.list[j] = q.list[j], q.list[i] }

func (q *releaseQueue) Push(x any) { q.list = append(q.list, x.(*release)) }

func (q *releaseQueue) Pop() any {
	r := q.list[len(q.list)-1]
	q.list = q.list[:len(q.list)-1]
	return r
}

func (q *releaseQueue) add(r *release) {
	if r.queued || r.asking || len(r.inFlight) > 0 {
		return
	}
	r.queued = true
	q.turns++
	r.turn = q.turns
	heap.Push(q, r)
}

// startSweep looks at all aggregates with parked rows, a page at a time.
func (l *line) startSweep(ctx context.Context) {
	l.sweepAt, l.sweeping, l.sweepAgain = nil, true, false
	l.gate.beginSweep()
	l.sweep(ctx, "", "")
}

func (l *line) sweep(ctx context.Context, afterType, afterID string) {
	var page []event.Aggregate
	l.ask(ctx, "listing aggregates with parked rows", func() (err error) {
		page, err = l.parts.Rows.Parked(ctx, afterType, afterID, sweepPage)
		return err
	}, func() error { return l.swept(ctx, page) })
}

func (l *line) swept(ctx context.Context, page []event.Aggregate) error {
	if l.draining {
		return nil
	}
	for _, of := range page {
		if ref := l.refOf(of); ref.Ordered {
			l.gate.block(ref.Aggregate, ref.Kind)
		}
		switch {
		case !of.Held:
		case len(l.gate.busy) > maxReleases:
			l.sweepAgain = true
		default:
			l.startRelease(of)
		}
	}
	if len(page) == 0 {
		l.endSweep(ctx)
		return nil
	}
	last := page[len(page)-1]
	if !l.rebuilt {
		l.sweep(ctx, last.Type, last.ID)
		return nil
	}
	l.sweepOn = func() { l.sweep(ctx, last.Type, last.ID) }
	l.sweepAt = time.After(sweepPause)
	return nil
}

// continueSweep reads the next page, unless there is enough to release.
func (l *line) continueSweep(ctx context.Context) {
	switch {
	case l.draining:
		l.sweepAt = nil
	case l.sweepOn == nil:
		l.startSweep(ctx)
	case len(l.gate.busy) > maxReleases:
		l.sweepAt = time.After(l.cfg.Tick)
	default:
		next := l.sweepOn
		l.sweepAt, l.sweepOn = nil, nil
		next()
	}
}

// endSweep forgets the aggregates that have no parked row any more.
func (l *line) endSweep(ctx context.Context) {
	l.sweeping, l.sweepAt = false, time.After(l.cfg.SweepEvery)
	if l.sweepAgain {
		l.sweepAt = time.After(0)
	}
	for hash, m := range l.gate.marks {
		if m.round != l.gate.round && l.gate.busy[hash] == nil {
			l.leave(hash)
		}
	}
	l.gate.endSweep()
	if !l.rebuilt {
		l.rebuilt = true
		l.begin(ctx)
	}
}

// refOf identifies an aggregate as its events are, those with a place in its
// order.
func (l *line) refOf(of event.Aggregate) event.Ref {
	ev := event.Event{AggregateType: []byte(of.Type), AggregateID: []byte(of.ID)}
	ev.CommitLSN = 1
	l.identify(&ev)
	return ev.Ref
}

// tick looks at the aggregates with something settled since the last tick.
func (l *line) tick(ctx context.Context) {
	for _, r := range l.gate.later {
		l.gate.queue.add(r)
	}
	l.gate.later = nil
	if l.gate.whileLooking != nil || len(l.gate.touched) == 0 || l.draining {
		return
	}
	var hashes []uint64
	var ids []int64
	for hash, id := range l.gate.touched {
		if len(ids) == headsPage {
			break
		}
		delete(l.gate.touched, hash)
		if a := l.gate.busy[hash]; a != nil && a.release != nil {
			continue // it looks by itself
		}
		hashes, ids = append(hashes, hash), append(ids, id)
	}
	if len(ids) == 0 {
		return
	}
	l.gate.whileLooking = map[uint64]bool{}
	var heads []event.Aggregate
	l.ask(ctx, "looking at the first parked rows of aggregates", func() (err error) {
		heads, err = l.parts.Rows.Heads(ctx, ids)
		return err
	}, func() error {
		for i, of := range heads {
			l.lookedAt(hashes[i], of)
		}
		l.gate.whileLooking = nil
		if len(ids) == headsPage {
			l.tick(ctx) // there are more
		}
		return nil
	})
}

// lookedAt decides about one aggregate. Of a row that is gone nothing is known:
// the sweep will see.
func (l *line) lookedAt(hash uint64, of event.Aggregate) {
	_, known := l.gate.marks[hash]
	switch {
	case l.draining || of.Type == "":
	case of.Held:
		l.startRelease(of)
	case of.First != 0 || !known: // it waits for its time, or for a person
	case l.gate.busy[hash] != nil || l.gate.whileLooking[hash]: // looked at again when that is settled
	default:
		l.leave(hash)
	}
}

func (l *line) startRelease(of event.Aggregate) {
	ref := l.refOf(of)
	if l.gate.marks[ref.Aggregate].silent {
		return
	}
	if ref.Ordered {
		l.gate.block(ref.Aggregate, ref.Kind)
	}
	a := l.gate.at(ref.Aggregate)
	if a.release == nil {
		a.release = &release{hash: ref.Aggregate, of: of, inFlight: map[event.Seq]bool{}}
		l.gate.queue.add(a.release)
	}
}

// advanceReleases reads the next pages while there is room. Before the lookup
// window has closed, the slot may still bring an event that an earlier session
// did not get to park: the rows held behind it must not pass it.
func (l *line) advanceReleases(ctx context.Context) {
	settled := l.rebuilt && l.pass == nil && l.window == nil
	for settled && l.gate.queue.Len() > 0 && l.gate.pages < maxPages && !l.full && !l.draining && !l.stuck {
		r := heap.Pop(&l.gate.queue).(*release)
		r.queued = false
		a := l.gate.busy[r.hash]
		switch {
		case a == nil || a.release != r: // it has ended
		case r.last && len(a.parking) == 0 && !a.parked:
			l.leave(r.hash)
		default:
			l.readHeld(ctx, a, r)
		}
	}
}

func (l *line) readHeld(ctx context.Context, a *aggregate, r *release) {
	r.asking, r.stale, a.parked = true, false, false
	r.first = l.gate.firstParking(r.hash)
	l.gate.pages++
	var events []event.Event
	var whole bool
	l.ask(ctx, "reading held rows", func() (err error) {
		events, whole, err = l.parts.Rows.Held(ctx, r.of.Type, r.of.ID, heldPage, l.cfg.InflightBytes/8)
		return err
	}, func() error {
		l.gate.pages--
		r.asking = false
		switch {
		case l.draining || a.release != r:
		case r.stale:
			l.gate.queue.add(r)
		default:
			l.publishHeld(a, r, events, whole)
		}
		return nil
	})
}

// publishHeld publishes a page, as far as it does not overtake rows that are on
// their way to be parked, or were since the page was asked for.
func (l *line) publishHeld(a *aggregate, r *release, events []event.Event, whole bool) {
	if len(events) == 0 && !whole {
		l.endRelease(r.hash, a) // the first one waits for something else
		return
	}
	r.notPast(l.gate.firstParking(r.hash))
	n := 0
	for n < len(events) && positionOf(&events[n].Ref).before(r.first) && l.requeuedInFlight[events[n].ID].IsNull() {
		ev := &events[n]
		l.identify(ev)
		ev.Seq = l.ledger.Track()
		r.inFlight[ev.Seq] = true
		l.requeuedInFlight[ev.ID] = ev.Due
		l.bytes += int64(ev.Bytes)
		n++
	}
	r.closing = r.closing || whole || n < heldPage
	r.last = whole && n == len(events)
	switch {
	case n == 0 && r.last && len(a.parking) == 0 && !a.parked: // nothing is left
		l.leave(r.hash)
		return
	case n == 0: // it is not the first one's turn yet
		l.gate.later = append(l.gate.later, r)
		return
	}
	l.m.receivedVia("release", n)
	l.board.tookIn()
	l.parts.Publisher.Publish(events[:n])
	l.flush()
	l.measure()
}

// endRelease leaves the rest of an aggregate's held rows alone.
func (l *line) endRelease(hash uint64, a *aggregate) {
	l.holdWaiting(hash, a)
	a.release = nil
	l.gate.tidy(hash)
}

// leave opens the gate for an aggregate: nothing of it is parked any more.
func (l *line) leave(hash uint64) {
	l.gate.forget(hash)
	a := l.gate.busy[hash]
	if a == nil {
		return
	}
	waiting := a.waiting
	l.forgetWaiting(a)
	a.release = nil
	l.gate.tidy(hash)
	if len(waiting) > 0 {
		l.parts.Publisher.Publish(waiting)
		l.flush()
	}
}

// partitionsSilent takes note of how many partitions do not answer. When one
// answers again, releases may go on.
func (l *line) partitionsSilent(ctx context.Context, s silent) {
	n := s.partitions
	again := s.fell || n < l.gate.silent
	l.gate.silent = n
	var t *fault.Blocked
	if n > 0 {
		t = &fault.Blocked{
			Reason: "kafka.partitions",
			What:   fmt.Sprintf("partitions that do not answer while others do: %d; their events are held on their rows", n),
			Remedy: "look at the brokers that lead them; the events follow by themselves, in order",
		}
	}
	l.board.trouble(partitionTrouble, t)
	if !again {
		return
	}
	for hash, m := range l.gate.marks {
		if m.silent {
			m.silent = false
			l.gate.marks[hash] = m
		}
	}
	if l.sweeping {
		l.sweepAgain = true
	} else {
		l.startSweep(ctx)
	}
}
