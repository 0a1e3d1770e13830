package consumer

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// kafkaBed is a table with SENT rows, and their records in a real topic.
type kafkaBed struct {
	*bed
	broker, topic string
}

const testPartitions = 4

func newKafkaBed(t *testing.T, h Handler, opts ...Option) *kafkaBed {
	t.Helper()
	b := &kafkaBed{bed: newBed(t, 18, h, opts...), broker: kafkatest.Broker(t), topic: kafkatest.Name(t)}
	kafkatest.Create(t, b.broker, b.topic, testPartitions, nil)
	b.c.cfg = Config{Brokers: []string{b.broker}, Group: b.topic, Topics: []string{b.topic}, DB: b.pool}
	return b
}

// produce writes the records of rows to the topic.
func (b *kafkaBed) produce(ids []outbox.ID, keys []string) {
	b.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.broker), kgo.DefaultProduceTopic(b.topic))
	if err != nil {
		b.t.Fatal(err)
	}
	defer client.Close()
	var list []*kgo.Record
	for i, id := range ids {
		rec := b.record(id, keys[i])
		out := &kgo.Record{Key: rec.Key, Value: rec.Value}
		for _, h := range rec.Headers {
			out.Headers = append(out.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
		}
		list = append(list, out)
	}
	if err := client.ProduceSync(b.t.Context(), list...).FirstErr(); err != nil {
		b.t.Fatal(err)
	}
}

// offsets are those that the group has committed, and the ends of the log.
func (b *kafkaBed) offsets() (committed, ends map[int32]int64) {
	b.t.Helper()
	admin := kafkatest.Admin(b.t, b.broker)
	committed, ends = map[int32]int64{}, map[int32]int64{}
	offsets, err := admin.FetchOffsets(b.t.Context(), b.topic)
	if err != nil {
		b.t.Fatal(err)
	}
	for p, o := range offsets[b.topic] {
		committed[p] = o.At
	}
	listed, err := admin.ListEndOffsets(b.t.Context(), b.topic)
	if err != nil {
		b.t.Fatal(err)
	}
	for p, o := range listed[b.topic] {
		ends[p] = o.Offset
	}
	return committed, ends
}

func TestRunConsumesATopicAndLeavesNothing(t *testing.T) {
	t.Parallel()
	var got calls
	b := newKafkaBed(t, func(_ context.Context, ev *Event) error {
		got.add(ev)
		return nil
	})
	keys := numbered(1000)
	ids := b.rows(outbox.Sent, keys...)
	b.produce(ids, keys)
	ctx, stop := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- b.c.Run(ctx) }()
	pgtest.Eventually(t, "all to be consumed", func() bool { return len(got.all()) == len(keys) },
		func() string { return fmt.Sprintf("%d of %d: %+v", len(got.all()), len(keys), b.c.Health()) })
	stop()
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		b.want(id, consumed(1))
	}
	committed, ends := b.offsets()
	for p, end := range ends {
		if committed[p] != end {
			t.Errorf("partition %d: offset %d is committed, the log ends at %d", p, committed[p], end)
		}
	}
}

// TestCopiesOfQuarantinedRecords are in the topic, under names that other tools
// know as well, after the rows.
func TestCopiesOfQuarantinedRecords(t *testing.T) {
	t.Parallel()
	dlq := kafkatest.Name(t)
	b := newKafkaBed(t, func(context.Context, *Event) error { return nil }, Quarantine(dlq), QuarantineHeaders(SpringNames))
	kafkatest.Create(t, b.broker, dlq, 1, nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(b.broker), kgo.DefaultProduceTopic(b.topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	bad := &kgo.Record{Key: []byte("k\x00"), Value: []byte("v\xff"), Headers: []kgo.RecordHeader{{Key: "other", Value: []byte("h")}}}
	if err := client.ProduceSync(t.Context(), bad).FirstErr(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() { gone <- b.c.Run(ctx) }()
	var copies []*kgo.Record
	pgtest.Eventually(t, "the copy", func() bool {
		copies = kafkatest.ReadAll(t, b.broker, dlq)
		return len(copies) > 0
	}, b.state)
	stop()
	if err := <-gone; err != nil {
		t.Fatal(err)
	}
	if len(copies) != 1 || string(copies[0].Key) != "k\x00" || string(copies[0].Value) != "v\xff" {
		t.Fatalf("copies %v, want one, byte for byte", copies)
	}
	got := map[string]string{}
	for _, h := range copies[0].Headers {
		got[h.Key] = string(h.Value)
	}
	place := binary.BigEndian.AppendUint32(nil, uint32(bad.Partition))
	for name, want := range map[string]string{
		"other": "h", "cdcr-orig-topic": b.topic, "cdcr-error-code": "NO_EVENT_ID", "kafka_dlt-original-topic": b.topic,
		"kafka_dlt-original-partition": string(place), "kafka_dlt-exception-fqcn": "NO_EVENT_ID", "kafka_dlt-original-consumer-group": b.topic,
	} {
		if got[name] != want {
			t.Errorf("header %s: %q, want %q", name, got[name], want)
		}
	}
	if got["kafka_dlt-exception-message"] == "" {
		t.Error("the copy has no sentence about what is wrong")
	}
}
