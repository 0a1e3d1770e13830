package sink

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

const testGrace = time.Minute

// silenceTest is a publisher to a few partitions, of which those in dead answer
// like that.
type silenceTest struct {
	*testing.T
	sim  *simulation
	out  *recorder
	p    *Publisher
	reg  *prometheus.Registry
	next int64
	dead map[int32]response
	all  []event.Event
}

func newSilenceTest(t *testing.T, partitions int) *silenceTest {
	s := &silenceTest{T: t, sim: newSimulation(t, partitions), out: newRecorder(), reg: prometheus.NewRegistry(), dead: map[int32]response{}}
	s.sim.script = func(r request) (res response) {
		s.sim.set(func() { res = s.dead[r.partition] })
		return res
	}
	s.p = startSimulated(t, s.sim, s.out, func(c *Config, d *Deps) {
		c.PartitionGrace, c.BatchRecords, c.BackoffMax = testGrace, 3, time.Second
		d.Metrics = NewMetrics(s.reg)
	})
	return s
}

// send publishes n ordered events of a partition, all of one aggregate, and
// returns their ids.
func (s *silenceTest) send(partition int32, n int) []int64 {
	s.Helper()
	var events []event.Event
	var sent []int64
	key := s.key(partition)
	for range n {
		s.next++
		events = append(events, testEvent("t", s.next, key, fmt.Sprint(s.next)))
		sent = append(sent, s.next)
	}
	s.all = append(s.all, inOrder(events)...)
	s.p.Publish(events)
	s.p.Flush()
	synctest.Wait()
	return sent
}

// key is a key of the partition.
func (s *silenceTest) key(partition int32) string {
	for i := 0; ; i++ {
		if key := fmt.Sprint("key-", i); record.Murmur2.Partition([]byte(key), int32(s.sim.partitions)) == partition {
			return key
		}
	}
}

// guard says that the caller knows of all that was held.
func (s *silenceTest) guard() {
	for part := range int32(s.sim.partitions) {
		s.p.Guard([]uint64{aggregateOf(s.key(part))})
	}
}

// flow lets d pass while partition 1 gets an event every second.
func (s *silenceTest) flow(d time.Duration) {
	s.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		s.send(1, 1)
		pass(s.T, time.Second)
	}
	synctest.Wait()
}

func (s *silenceTest) die(partition int32, res response) {
	s.sim.set(func() { s.dead[partition] = res })
}

func (s *silenceTest) revive(partition int32) { s.sim.set(func() { delete(s.dead, partition) }) }

func (s *silenceTest) wantSilent(want ...int) {
	s.Helper()
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	if diff := cmp.Diff(want, s.out.silent); diff != "" {
		s.Errorf("silent partitions as reported (-want +got):\n%s", diff)
	}
	gauge := 0
	if len(want) > 0 {
		gauge = want[len(want)-1]
	}
	if got := gather(s.T, s.reg)["partitions_held{}"]; got != float64(gauge) {
		s.Errorf("partitions_held %v, want %d", got, gauge)
	}
}

// wantNoTrouble: a silent partition is none, since the others flow.
func (s *silenceTest) wantNoTrouble() {
	s.Helper()
	if list := s.out.troubles(); len(list) > 0 && list[len(list)-1] != "" {
		s.Errorf("troubles %v while a partition is silent", list)
	}
}

func (s *silenceTest) wantHeld(want []int64) {
	s.Helper()
	if diff := cmp.Diff(want, s.out.heldIDs(event.HeldByPartition)); diff != "" {
		s.Errorf("held for their partition (-want +got):\n%s", diff)
	}
}

// lateAcked are the events that were acked after they had been held.
func (s *silenceTest) lateAcked() []int64 {
	s.out.mu.Lock()
	defer s.out.mu.Unlock()
	return slices.Clone(s.out.lateAcked)
}

// One partition without an answer among others: after the grace time its batch
// in doubt, its queue and what comes for it are held; the batch in doubt goes
// on being sent as it is, and its answer opens the partition.
func TestSilentPartition(t *testing.T) {
	t.Parallel()
	for name, res := range map[string]response{
		"no leader, say":       {err: kafka.NotEnoughReplicas},
		"no answer":            {err: io.EOF, lost: true},
		"answer lost":          {err: io.EOF, lost: true, append: true},
		"a time-out each time": {err: kafka.RequestTimedOut, append: true, delay: 10 * time.Second},
		"an unknown error":     {err: kafka.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSilenceTest(t, 2)
				s.die(0, res)
				probe := s.send(0, 2) // sent
				queue := s.send(0, 8) // two full batches and an open one
				s.flow(testGrace - 2*time.Second)
				s.wantSilent()
				s.wantHeld(nil)
				s.flow(15 * time.Second)
				s.wantSilent(1)
				s.wantHeld(slices.Concat(probe, queue))

				s.wantNoTrouble()
				late := s.send(0, 2)
				s.guard()
				guarded := s.send(0, 2)
				s.flow(10 * time.Second)
				s.wantNoTrouble()
				// Of what comes, the first after a Guard is held for its partition
				// and what is behind it for the order.
				s.wantHeld(slices.Concat(probe, queue, guarded[:1]))
				if got, want := s.out.heldIDs(event.HeldByOrder), slices.Concat(late, guarded[1:]); !slices.Equal(got, want) {
					t.Errorf("held for the order %v, want %v", got, want)
				}
				if got := s.lateAcked(); got != nil {
					t.Errorf("acked without an answer: %v", got)
				}

				s.revive(0)
				s.flow(15 * time.Second)
				s.wantSilent(1, 0)
				if got := s.lateAcked(); !slices.Equal(got, probe) {
					t.Errorf("acked late %v, want %v", got, probe)
				}
				s.guard()
				after := s.send(0, 2)
				if got, want := s.sim.stored("t", 0), slices.Concat(probe, after); !slices.Equal(got, want) {
					t.Errorf("log %v, want %v", got, want)
				}
				s.out.settled(t, int(s.next))
			})
		})
	}
}

// What the answer for the batch in doubt refuses is refused; the rest of it
// comes again with its rows.
func TestSilentPartitionRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer response
		want   map[int64]string
	}{
		"one by index":        {response{err: kafka.InvalidRecord, index: []int{1}}, map[int64]string{2: "RECORD_INVALID"}},
		"two of an aggregate": {response{err: kafka.InvalidRecord, index: []int{1, 2}}, map[int64]string{2: "RECORD_INVALID"}},
		"nobody knows which":  {response{err: kafka.PolicyViolation}, map[int64]string{}},
		"the topic":           {response{err: kafka.TopicAuthorizationFailed}, map[int64]string{1: "TOPIC_DENIED"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSilenceTest(t, 2)
				s.die(0, response{err: io.EOF, lost: true, append: true})
				s.send(0, 3)
				s.flow(testGrace + 2*time.Second)
				s.wantSilent(1)
				s.guard()
				s.die(0, tc.answer)
				pass(t, 5*time.Second)
				s.wantSilent(1, 0)
				s.revive(0)
				got := map[int64]string{}
				for id, f := range s.out.lateRefused {
					got[id] = f.Code
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("refused late (-want +got):\n%s", diff)
				}
				if got := s.lateAcked(); got != nil {
					t.Errorf("acked late: %v", got)
				}
				s.guard()
				after := s.send(0, 2) // under a new producer id, or it would not be stored
				if got, want := s.sim.stored("t", 0), slices.Concat(ids(1, 3), after); !slices.Equal(got, want) {
					t.Errorf("log %v, want %v", got, want)
				}
			})
		})
	}
}

// Events without order are held for their partition as well; a batch that was
// split before is held with its parts. What is in the log after all is
// acknowledged when it comes again, once, and never stored a second time.
func TestSilentPartitionInTheMiddleOfASplit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSilenceTest(t, 2)
		sizes := 0
		s.sim.script = func(r request) (res response) {
			s.sim.set(func() { sizes++ })
			switch {
			case r.partition == 0 && len(r.ids) == 3:
				return response{err: kafka.PolicyViolation}
			case r.partition == 0:
				return response{err: kafka.NotEnoughReplicas}
			}
			return response{}
		}
		var events []event.Event
		for id := int64(1001); id <= 1005; id++ {
			events = append(events, testEvent("t", id, s.key(0), "v"))
		}
		s.p.Publish(events)
		s.p.Flush()
		s.flow(testGrace + 3*time.Second)
		s.wantSilent(1)
		s.wantHeld(ids(1001, 1005))
		s.sim.set(func() { s.sim.script = nil })
		s.flow(3 * time.Second)
		s.wantSilent(1, 0)
		if got := s.lateAcked(); got != nil {
			t.Errorf("acked without a number %v, though nobody could write that", got)
		}
		for i := range events { // they are due again
			events[i].Seq += 10_000
		}
		s.p.Publish(events)
		s.p.Flush()
		synctest.Wait()
		if got := s.out.ackedIDs(); !slices.IsSorted(got) || !cmp.Equal(got[len(got)-5:], ids(1001, 1005)) {
			t.Errorf("acked %v in the end, want each of the events that came again", got)
		}
		if got, want := s.sim.stored("t", 0), ids(1001, 1005); !slices.Equal(got, want) {
			t.Errorf("log %v, want %v", got, want)
		}
		replayed := events[0]
		replayed.Seq += 10_000
		s.p.Publish([]event.Event{replayed})
		s.p.Flush()
		synctest.Wait()
		if got, want := s.sim.stored("t", 0), append(ids(1001, 1005), 1001); !slices.Equal(got, want) {
			t.Errorf("log %v after a replay, want %v", got, want)
		}
	})
}

// When no partition gets on, everything waits for as long as it takes.
func TestNothingIsHeldWhenNothingGetsOn(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(s *silenceTest){
		"all partitions dead": func(s *silenceTest) {
			s.die(0, response{err: kafka.NotEnoughReplicas})
			s.die(1, response{err: kafka.NotEnoughReplicas})
		},
		"the others dead a little later": func(s *silenceTest) {
			s.die(0, response{err: kafka.NotEnoughReplicas})
			s.send(0, 1)
			pass(s.T, time.Second)
			s.send(1, 1)
			s.die(1, response{err: kafka.NotEnoughReplicas})
		},
		"the others idle": func(s *silenceTest) { s.die(0, response{err: kafka.NotEnoughReplicas}) },
		"no broker heard of": func(s *silenceTest) {
			s.die(0, response{err: errors.New("connection refused")})
			s.sim.set(func() { s.sim.deaf = true })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newSilenceTest(t, 2)
				s.send(0, 2)
				s.send(1, 2)
				pass(t, time.Second)
				stop(s)
				s.send(0, 5)
				if name != "the others idle" {
					s.send(1, 5)
				}
				pass(t, 10*testGrace)
				s.wantSilent()
				s.wantHeld(nil)
				s.revive(0)
				s.revive(1)
				s.sim.set(func() { s.sim.deaf = false })
				s.out.settled(t, int(s.next))
				if got := len(s.out.ackedIDs()); got != int(s.next) {
					t.Errorf("%d acked of %d", got, s.next)
				}
			})
		})
	}
}

// An outage of the whole cluster does not count, and without a grace time
// nothing does.
func TestWhatDoesNotCountAsSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSilenceTest(t, 2)
		s.die(0, response{err: kafka.NotEnoughReplicas})
		s.send(0, 1)
		s.send(1, 1)
		s.sim.set(func() { s.sim.deaf = true })
		pass(t, 10*testGrace)
		s.sim.set(func() { s.sim.deaf = false })
		s.flow(testGrace - 3*time.Second)
		s.wantSilent()
		s.flow(5 * time.Second)
		s.wantSilent(1)
	})
	synctest.Test(t, func(t *testing.T) {
		s := newSilenceTest(t, 2)
		s.p.sender.cfg.PartitionGrace = 0
		s.die(0, response{err: kafka.NotEnoughReplicas})
		s.send(0, 1)
		s.flow(10 * testGrace)
		s.wantSilent()
	})
}

// Partitions are held and opened each by itself, also beside one that failed
// before.
func TestTwoSilentPartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSilenceTest(t, 3)
		failing := response{err: kafka.NotEnoughReplicas}
		s.die(1, failing)
		s.send(1, 1)
		s.revive(1)
		pass(t, 3*time.Second)
		s.die(0, failing)
		s.send(0, 1)
		s.flow(testGrace / 2)
		s.die(2, failing)
		s.send(2, 1)
		s.flow(testGrace/2 + 3*time.Second)
		s.wantSilent(1)
		s.flow(testGrace / 2)
		s.wantSilent(1, 2)
		s.revive(0)
		s.flow(3 * time.Second)
		s.wantSilent(1, 2, 1)
		s.revive(2)
		s.flow(3 * time.Second)
		s.wantSilent(1, 2, 1, 0)
		s.out.settled(t, int(s.next))
	})
}

// Of events that come for a silent partition in one call the caller hears in
// the order of cause and effect.
func TestHeldInOneCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSilenceTest(t, 2)
		s.die(0, response{err: kafka.NotEnoughReplicas})
		first := s.send(0, 1)
		s.flow(testGrace + 3*time.Second)
		s.wantSilent(1)
		key := s.key(0)
		for i := 0; key == s.key(0) || record.Murmur2.Partition([]byte(key), 2) != 0; i++ {
			key = fmt.Sprint("other-", i)
		}
		s.p.Publish(inOrder([]event.Event{testEvent("t", 2001, key, "v"), testEvent("t", 2002, key, "v")})) // the recorder panics
		s.wantHeld(append(first, 2001))
		if got := s.out.heldIDs(event.HeldByOrder); !slices.Equal(got, []int64{2002}) {
			t.Errorf("held for the order %v, want 2002", got)
		}
	})
}

// The last partition that answers is never held.
func TestLastPartitionIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSilenceTest(t, 2)
		s.die(0, response{err: kafka.NotEnoughReplicas})
		s.send(0, 1)
		s.flow(testGrace + 3*time.Second)
		s.wantSilent(1)
		s.die(1, response{err: kafka.NotEnoughReplicas}) // the last one that answered
		s.send(1, 1)
		pass(t, 3*testGrace)
		s.wantSilent(1) // nobody gets on: wait
		s.revive(1)
		pass(t, 3*time.Second)
		s.revive(0)
		pass(t, 3*time.Second)
		s.wantSilent(1, 0)
	})
}

// Batches that fail take half of the request slots at most: a broker that says
// nothing does not keep the others' requests away.
func TestSlotsForTheLiving(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 6)
		sim.script = func(r request) response {
			if r.partition < 5 {
				return response{err: io.EOF, lost: true, delay: 10 * time.Second}
			}
			return response{}
		}
		out := newRecorder()
		p := startSimulated(t, sim, out, func(c *Config, _ *Deps) { c.MaxRequests = 4 })
		p.Publish(numbered("t", 100, 100))
		p.Flush()
		pass(t, time.Minute)
		before := out.count()
		living := testEvent("t", 1000, "", "v")
		for i := 0; record.Murmur2.Partition(living.AggregateID, 6) != 5; i++ {
			living.AggregateID = []byte(fmt.Sprint(i))
		}
		p.Publish([]event.Event{living})
		p.Flush()
		synctest.Wait()
		if got := out.count(); got != before+1 {
			t.Error("an event for a living partition waits for a slot")
		}
	})
}
