package operate

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// log is a topic with three partitions and what is needed to search it.
type log struct {
	addr    string
	topic   string
	locator *Locator
}

func newLog(t *testing.T, configs map[string]string) *log {
	t.Helper()
	l := &log{addr: kafkatest.Broker(t), topic: kafkatest.Name(t)}
	kafkatest.Create(t, l.addr, l.topic, 3, configs)
	l.locator = newLocator(t, l.addr)
	return l
}

func newLocator(t *testing.T, addr string) *Locator {
	t.Helper()
	format, err := record.NewFormat(record.Config{TopicTemplate: "t", Partitioner: record.Murmur2, Headers: record.CloudEvents, Source: "/s"})
	if err != nil {
		t.Fatal(err)
	}
	transport := &kafka.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return NewLocator(&kafka.Client{Addr: kafka.TCP(addr), Transport: transport}, format)
}

// write writes records as they are, compressed.
func (l *log) write(t *testing.T, records ...*kgo.Record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(l.addr), kgo.DefaultProduceTopic(l.topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.ZstdCompression()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// eventAt is a record of the relay's.
func eventAt(partition int32, at time.Time, id int64, event outbox.ID) *kgo.Record {
	return &kgo.Record{Partition: partition, Timestamp: at, Key: []byte("key"), Value: []byte("value"), Headers: []kgo.RecordHeader{
		{Key: "ce_id", Value: []byte(event.String())}, {Key: "cdcr-id", Value: fmt.Append(nil, id)},
	}}
}

func (l *log) detail(sent time.Time) *Detail {
	return &Detail{At: time.Now(), Pinned: Pinned{Partitions: 3}, Row: Row{
		ID: 5, EventID: outbox.ID{15: 5}, AggregateID: "key", Topic: l.topic, CreatedAt: moment(sent.Add(-time.Second)), SentAt: moment(sent),
	}}
}

func (l *log) partition(t *testing.T, d *Detail) int32 {
	t.Helper()
	partition, err := l.locator.partition(d.AggregateType, d.AggregateID, 3)
	if err != nil {
		t.Fatal(err)
	}
	return partition
}

func (l *log) locate(t *testing.T, d *Detail) *Location {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	where, err := l.locator.Locate(ctx, d)
	if err != nil {
		t.Fatal(err)
	}
	return where
}

func offsets(where *Location) []int64 {
	var list []int64
	for _, r := range where.Records {
		list = append(list, r.Offset)
	}
	return list
}

func TestLocate(t *testing.T) {
	t.Parallel()
	l := newLog(t, nil)
	sent := time.Now().Add(-24 * time.Hour).Truncate(time.Millisecond)
	d := l.detail(sent)
	partition := l.partition(t, d)
	if java := record.Murmur2.Partition([]byte("key"), 3); partition != java {
		t.Fatalf("partition %d, want %d", partition, java)
	}
	other := outbox.ID{15: 6}
	var records []*kgo.Record
	for i := range 300 { // a record every minute, from four hours before
		records = append(records, eventAt(partition, sent.Add(time.Duration(i-240)*time.Minute), 1000+int64(i), other))
	}
	records[100] = eventAt(partition, sent.Add(-140*time.Minute), d.ID, d.EventID) // long before it was sent
	records[239] = eventAt(partition, sent.Add(-time.Minute), d.ID, other)         // an id used again
	records[240] = eventAt(partition, sent, d.ID, d.EventID)
	records[241] = eventAt(partition, sent.Add(time.Minute), 1, d.EventID) // a header of the application
	records[242] = eventAt(partition, sent.Add(2*time.Minute), d.ID, d.EventID)
	records = append(records, eventAt((partition+1)%3, sent, d.ID, d.EventID))
	l.write(t, records...)

	where := l.locate(t, d)
	want := &Location{Topic: l.topic, Partition: partition, Read: 10, Searched: []Offsets{{235, 245}},
		Records: []Located{{240, sent.UTC()}, {242, sent.Add(2 * time.Minute).UTC()}}}
	if diff := cmp.Diff(want, where); diff != "" {
		t.Errorf("around the time of SENT (-want +got):\n%s", diff)
	}

	// SENT hours after it was written: it is found from its creation on.
	late := l.detail(sent.Add(30 * time.Minute))
	late.CreatedAt = moment(sent.Add(-150 * time.Minute))
	where = l.locate(t, late)
	if diff := cmp.Diff([]Offsets{{265, 275}, {85, 265}}, where.Searched); diff != "" || where.Read != 190 || !cmp.Equal(offsets(where), []int64{100, 240, 242}) {
		t.Errorf("from the creation on: %+v\n%s", where, diff)
	}

	// Not SENT as far as the row knows: up to now.
	unsent := l.detail(sent)
	unsent.SentAt, unsent.EventID = Moment{}, outbox.ID{15: 99}
	where = l.locate(t, unsent)
	if diff := cmp.Diff([]Offsets{{235, 300}}, where.Searched); diff != "" || len(where.Records) > 0 {
		t.Errorf("not SENT: %+v\n%s", where, diff)
	}

	// Nothing is as late as that.
	if where = l.locate(t, l.detail(time.Now())); len(where.Searched) > 0 || len(where.Records) > 0 || where.Read > 0 {
		t.Errorf("after the last record: %+v", where)
	}

	d.Pinned.ChangedAt = moment(sent.Add(time.Hour))
	if where = l.locate(t, d); where.Note != "the topic was repinned after this event was sent: it may be in another partition" {
		t.Errorf("repinned: %+v", where)
	}
	d.Pinned = Pinned{}
	if where = l.locate(t, d); !cmp.Equal(offsets(where), []int64{240, 242}) {
		t.Errorf("not pinned: the partitions are those that Kafka has: %+v", where)
	}

	l.locator.most = 3
	if where = l.locate(t, d); where.Note != "the search ended after 10 records" || !cmp.Equal(offsets(where), []int64{240, 242}) {
		t.Errorf("bounded: %+v", where) // by whole answers
	}
}

// TestLocateManyRecords: more than one answer of the broker holds.
func TestLocateManyRecords(t *testing.T) {
	t.Parallel()
	l := newLog(t, nil)
	d := l.detail(time.Now())
	partition := l.partition(t, d)
	const count = 40
	for i := range count {
		r := eventAt(partition, time.Now(), d.ID, outbox.ID{15: byte(i)})
		r.Value = make([]byte, 300_000)
		rand.Read(r.Value) // never fails, and cannot be compressed
		l.write(t, r)
	}
	d.EventID = outbox.ID{15: count - 1}
	where := l.locate(t, d)
	if where.Read != count || !cmp.Equal(offsets(where), []int64{count - 1}) {
		t.Errorf("%+v", where)
	}
}

func TestLocateWithoutTopicOrBroker(t *testing.T) {
	t.Parallel()
	l := &log{addr: kafkatest.Broker(t), topic: kafkatest.Name(t)}
	l.locator = newLocator(t, l.addr)
	want := &Location{Topic: l.topic, Partition: -1, Note: "Kafka has no such topic, or this login may not see it"}
	if diff := cmp.Diff(want, l.locate(t, l.detail(time.Now()))); diff != "" {
		t.Errorf("no topic (-want +got):\n%s", diff)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := newLocator(t, "127.0.0.1:1").Locate(ctx, l.detail(time.Now()))
	if err == nil || !strings.Contains(err.Error(), "connection refused") || strings.Contains(err.Error(), "key") {
		t.Errorf("no broker: %v", err)
	}
}
