package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/tables"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// QuarantineState is where a quarantined record is; it is part of the JSON
// contract.
type QuarantineState string

const (
	QuarantineOpen    QuarantineState = "open"
	QuarantineAsked   QuarantineState = "retry" // a person asks for another try
	QuarantineRetried QuarantineState = "retried"
	QuarantineDropped QuarantineState = "dropped"
)

var quarantineStates = []QuarantineState{QuarantineOpen, QuarantineAsked, QuarantineRetried, QuarantineDropped}

// ParseQuarantineState reads the name of a state.
func ParseQuarantineState(name string) (QuarantineState, error) {
	if s := QuarantineState(strings.ToLower(name)); slices.Contains(quarantineStates, s) {
		return s, nil
	}
	return "", fmt.Errorf("status %q is unknown; use one of open, retry, retried, dropped", name)
}

// Quarantined is a record that a consumer could not handle, without its bytes.
type Quarantined struct {
	ID         int64
	Consumer   string
	Topic      string
	Partition  int32
	Offset     int64
	RecordTime Moment
	EventID    string // "" if the record has none that can be read
	OutboxID   int64  // 0 if the record names no row
	Code       string
	Message    string
	KeyBytes   int64 // -1: null
	ValueBytes int64 // -1: null
	Seen       int32
	CreatedAt  Moment
	State      QuarantineState
	// ResolvedBy and ResolvedReason are of the person who asked for a retry or
	// gave the record up.
	ResolvedAt     Moment
	ResolvedBy     string
	ResolvedReason string
}

const quarantineColumns = `q.id, q.consumer, q.topic, q.partition, q."offset", q.record_time, coalesce(q.event_id::text, ''),
  coalesce(q.outbox_id, 0), q.reason, q.message, coalesce(octet_length(q.record_key), -1), coalesce(octet_length(q.record_value), -1),
  q.seen, q.created_at, coalesce(q.resolution, 'open'), q.resolved_at, coalesce(q.resolved_by, ''), coalesce(q.resolved_reason, '')`

func (r *Quarantined) dest() []any {
	return []any{&r.ID, &r.Consumer, &r.Topic, &r.Partition, &r.Offset, &r.RecordTime, &r.EventID, &r.OutboxID, &r.Code, &r.Message,
		&r.KeyBytes, &r.ValueBytes, &r.Seen, &r.CreatedAt, &r.State, &r.ResolvedAt, &r.ResolvedBy, &r.ResolvedReason}
}

func (r *Quarantined) result() KitResult {
	return KitResult{ID: r.ID, EventID: r.EventID, Status: string(r.State), Code: r.Code}
}

// QuarantineFilter picks quarantined records: those for which everything that
// is set holds.
type QuarantineFilter struct {
	// IDs and EventIDs name records; one that is in either is picked.
	IDs      []int64
	EventIDs []outbox.ID

	Consumer  string
	Topic     string
	Partition int32 // -1: any
	Code      string
	States    []QuarantineState // empty: any
	// Since (inclusive) and Until (exclusive) bound the time when the record was
	// quarantined; zero is no bound.
	Since, Until time.Time

	// Limit is how many records to return; it must be set. After is the id at
	// which the page before ended.
	Limit int
	After int64
}

// Named reports whether the filter does nothing but name records.
func (f QuarantineFilter) Named() bool { return len(f.IDs)+len(f.EventIDs) > 0 && !f.narrows() }

// Empty reports whether nothing but states is said about which ones to pick.
func (f QuarantineFilter) Empty() bool { return len(f.IDs)+len(f.EventIDs) == 0 && !f.narrows() }

func (f QuarantineFilter) narrows() bool { return len(f.conditions().flags) > 0 }

// Validate says what about the filter makes no sense.
func (f QuarantineFilter) Validate() error {
	if f.After < 0 {
		return errors.New("--after must be the id that a list ended with")
	}
	if f.Partition < -1 {
		return errors.New("--partition must be 0 or more, or -1 for any")
	}
	return validate(f.Limit, f.Since, f.Until, []text{{"consumer", f.Consumer}, {"topic", f.Topic}, {"error-code", f.Code}})
}

// String is the filter as flags, for the audit.
func (f QuarantineFilter) String() string {
	c := f.conditions()
	for _, id := range f.IDs {
		c.flag("id", strconv.FormatInt(id, 10))
	}
	for _, id := range f.EventIDs {
		c.flag("event-id", id.String())
	}
	for _, s := range f.States {
		c.flag("status", string(s))
	}
	return strings.Join(c.flags, " ")
}

// conditions are those on columns, but for ids and states.
func (f QuarantineFilter) conditions() *kitConditions {
	c := &kitConditions{}
	c.text("consumer", "q.consumer", f.Consumer)
	c.text("topic", "q.topic", f.Topic)
	if f.Partition >= 0 {
		c.add("partition", strconv.Itoa(int(f.Partition)), "q.partition = %s::integer", f.Partition)
	}
	c.text("error-code", "q.reason", f.Code)
	c.times("q.created_at", f.Since, f.Until)
	if f.After > 0 {
		c.add("after", strconv.FormatInt(f.After, 10), "q.id > %s::bigint", f.After)
	}
	return c
}

// where is the filter as the end of a statement, in order and limited.
func (f QuarantineFilter) where(limit int) (string, []any) {
	c := f.conditions()
	if len(f.IDs)+len(f.EventIDs) > 0 {
		c.where = append(c.where, fmt.Sprintf("(q.id = ANY (%s::bigint[]) OR q.event_id = ANY (%s::text[]::uuid[]))",
			c.bind(notNil(f.IDs)), c.bind(eventTexts(f.EventIDs))))
	}
	if len(f.States) > 0 {
		c.where = append(c.where, fmt.Sprintf("coalesce(q.resolution, 'open') = ANY (%s::text[])", c.bind(f.States)))
		if !slices.Contains(f.States, QuarantineRetried) && !slices.Contains(f.States, QuarantineDropped) {
			c.where = append(c.where, "q.resolved_at IS NULL") // for the partial index
		}
	}
	return c.end("{quarantine} q", "q.id", limit), c.args
}

// QuarantineList is the answer to a filter, the oldest first.
type QuarantineList struct {
	At   time.Time // by the clock of the database
	Rows []Quarantined
	// After is the id to go on after, 0 if there are no more.
	After int64
}

// Quarantined lists records.
func (k *Kit) Quarantined(ctx context.Context, f QuarantineFilter) (*QuarantineList, error) {
	at, err := timeOf(ctx, k.conn)
	if err != nil {
		return nil, err
	}
	where, args := f.where(f.Limit + 1)
	rows, err := k.quarantined(ctx, k.conn, where, args)
	if err != nil {
		return nil, err
	}
	list := &QuarantineList{At: at, Rows: rows}
	if len(rows) > f.Limit {
		list.Rows = rows[:f.Limit]
		list.After = list.Rows[f.Limit-1].ID
	}
	return list, nil
}

// quarantined reads records by the end of a statement.
func (k *Kit) quarantined(ctx context.Context, db querier, where string, args []any) (list []Quarantined, err error) {
	rows, err := db.Query(ctx, k.sql("SELECT "+quarantineColumns+where), args...)
	if err == nil {
		list, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (row Quarantined, err error) {
			err = r.Scan(row.dest()...)
			return row, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("reading quarantined records: %w", k.explain(err))
	}
	return list, nil
}

// QuarantineDetail is all that is known of a quarantined record.
type QuarantineDetail struct {
	At time.Time // by the clock of the database
	Quarantined
	Headers []tables.Header
	// HeadersUnreadable tells that the stored headers cannot be decoded.
	HeadersUnreadable bool
	Key, Value        []byte // nil: null
}

// ErrNotQuarantined says that there is no such record.
var ErrNotQuarantined = errors.New("there is no such record in the quarantine; cdc-relay quarantine list shows those that are open")

// ShowQuarantined returns what is known of one record.
func (k *Kit) ShowQuarantined(ctx context.Context, id int64) (*QuarantineDetail, error) {
	d := &QuarantineDetail{}
	var headers []byte
	sql := "SELECT " + quarantineColumns + ", clock_timestamp(), q.record_headers, q.record_key, q.record_value FROM {quarantine} q WHERE q.id = $1"
	err := k.conn.QueryRow(ctx, k.sql(sql), id).Scan(append(d.dest(), &d.At, &headers, &d.Key, &d.Value)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, ErrNotQuarantined
	}
	if err != nil {
		return nil, fmt.Errorf("reading a quarantined record: %w", k.explain(err))
	}
	d.At = d.At.UTC()
	d.Headers, err = tables.DecodeHeaders(headers)
	d.HeadersUnreadable = err != nil
	return d, nil
}
