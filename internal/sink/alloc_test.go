package sink

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// nowhere is a cluster that accepts everything at once and keeps nothing.
type nowhere struct{ partitions int }

func (nowhere) produce(context.Context, *partition, *record.Sealed, func() error) ([]int, bool, error) {
	return nil, true, nil
}
func (nowhere) initProducer(context.Context, string, record.Producer) (record.Producer, error) {
	return record.Producer{ID: 1}, nil
}
func (nowhere) refresh() {}

func (n nowhere) topics(_ context.Context, names []string) (map[string]topicState, error) {
	states := map[string]topicState{}
	for _, name := range names {
		states[name] = topicState{partitions: n.partitions}
	}
	return states, nil
}
func (nowhere) maxBytes(context.Context, []string) (map[string]int, error) { return nil, nil }
func (nowhere) lastHeard() time.Time                                       { return time.Now() }

// counter is an Outcomes that counts and tells when a number is reached.
type counter struct {
	open atomic.Int64
	done chan struct{}
}

func (c *counter) Acked(refs []event.Ref) {
	if c.open.Add(-int64(len(refs))) == 0 {
		c.done <- struct{}{}
	}
}
func (*counter) Refused([]event.Ref, event.Failure) { panic("refused") }
func (*counter) Held([]event.Ref, event.Reason)     { panic("held") }
func (*counter) Silent(int)                         {}
func (*counter) Trouble(b *fault.Blocked) {
	if b != nil {
		panic(b)
	}
}

// startNowhere runs a publisher to nowhere; see startCounting.
func startNowhere(tb testing.TB, partitions int) (p *Publisher, send func([]event.Event)) {
	tb.Helper()
	out := &counter{done: make(chan struct{}, 1)}
	n := nowhere{partitions}
	cfg := testConfig("nowhere")
	cfg.MetadataTTL = time.Hour // nothing but the events' own work is to be measured
	p, err := assemble(cfg, testDeps(tb, out), n, n, func() {})
	if err != nil {
		tb.Fatal(err)
	}
	return p, startCounting(tb, p, out)
}

// startCounting runs p; send publishes events in gulps of 250 and waits for
// all acks.
func startCounting(tb testing.TB, p *Publisher, out *counter) (send func([]event.Event)) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	tb.Cleanup(func() { cancel(); <-ended })
	return func(events []event.Event) {
		out.open.Store(int64(len(events)))
		for len(events) > 0 {
			n := min(250, len(events))
			p.Publish(events[:n])
			p.Flush()
			events = events[n:]
		}
		<-out.done
	}
}

// From Publish to Acked less than a tenth of an allocation per event: what is
// allocated is per batch.
func TestPublishAllocatesPerBatchOnly(t *testing.T) { // not parallel: it counts allocations
	p, send := startNowhere(t, 12)
	events := inOrder(numbered("t", 3000, 1000))
	send(events) // resolves the topic
	send(events) // and the batches get their memory
	check := func(when string) {
		perRun := testing.AllocsPerRun(20, func() { send(events) })
		if perEvent := perRun / float64(len(events)); perEvent >= 0.1 {
			t.Errorf("%s: %.3f allocations per event, want less than 0.1", when, perEvent)
		} else {
			t.Logf("%s: %.3f allocations per event", when, perEvent)
		}
	}
	check("while nothing is closed")
	p.queues.mu.Lock()
	for a := range uint64(1000) {
		p.queues.closed[a] = struct{}{}
	}
	p.queues.mu.Unlock()
	check("while other aggregates are closed")
}

// Putting an event into its batch allocates nothing at all, closed aggregates
// or not.
func TestPutAllocatesNothing(t *testing.T) { // not parallel: it counts allocations
	format, err := record.NewFormat(testConfig("nowhere").Record)
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig("nowhere")
	q := newQueues(&cfg, format, testDeps(t, &counter{}))
	events := inOrder(numbered("t", 1, 1))
	now := time.Now()
	q.publish(events, now)
	q.openTopic(q.topics["t"], 12, now)
	for _, closed := range []int{0, 1000} {
		for a := range uint64(closed) {
			q.closed[a] = struct{}{}
		}
		n := testing.AllocsPerRun(1000, func() {
			q.publish(events, now)
			for _, part := range q.topics["t"].partitions {
				if part.open != nil {
					part.open.Reset()
				}
			}
		})
		if n != 0 {
			t.Errorf("%v allocations for an event while %d aggregates are closed", n, closed)
		}
	}
}

func BenchmarkPublish(b *testing.B) {
	_, send := startNowhere(b, 12)
	events := numbered("t", 3000, 1000)
	send(events)
	b.ReportAllocs()
	for b.Loop() {
		send(events)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
}

// BenchmarkPublishToBroker is the same with a real broker behind it.
func BenchmarkPublishToBroker(b *testing.B) {
	addr := kafkatest.Broker(b)
	topic := kafkatest.Name(b)
	kafkatest.Create(b, addr, topic, 12, nil)
	out := &counter{done: make(chan struct{}, 1)}
	p, err := New(testConfig(addr), testDeps(b, out))
	if err != nil {
		b.Fatal(err)
	}
	send := startCounting(b, p, out)
	events := numbered(topic, 30_000, 1000)
	send(events)
	b.ReportAllocs()
	for b.Loop() {
		send(events)
	}
	b.ReportMetric(float64(b.N*len(events))/b.Elapsed().Seconds(), "events/s")
}
