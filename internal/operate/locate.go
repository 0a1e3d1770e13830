package operate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// Locator looks for the records of events in Kafka. Not safe for concurrent use.
type Locator struct {
	client *kafka.Client
	format *record.Format
	most   int64 // records to read
}

// maxLocate bounds how many records one search reads.
const maxLocate = 200_000

// NewLocator returns a Locator; format is that of the relay. It does no I/O.
func NewLocator(client *kafka.Client, format *record.Format) *Locator {
	return &Locator{client: client, format: format, most: maxLocate}
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

// Offsets are from the first to before the second.
type Offsets struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
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
	present, err := Partitions(ctx, l.client, []string{d.Topic})
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
	if where.Partition, err = l.partition(d, int32(count)); err != nil {
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

// partition is where the relay puts the key.
func (l *Locator) partition(d *Detail, count int32) (int32, error) {
	e := event.Event{EventID: d.EventID, AggregateID: []byte(d.AggregateID), AggregateType: []byte(d.AggregateType), Payload: []byte{}}
	r, failure := l.format.Record(&e, 0)
	if failure != nil {
		return 0, fmt.Errorf("computing the partition: %s", failure.Message)
	}
	return l.format.Partition(r, count), nil
}

// search reads what was written within a span.
func (l *Locator) search(ctx context.Context, d *Detail, where *Location, s span) error {
	from, found, err := l.offsetAt(ctx, where, s.from)
	if err != nil || !found {
		return err
	}
	to, found, err := l.offsetAt(ctx, where, s.to)
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

// endOfLog stands for an end that is not known: what is written meanwhile is not
// waited for.
const endOfLog = 1<<63 - 1

// offsetAt is the first offset whose record is of that time or later. Not found:
// there is none.
func (l *Locator) offsetAt(ctx context.Context, where *Location, at time.Time) (offset int64, found bool, err error) {
	answer, err := l.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{where.Topic: {kafka.TimeOffsetOf(int(where.Partition), at)}},
	})
	if err != nil {
		return 0, false, err
	}
	for _, p := range answer.Topics[where.Topic] {
		if p.Error != nil {
			return 0, false, p.Error
		}
		for offset := range p.Offsets {
			if offset >= 0 {
				return offset, true, nil
			}
		}
	}
	return 0, false, nil
}

// How much one request fetches, and how long the broker may wait with its
// answer when there is nothing.
const (
	fetchBytes = 4 << 20
	fetchWait  = time.Second
)

// scan reads records and keeps those of the event. It returns the offset that it
// came to.
func (l *Locator) scan(ctx context.Context, d *Detail, where *Location, run Offsets) (at int64, err error) {
	at = run.From
	for at < run.To && where.Read < l.most {
		answer, err := l.client.Fetch(ctx, &kafka.FetchRequest{
			Topic: where.Topic, Partition: int(where.Partition), Offset: at,
			MinBytes: 1, MaxBytes: fetchBytes, MaxWait: fetchWait,
		})
		if err == nil {
			err = answer.Error
		}
		if err != nil {
			return at, err
		}
		if run.To = min(run.To, answer.HighWatermark); at >= run.To {
			return at, nil
		}
		next, err := l.readRecords(d, where, answer.Records, Offsets{at, run.To})
		if err != nil {
			return at, err
		}
		at = max(next, at+1) // also over a batch without a record
	}
	return min(at, run.To), nil
}

// readRecords reads one answer, and returns the offset after its last record.
func (l *Locator) readRecords(d *Detail, where *Location, records kafka.RecordReader, run Offsets) (next int64, err error) {
	next = run.From
	for {
		r, err := records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return next, nil
		}
		if err != nil {
			return next, err
		}
		next = r.Offset + 1
		if r.Offset >= run.From && r.Offset < run.To { // batches come whole
			where.Read++
			if isRecordOf(d, r.Headers) {
				where.Records = append(where.Records, Located{r.Offset, r.Time.UTC()})
			}
		}
		for _, b := range []kafka.Bytes{r.Key, r.Value} {
			if b != nil {
				b.Close()
			}
		}
	}
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
