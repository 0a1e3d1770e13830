package outbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// Option changes what [NewWriter] makes.
type Option func(*options)

// options is what the caller asked for; NewWriter validates it.
type options struct {
	table       string
	columns     map[string]string
	tombstones  bool
	maxPayload  int
	headersFrom func(context.Context) map[string]string
}

// Table names the outbox as schema.table, without quotes. The default is
// public.outbox.
func Table(name string) Option { return func(o *options) { o.table = name } }

// Columns gives columns of an existing table other names, from the designed
// name to the one in the table, as outbox.columns of the relay's configuration
// does. The columns that a Writer fills are event_id, aggregate_type,
// aggregate_id, event_type, payload, headers, content_type, topic, priority
// and next_attempt_at; the table has all of them, payload as bytea.
func Columns(names map[string]string) Option {
	return func(o *options) { o.columns = maps.Clone(names) }
}

// AllowTombstones lets events be tombstones. The relay must allow it too
// (outbox.tombstones), or each of them waits for a person as FAILED.
func AllowTombstones() Option { return func(o *options) { o.tombstones = true } }

// MaxPayload bounds a payload, in bytes: 1 to 16 MiB, which is the default and
// the table's own limit. Kafka's limit for a record is mostly lower, 1 MiB by
// default: with it here, the application hears of a payload that no broker
// would take, instead of the person who finds the event FAILED.
func MaxPayload(bytes int) Option { return func(o *options) { o.maxPayload = bytes } }

// HeadersFrom adds headers to every event of a call: f gets the call's
// context, which is where the trace context (traceparent, tracestate) and
// such mostly live. An event's own header of the same name wins. f is called
// once a call, from whichever goroutine writes.
func HeadersFrom(f func(ctx context.Context) map[string]string) Option {
	return func(o *options) { o.headersFrom = f }
}

// parseTable cuts a qualified name as the relay's configuration does.
func parseTable(name string) (pgx.Identifier, error) {
	schema, table, _ := strings.Cut(name, ".")
	if !isIdentifier(schema) || !isIdentifier(table) {
		return nil, errors.New("table: write schema.table, such as public.outbox, each name 1 to 63 bytes")
	}
	return pgx.Identifier{schema, table}, nil
}

// columnNames returns the table's name of each column, in the order of columns.
func columnNames(names map[string]string) ([]string, error) {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !slices.Contains(columns, name) {
			return nil, fmt.Errorf("columns: %q is none of %s", name, strings.Join(columns, ", "))
		}
		if !isIdentifier(names[name]) {
			return nil, fmt.Errorf("columns: the name for %s is not 1 to 63 bytes of UTF-8 without control characters", name)
		}
	}
	list := make([]string, 0, len(columns))
	for _, name := range columns {
		if other, ok := names[name]; ok {
			name = other
		}
		if slices.Contains(list, name) {
			return nil, fmt.Errorf("columns: %q is given twice", name)
		}
		list = append(list, name)
	}
	return list, nil
}

// isIdentifier reports whether s names something in PostgreSQL, which cuts
// longer names off without a word.
func isIdentifier(s string) bool {
	return s != "" && len(s) <= 63 && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}
