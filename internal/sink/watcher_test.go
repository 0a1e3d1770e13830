package sink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// scriptedPins answers with what a test sets.
type scriptedPins struct {
	mu     sync.Mutex
	topic  string // empty: t
	pinned int    // 0: what is present
	wanted int    // 0: nothing is
	err    error
	calls  int
	asked  int // for what is wanted

	repins   int
	repinErr error
}

func (p *scriptedPins) Wanted(context.Context) (map[string]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.wanted == 0 || p.err != nil {
		return nil, p.err
	}
	return map[string]int{cmp.Or(p.topic, "t"): p.wanted}, nil
}

func (p *scriptedPins) Repin(_ context.Context, _ string, wanted int) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.repins++
	if p.repinErr == nil && wanted == p.wanted {
		p.pinned, p.wanted = wanted, 0
	}
	return p.pinned, p.repinErr
}

func (p *scriptedPins) Pin(_ context.Context, _ string, present int) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.err != nil {
		return 0, p.err
	}
	if p.pinned == 0 {
		p.pinned = present
	}
	return p.pinned, nil
}

// set changes the pins under their lock.
func (p *scriptedPins) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// The events of a topic that the cluster does not have wait for the grace
// time, are refused then, and later ones at once; when the topic is there,
// events pass again. Other topics flow all the time.
func TestUnknownTopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		sim.missing["late"] = true
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		synctest.Wait()
		start := time.Now()
		events := numbered("late", 6, 1)
		other := testEvent("t", 100, "k", "v")
		p.Publish([]event.Event{events[0], other, events[1]})
		p.Flush()
		out.settled(t, 1)
		if got := out.ackedIDs(); !slices.Equal(got, []int64{100}) {
			t.Fatalf("acked %v, want the event of the other topic", got)
		}

		out.settled(t, 3)
		grace := testConfig("").UnknownTopicGrace
		if took := time.Since(start); took < grace || took > grace+testConfig("").MetadataTTL {
			t.Errorf("refused after %v, want the grace time of %v", took, grace)
		}
		p.Publish(events[2:4])
		p.Flush()
		for id, f := range out.refusals() {
			if f.Code != "TOPIC_UNKNOWN" || f.Class != event.ClassTopic || f.Permanent || !strings.Contains(f.Message, "late") {
				t.Errorf("event %d: %+v", id, f)
			}
		}
		if got := len(out.refusals()); got != 4 {
			t.Errorf("%d refused, want 4: those past the grace time at once", got)
		}

		sim.set(func() { sim.missing["late"] = false })
		pass(t, testConfig("").MetadataTTL)
		synctest.Wait()
		p.Publish(events[4:])
		p.Flush()
		out.settled(t, 7)
		if got := sim.stored("late", 0); !slices.Equal(got, ids(5, 6)) {
			t.Errorf("log %v, want the events since the topic is there", got)
		}
	})
}

// A topic that comes within the grace time gets what waited, in order.
func TestTopicComesInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		sim.missing["t"] = true
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		buffer := numbered("t", 20, 3)
		for i := range buffer {
			p.Publish(buffer[i : i+1])
			clear(buffer[i].Payload) // its owner uses the memory again
			clear(buffer[i].AggregateID)
		}
		p.Flush()
		pass(t, 10*time.Second)
		sim.set(func() { sim.missing["t"] = false })
		out.settled(t, 20)
		if got := sim.stored("t", 0); !slices.Equal(got, ids(1, 20)) {
			t.Errorf("log %v", got)
		}
		for i, e := range numbered("t", 20, 3) {
			var got string
			sim.set(func() { got = sim.values[int64(i+1)] })
			if want := string(e.AggregateID) + "=" + string(e.Payload); got != want {
				t.Errorf("event %d was published as %q, want %q", i+1, got, want)
			}
		}
	})
}

// Once too much waits for topics that are not there, it is refused early.
func TestTooMuchWaits(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"events": func(c *Config) { c.WaitingEvents = 10 },
		"bytes":  func(c *Config) { c.WaitingBytes = 10 * len("key-0x") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sim := newSimulation(t, 1)
				sim.missing["t"] = true
				out := newRecorder()
				p := startSimulated(t, sim, out, func(c *Config, _ *Deps) { change(c) })
				events := numbered("t", 12, 1)
				p.Publish(events[:9])
				synctest.Wait() // the cluster has said that it does not have it
				if n := len(out.refusals()); n != 0 {
					t.Fatalf("%d refused within the bounds", n)
				}
				p.Publish(events[9:])
				if n := len(out.refusals()); n != 12 {
					t.Errorf("%d refused, want all 12", n)
				}
			})
		})
	}
}

// While the cluster itself is away, nobody knows that a topic is missing.
func TestNothingIsMissingWhileTheClusterIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		sim.down = errors.New("connection refused")
		out := newRecorder()
		p := startSimulated(t, sim, out, func(c *Config, _ *Deps) { c.WaitingEvents = 10 })
		p.Publish(numbered("t", 50, 3))
		p.Flush()
		pass(t, 2*time.Minute)
		sim.set(func() { sim.down = nil })
		out.settled(t, 50)
		if n := len(out.refusals()); n != 0 {
			t.Errorf("%d refused", n)
		}
	})
}

// What is known of a missing topic is worth nothing while the cluster is away:
// its events wait, and are refused only when a broker says so again.
func TestNothingIsRefusedWhileTheClusterIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		sim.missing["t"] = true
		out := newRecorder()
		p := startSimulated(t, sim, out, func(c *Config, _ *Deps) { c.WaitingEvents = 10 })
		events := numbered("t", 60, 3)
		p.Publish(events[:5])
		p.Flush()
		out.settled(t, 5)
		sim.set(func() { sim.down = errors.New("connection refused") })
		pass(t, 10*time.Second)
		p.Publish(events[5:])
		p.Flush()
		pass(t, 2*time.Minute)
		if n := len(out.refusals()); n != 5 {
			t.Errorf("%d refused, want only the 5 before the cluster was away", n)
		}
		sim.set(func() { sim.down = nil })
		out.settled(t, 60)
		if n := len(out.refusals()); n != 60 {
			t.Errorf("%d refused, want all, as the topic is still missing", n)
		}
	})
}

// The grace time counts from the last time that the topic was there.
func TestTopicComesAndGoes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		grace := testConfig("").UnknownTopicGrace
		events := numbered("t", 4, 1)
		for i := range events {
			missing := i%2 == 1
			sim.set(func() { sim.missing["t"] = missing })
			p.Publish(events[i : i+1])
			p.Flush()
			pass(t, grace-time.Second)
		}
		sim.set(func() { sim.missing["t"] = false })
		out.settled(t, 4)
		if n := len(out.refusals()); n != 0 {
			t.Errorf("%d refused", n)
		}
	})
}

// A topic goes away while a worker has a batch in its hands. What is handed over
// before the worker refuses that batch waits for its turn: of an aggregate the
// first event takes the attempt.
func TestFirstEventTakesTheAttemptOfATopic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		out := newRecorder()
		const grace, backoff = time.Second, 20 * time.Second
		p := startSimulated(t, sim, out, func(c *Config, _ *Deps) {
			c.UnknownTopicGrace, c.BackoffMin, c.BackoffMax = grace, backoff, backoff
		})
		events := inOrder(numbered("t", 4, 1))
		p.Publish(events[:1])
		p.Flush()
		out.settled(t, 1)
		sim.set(func() { sim.missing["t"] = true })
		p.Publish(events[1:2])
		p.Flush()
		pass(t, backoff/4) // the topic is given up, the worker has not tried again
		p.Publish(events[2:3])
		p.Flush()
		if n := len(out.refusals()); n != 0 {
			t.Fatalf("%d refused before the first one's turn", n)
		}
		pass(t, 2*backoff)
		p.Publish(events[3:])
		p.Flush()
		synctest.Wait()
		want := outcome{Stored: []int64{1}, Refused: []int64{2}, Held: []int64{3, 4}}
		if diff := gocmp.Diff(want, out.outcome(sim.stored("t", 0))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// A topic that is deleted under way: what is in its queues is refused after
// the grace time.
func TestTopicDeleted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 2)
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		events := numbered("t", 30, 30)
		p.Publish(events[:10])
		p.Flush()
		out.settled(t, 10)
		sim.set(func() { sim.missing["t"] = true })
		p.Publish(events[10:20])
		p.Flush()
		out.settled(t, 20)
		if n := len(out.refusals()); n != 10 {
			t.Errorf("%d refused, want 10", n)
		}
		sim.set(func() { sim.missing["t"] = false })
		pass(t, testConfig("").MetadataTTL)
		synctest.Wait()
		p.Publish(events[20:])
		p.Flush()
		out.settled(t, 30)
		if n := len(out.ackedIDs()); n != 20 {
			t.Errorf("%d acked, want 20", n)
		}
	})
}

// Metadata that deny a topic refuse its events at once; metadata that do not
// know yet leave them waiting.
func TestHiddenTopics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		sim.hidden["denied"] = kafka.TopicAuthorizationFailed
		sim.hidden["coming"] = kafka.LeaderNotAvailable
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		p.Publish([]event.Event{testEvent("denied", 1, "k", "v"), testEvent("coming", 2, "k", "v")})
		p.Flush()
		synctest.Wait()
		if got := out.refusals(); len(got) != 1 || got[1].Code != "TOPIC_DENIED" {
			t.Errorf("refused %v, want event 1 as TOPIC_DENIED", got)
		}
		pass(t, 2*time.Minute)
		sim.set(func() { clear(sim.hidden) })
		out.settled(t, 2)
		if got := out.ackedIDs(); !slices.Equal(got, []int64{2}) {
			t.Errorf("acked %v, want event 2", got)
		}
	})
}

// Topics that do not exist are not remembered for ever.
func TestTopicsAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		known := func() int {
			p.queues.mu.Lock()
			defer p.queues.mu.Unlock()
			return len(p.queues.topics)
		}
		var events []event.Event
		sim.set(func() {
			for id := int64(1); id <= 20; id++ {
				name := fmt.Sprintf("topic-%d", id)
				sim.missing[name] = true
				events = append(events, testEvent(name, id, "k", "v"))
			}
		})
		p.Publish(append(events, testEvent("t", 100, "k", "v")))
		p.Flush()
		out.settled(t, 21)
		pass(t, forgetAfter-time.Minute)
		again := testEvent("topic-1", 21, "k", "v")
		p.Publish([]event.Event{again})
		if n := known(); n != 21 {
			t.Errorf("%d topics are known, want 21", n)
		}
		pass(t, 2*time.Minute)
		if n := known(); n != 2 {
			t.Errorf("%d topics are known, want the one that exists and the one asked for", n)
		}
	})
}

// What can be seen to be no record is refused before anything is sent: rows
// may name only topics that the patterns allow, and only valid ones.
func TestRefusedBeforeSending(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		out := newRecorder()
		p := startSimulated(t, sim, out, func(c *Config, _ *Deps) { c.Record.TopicAllow = []string{"audit.*", "bad *"} })
		var events []event.Event
		for i, topic := range []string{"", "audit.a", "t", "other", "bad name", ""} {
			e := testEvent("t", int64(i+1), "k", "v")
			e.Topic = []byte(topic)
			events = append(events, e)
		}
		long := testEvent(strings.Repeat("x", 250), 7, "k", "v")
		null := testEvent("t", 8, "k", "")
		null.PayloadNull = true
		odd := testEvent("t", 9, "k", "v")
		odd.Headers = []byte("[]")
		p.Publish(append(events, long, null, odd))
		p.Flush()
		out.settled(t, 9)
		codes := map[int64]string{}
		for id, f := range out.refusals() {
			codes[id] = f.Code
		}
		want := map[int64]string{
			3: "TOPIC_NOT_ALLOWED", 4: "TOPIC_NOT_ALLOWED", 5: "TOPIC_NAME_INVALID", 7: "TOPIC_NAME_INVALID",
			8: "NULL_PAYLOAD", 9: "HEADERS_INVALID",
		}
		if diff := gocmp.Diff(want, codes); diff != "" {
			t.Errorf("refused (-want +got):\n%s", diff)
		}
		if got := sim.stored("audit.a", 0); !slices.Equal(got, []int64{2}) {
			t.Errorf("the row's own topic holds %v", got)
		}
	})
}

// Keys are spread over the pinned count, whatever is present; fewer than
// pinned is for a person.
func TestPinnedPartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 6)
		pins := &scriptedPins{pinned: 3}
		out := newRecorder()
		p := startSimulated(t, sim, out, func(_ *Config, d *Deps) { d.Pins = pins })
		p.Publish(numbered("t", 60, 60))
		p.Flush()
		out.settled(t, 60)
		total := 0
		for part := range 3 {
			total += len(sim.stored("t", part))
		}
		if total != 60 {
			t.Errorf("%d records in the pinned partitions, want 60", total)
		}
	})
}

func TestFewerPartitionsThanPinned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 2)
		out := newRecorder()
		p := startSimulated(t, sim, out, func(_ *Config, d *Deps) { d.Pins = &scriptedPins{pinned: 3} })
		p.Publish(numbered("t", 6, 6))
		p.Flush()
		pass(t, 2*time.Minute)
		if diff := gocmp.Diff([]string{"kafka.partitions"}, out.troubles()); diff != "" {
			t.Errorf("troubles (-want +got):\n%s", diff)
		}
		if sim.sent() != 0 {
			t.Error("published with keys spread over partitions that are not there")
		}
		sim.set(func() { sim.partitions = 3 })
		out.settled(t, 6)
		if diff := gocmp.Diff([]string{"kafka.partitions", ""}, out.troubles()); diff != "" {
			t.Errorf("troubles (-want +got):\n%s", diff)
		}
	})
}

// A topic with too few partitions blocks the relay: nothing is retried or released,
// of any topic. When it was deleted, that went on for ever, though it then blocks
// nothing but its own events.
func TestFewerPartitionsThenNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 2)
		out := newRecorder()
		p := startSimulated(t, sim, out, func(_ *Config, d *Deps) { d.Pins = &scriptedPins{pinned: 3} })
		p.Publish(numbered("t", 6, 6))
		p.Flush()
		pass(t, 2*time.Minute)
		sim.set(func() { sim.missing["t"] = true })
		out.settled(t, 6)
		if diff := gocmp.Diff([]string{"kafka.partitions", ""}, out.troubles()); diff != "" {
			t.Errorf("troubles (-want +got):\n%s", diff)
		}
	})
}

// Pins that cannot be had yet are asked for again.
func TestPinsComeLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 2)
		pins := &scriptedPins{err: errors.New("the database is away")}
		out := newRecorder()
		p := startSimulated(t, sim, out, func(_ *Config, d *Deps) { d.Pins = pins })
		p.Publish(numbered("t", 6, 6))
		p.Flush()
		pass(t, time.Minute)
		pins.set(func() { pins.err = nil })
		out.settled(t, 6)
	})
}

func TestFencedWhilePinning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 2)
		deps := testDeps(t, newRecorder())
		deps.Pins = &scriptedPins{err: fmt.Errorf("pinning: %w", fault.ErrFenced)}
		p, err := assemble(testConfig("x"), deps, sim, sim, func() {})
		if err != nil {
			t.Fatal(err)
		}
		p.Publish(numbered("t", 1, 1))
		if err := p.Run(t.Context()); !errors.Is(err, fault.ErrFenced) {
			t.Errorf("Run = %v, want fault.ErrFenced", err)
		}
	})
}
