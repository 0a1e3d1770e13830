package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"github.com/jackc/pgx/v5"
)

// Writer adds events to the outbox. It is safe for concurrent use.
type Writer struct {
	statement   string
	tombstones  bool
	maxPayload  int // bytes
	headersFrom func(context.Context) map[string]string
}

// NewWriter makes a Writer. It does no I/O; an error says which option is
// wrong.
func NewWriter(opts ...Option) (*Writer, error) {
	o := options{table: "public.outbox", maxPayload: maxPayload}
	for _, opt := range opts {
		opt(&o)
	}
	table, err := parseTable(o.table)
	if err != nil {
		return nil, fmt.Errorf("making an outbox writer: %w", err)
	}
	names, err := columnNames(o.columns)
	if err != nil {
		return nil, fmt.Errorf("making an outbox writer: %w", err)
	}
	if o.maxPayload < 1 || o.maxPayload > maxPayload {
		return nil, fmt.Errorf("making an outbox writer: the largest payload is %d bytes, not 1 to %d", o.maxPayload, maxPayload)
	}
	return &Writer{
		statement:   insertStatement(table, names),
		tombstones:  o.tombstones,
		maxPayload:  o.maxPayload,
		headersFrom: o.headersFrom,
	}, nil
}

// Write adds events in the caller's transaction, in this order, by one
// statement, and returns their ids in the same order. It needs INSERT on the
// columns that it fills, and nothing else. Without events it does nothing.
//
// An error that is one of this package's, such as [ErrField], means that
// nothing was sent: the transaction is as before. An error of PostgreSQL has
// ended the transaction: roll it back, or back to a savepoint; errors.As finds
// the *pgconn.PgError.
//
// All events of a call are sent at once, at most 256 MiB with 128 bytes for each
// event besides its values.
func (w *Writer) Write(ctx context.Context, tx pgx.Tx, events ...Event) ([]ID, error) {
	if tx == nil {
		return nil, errNoTransaction
	}
	return w.write(ctx, events, func(args []any) (int64, error) {
		tag, err := tx.Exec(ctx, w.statement, args...)
		return tag.RowsAffected(), err
	})
}

// WriteSQL is Write for a transaction of database/sql.
func (w *Writer) WriteSQL(ctx context.Context, tx *sql.Tx, events ...Event) ([]ID, error) {
	if tx == nil {
		return nil, errNoTransaction
	}
	return w.write(ctx, events, func(args []any) (int64, error) {
		result, err := tx.ExecContext(ctx, w.statement, args...)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	})
}

var errNoTransaction = errors.New("writing to the outbox: no transaction")

// write does what does not depend on the driver; insert executes the statement
// and returns the number of rows.
func (w *Writer) write(ctx context.Context, events []Event, insert func(args []any) (int64, error)) ([]ID, error) {
	if len(events) == 0 {
		return nil, nil
	}
	ids, rows, err := w.prepare(ctx, events)
	if err != nil {
		return nil, fmt.Errorf("writing to the outbox: %w", err)
	}
	n, err := insert(rows.args())
	if err != nil {
		return nil, fmt.Errorf("writing to the outbox: %w", err)
	}
	if n != int64(len(events)) {
		return nil, fmt.Errorf("writing to the outbox: the table took %d of %d events: "+
			"roll back, and look for a trigger or rule that keeps rows away", n, len(events))
	}
	return ids, nil
}

// prepare validates all events and makes the statement's parameters of them.
func (w *Writer) prepare(ctx context.Context, events []Event) ([]ID, *rows, error) {
	headers, err := w.headers(ctx, events)
	if err != nil {
		return nil, nil, err
	}
	if err := w.checkAll(events, headers); err != nil {
		return nil, nil, err
	}
	ids, err := eventIDs(events)
	if err != nil {
		return nil, nil, err
	}
	rows := newRows(events)
	for i := range events {
		rows.add(ids[i], &events[i], headers[i])
	}
	return ids, rows, nil
}

// checkAll returns why the table, or this Writer, refuses one of the events.
func (w *Writer) checkAll(events []Event, headers []string) error {
	size := 0
	for i := range events {
		e := &events[i]
		if err := w.check(e); err != nil {
			return fmt.Errorf("events[%d]: %w", i, err)
		}
		size += eventOverhead + len(e.AggregateType) + len(e.AggregateID) + len(e.EventType) + len(e.Payload) +
			len(headers[i]) + len(e.ContentType) + len(e.Topic)
		if size > maxCall {
			return fmt.Errorf("events[%d]: %w: the events up to this one have more than %d bytes: write them in several calls",
				i, ErrTooLarge, maxCall)
		}
	}
	return nil
}

// eventIDs returns the id of each event, with new ones for those that have
// none.
func eventIDs(events []Event) ([]ID, error) {
	var (
		ids   = make([]ID, len(events))
		made  idSequence
		given = make(map[ID]int)
	)
	for i := range events {
		id := events[i].ID
		if id.IsZero() {
			ids[i] = made.next()
			continue
		}
		if first, ok := given[id]; ok {
			return nil, fmt.Errorf("events[%d]: %w: events[%d] has it too", i, ErrDuplicateID, first)
		}
		given[id], ids[i] = i, id
	}
	return ids, nil
}

// headers returns the headers of each event as JSON.
func (w *Writer) headers(ctx context.Context, events []Event) ([]string, error) {
	var common map[string]string
	if w.headersFrom != nil {
		common = w.headersFrom(ctx)
	}
	if err := checkHeaders(common); err != nil {
		return nil, fmt.Errorf("headers from the context: %w", err)
	}
	commonText, err := encodeHeaders(common)
	if err != nil {
		return nil, err
	}
	list := make([]string, len(events))
	for i := range events {
		if list[i] = commonText; len(events[i].Headers) == 0 {
			continue
		}
		if list[i], err = mergeHeaders(common, events[i].Headers); err != nil {
			return nil, fmt.Errorf("events[%d]: %w", i, err)
		}
	}
	return list, nil
}

// mergeHeaders returns an event's own headers and the common ones that it does
// not override, as JSON.
func mergeHeaders(common, own map[string]string) (string, error) {
	all := own
	if len(common) > 0 {
		all = maps.Clone(common)
		maps.Copy(all, own)
	}
	if err := checkHeaders(all); err != nil {
		return "", err
	}
	return encodeHeaders(all)
}

func encodeHeaders(headers map[string]string) (string, error) {
	if len(headers) == 0 {
		return "{}", nil
	}
	text, err := json.Marshal(headers)
	if err != nil {
		return "", fmt.Errorf("encoding headers: %w", err)
	}
	return string(text), nil
}
