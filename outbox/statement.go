package outbox

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// columns are those that a Writer fills, in the order of the statement.
var columns = []string{
	"event_id", "aggregate_type", "aggregate_id", "event_type", "headers", "content_type", "topic", "priority",
	"next_attempt_at", "payload",
}

// insertStatement is the same for one event and for many: a list of VALUES
// would end at 65,535 parameters and be another statement to prepare for each
// number of events. unnest yields its rows in the order of the arrays, and
// nothing between it and the table puts them into another one.
//
// The payloads come as one value, from which each row cuts its own: every
// driver sends bytes as they are, but not every one knows arrays of bytes.
func insertStatement(table pgx.Identifier, names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = pgx.Identifier{name}.Sanitize()
	}
	return `INSERT INTO ` + table.Sanitize() + ` (` + strings.Join(quoted, ", ") + `)
SELECT e.event_id, e.aggregate_type, e.aggregate_id, e.event_type, e.headers, e.content_type, e.topic, e.priority,
       e.next_attempt_at, substring($12::bytea FROM e.payload_start FOR e.payload_length)
  FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::jsonb[], $6::text[], $7::text[], $8::smallint[],
              $9::timestamptz[], $10::integer[], $11::integer[])
    AS e(event_id, aggregate_type, aggregate_id, event_type, headers, content_type, topic, priority,
         next_attempt_at, payload_start, payload_length)`
}

// rows collects the parameters of the statement.
type rows struct {
	eventID, aggregateType, aggregateID, eventType, headers array
	contentType, topic, priority, notBefore, start, length  array

	payloads []byte
}

func newRows(events []Event) *rows {
	size := 0
	for i := range events {
		size += len(events[i].Payload)
	}
	// Never nil: a driver would send NULL, and an empty payload cut from it
	// would be a tombstone.
	return &rows{payloads: make([]byte, 0, size)}
}

const defaultContentType = "application/json" // the table's default too

// add appends a valid event with its id and its encoded headers.
func (r *rows) add(id ID, e *Event, headers string) {
	r.eventID.addText(id.String())
	r.aggregateType.addText(e.AggregateType)
	r.aggregateID.addText(e.AggregateID)
	r.eventType.addText(e.EventType)
	r.headers.addText(headers)
	r.contentType.addText(cmp.Or(e.ContentType, defaultContentType))
	if e.Topic == "" {
		r.topic.addNull()
	} else {
		r.topic.addText(e.Topic)
	}
	r.priority.addInt(int(e.Priority))
	if e.NotBefore.IsZero() {
		r.notBefore.addNull()
	} else {
		r.notBefore.addText(roundUp(e.NotBefore).Format(time.RFC3339Nano))
	}
	r.addPayload(e)
}

func (r *rows) addPayload(e *Event) {
	r.start.addInt(len(r.payloads) + 1) // SQL counts from 1
	if e.Tombstone {
		r.length.addNull()
		return
	}
	r.length.addInt(len(e.Payload))
	r.payloads = append(r.payloads, e.Payload...)
}

// args returns the parameters in their order, as strings and bytes: types
// that every driver takes.
func (r *rows) args() []any {
	return []any{
		r.eventID.literal(), r.aggregateType.literal(), r.aggregateID.literal(), r.eventType.literal(),
		r.headers.literal(), r.contentType.literal(), r.topic.literal(), r.priority.literal(), r.notBefore.literal(),
		r.start.literal(), r.length.literal(), r.payloads,
	}
}

// array writes a PostgreSQL array of one dimension in its text form.
type array struct {
	elements []byte
}

func (a *array) literal() string { return "{" + string(a.elements) + "}" }

func (a *array) addNull() { a.elements = append(a.next(), "NULL"...) }

func (a *array) addInt(i int) { a.elements = strconv.AppendInt(a.next(), int64(i), 10) }

// addText appends s in quotes, so that nothing in it means anything.
func (a *array) addText(s string) {
	buf := append(a.next(), '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			buf = append(buf, '\\')
		}
		buf = append(buf, s[i])
	}
	a.elements = append(buf, '"')
}

// next returns the elements, ready for one more.
func (a *array) next() []byte {
	if len(a.elements) == 0 {
		return a.elements
	}
	return append(a.elements, ',')
}
