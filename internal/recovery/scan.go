package recovery

import (
	"bytes"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/decoder"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// scanner reads a result of some columns of the statement's own, followed by
// all columns of the outbox table, whichever it has.
type scanner struct {
	rows pgx.Rows
	dest []any // for the own columns, then nil for each one of the table
	own  int
	row  *decoder.Row
}

func newScanner(rows pgx.Rows, names map[string]string, own ...any) (*scanner, error) {
	described := rows.FieldDescriptions()
	if len(described) < len(own) {
		return nil, rows.Err() // the statement failed
	}
	fields := make([]decoder.Field, len(described)-len(own))
	for i, d := range described[len(own):] {
		fields[i] = decoder.Field{Name: d.Name, OID: d.DataTypeOID, Binary: d.Format == pgx.BinaryFormatCode}
	}
	row, err := decoder.NewRow(fields, names)
	if err != nil {
		return nil, unreadable(err)
	}
	return &scanner{rows: rows, dest: append(own, make([]any, len(fields))...), own: len(own), row: row}, nil
}

// next reads the statement's own columns of the next row.
func (s *scanner) next() (more bool, err error) {
	if !s.rows.Next() {
		return false, s.rows.Err()
	}
	return true, s.rows.Scan(s.dest...)
}

// event reads the table's columns of the row that next has moved to. The event
// owns its bytes.
func (s *scanner) event() (event.Event, error) {
	e := event.Event{CreatedAt: time.Now().UnixMicro()} // where the table does not say
	if err := s.row.Decode(s.rows.RawValues()[s.own:], &e); err != nil {
		return event.Event{}, unreadable(fmt.Errorf("row %d: %w", e.ID, err))
	}
	for _, b := range []*[]byte{
		&e.AggregateType, &e.AggregateID, &e.EventType, &e.ContentType, &e.Payload, &e.Headers, &e.Topic,
	} {
		*b = bytes.Clone(*b)
	}
	return e, nil
}

// unreadable is what the stream says of such a row, too.
func unreadable(err error) error {
	return &fault.Blocked{
		Reason: "table.columns",
		What:   err.Error(),
		Remedy: "correct the row or undo the change of the table, or map its columns with outbox.columns; nothing has been passed over",
		Err:    err,
	}
}

// parseLSN reads a position; NULL is 0.
func parseLSN(text *string) (pglogrepl.LSN, error) {
	if text == nil {
		return 0, nil
	}
	return pglogrepl.ParseLSN(*text)
}
