package operate

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// Config says which outbox this is.
type Config struct {
	Table pg.Table
	// Columns gives, for a column of the design, the name of the table's
	// column that plays its part. What is missing has the same name.
	Columns map[string]string
	Slot    string
	// TopicTemplate is where rows go that name no topic of their own.
	TopicTemplate string
	// Blocks tells whether later events of an aggregate of that type wait for
	// an earlier one that failed; nil: they do.
	Blocks func(aggregateType string) bool
}

// Table is the outbox table of one database, and what the relay keeps beside
// it, over one connection. Not safe for concurrent use.
type Table struct {
	conn  *pgx.Conn
	cfg   Config
	types map[string]uint32 // OID of the type of each column that the table has
	names *strings.Replacer // see sql
}

// lockTimeout bounds the wait for a lock: a command that would hang says what
// it waits for instead.
const lockTimeout = "5s"

// prepareSQL pins how this session finds rows. A plan that was made while the
// table was empty, or never analysed, would read and sort all of it. Without
// jit the server does not compile a plan because of what a pin adds to its cost.
const prepareSQL = `
SELECT set_config('timezone', 'UTC', false), set_config('lock_timeout', $1, false),
       set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
       set_config('max_parallel_workers_per_gather', '0', false), set_config('jit', 'off', false)`

const columnsSQL = `
SELECT attname::text, atttypid FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`

// Open learns the columns of the table. A table that lacks one of the design is
// a *fault.Blocked (table.columns). The connection stays the caller's, who
// closes it; its session settings are changed for good.
func Open(ctx context.Context, conn *pgx.Conn, cfg Config) (*Table, error) {
	t := &Table{conn: conn, cfg: cfg, types: map[string]uint32{}}
	if _, err := conn.Exec(ctx, prepareSQL, lockTimeout); err != nil {
		return nil, fmt.Errorf("preparing to read the outbox: %w", err)
	}
	rows, err := conn.Query(ctx, columnsSQL, cfg.Table.Ident())
	if err != nil {
		return nil, fmt.Errorf("reading the columns of the outbox: %w", err)
	}
	var name string
	var oid uint32
	if _, err := pgx.ForEachRow(rows, []any{&name, &oid}, func() error {
		t.types[name] = oid
		return nil
	}); err != nil {
		return nil, fmt.Errorf("reading the columns of the outbox: %w", err)
	}
	if err := t.check(); err != nil {
		return nil, err
	}
	t.names = strings.NewReplacer(t.replacements()...)
	return t, nil
}

// columns are those of the design. One that a mapped table may lack has a value
// that stands for it.
var columns = []struct {
	name string
	cast string // what it is read as
	none string // stands for it; "" if the table must have it
}{
	{"id", "bigint", ""},
	{"event_id", "uuid", ""},
	{"aggregate_type", "text", ""},
	{"aggregate_id", "text", ""},
	{"event_type", "text", ""},
	{"payload", "", ""},
	{"headers", "text", "NULL"},
	{"content_type", "text", "'application/json'"},
	{"topic", "text", "NULL"},
	{"priority", "integer", "0"},
	{"created_at", "timestamptz", "NULL"},
	{"send_status", "smallint", ""},
	{"attempts", "integer", ""},
	{"next_attempt_at", "timestamptz", ""},
	{"commit_lsn", "pg_lsn", ""},
	{"claim_generation", "integer", "0"},
	{"claimed_by", "text", "NULL"},
	{"lease_until", "timestamptz", "NULL"},
	{"sent_at", "timestamptz", ""},
	{"finished_at", "timestamptz", "NULL"},
	{"error_code", "text", ""},
	{"error_message", "text", ""},
}

// column is the name in the table of a column of the design.
func (t *Table) column(design string) string {
	return pg.Columns(t.cfg.Columns).Name(design)
}

// has reports whether the table has a column of the design.
func (t *Table) has(design string) bool {
	_, ok := t.types[t.column(design)]
	return ok
}

func (t *Table) check() error {
	if len(t.types) == 0 {
		return &fault.Blocked{Reason: "table.columns",
			What:   fmt.Sprintf("there is no table %s, or this login may not see it", t.cfg.Table),
			Remedy: "correct outbox.table, run cdc-relay migrate up, or grant the login cdc_relay_operator"}
	}
	var missing []string
	for _, c := range columns {
		if c.none == "" && !t.has(c.name) {
			missing = append(missing, t.column(c.name))
		}
	}
	if len(missing) > 0 {
		return &fault.Blocked{Reason: "table.columns",
			What:   fmt.Sprintf("the table %s lacks %s", t.cfg.Table, strings.Join(missing, ", ")),
			Remedy: "add what is missing, or map it with outbox.columns"}
	}
	return nil
}

// replacements are pairs for a statement's text. {name} is the value of a
// column of the row o, whether or not the table has the column; {=name} is the
// column's quoted name, for one that every table has. {unfinished} sets
// finished_at back, if there is one.
func (t *Table) replacements() []string {
	unfinished := ""
	if t.has("finished_at") {
		unfinished = ", finished_at = NULL"
	}
	pairs := []string{
		"{table}", t.cfg.Table.Ident(),
		"{lease}", t.cfg.Table.Sibling("cdc_relay_lease").Ident(),
		"{topics}", t.cfg.Table.Sibling("cdc_relay_topic").Ident(),
		"{audit}", t.cfg.Table.Sibling("cdc_relay_audit").Ident(),
		"{unfinished}", unfinished,
		"{payload_bytes}", t.payloadBytes(),
		"{payload_raw}", t.payloadRaw(),
	}
	for _, c := range columns {
		quoted := pgx.Identifier{t.column(c.name)}.Sanitize()
		value := "o." + quoted
		if !t.has(c.name) {
			value = c.none
		}
		if c.cast != "" {
			value += "::" + c.cast
		}
		pairs = append(pairs, "{"+c.name+"}", value, "{="+c.name+"}", quoted)
	}
	return pairs
}

// sql puts the names of the table into a statement's text.
func (t *Table) sql(text string) string { return t.names.Replace(text) }

// payloadBytes is the size of a payload, found without reading it where its
// type allows.
func (t *Table) payloadBytes() string {
	payload := "o." + pgx.Identifier{t.column("payload")}.Sanitize()
	switch t.payloadType() {
	case pgtype.ByteaOID:
		return "octet_length(" + payload + ")"
	default:
		return "octet_length(" + payload + "::text)"
	}
}

// payloadRaw is a payload as the bytes that are published.
func (t *Table) payloadRaw() string {
	payload := "o." + pgx.Identifier{t.column("payload")}.Sanitize()
	if t.payloadType() == pgtype.ByteaOID {
		return payload
	}
	return "convert_to(" + payload + "::text, 'UTF8')"
}

func (t *Table) payloadType() uint32 { return t.types[t.column("payload")] }

// topicSQL is the name of a row's topic as an SQL expression; bind makes a
// parameter of a value. What the template's variables stand for is as in the
// records.
func (t *Table) topicSQL(bind func(any) string) string {
	template, at := t.cfg.TopicTemplate, 0
	var parts []string
	for _, found := range templateVariable.FindAllStringIndex(template, -1) {
		parts = append(parts, bind(template[at:found[0]])+"::text")
		switch name := template[found[0]:found[1]]; name {
		case "{schema}":
			parts = append(parts, bind(t.cfg.Table.Schema)+"::text")
		default:
			parts = append(parts, t.sql(name))
		}
		at = found[1]
	}
	parts = append(parts, bind(template[at:])+"::text")
	return t.sql("coalesce(nullif({topic}, ''), ") + strings.Join(parts, " || ") + ")"
}

var templateVariable = regexp.MustCompile(`\{(aggregate_type|event_type|schema)\}`)
