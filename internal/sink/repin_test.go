package sink

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// repinTest is a publisher to a topic with 2 pinned partitions of 6.
type repinTest struct {
	*testing.T
	sim  *simulation
	out  *recorder
	pins *scriptedPins
	reg  *prometheus.Registry
	p    *Publisher
	next int
}

func newRepinTest(t *testing.T, change func(*Config)) *repinTest {
	r := &repinTest{T: t, sim: newSimulation(t, 6), out: newRecorder(), pins: &scriptedPins{pinned: 2}, reg: prometheus.NewRegistry()}
	r.sim.script = func(request) response { return response{delay: time.Second} }
	r.p = startSimulated(t, r.sim, r.out, func(c *Config, d *Deps) {
		if change != nil {
			change(c)
		}
		d.Pins, d.Metrics = r.pins, NewMetrics(r.reg)
	})
	r.send(60)
	pass(t, 2*time.Second)
	return r
}

// send publishes n events over 30 keys.
func (r *repinTest) send(n int) {
	r.Helper()
	events := numbered("t", r.next+n, 30)
	r.p.Publish(events[r.next:])
	r.p.Flush()
	r.next += n
	synctest.Wait()
}

// wantDraining checks whether new events of the topic wait.
func (r *repinTest) wantDraining(want bool) {
	r.Helper()
	r.p.queues.mu.Lock()
	defer r.p.queues.mu.Unlock()
	if got := r.p.queues.topics["t"].state == topicDraining; got != want {
		r.Fatalf("draining: %v, want %v", got, want)
	}
}

func (r *repinTest) want(n int) { r.pins.set(func() { r.pins.wanted = n }) }

// seen waits until what is wanted has been read.
func (r *repinTest) seen() { pass(r.T, wantedAge+time.Second) }

// check checks that each event is in the log once, that from the one with id
// from on they are spread over n partitions, and that no key's event of before
// was sent after one of since.
func (r *repinTest) check(from int64, n int) {
	r.Helper()
	r.out.settled(r.T, r.next)
	var all []int64
	last := map[string]int{} // of the old events of a key, the place in the order of acks
	place := map[int64]int{}
	for i, id := range r.out.ackedIDs() {
		place[id] = i
	}
	for part := range 7 {
		for _, id := range r.sim.stored("t", part) {
			all = append(all, id)
			key := fmt.Sprint("key-", (id-1)%30)
			spread := n
			if id < from {
				spread = 2
				last[key] = max(last[key], place[id])
			}
			if want := int(record.Murmur2.Partition([]byte(key), int32(spread))); part != want {
				r.Errorf("event %d is in partition %d, want %d", id, part, want)
			}
		}
	}
	slices.Sort(all)
	if want := ids(1, int64(r.next)); !slices.Equal(all, want) {
		r.Errorf("%d records in the log, want each of %d events once", len(all), r.next)
	}
	for id, at := range place {
		if key := fmt.Sprint("key-", (id-1)%30); id >= from && at < last[key] {
			r.Errorf("event %d was acked before an older one of its key", id)
		}
	}
}

// A wanted count is pinned once everything sent to the old partitions is
// acked; new events wait for that.
func TestRepin(t *testing.T) {
	t.Parallel()
	for name, wanted := range map[string]int{"more": 6, "fewer": 1, "the same": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRepinTest(t, nil)
				r.want(wanted)
				stuck := make(chan struct{})
				r.sim.set(func() {
					r.sim.script = func(req request) response {
						if req.partition == 0 {
							<-stuck
						}
						return response{}
					}
				})
				r.send(60) // the half of it is not answered
				r.seen()
				r.send(60)
				pass(t, time.Minute)
				if n := r.out.count(); n >= 120 {
					t.Errorf("%d settled while a partition has not been emptied", n)
				}
				r.pins.set(func() {
					if r.pins.pinned != 2 {
						t.Error("pinned before the partitions are empty")
					}
				})
				released := time.Now()
				close(stuck)
				r.check(121, wanted)
				if took := time.Since(released); took != 0 {
					t.Errorf("new events wait %v longer than the old ones", took)
				}
				r.send(60)
				r.check(121, wanted)
				pass(t, time.Second)
				r.pins.set(func() {
					if r.pins.pinned != wanted || r.pins.wanted != 0 || r.pins.repins != 1 {
						t.Errorf("pinned %d, wanted %d at the end, after %d repins", r.pins.pinned, r.pins.wanted, r.pins.repins)
					}
				})
				if got := gather(t, r.reg)["topic_partitions{kind=pinned,topic=t}"]; got != float64(wanted) {
					t.Errorf("the metric says %v pinned", got)
				}
			})
		})
	}
}

// There and back: a partition keeps its worker, or its sequence numbers would
// begin anew under the same producer id.
func TestRepinThereAndBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRepinTest(t, nil)
		for _, n := range []int{1, 6, 2} {
			r.want(n)
			r.seen()
			r.send(60)
			pass(t, 2*time.Second)
		}
		r.out.settled(t, r.next)
		total := 0
		for part := range 6 {
			total += len(r.sim.stored("t", part))
		}
		if total != r.next {
			t.Errorf("%d records in the log, want %d", total, r.next)
		}
	})
}

// What is wanted waits until the topic has it, until the database answers, and
// is given up for a while when too much would wait, or a partition is silent.
func TestRepinWaits(t *testing.T) {
	t.Parallel()
	few := func(c *Config) { c.WaitingEvents = 10 }
	hang := func(r *repinTest) {
		r.sim.set(func() { r.sim.script = func(request) response { return response{err: kafka.NotEnoughReplicas} } })
	}
	for name, tc := range map[string]struct {
		config func(*Config)
		before func(*repinTest)
		after  func(*repinTest)
		from   int64 // the first event for new partitions; 0: the next one then
		want   int   // 0: 6
	}{
		"for partitions": {
			before: func(r *repinTest) { r.want(7) },
			after:  func(r *repinTest) { r.sim.set(func() { r.sim.partitions = 7 }) },
			want:   7,
		},
		"for the database": {
			before: func(r *repinTest) {
				r.want(6)
				r.pins.set(func() { r.pins.repinErr = errors.New("the database is away") })
			},
			after: func(r *repinTest) { r.pins.set(func() { r.pins.repinErr = nil }) },
			from:  61,
		},
		"for room": {
			config: few,
			before: func(r *repinTest) { hang(r); r.send(1); r.want(6) },
			after:  func(r *repinTest) { r.sim.set(func() { r.sim.script = nil }) },
		},
		"for a person": {
			before: func(r *repinTest) { hang(r); r.send(1); r.want(6); r.seen(); r.want(0) },
			after:  func(r *repinTest) { r.sim.set(func() { r.sim.script = nil }); r.want(6) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRepinTest(t, tc.config)
				tc.before(r)
				r.seen()
				r.send(60)
				r.seen()
				r.send(60) // to the old partitions, all of it
				pass(t, time.Second)
				tc.after(r)
				pass(t, 3*wantedAge)
				from := cmp.Or(tc.from, int64(r.next+1))
				r.send(60)
				var pinned int
				r.pins.set(func() { pinned = r.pins.pinned })
				if want := cmp.Or(tc.want, 6); pinned != want {
					t.Errorf("pinned %d, want %d", pinned, want)
				}
				r.check(from, pinned)
			})
		})
	}
}

// Emptying a topic that was put off is not tried again at once.
func TestRepinIsPutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRepinTest(t, func(c *Config) { c.WaitingEvents = 10 })
		r.sim.set(func() { r.sim.script = func(request) response { return response{err: kafka.NotEnoughReplicas} } })
		r.send(1)
		r.want(6)
		r.seen()
		r.wantDraining(true)
		r.send(10)
		r.wantDraining(true)
		r.send(1) // one too many
		r.wantDraining(false)
		pass(t, wantedAge-time.Second)
		r.wantDraining(false)
		pass(t, 2*time.Second)
		r.wantDraining(true)
	})
}

// While a partition is silent its topic is not emptied.
func TestNoRepinWhileAPartitionIsSilent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSilenceTest(t, 2)
		pins := &scriptedPins{pinned: 2}
		s.p.watcher.pins = pins
		s.die(0, response{err: kafka.NotEnoughReplicas})
		s.send(0, 1)
		s.flow(testGrace + 3*time.Second)
		s.wantSilent(1)
		pins.set(func() { pins.wanted = 1 })
		s.flow(3 * wantedAge)
		sent := s.send(1, 1)
		if !slices.Contains(s.out.ackedIDs(), sent[0]) {
			t.Error("events wait for a silent partition")
		}
		s.revive(0)
		s.flow(3 * wantedAge)
		pins.set(func() {
			if pins.pinned != 1 {
				t.Errorf("pinned %d after it, want 1", pins.pinned)
			}
		})
	})
}

// What waits for new partitions is held at once when its elder is refused, so
// that it does not pass for new when the caller has said Guard.
func TestRefusedWhileDraining(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRepinTest(t, nil)
		elder := "key-0"
		other := "key-1"
		for i := 2; record.Murmur2.Partition([]byte(other), 2) == record.Murmur2.Partition([]byte(elder), 2); i++ {
			other = fmt.Sprint("key-", i)
		}
		stuck := record.Murmur2.Partition([]byte(other), 2)
		r.sim.set(func() {
			r.sim.poison[61] = true
			r.sim.script = func(req request) response {
				if req.partition == stuck {
					return response{delay: time.Minute}
				}
				return response{delay: 10 * time.Second}
			}
		})
		r.want(6)
		pass(t, 2*time.Second)
		send := func(events ...event.Event) {
			r.p.Publish(inOrder(events))
			r.p.Flush()
			synctest.Wait()
		}
		send(testEvent("t", 61, elder, "v"), testEvent("t", 62, elder, "v"), testEvent("t", 63, other, "v"))
		pass(t, 4*time.Second)
		r.wantDraining(true)
		send(testEvent("t", 64, elder, "v"), testEvent("t", 65, "key-20", "v"))
		pass(t, 10*time.Second)
		r.p.Guard([]uint64{aggregateOf(elder)})
		send(testEvent("t", 66, elder, "v"))
		r.out.settled(t, 66)
		want := outcome{Refused: []int64{61}, Held: []int64{62, 64}}
		if diff := gocmp.Diff(want, r.out.outcome(nil)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// What people want is asked for all topics at once, and not more often than
// every few seconds, however busy the topics are.
func TestWantedIsAskedForAtAPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 2)
		pins := &scriptedPins{}
		out := newRecorder()
		p := startSimulated(t, sim, out, func(_ *Config, d *Deps) { d.Pins = pins })
		pass(t, time.Minute)
		pins.set(func() {
			if pins.asked != 0 {
				t.Errorf("asked %d times without a topic", pins.asked)
			}
		})
		for i := range 100 {
			p.Publish([]event.Event{testEvent(fmt.Sprint("topic-", i), int64(i+1), "k", "v")})
			p.Flush()
			pass(t, time.Second)
		}
		pins.set(func() {
			if limit := 1 + int(100*time.Second/wantedAge); pins.asked == 0 || pins.asked > limit {
				t.Errorf("asked %d times, want at most %d", pins.asked, limit)
			}
		})
	})
}

func TestFencedWhileRepinning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 2)
		pins := &scriptedPins{wanted: 1, repinErr: fmt.Errorf("repinning: %w", fault.ErrFenced)}
		deps := testDeps(t, newRecorder())
		deps.Pins = pins
		p, err := assemble(testConfig("x"), deps, sim, sim, func() {})
		if err != nil {
			t.Fatal(err)
		}
		p.Publish(numbered("t", 1, 1))
		p.Flush()
		if err := p.Run(t.Context()); !errors.Is(err, fault.ErrFenced) {
			t.Errorf("Run = %v, want fault.ErrFenced", err)
		}
	})
}
