package consumer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// instant is an engine that has done everything at once.
type instant struct{}

func (instant) acquire(_ context.Context, items []*item) {
	for _, it := range items {
		it.then = ready
	}
}
func (instant) attempt(context.Context, *item) outcome  { return outcome{} }
func (instant) settle(_ context.Context, items []*item) {}

// stand is where an item of a window stands when claims are asked for.
type stand struct {
	name  string
	phase phase
	out   end
}

var stands = []stand{
	{"fresh", fresh, 0}, {"ready", ready, 0}, {"running", running, 0}, {"succeeded", ended, succeed}, {"failed", settling, release},
	{"waiting", waiting, 0}, {"rejecting", rejecting, 0}, {"done", done, 0},
}

// TestClaimsInAllWindows: with three records in a window, wherever they stand,
// each event whose handler could start now is claimed and starts, whatever is
// claimed ahead. With Hold, all that is claimed starts.
func TestClaimsInAllWindows(t *testing.T) {
	t.Parallel()
	for _, concurrency := range []int{1, 2, 3} {
		for _, policy := range []Policy{Repeat, Hold} {
			for _, mean := range []time.Duration{0, time.Millisecond, time.Minute} {
				for _, batch := range []int{1, 100} {
					w := windows{t: t, concurrency: concurrency, batch: batch, policy: policy, mean: mean}
					for n := range len(stands) * len(stands) * len(stands) {
						for places := range 3 * 3 {
							w.check(n, places)
						}
					}
				}
			}
		}
	}
}

// windows makes and checks windows.
type windows struct {
	t           *testing.T
	concurrency int
	batch       int
	policy      Policy
	mean        time.Duration // of the handlers; 0: not known
}

// check tries a window. places are the lanes of the second and the third record;
// the third lane is that of the first, for another record of its event.
func (w windows) check(n, places int) {
	c := &Consumer{opt: defaults(), tenures: newTenures(time.Minute), engine: instant{}, working: w.t.Context(), handling: w.t.Context()}
	c.opt.concurrency, c.opt.claimBatch, c.opt.ambiguity = w.concurrency, w.batch, w.policy
	p := newPartition(c, group.Assignment{}, nil)
	p.pace = pace{mean: w.mean, known: w.mean > 0}
	name := fmt.Sprintf("%d lanes, %d at once, policy %d, handlers of %v:", w.concurrency, w.batch, w.policy.kind, w.mean)
	for i := range 3 {
		st, place := stands[n%len(stands)], 0
		if i > 0 {
			place, places = places%3, places/3
		}
		n /= len(stands)
		it := &item{phase: st.phase, lane: uint64(place % 2), ev: &Event{ID: outbox.ID{byte(i + 1)}}, out: outcome{end: st.out}, lent: time.Now()}
		if it.due = time.Now().Add(time.Hour); place == 2 {
			it.ev.ID = outbox.ID{1}
		}
		if st.phase == running {
			p.handling++
		}
		p.window = append(p.window, it)
		name += fmt.Sprintf(" %s in %d", st.name, place)
	}
	if p.handling > w.concurrency {
		return // never so
	}
	claimed := map[*item]bool{}
	for p.start(); ; p.start() { // as step does
		if p.acquire(); !p.claiming {
			break
		}
		chunk := <-p.acquired
		p.claiming = false
		takeBack(chunk)
		for _, it := range chunk {
			claimed[it] = true
		}
	}
	if w.startable(p) != nil {
		w.t.Errorf("%s: what could start does not", name)
	}
	for it := range claimed {
		if w.policy.kind == holdKind && it.phase != running {
			w.t.Errorf("%s: a claimed event does not start", name)
		}
	}
}

// startable returns the first event that wants a claim and could start now, if
// all that is claimed leaves a handler for it.
func (w windows) startable(p *partition) *item {
	behind, events := map[uint64]bool{}, map[outbox.ID]bool{}
	free := w.concurrency - p.handling
	for _, it := range p.window {
		if it.phase == running && w.concurrency > 1 {
			behind[it.lane] = true // also before it: it may have come back
		}
	}
	for _, it := range p.window {
		passable := it.phase == done || (it.phase == ended || it.phase == settling) && it.out.end.final()
		switch {
		case passable:
		case it.phase == ready && !behind[it.lane]:
			free--
		case it.phase == fresh && !behind[it.lane] && !events[it.ev.ID] && free > 0:
			return it
		}
		if !passable {
			behind[it.lane] = true
		}
		if behind[it.lane] && w.concurrency == 1 {
			return nil
		}
		events[it.ev.ID] = events[it.ev.ID] || it.phase != done
	}
	return nil
}
