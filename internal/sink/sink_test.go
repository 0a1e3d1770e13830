package sink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the wait for something that must happen.
const patience = 60 * time.Second

// recorder is an Outcomes that remembers. wait blocks until a condition on it
// holds.
type recorder struct {
	mu      sync.Mutex
	changed chan struct{} // closed and replaced at each report
	acked   []event.Ref
	refused map[int64]event.Failure
	held    map[int64]event.Reason
	silent  []int
	trouble []*fault.Blocked

	seen map[event.Seq]bool // have their outcome
	shut map[uint64]bool    // aggregates of which something was refused or held for its partition
	// late are second outcomes, of events that are not tracked any more.
	lateAcked   []int64
	lateRefused map[int64]event.Failure
}

func newRecorder() *recorder {
	return &recorder{
		changed: make(chan struct{}), refused: map[int64]event.Failure{}, held: map[int64]event.Reason{},
		seen: map[event.Seq]bool{}, shut: map[uint64]bool{}, lateRefused: map[int64]event.Failure{},
	}
}

// settle notes that an event has its one outcome.
func (r *recorder) settle(ref *event.Ref) {
	if r.seen[ref.Seq] {
		panic("a second outcome for event " + strconv.FormatInt(ref.ID, 10))
	}
	r.seen[ref.Seq] = true
}

func (r *recorder) update(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) Acked(refs []event.Ref) {
	r.update(func() {
		for i := range refs {
			if refs[i].Seq == event.Untracked {
				r.lateAcked = append(r.lateAcked, refs[i].ID)
				continue
			}
			r.settle(&refs[i])
			r.acked = append(r.acked, refs[i])
		}
	})
}

func (r *recorder) Held(refs []event.Ref, why event.Reason) {
	r.update(func() {
		for i := range refs {
			r.settle(&refs[i])
			r.held[refs[i].ID] = why
			if why == event.HeldByOrder && !(refs[i].Ordered && r.shut[refs[i].Aggregate]) {
				panic("held before anybody knows why: " + strconv.FormatInt(refs[i].ID, 10))
			}
			r.shut[refs[i].Aggregate] = r.shut[refs[i].Aggregate] || refs[i].Ordered
		}
	})
}

func (r *recorder) Silent(n int) { r.update(func() { r.silent = append(r.silent, n) }) }

func (r *recorder) Refused(refs []event.Ref, f event.Failure) {
	r.update(func() {
		for i := range refs {
			r.shut[refs[i].Aggregate] = r.shut[refs[i].Aggregate] || refs[i].Ordered
			if refs[i].Seq == event.Untracked {
				r.lateRefused[refs[i].ID] = f
				continue
			}
			r.settle(&refs[i])
			r.refused[refs[i].ID] = f
		}
	})
}

func (r *recorder) Trouble(b *fault.Blocked) {
	r.update(func() { r.trouble = append(r.trouble, b) })
}

// wait blocks until cond holds; what names it if it never does.
func (r *recorder) wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		r.mu.Lock()
		ok, changed := cond(), r.changed
		state := fmt.Sprintf("%d acked, %d refused, %d held", len(r.acked), len(r.refused), len(r.held))
		r.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("still waiting for %s with %s", what, state)
		}
	}
}

// await waits for a signal.
func await(t *testing.T, signal <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-signal:
	case <-time.After(patience):
		t.Fatalf("still waiting for %s", what)
	}
}

// settled waits until n events are acked, refused or held.
func (r *recorder) settled(t *testing.T, n int) {
	t.Helper()
	r.wait(t, strconv.Itoa(n)+" settled events", func() bool { return len(r.seen) >= n })
}

// count is the number of events with an outcome.
func (r *recorder) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.seen)
}

func (r *recorder) ackedIDs() []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := make([]int64, 0, len(r.acked))
	for _, ref := range r.acked {
		ids = append(ids, ref.ID)
	}
	return ids
}

// heldIDs returns what was held, in order of id.
func (r *recorder) heldIDs(why event.Reason) []int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ids []int64
	for id, reason := range r.held {
		if reason == why {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// refusedIDs returns what was refused, in order of id.
func (r *recorder) refusedIDs() []int64 { return slices.Sorted(maps.Keys(r.refusals())) }

// refusals returns the failures by id.
func (r *recorder) refusals() map[int64]event.Failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.refused)
}

// troubles returns what was reported, "" for the end of it.
func (r *recorder) troubles() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var list []string
	for _, b := range r.trouble {
		if b == nil {
			list = append(list, "")
		} else {
			list = append(list, b.Reason)
		}
	}
	return list
}

// pins pins whatever is present.
type pins struct{}

func (pins) Pin(_ context.Context, _ string, present int) (int, error)  { return present, nil }
func (pins) Wanted(context.Context) (map[string]int, error)             { return nil, nil }
func (pins) Repin(_ context.Context, _ string, wanted int) (int, error) { return wanted, nil }

func testConfig(broker string) Config {
	return Config{
		Brokers: []string{broker}, ClientID: "test",
		BatchBytes: 1 << 20, BatchRecords: 5000, MaxRequests: 32,
		RequestTimeout: 10 * time.Second, DialTimeout: 3 * time.Second, IdleTimeout: time.Minute,
		MetadataTTL: 200 * time.Millisecond, UnknownTopicGrace: 30 * time.Second,
		BackoffMin: time.Millisecond, BackoffMax: 50 * time.Millisecond,
		Identity: Idempotent,
		Record: record.Config{
			TopicTemplate: "{aggregate_type}", Partitioner: record.Murmur2, Headers: record.CloudEvents, Source: "/test",
		},
	}
}

func testMetrics(t testing.TB) *Metrics {
	t.Helper()
	return NewMetrics(prometheus.NewRegistry())
}

func testLog() *slog.Logger {
	if os.Getenv("CDC_TEST_LOG") != "" {
		return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return slog.New(slog.NewTextHandler(io.Discard, nil))
}

func testDeps(t testing.TB, out Outcomes) Deps {
	t.Helper()
	return Deps{
		Outcomes: out, Pins: pins{}, Permit: func(context.Context) error { return nil },
		Metrics: testMetrics(t), Log: testLog(),
	}
}

// start runs a publisher until the test ends.
func start(t *testing.T, cfg Config, deps Deps) *Publisher {
	t.Helper()
	p, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	run(t, p)
	return p
}

func run(t *testing.T, p *Publisher) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// newFake starts a fake cluster and returns the address of its first broker.
func newFake(t *testing.T, opts ...kfake.Opt) (*kfake.Cluster, string) {
	t.Helper()
	c := kafkatest.Fake(t, opts...)
	return c, c.ListenAddrs()[0]
}

// testEvent is an event of topic with this id; its key and value tell the id.
func testEvent(topic string, id int64, key, value string) event.Event {
	e := event.Event{
		Ref:           event.Ref{Seq: event.Seq(id), ID: id, Bytes: int32(len(key) + len(value))},
		AggregateType: []byte(topic),
		AggregateID:   []byte(key),
		EventType:     []byte("tested"),
		ContentType:   []byte("text/plain"),
		Payload:       []byte(value),
		Headers:       []byte("{}"),
		CreatedAt:     1_767_323_045_678_900,
	}
	binary.BigEndian.PutUint64(e.EventID[8:], uint64(id))
	return e
}

// numbered makes events 1 to n over keys keys.
func numbered(topic string, n, keys int) []event.Event {
	events := make([]event.Event, n)
	for i := range events {
		id := int64(i + 1)
		events[i] = testEvent(topic, id, "key-"+strconv.Itoa(i%keys), strconv.FormatInt(id, 10))
	}
	return events
}

// recordID is the row id that a record carries.
func recordID(t *testing.T, headers []kgo.RecordHeader) int64 {
	t.Helper()
	for _, h := range headers {
		if h.Key == "cdcr-id" {
			id, err := strconv.ParseInt(string(h.Value), 10, 64)
			if err != nil {
				t.Fatalf("header cdcr-id: %v", err)
			}
			return id
		}
	}
	t.Fatal("a record has no header cdcr-id")
	return 0
}

// logIDs reads the ids in the log, and checks that each key's are in order.
func logIDs(t *testing.T, addr, topic string) []int64 {
	t.Helper()
	latest := map[string]int64{}
	var ids []int64
	for _, r := range kafkatest.ReadAll(t, addr, topic) {
		id := recordID(t, r.Headers)
		if id >= firstProbe {
			continue
		}
		if id <= latest[string(r.Key)] {
			t.Errorf("key %s: %d follows %d", r.Key, id, latest[string(r.Key)])
		}
		latest[string(r.Key)] = id
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func TestPublishes(t *testing.T) {
	t.Parallel()
	for name, broker := range map[string]func(t *testing.T) string{
		"fake broker": func(t *testing.T) string { _, addr := newFake(t); return addr },
		"real broker": func(t *testing.T) string { return kafkatest.Broker(t) },
	} {
		for _, codec := range []record.Compression{record.None, record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
			t.Run(name+"/"+codec.String(), func(t *testing.T) {
				t.Parallel()
				addr := broker(t)
				topic := kafkatest.Name(t)
				kafkatest.Create(t, addr, topic, 5, nil)
				out := newRecorder()
				cfg := testConfig(addr)
				cfg.Compression = codec
				p := start(t, cfg, testDeps(t, out))

				const n = 3000
				for chunk := range slices.Chunk(numbered(topic, n, 40), 250) {
					p.Publish(chunk)
					p.Flush()
				}
				out.settled(t, n)
				want := make([]int64, n)
				for i := range want {
					want[i] = int64(i + 1)
				}
				got := out.ackedIDs()
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("acked %d events, not each of %d once", len(got), n)
				}
				if ids := logIDs(t, addr, topic); !slices.Equal(ids, want) {
					t.Errorf("%d records in the log, not each of %d once", len(ids), n)
				}
			})
		}
	}
}

func TestPermitLost(t *testing.T) {
	t.Parallel()
	_, addr := newFake(t, kfake.SeedTopics(1, "t"))
	out := newRecorder()
	deps := testDeps(t, out)
	deps.Permit = func(context.Context) error { return fault.ErrFenced }
	p, err := New(testConfig(addr), deps)
	if err != nil {
		t.Fatal(err)
	}
	p.Publish(numbered("t", 1, 1))
	p.Flush()
	if err := p.Run(t.Context()); !errors.Is(err, fault.ErrFenced) {
		t.Errorf("Run = %v, want fault.ErrFenced", err)
	}
	if ids := logIDs(t, addr, "t"); len(ids) > 0 {
		t.Errorf("published without a permit: %v", ids)
	}
}
