package operate

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// Locator looks for the records of events in Kafka. Not safe for concurrent use.
type Locator struct {
	log    logReader
	format *record.Format
	most   int64 // records to read for one event
	// mostScan is how many records to read to verify many.
	mostScan int64
}

// maxLocate bounds how many records one search reads.
const maxLocate = 200_000

// NewLocator returns a Locator; format is that of the relay. It does no I/O.
func NewLocator(client *kafka.Client, format *record.Format) *Locator {
	return &Locator{log: logReader{client}, format: format, most: maxLocate, mostScan: maxScan}
}

// Location is where an event's records are in Kafka.
type Location struct {
	Topic     string
	Partition int32     // where its key belongs; -1 if the topic is not there
	Records   []Located // by offset; more than one after a repetition
	// Searched are the runs of offsets that were read, Read how many records
	// they had.
	Searched []Offsets
	Read     int64
	// Note says what else a person should know; "" if nothing.
	Note string
}

// Located is a record of the event.
type Located struct {
	Offset    int64     `json:"offset"`
	Timestamp time.Time `json:"timestamp"`
}

// slack is how far the clocks of database, relay and brokers may be apart.
const slack = 5 * time.Minute

// span is a time in which the record may have been written.
type span struct{ from, to time.Time }

// spans are where to search, the likeliest first: around the time of SENT, then
// from the creation on: a record may carry that time, or have waited for long
// in a batch that the broker did not answer.
func spans(d *Detail) []span {
	to := d.At.Add(slack)
	if d.SentAt.Finite() {
		to = d.SentAt.Time.Add(slack)
	}
	from := to.Add(-2 * slack)
	list := []span{{from, to}}
	if d.CreatedAt.Finite() && d.CreatedAt.Time.Add(-slack).Before(from) {
		list = append(list, span{d.CreatedAt.Time.Add(-slack), from})
	}
	return list
}

// Locate computes topic and partition of an event and searches there.
func (l *Locator) Locate(ctx context.Context, d *Detail) (*Location, error) {
	where := &Location{Topic: d.Topic, Partition: -1}
	present, err := Partitions(ctx, l.log.client, []string{d.Topic})
	if err != nil {
		return nil, fmt.Errorf("asking Kafka about topic %s: %w", d.Topic, err)
	}
	count := int(d.Pinned.Partitions)
	switch {
	case present[d.Topic] == 0:
		where.Note = "Kafka has no such topic, or this login may not see it"
		return where, nil
	case count == 0:
		count = present[d.Topic]
	}
	if where.Partition, err = l.partition(d.AggregateType, d.AggregateID, int32(count)); err != nil {
		return nil, err
	}
	if d.SentAt.Finite() && d.Pinned.ChangedAt.After(d.SentAt.Time) {
		where.Note = "the topic was repinned after this event was sent: it may be in another partition"
	}
	for _, s := range spans(d) {
		if err := l.search(ctx, d, where, s); err != nil {
			return nil, fmt.Errorf("searching topic %s, partition %d: %w", where.Topic, where.Partition, err)
		}
		if len(where.Records) > 0 {
			break
		}
	}
	if where.Read >= l.most {
		where.Note = fmt.Sprintf("the search ended after %d records", where.Read)
	}
	return where, nil
}

// partition is where the relay puts the key of an aggregate, of so many.
func (l *Locator) partition(aggregateType, aggregateID string, count int32) (int32, error) {
	e := event.Event{AggregateID: []byte(aggregateID), AggregateType: []byte(aggregateType), Payload: []byte{}}
	r, failure := l.format.Record(&e, 0)
	if failure != nil {
		return 0, fmt.Errorf("computing the partition: %s", failure.Message)
	}
	return l.format.Partition(r, count), nil
}

// search reads what was written within a span.
func (l *Locator) search(ctx context.Context, d *Detail, where *Location, s span) error {
	from, found, err := l.log.offsetAt(ctx, where.Topic, where.Partition, s.from)
	if err != nil || !found {
		return err
	}
	to, found, err := l.log.offsetAt(ctx, where.Topic, where.Partition, s.to)
	if err != nil {
		return err
	}
	if !found {
		to = endOfLog
	}
	end, err := l.scan(ctx, d, where, Offsets{from, to})
	where.Searched = append(where.Searched, Offsets{from, end})
	return err
}

// scan keeps the records of the event. It returns the offset that it came to.
func (l *Locator) scan(ctx context.Context, d *Detail, where *Location, run Offsets) (at int64, err error) {
	at, read, err := l.log.read(ctx, where.Topic, where.Partition, run, l.most-where.Read, func(r *kafka.Record) {
		if isRecordOf(d, r.Headers) {
			where.Records = append(where.Records, Located{r.Offset, r.Time.UTC()})
		}
	})
	where.Read += read
	return at, err
}

// eventIDHeaders carry the event id, each in one preset of headers.
var eventIDHeaders = []string{"ce_id", "id", "event-id"}

// isRecordOf goes by both ids: a failover may use the row's again, and a header
// of the application may hold the event id of another event.
func isRecordOf(d *Detail, headers []kafka.Header) bool {
	row, id := strconv.FormatInt(d.ID, 10), d.EventID.String()
	var isRow, isEvent bool
	for _, h := range headers {
		isRow = isRow || h.Key == "cdcr-id" && string(h.Value) == row
		isEvent = isEvent || string(h.Value) == id && slices.Contains(eventIDHeaders, h.Key)
	}
	return isRow && isEvent
}
