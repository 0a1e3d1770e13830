package sink

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
)

// alter sets a configuration of a topic.
func alter(t *testing.T, addr, topic, name, value string) {
	t.Helper()
	answers, err := kafkatest.Admin(t, addr).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Name: name, Value: &value}}, topic)
	if err == nil && len(answers) > 0 {
		err = answers[0].Err
	}
	if err != nil {
		t.Fatal(err)
	}
}

// firstProbe is the row id of the first record of awaitLimit; logIDs leaves
// those out.
const firstProbe = 100_000

// awaitLimit waits until the broker refuses a record of so many bytes: a changed
// limit is not in force at once.
func awaitLimit(t *testing.T, addr, topic string, size int) {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ProducerBatchCompression(kgo.NoCompression()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for id := firstProbe; ; id++ {
		probe := &kgo.Record{Topic: topic, Key: []byte("probe"), Value: make([]byte, size),
			Headers: []kgo.RecordHeader{{Key: "cdcr-id", Value: []byte(fmt.Sprint(id))}}}
		err := c.ProduceSync(t.Context(), probe).FirstErr()
		if errors.Is(err, kerr.MessageTooLarge) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A real broker refuses records of a batch of a thousand: for their size, which
// tells nobody which, and for their time, by index. They alone are refused,
// later events of their aggregates are held, and all others are in the log once
// and in order.
func TestRealBrokerRefusesRecords(t *testing.T) {
	t.Parallel()
	const n, keys = 1000, 20
	for _, way := range []struct {
		name    string
		configs map[string]string
		spoil   func(*event.Event)
		code    string
	}{
		{"size", nil, func(e *event.Event) { e.Payload = []byte(strings.Repeat("x", 300_000)) }, "RECORD_TOO_LARGE"},
		{"time", map[string]string{"message.timestamp.before.max.ms": "3600000"},
			func(e *event.Event) { e.CreatedAt = time.Now().Add(-2 * time.Hour).UnixMicro() }, "TIMESTAMP_INVALID"},
	} {
		for name, bad := range map[string][]int64{"first": {1}, "middle": {500}, "last": {n}, "two adjacent": {499, 500}, "two of an aggregate": {7, 107}} {
			t.Run(way.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				addr := kafkatest.Broker(t)
				topic := kafkatest.Name(t)
				kafkatest.Create(t, addr, topic, 1, way.configs)
				out := newRecorder()
				cfg := testConfig(addr)
				cfg.Record.EventTime = true
				p := start(t, cfg, testDeps(t, out))
				fresh := func(id int64, key string) event.Event {
					e := testEvent(topic, id, key, "v")
					e.CreatedAt = time.Now().UnixMicro()
					return e
				}
				publishAll(t, p, out, []event.Event{fresh(5000, "first")})
				if way.name == "size" {
					alter(t, addr, topic, "max.message.bytes", "200000") // lowered, and not read again yet
					awaitLimit(t, addr, topic, 300_000)
				}

				events := make([]event.Event, n)
				var want outcome
				stopped := map[int64]bool{}
				want.Stored = []int64{}
				for i := range events {
					id := int64(i + 1)
					events[i] = fresh(id, fmt.Sprint("key-", i%keys))
					isBad := slices.Contains(bad, id)
					if isBad {
						way.spoil(&events[i])
					}
					switch {
					case stopped[id%keys]:
						want.Held = append(want.Held, id)
					case isBad:
						want.Refused, stopped[id%keys] = append(want.Refused, id), true
					default:
						want.Stored = append(want.Stored, id)
					}
				}
				p.Publish(inOrder(events)) // one batch, unless it is too large
				p.Flush()
				out.settled(t, n+1)
				want.Stored = append(want.Stored, 5000)
				if diff := cmp.Diff(want, out.outcome(logIDs(t, addr, topic))); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				for id, f := range out.refusals() {
					if f.Code != way.code {
						t.Errorf("event %d: %+v, want %s", id, f, way.code)
					}
				}
			})
		}
	}
}

// Partitions are added to a topic of a real broker while it is published to:
// the pinned count is used until a person wants another one.
func TestRealBrokerPartitionsAdded(t *testing.T) {
	t.Parallel()
	addr := kafkatest.Broker(t)
	topic := kafkatest.Name(t)
	kafkatest.Create(t, addr, topic, 2, nil)
	out := newRecorder()
	pins := &scriptedPins{topic: topic}
	deps := testDeps(t, out)
	deps.Pins = pins
	p := start(t, testConfig(addr), deps)
	events := numbered(topic, 3000, 50)
	publishAll(t, p, out, events[:1000])
	answers, err := kafkatest.Admin(t, addr).UpdatePartitions(t.Context(), 6, topic)
	if err == nil {
		err = answers[topic].Err
	}
	if err != nil {
		t.Fatal(err)
	}
	pins.set(func() { pins.wanted = 6 })
	deadline := time.Now().Add(patience)
	sent := 1000
	for wanted := true; wanted && sent < len(events)-100; sent += 10 {
		if time.Now().After(deadline) {
			t.Fatal("still waiting for the new partitions to be used")
		}
		publishAll(t, p, out, events[sent:sent+10])
		pass(t, 50*time.Millisecond)
		pins.set(func() { wanted = pins.wanted != 0 })
	}
	publishAll(t, p, out, events[sent:])
	used := map[int32]bool{}
	var stored []int64
	for _, r := range kafkatest.ReadAll(t, addr, topic) {
		used[r.Partition] = true
		stored = append(stored, recordID(t, r.Headers))
	}
	slices.Sort(stored)
	if !slices.Equal(stored, ids(1, 3000)) {
		t.Errorf("%d records in the log, want each of 3000 events once", len(stored))
	}
	latest := map[int64]int64{} // a key's events may be in two partitions, but were acked in order
	for _, id := range out.ackedIDs() {
		if id < latest[id%50] {
			t.Errorf("event %d was acked after %d of its key", id, latest[id%50])
		}
		latest[id%50] = id
	}
	if len(used) != 6 {
		t.Errorf("%d partitions are used, want 6", len(used))
	}
}
