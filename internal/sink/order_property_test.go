package sink

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// step is one thing that happens in an order program.
type step struct {
	do   action
	what int // which key, partition, time; meaning depends on the action
	many int
}

type action int

const (
	publish   action = iota // many events of the key and its neighbours
	publishOf               // one that is bad, as what tells
	guard
	let        // time pass
	kill       // a partition, or revive it
	lose       // the next answer, of what was stored
	refuseNext // the next request by a code that passes
	remove     // a topic, or create it
	repin      // topic t
	lastAction = repin
)

func (s step) String() string {
	names := [...]string{"publish", "publishOf", "guard", "let", "kill", "lose", "refuseNext", "remove", "repin"}
	return fmt.Sprintf("%s(%d,%d)", names[s.do], s.what, s.many)
}

func anyStep(t *rapid.T) step {
	return step{
		do:   action(rapid.IntRange(0, int(lastAction)).Draw(t, "do")),
		what: rapid.IntRange(0, 9).Draw(t, "what"),
		many: rapid.IntRange(1, 6).Draw(t, "many"),
	}
}

// Whatever happens in whatever order: each event has exactly one outcome while
// it is tracked; an ordered event is never stored when an earlier one of its
// aggregate was refused or held, unless it was handed over after a Guard that
// followed; first occurrences are in order; and at the end everything passes.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(anyStep), 1, 40).Draw(rt, "steps")
		var problems []string
		synctest.Test(t, func(t *testing.T) { problems = newOrderRun(t).run(steps) })
		if len(problems) > 0 { // said outside the bubble, so that the program is made smaller
			rt.Fatalf("%s\nafter %v", strings.Join(problems, "\n"), steps)
		}
	})
}

// orderRun runs an order program.
type orderRun struct {
	t    *testing.T
	sim  *simulation
	out  *journal
	pins *scriptedPins
	p    *Publisher

	events map[int64]event.Event
	next   int64
	bad    map[int64]bool // ids that the broker refuses
	halves bool           // without telling which
	dead   map[string]bool
	lost   int // answers to lose
	refuse int // requests to refuse
}

// journal is a recorder that notes when things happened.
type journal struct {
	*recorder
	now    int
	stops  []note // aggregate and id of what was refused or held
	handed map[int64]int
	guards []note
	due    map[uint64]bool // to be guarded
}

type note struct {
	at        int
	aggregate uint64
	id        int64
}

func (j *journal) stop(refs []event.Ref) {
	j.update(func() {
		j.now++
		for _, ref := range refs {
			if ref.Ordered {
				j.stops = append(j.stops, note{j.now, ref.Aggregate, ref.ID})
				j.due[ref.Aggregate] = true
			}
		}
	})
}

func (j *journal) Refused(refs []event.Ref, f event.Failure) {
	j.stop(refs)
	j.recorder.Refused(refs, f)
}

func (j *journal) Held(refs []event.Ref, why event.Reason) { j.stop(refs); j.recorder.Held(refs, why) }

func newOrderRun(t *testing.T) *orderRun {
	r := &orderRun{
		t: t, sim: newSimulation(t, 3), pins: &scriptedPins{pinned: 2},
		out:    &journal{recorder: newRecorder(), handed: map[int64]int{}, due: map[uint64]bool{}},
		events: map[int64]event.Event{}, bad: map[int64]bool{}, dead: map[string]bool{},
	}
	r.sim.script = r.answer
	r.p = startSimulated(t, r.sim, r.out, func(c *Config, d *Deps) {
		c.BatchRecords, c.WaitingEvents = 3, 8
		c.PartitionGrace, c.UnknownTopicGrace, c.BackoffMax = 30*time.Second, 10*time.Second, time.Second
		d.Pins = r.pins
	})
	return r
}

// answer is the simulation's script.
func (r *orderRun) answer(req request) (res response) {
	r.sim.set(func() {
		res.delay = 10 * time.Millisecond
		var index []int
		for i, id := range req.ids {
			if r.bad[id] {
				index = append(index, i)
			}
		}
		switch {
		case r.dead[fmt.Sprint(req.topic, req.partition)]:
			res.err = kafka.NotEnoughReplicas
		case r.refuse > 0:
			r.refuse--
			res.err = kafka.NotLeaderForPartition
		case index != nil && r.halves:
			res.err = kafka.PolicyViolation
		case index != nil:
			res.err, res.index = kafka.InvalidRecord, index
		case r.lost > 0:
			r.lost--
			res.err, res.lost, res.append = io.EOF, true, true
		}
	})
	return res
}

func (r *orderRun) run(steps []step) []string {
	for _, s := range steps {
		synctest.Wait()
		r.step(s)
	}
	r.heal()
	for key := range 5 {
		r.publish(key, 1, nil) // the last of each passes
	}
	last := ids(r.next-4, r.next)
	pass(r.t, time.Minute)
	var problems []string
	for _, id := range last {
		if !slices.Contains(r.out.ackedIDs(), id) {
			problems = append(problems, fmt.Sprintf("event %d does not pass at the end", id))
		}
	}
	if n := r.out.count(); n != int(r.next) {
		problems = append(problems, fmt.Sprintf("%d of %d events have an outcome", n, r.next))
	}
	return append(problems, r.check()...)
}

func (r *orderRun) step(s step) {
	durations := []time.Duration{time.Millisecond, 10 * time.Millisecond, time.Second, 6 * time.Second, 12 * time.Second, time.Minute}
	switch s.do {
	case publish:
		r.publish(s.what%5, s.many, nil)
	case publishOf:
		r.publish(s.what%5, 1, func(e *event.Event) {
			if s.many == 1 {
				e.Headers = []byte("[]") // cannot be a record
				return
			}
			r.sim.set(func() { r.bad[e.ID] = true })
		})
	case guard:
		r.guard()
	case let:
		pass(r.t, durations[s.what%len(durations)])
	case kill:
		place := []string{"t0", "t1", "u0"}[s.what%3]
		r.sim.set(func() { r.dead[place] = !r.dead[place] })
	case lose:
		r.sim.set(func() { r.lost += s.many })
	case refuseNext:
		r.sim.set(func() { r.refuse += s.many; r.halves = !r.halves })
	case remove:
		topic := []string{"t", "u"}[s.what%2]
		r.sim.set(func() { r.sim.missing[topic] = !r.sim.missing[topic] })
	case repin:
		r.pins.set(func() { r.pins.wanted = 1 + s.what%3 })
	}
}

// publish hands events over in one call: of the key, and of the next one by
// turns. Key 3 has a topic of its own, key 4 no order.
func (r *orderRun) publish(key, n int, change func(*event.Event)) {
	var events []event.Event
	r.out.update(func() { r.out.now++ })
	for i := range n {
		r.next++
		k := (key + i%2) % 5
		topic := "t"
		if k == 3 {
			topic = "u"
		}
		e := testEvent(topic, r.next, fmt.Sprint("key-", k), "v")
		if k != 4 {
			e = inOrder([]event.Event{e})[0]
		}
		if change != nil {
			change(&e)
		}
		r.events[e.ID] = e
		r.out.handed[e.ID] = r.out.now
		events = append(events, e)
	}
	r.p.Publish(events)
	r.p.Flush()
}

func (r *orderRun) guard() {
	var list []uint64
	r.out.update(func() {
		r.out.now++
		for a := range r.out.due {
			list = append(list, a)
			r.out.guards = append(r.out.guards, note{at: r.out.now, aggregate: a})
		}
		clear(r.out.due)
	})
	r.p.Guard(list)
}

// heal ends all that goes wrong and waits until nothing is open.
func (r *orderRun) heal() {
	synctest.Wait()
	r.sim.set(func() {
		clear(r.dead)
		clear(r.sim.missing)
		r.lost, r.refuse = 0, 0
	})
	pass(r.t, 2*time.Minute)
	synctest.Wait()
	r.guard()
}

// check looks at what came of all events.
func (r *orderRun) check() []string {
	var problems []string
	acked := r.out.ackedIDs()
	for x := range r.events {
		stored, ok := r.sim.first[x]
		if !ok || !r.events[x].Ordered {
			continue
		}
		for y := range r.events {
			if y >= x || !r.events[y].Ordered || r.events[y].Aggregate != r.events[x].Aggregate {
				continue
			}
			if before, ok := r.sim.first[y]; ok && before > stored {
				problems = append(problems, fmt.Sprintf("%d is stored before %d", x, y))
			}
		}
		for _, stop := range r.out.stops {
			if !slices.Contains(acked, x) {
				break // stored by a request in doubt, in its order
			}
			if stop.aggregate == r.events[x].Aggregate && stop.id < x && !r.guarded(stop, x) {
				problems = append(problems, fmt.Sprintf("%d is stored although %d was stopped", x, stop.id))
			}
		}
	}
	if len(problems) > 5 {
		problems = append(problems[:5], "...")
	}
	if held := r.p.queues.silent; held != 0 {
		problems = append(problems, strings.TrimSpace(fmt.Sprint(held, " partitions are silent at the end")))
	}
	return problems
}

// guarded reports whether x was handed over after a Guard that followed stop.
func (r *orderRun) guarded(stop note, x int64) bool {
	return slices.ContainsFunc(r.out.guards, func(g note) bool {
		return g.aggregate == stop.aggregate && stop.at < g.at && g.at < r.out.handed[x]
	})
}
