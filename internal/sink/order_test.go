package sink

import (
	"hash/fnv"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

func aggregateOf(key string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key))
	return h.Sum64()
}

// inOrder says of events that they have a place in their aggregate's order.
func inOrder(events []event.Event) []event.Event {
	for i := range events {
		e := &events[i]
		e.Ordered, e.CommitLSN, e.Aggregate = true, pglogrepl.LSN(e.ID), aggregateOf(string(e.AggregateID))
	}
	return events
}

// outcome is what became of events, by id.
type outcome struct{ Stored, Refused, Held []int64 }

func (r *recorder) outcome(stored []int64) outcome {
	return outcome{Stored: stored, Refused: r.refusedIDs(), Held: r.heldIDs(event.HeldByOrder)}
}

// wayToRefuse makes the simulation refuse these ids.
type wayToRefuse struct {
	name    string
	prepare func(sim *simulation, bad []int64)
	value   string // of the bad ones
}

var waysToRefuse = []wayToRefuse{
	{"by index", func(sim *simulation, bad []int64) {
		for _, id := range bad {
			sim.poison[id] = true
		}
	}, "bad"},
	{"by halves", func(sim *simulation, bad []int64) {
		sim.script = func(r request) response {
			res := response{delay: time.Second}
			if slices.ContainsFunc(r.ids, func(id int64) bool { return slices.Contains(bad, id) }) {
				res.err = kafka.PolicyViolation
			}
			return res
		}
	}, "bad"},
	{"by size, which is known", func(sim *simulation, _ []int64) { sim.limits["t"] = 10_000 }, strings.Repeat("x", 10_000)},
	{"by size, which is not", func(sim *simulation, _ []int64) { sim.limits["t"], sim.unreadable = 10_000, true }, strings.Repeat("x", 10_000)},
}

// What comes behind a refused event of its aggregate is held: in the same
// batch, in the queue behind it, and in later calls until Guard. Events
// without a place in the order, and other aggregates, pass.
func TestHeldBehindRefused(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		bad       []int64 // odd ids are of one aggregate, even ids of another
		unordered bool
		want      outcome
	}{
		"none": {want: outcome{Stored: ids(1, 40)}},
		"the first": {bad: []int64{1}, want: outcome{
			Stored: slices.Concat(every(2, 2, 30), ids(31, 40)), Refused: ids(1, 1), Held: every(3, 2, 29)}},
		"the last of a batch": {bad: []int64{10}, want: outcome{
			Stored: slices.Concat(ids(1, 9), every(11, 2, 29), ids(31, 40)), Refused: ids(10, 10), Held: every(12, 2, 30)}},
		"two adjacent": {bad: []int64{4, 5}, want: outcome{
			Stored: slices.Concat(ids(1, 3), ids(31, 40)), Refused: ids(4, 5), Held: ids(6, 30)}},
		"two of an aggregate": {bad: []int64{3, 7}, want: outcome{
			Stored: slices.Concat(ids(1, 2), every(4, 2, 30), ids(31, 40)), Refused: ids(3, 3), Held: every(5, 2, 29)}},
		"all of a batch": {bad: ids(1, 10), want: outcome{
			Stored: ids(31, 40), Refused: ids(1, 2), Held: ids(3, 30)}},
		"in the queue": {bad: []int64{14}, want: outcome{
			Stored: slices.Concat(ids(1, 13), every(15, 2, 29), ids(31, 40)), Refused: ids(14, 14), Held: every(16, 2, 30)}},
		"all of a batch, without order": {bad: ids(1, 10), unordered: true, want: outcome{
			Stored: ids(11, 40), Refused: ids(1, 10)}},
	} {
		for _, way := range waysToRefuse {
			t.Run(name+"/"+way.name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					sim := newSimulation(t, 1)
					sim.script = func(request) response { return response{delay: time.Second} }
					way.prepare(sim, tc.bad)
					out := newRecorder()
					p := startSimulated(t, sim, out, func(c *Config, _ *Deps) { c.BatchRecords = 10 })
					events := numbered("t", 40, 2)
					for _, id := range tc.bad {
						events[id-1].Payload = []byte(way.value)
					}
					if !tc.unordered {
						inOrder(events)
					}
					send := func(from, to int) {
						p.Publish(events[from-1 : to])
						p.Flush()
						synctest.Wait()
					}
					send(1, 10)  // on its way
					send(11, 25) // the queue: a full batch and an open one
					pass(t, time.Minute)
					send(26, 30) // the caller does not know yet
					pass(t, time.Minute)
					p.Guard([]uint64{events[0].Aggregate, events[1].Aggregate, 4711})
					send(31, 40)
					pass(t, time.Minute)
					if diff := cmp.Diff(tc.want, out.outcome(sim.stored("t", 0))); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
				})
			})
		}
	}
}

// every returns from, from+step, ... to.
func every(from, step, to int64) []int64 {
	var list []int64
	for id := from; id <= to; id += step {
		list = append(list, id)
	}
	return list
}

// A refused event without a place in the order stops nobody.
func TestNothingIsHeldBehindOneWithoutOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		sim.poison[1] = true
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		events := inOrder(numbered("t", 6, 1))
		events[0].Ordered, events[3].Ordered = false, false
		events[3].Headers = []byte("[]")
		p.Publish(events[:3])
		p.Flush()
		synctest.Wait()
		p.Publish(events[3:])
		p.Flush()
		out.settled(t, 6)
		want := outcome{Stored: []int64{2, 3, 5, 6}, Refused: []int64{1, 4}}
		if diff := cmp.Diff(want, out.outcome(sim.stored("t", 0))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A refusal after Guard closes the aggregate anew, whatever the caller says of
// the one before.
func TestRefusedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		sim.poison[1], sim.poison[3] = true, true
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		events := inOrder(numbered("t", 8, 1))
		a := []uint64{events[0].Aggregate}
		send := func(from, to int) {
			p.Publish(events[from-1 : to])
			p.Flush()
			synctest.Wait()
		}
		send(1, 2)
		p.Guard(a)
		send(3, 4)
		send(5, 6)
		p.Guard(a)
		send(7, 8)
		want := outcome{Stored: ids(7, 8), Refused: []int64{1, 3}, Held: []int64{2, 4, 5, 6}}
		if diff := cmp.Diff(want, out.outcome(sim.stored("t", 0))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// An event that cannot be a record is refused when it is handed over. What is
// in the queue then is earlier and goes out.
func TestRefusedWhenHandedOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		events := inOrder(numbered("t", 10, 1))
		events[4].Headers = []byte("[]")
		p.Publish(events[:8])
		p.Flush()
		synctest.Wait()
		p.Guard([]uint64{events[0].Aggregate})
		p.Publish(events[8:])
		p.Flush()
		out.settled(t, 10)
		want := outcome{Stored: []int64{1, 2, 3, 4, 9, 10}, Refused: []int64{5}, Held: []int64{6, 7, 8}}
		if diff := cmp.Diff(want, out.outcome(sim.stored("t", 0))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A batch that may be in the log is decided about before anything is taken out
// of it.
func TestInDoubtIsDecidedFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		lost := response{err: kafka.NetworkException, append: true, delay: time.Second}
		var batches [][]int64
		sim.script = func(r request) response {
			sim.set(func() { batches = append(batches, r.ids) })
			if r.n < 2 {
				return lost
			}
			return response{}
		}
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		events := inOrder(numbered("t", 6, 2))
		events[3].Headers = []byte("[]") // of the second aggregate
		p.Publish(events[:3])
		p.Flush()
		synctest.Wait()
		p.Publish(events[3:])
		p.Flush()
		out.settled(t, 6)
		if diff := cmp.Diff([][]int64{ids(1, 3), ids(1, 3), ids(1, 3), {5}}, batches); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
		want := outcome{Stored: []int64{1, 2, 3, 5}, Refused: []int64{4}, Held: []int64{6}}
		if diff := cmp.Diff(want, out.outcome(sim.stored("t", 0))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// Of a topic that cannot be used the first event of each aggregate takes the
// attempt: of those that wait, of those in the queues, and of those that come.
// Events without order take one each; other topics flow.
func TestTopicFailureInOrder(t *testing.T) {
	t.Parallel()
	deny := func(sim *simulation) func(request) response {
		return func(r request) response {
			res := response{delay: time.Second}
			sim.set(func() {
				if sim.denied && r.topic == "t" {
					res.err = kafka.TopicAuthorizationFailed
				}
			})
			return res
		}
	}
	for name, tc := range map[string]struct {
		fail func(*simulation)
		heal func(*simulation)
		had  bool // the topic could be used before
	}{
		"never there": {
			fail: func(sim *simulation) { sim.missing["t"] = true },
			heal: func(sim *simulation) { sim.missing["t"] = false },
		},
		"deleted": {
			fail: func(sim *simulation) { sim.missing["t"] = true },
			heal: func(sim *simulation) { sim.missing["t"] = false },
			had:  true,
		},
		"denied when publishing": {
			fail: func(sim *simulation) { sim.denied = true },
			heal: func(sim *simulation) { sim.denied = false },
			had:  true,
		},
		"denied by the metadata": {
			fail: func(sim *simulation) { sim.hidden["t"] = kafka.TopicAuthorizationFailed },
			heal: func(sim *simulation) { delete(sim.hidden, "t") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sim := newSimulation(t, 1)
				sim.script = deny(sim)
				out := newRecorder()
				p := startSimulated(t, sim, out, func(c *Config, _ *Deps) { c.BatchRecords = 5 })
				send := func(events ...event.Event) {
					p.Publish(events)
					p.Flush()
					synctest.Wait()
				}
				if tc.had {
					send(testEvent("t", 100, "k", "v"))
					out.settled(t, 1)
				}
				sim.set(func() { tc.fail(sim) })
				events := inOrder(numbered("t", 46, 2))
				events[6].Ordered, events[7].Ordered = false, false
				send(events[:5]...)
				send(events[5:20]...)
				pass(t, 2*time.Minute)
				send(events[20:30]...)
				p.Guard([]uint64{events[0].Aggregate, events[1].Aggregate})
				send(events[30:36]...)
				pass(t, time.Minute)
				want := outcome{
					Refused: []int64{1, 2, 7, 8, 31, 32}, Held: slices.Concat(ids(3, 6), ids(9, 30), ids(33, 36)),
				}
				if tc.had {
					want.Stored = []int64{100}
				}
				if diff := cmp.Diff(want, out.outcome(sim.stored("t", 0))); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				send(testEvent("other", 200, "k", "v"))
				pass(t, time.Minute)
				if got := sim.stored("other", 0); !slices.Equal(got, []int64{200}) {
					t.Errorf("the other topic holds %v", got)
				}
				sim.set(func() { tc.heal(sim) })
				pass(t, time.Minute)
				p.Guard([]uint64{events[0].Aggregate, events[1].Aggregate})
				send(events[36:]...)
				pass(t, time.Minute)
				want.Stored = append(want.Stored, ids(37, 46)...)
				if diff := cmp.Diff(want, out.outcome(sim.stored("t", 0))); diff != "" {
					t.Errorf("when it is there again (-want +got):\n%s", diff)
				}
			})
		})
	}
}
