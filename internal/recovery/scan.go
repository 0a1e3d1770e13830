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
	rows  pgx.Rows
	names map[string]string
	own   int
	dest  []any        // for the own columns, then nil for each one of the table
	row   *decoder.Row // nil before the first row
}

func newScanner(rows pgx.Rows, names map[string]string, own ...any) *scanner {
	return &scanner{rows: rows, names: names, own: len(own), dest: own}
}

// next moves to the next row and reads the statement's own columns of it.
func (s *scanner) next() (more bool, err error) {
	if !s.rows.Next() {
		return false, s.rows.Err()
	}
	if s.row == nil {
		if err := s.describe(); err != nil {
			return false, err
		}
	}
	return true, s.rows.Scan(s.dest...)
}

func (s *scanner) describe() (err error) {
	described := s.rows.FieldDescriptions()[s.own:]
	fields := make([]decoder.Field, len(described))
	for i, d := range described {
		fields[i] = decoder.Field{Name: d.Name, OID: d.DataTypeOID, Binary: d.Format == pgx.BinaryFormatCode}
	}
	if s.row, err = decoder.NewRow(fields, s.names); err != nil {
		return unreadable(err)
	}
	s.dest = append(s.dest, make([]any, len(fields))...)
	return nil
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
