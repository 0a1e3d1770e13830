package consumer

import (
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// windowBytes is how much the records of a window hold at most, or one of them
// that is larger.
const windowBytes = 16 << 20

// full reports whether the window takes no more.
func (p *partition) full() bool {
	return len(p.window) >= p.c.opt.window || p.bytes >= windowBytes
}

// fill moves records into the window, and reports whether there were any.
func (p *partition) fill() (moved bool) {
	for !p.full() && len(p.backlog) > 0 {
		p.window = append(p.window, p.c.item(p.backlog[0]))
		p.bytes += p.backlog[0].Size()
		p.backlog[0] = group.Record{} // its bytes are the window's to free
		p.backlog = p.backlog[1:]
		moved = true
	}
	return moved
}

// acquire asks for the claims of what can start now or soon. By offset, nothing
// is claimed behind a record that waits; with lanes, nothing of its key.
func (p *partition) acquire() {
	if p.claiming || !p.any(fresh) {
		return
	}
	var (
		chunk  []*item
		places = p.places()
		waits  = map[uint64]bool{}
		events = map[outbox.ID]bool{}
	)
	for _, it := range p.window {
		lane := it.lane
		if p.c.opt.concurrency == 1 {
			lane = 0
		}
		switch it.phase {
		case ready:
			if !waits[lane] {
				places.take(lane)
			}
		case fresh:
			// A second record of an event is looked at once the first one is done.
			if !waits[lane] && !events[it.ev.ID] && places.take(lane) {
				chunk = append(chunk, it)
			}
			places.busy[lane] = true
			waits[lane] = waits[lane] || p.contested(it)
		default:
			waits[lane] = waits[lane] || p.delays(it)
		}
		if it.phase != done {
			events[it.ev.ID] = true
		}
		if len(chunk) == p.c.opt.claimBatch || places.free+places.ahead <= 0 || p.c.opt.concurrency == 1 && waits[lane] {
			break
		}
	}
	if len(chunk) == 0 {
		return
	}
	for _, it := range chunk {
		it.behind = nil
		if it.tries > 0 && it.looking == store.Missing {
			it.behind = p.behind(it)
		}
		it.lend(acquiring)
	}
	p.claiming = true
	go func() {
		p.c.engine.acquire(p.c.working, chunk)
		p.acquired <- chunk
	}()
}

// places are for events whose claims are held or asked for.
type places struct {
	free  int             // handlers that nothing is claimed for
	busy  map[uint64]bool // lanes in which an event is before those to come
	ahead int             // how many more may be claimed that have to wait for a handler
	share int             // of one lane, so that it does not take the places of all others
	lanes map[uint64]int  // claims ahead of each
}

func (p *partition) places() places {
	pl := places{free: p.c.opt.concurrency - p.handling, busy: map[uint64]bool{}, lanes: map[uint64]int{}}
	if p.c.opt.claimsAhead() {
		pl.ahead = p.pace.ahead(p.c.opt)
	}
	pl.share = max(1, pl.ahead/p.c.opt.concurrency)
	for _, it := range p.window {
		if it.phase == running { // also behind: an earlier event of its lane may have come back
			pl.busy[it.lane] = true
		}
	}
	return pl
}

// take takes a place for the next event of a lane, if there is one: a handler
// if it could start now, otherwise one of those ahead.
func (pl *places) take(lane uint64) bool {
	if pl.free > 0 && !pl.busy[lane] {
		pl.free--
		pl.busy[lane] = true
		return true
	}
	if pl.ahead <= 0 || pl.lanes[lane] >= pl.share {
		return false
	}
	pl.ahead--
	pl.lanes[lane]++
	return true
}

// delays reports whether nothing behind an event of its lane is to be claimed, as
// it could not start soon.
func (p *partition) delays(it *item) bool {
	switch it.phase {
	case running:
		return p.slow(it)
	case ended, settling:
		return !it.out.end.final()
	case waiting, unusable, rejecting:
		return true
	}
	return false
}

// behind returns the events after one, as many as tell a wrong database.
func (p *partition) behind(first *item) []store.Ref {
	var refs []store.Ref
	for _, it := range p.window {
		if it.rec.Offset > first.rec.Offset && it.bad == nil && len(refs) < missLimit {
			refs = append(refs, it.ref())
		}
	}
	return refs
}

// start runs the handlers of claimed events, each only when nothing of its lane
// is before it: all earlier ones have a final outcome, recorded or about to be.
func (p *partition) start() {
	p.overdue = false
	blocked := map[uint64]bool{}
	for _, it := range p.window {
		if it.phase == running { // also behind: an earlier event of its lane may have come back
			blocked[it.lane] = true
		}
	}
	for _, it := range p.window {
		if p.handling >= p.c.opt.concurrency {
			return
		}
		if it.phase == ready && !blocked[it.lane] && p.stands(it) {
			p.handle(it)
		}
		passable := it.phase == done || (it.phase == ended || it.phase == settling) && it.out.end.final()
		if !passable {
			if p.c.opt.concurrency == 1 {
				return
			}
			blocked[it.lane] = true
		}
	}
}

// stands reports whether the claim of a ready item still counts. A lost one is
// to be claimed again.
func (p *partition) stands(it *item) bool {
	if p.c.tenures.runs(it.ev.ID) { // in an earlier generation: it does not hear that its context has ended
		p.overdue = true
		return false
	}
	if it.live == nil {
		return true
	}
	usable, lost := p.c.tenures.standing(it.live)
	if lost {
		it.wait(0, "")
		it.back()
	}
	p.overdue = p.overdue || !usable && !lost
	return usable
}

func (p *partition) handle(it *item) {
	it.lend(running)
	p.handling++
	p.c.handle(it, func() { p.ended <- it })
}

// settle records all outcomes there are, unless others are being recorded: they
// then go together.
func (p *partition) settle() {
	if p.recording {
		return
	}
	var batch []*item
	now := time.Now()
	for _, it := range p.window {
		if it.phase == ended && !now.Before(it.due) {
			it.lend(settling)
			batch = append(batch, it)
		}
	}
	if len(batch) == 0 {
		return
	}
	p.recording = true
	go func() {
		p.c.engine.settle(p.c.working, batch)
		p.settled <- batch
	}()
}

func (p *partition) any(ph phase) bool {
	return slices.ContainsFunc(p.window, func(it *item) bool { return it.phase == ph })
}

// slow reports whether an event's handler has run for longer than anything is
// claimed ahead for.
func (p *partition) slow(it *item) bool {
	return it.phase == running && time.Since(it.lent) > p.c.opt.lease/3
}

// contested reports whether somebody else has had an event for long. That may be
// a line that has its events in another order, as when partitions were added, and
// waits for one that is claimed here: neither would ever go on if both kept what
// they cannot start.
func (p *partition) contested(it *item) bool {
	switch it.looking {
	case store.Live, store.Abandoned, store.Free:
		return it.tries > 0 && time.Since(it.since) > p.c.opt.lease/3
	}
	return false
}

// unclaim hands back what is ready and has to wait for long behind an earlier
// event of its lane: somebody who looks at the row would think it is in work.
func (p *partition) unclaim() {
	if !p.any(ready) {
		return
	}
	held := map[uint64]bool{}
	all := false
	for _, it := range p.window {
		switch {
		case it.phase == waiting && (time.Until(it.due) > p.c.opt.lease/3 || p.contested(it)), p.slow(it):
			held[it.lane] = true
			all = p.c.opt.concurrency == 1
		case it.phase == ready && (all || held[it.lane]):
			it.phase, it.out = ended, outcome{end: handBack}
		}
	}
}

// handBack gives up claims of handlers that have not started.
func (p *partition) handBack() {
	for _, it := range p.window {
		if it.phase == ready {
			it.phase, it.out = ended, outcome{end: handBack}
		}
	}
}

// pace is how long handlers take.
type pace struct {
	mean  time.Duration
	known bool
}

func (p *pace) add(d time.Duration) {
	if !p.known {
		p.mean, p.known = d, true
		return
	}
	p.mean += (d - p.mean) / 8
}

// ahead is how many events to claim besides those that can start now: what can
// start within a third of the lease, none until it is known how long handlers
// take.
func (p *pace) ahead(o options) int {
	switch {
	case !p.known:
		return 0
	case p.mean <= 0:
		return o.claimBatch
	}
	return int(min(int64(o.claimBatch), int64(o.lease/3)*int64(o.concurrency)/int64(p.mean)))
}
