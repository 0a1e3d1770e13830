package consumerbed

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/consumer/tables"
	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
	"github.com/cdc-relay/cdc-relay/examples/notification/templates"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Event is an event of a test.
type Event struct {
	RowID   int64
	ID      outbox.ID
	Key     string // the aggregate's id
	Payload []byte
	check.Place
}

// Spec says what event to make.
type Spec struct {
	Partition int
	Key       string // of the record; "k" and the number of the event if empty
	// Payload makes the payload; a sealed notice if it is nil.
	Payload func(outbox.ID) []byte
	// Unsent rows are READY: the relay's write-back has not come yet.
	Unsent bool
}

// Put makes events as the relay leaves them: a row that is SENT, and its record.
func (b *Bed) Put(specs ...Spec) []Event {
	b.t.Helper()
	events := b.Insert(specs...)
	b.Publish(events)
	return events
}

// Insert makes the rows alone. A consumer with a database of its own has none.
func (b *Bed) Insert(specs ...Spec) []Event {
	b.t.Helper()
	events := make([]Event, len(specs))
	for i, s := range specs {
		events[i] = b.event(i, s)
	}
	if b.cfg.Mode != consumerproc.Transaction {
		b.insert(events, specs)
	}
	return events
}

// event is the i-th event of those that are made together.
func (b *Bed) event(i int, s Spec) Event {
	b.t.Helper()
	e := Event{RowID: int64(i + 1), ID: outbox.NewID(), Key: orElse(s.Key, fmt.Sprint("k", i))}
	if s.Payload != nil {
		e.Payload = s.Payload(e.ID)
	} else {
		e.Payload = b.notice(e.ID)
	}
	e.Place = check.Place{PartitionName: b.Partition(s.Partition), Offset: -1}
	return e
}

func (b *Bed) insert(events []Event, specs []Spec) {
	b.t.Helper()
	n := len(events)
	ids, keys, payloads, sent := make([]outbox.ID, n), make([]string, n), make([][]byte, n), make([]bool, n)
	for i, e := range events {
		ids[i], keys[i], payloads[i], sent[i] = e.ID, e.Key, e.Payload, !specs[i].Unsent
	}
	rows := scan(b, pgx.RowTo[int64], `INSERT INTO public.outbox (event_id, aggregate_type, aggregate_id, event_type, payload, send_status, sent_at)
		SELECT id, 'user', key, 'user.registered', payload, CASE WHEN sent THEN 2 ELSE 0 END, CASE WHEN sent THEN clock_timestamp() END
		FROM unnest($1::uuid[], $2::text[], $3::bytea[], $4::bool[]) v(id, key, payload, sent) RETURNING id`, ids, keys, payloads, sent)
	for i, id := range rows {
		events[i].RowID = id
	}
}

// notice is a payload that the notification service understands.
func (b *Bed) notice(id outbox.ID) []byte {
	b.t.Helper()
	ring, err := notice.ParseRing(consumerproc.Keys)
	if err != nil {
		b.t.Fatal(err)
	}
	payload, err := ring.Seal(id, notice.Notice{Purpose: consumerproc.Purpose, Template: templates.Current, Locale: "en",
		To: "reader@example.com", Token: "a token", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		b.t.Fatal(err)
	}
	return payload
}

// Publish makes a record of each event and notes its place.
func (b *Bed) Publish(events []Event) {
	b.t.Helper()
	records := make([]*kgo.Record, len(events))
	for i, e := range events {
		records[i] = e.Record()
	}
	b.Produce(records...)
	for i := range events {
		events[i].Offset = records[i].Offset
	}
}

// Produce appends records of the test's own making.
func (b *Bed) Produce(records ...*kgo.Record) {
	b.t.Helper()
	if err := b.Admin.Produce(b.t.Context(), records...); err != nil {
		b.t.Fatal(err)
	}
}

// Event is the event of a row that somebody else wrote; its place is not known.
func (b *Bed) Event(rowID int64) Event {
	b.t.Helper()
	ids := scan(b, pgx.RowTo[outbox.ID], `SELECT event_id FROM public.outbox WHERE id = $1`, rowID)
	if len(ids) != 1 {
		b.t.Fatalf("there is no row %d", rowID)
	}
	return Event{RowID: rowID, ID: ids[0]}
}

// Find is Event with the place of its first record.
func (b *Bed) Find(rowID int64) Event {
	b.t.Helper()
	ev := b.Event(rowID)
	for _, d := range b.deliveries() {
		if d.EventID == ev.ID {
			ev.Place = d.Place
			return ev
		}
	}
	b.t.Fatalf("event %s has no record", ev.ID)
	return ev
}

// Records is how many records the topics hold.
func (b *Bed) Records() int {
	b.t.Helper()
	return len(b.deliveries())
}

func (b *Bed) deliveries() []check.Delivery {
	b.t.Helper()
	all, err := b.Admin.Deliveries(b.t.Context(), b.Topics...)
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

// Place is where a record lies that was produced.
func (b *Bed) Place(r *kgo.Record) check.Place {
	return check.Place{PartitionName: check.PartitionName{Topic: r.Topic, Number: r.Partition}, Offset: r.Offset}
}

// WantStored compares a record with what the quarantine has of it.
func (b *Bed) WantStored(what string, r *kgo.Record) {
	b.t.Helper()
	type stored struct {
		Key, Value []byte
		Headers    []tables.Header
		Seen       int
	}
	want := stored{Key: r.Key, Value: r.Value, Headers: make([]tables.Header, len(r.Headers)), Seen: 1}
	for i, h := range r.Headers {
		want.Headers[i] = tables.Header{Name: h.Key, Value: h.Value}
	}
	var got stored
	for _, s := range scan(b, func(row pgx.CollectableRow) (s stored, err error) {
		var packed []byte
		if err := row.Scan(&s.Key, &s.Value, &packed, &s.Seen); err != nil {
			return s, err
		}
		s.Headers, err = tables.DecodeHeaders(packed)
		return s, err
	}, `SELECT record_key, record_value, record_headers, seen FROM public.outbox_quarantine WHERE topic = $1 AND partition = $2 AND "offset" = $3`,
		r.Topic, r.Partition, r.Offset) {
		got = s
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		b.t.Errorf("%s in the quarantine (-want +got):\n%s", what, d)
	}
}

// Record is the record of an event in the form of cloudevents, with the headers
// that package record of the relay's sink writes, in its order.
func (e Event) Record() *kgo.Record {
	return &kgo.Record{
		Topic: e.Topic, Partition: e.Number, Key: []byte(e.Key), Value: e.Payload, Timestamp: time.Now(),
		Headers: headers(
			"ce_specversion", "1.0", "ce_id", e.ID.String(), "ce_source", "/e2e", "ce_type", "user.registered", "ce_subject", e.Key,
			"ce_time", time.Now().UTC().Format("2006-01-02T15:04:05.000000Z"), "content-type", "application/json", "ce_aggregatetype", "user",
			"cdcr-id", strconv.FormatInt(e.RowID, 10), "cdcr-attempt", "1"),
	}
}

func headers(pairs ...string) (all []kgo.RecordHeader) {
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, kgo.RecordHeader{Key: pair[0], Value: []byte(pair[1])})
	}
	return all
}

// SetHeader replaces a header of a record, or removes it if there are no values.
func SetHeader(r *kgo.Record, name string, values ...string) {
	r.Headers = slices.DeleteFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == name })
	for _, v := range values {
		r.Headers = append(r.Headers, headers(name, v)...)
	}
}
