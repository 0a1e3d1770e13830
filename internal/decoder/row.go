package decoder

import (
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Field describes a column of a query's result.
type Field struct {
	Name   string
	OID    uint32 // of its type
	Binary bool   // how its values come, else as text
}

// Row decodes rows of the outbox table that a query has returned, by the rules
// for those of the stream. It is safe for concurrent use.
type Row struct {
	columns []column
	binary  []bool
}

// NewRow finds the columns of the outbox table among fields; names are as in
// Config.Columns.
func NewRow(fields []Field, names map[string]string) (*Row, error) {
	r := &Row{columns: make([]column, len(fields)), binary: make([]bool, len(fields))}
	for i, f := range fields {
		r.columns[i] = column{name: f.Name, oid: f.OID}
		r.binary[i] = f.Binary
	}
	if err := assign(r.columns, names); err != nil {
		return nil, fmt.Errorf("reading the columns of the outbox table: %w", err)
	}
	return r, nil
}

// Decode reads the values of one row, nil for NULL and else as many as there
// are fields, into e. The event's slices then point into values. Its time of
// creation, where the table has none, is left as it is.
func (r *Row) Decode(values [][]byte, e *event.Event) error {
	e.ContentType = defaultContentType
	size := 0
	for i := range r.columns {
		c := &r.columns[i]
		if c.field == fieldNone {
			continue
		}
		n, err := 0, error(nil)
		if values[i] == nil {
			err = null(c, e)
		} else {
			n, err = set(c, r.binary[i], values[i], e)
		}
		if err != nil {
			return fmt.Errorf("decoding a row: column %q: %w", c.name, err)
		}
		size += n
	}
	e.Bytes = int32(size) // a row has less than 1 GiB
	return nil
}
