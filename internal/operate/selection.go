package operate

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// source says where the rows of a filter are looked for.
type source uint8

const (
	byKey    source = iota // their ids are named
	byParked               // what is picked is parked: the partial index has it
	byWalk                 // the newest MaxWalk rows
)

func (f Filter) source() source {
	switch {
	case f.ByID():
		return byKey
	case f.Held, f.Parked, f.Open && slices.Equal(f.Statuses, []outbox.Status{outbox.Failed}):
		return byParked
	default:
		return byWalk
	}
}

// selection is a filter as SQL. The picked rows are named o.
type selection struct {
	from  string
	where []string
	order string
	args  []any
}

// bind makes a value a parameter and returns its place holder.
func (s *selection) bind(value any) string {
	s.args = append(s.args, value)
	return fmt.Sprintf("$%d", len(s.args))
}

// rows is the end of a statement that reads the picked rows in order, at most
// limit of them.
func (s *selection) rows(limit int) string {
	where := strings.Join(append([]string{"true"}, s.where...), " AND ")
	return fmt.Sprintf(" FROM %s WHERE %s ORDER BY %s LIMIT %s::bigint", s.from, where, s.order, s.bind(limit))
}

// query is a statement that returns some expressions of each picked row, after
// the limit was applied: they may cost something. join may add to the row.
func (s *selection) query(expressions, join string, limit int) string {
	return fmt.Sprintf("SELECT %s FROM (SELECT o.*%s) o%s ORDER BY %s", expressions, s.rows(limit), join, s.order)
}

// Where rows are looked for. OFFSET 0 keeps ORDER BY and LIMIT out: for the
// first fifty by id the server would walk all of the primary key, in the hope
// of meeting fifty parked rows early.
const (
	keySQL = `(SELECT *, xmin AS cdc_relay_xmin FROM {table} WHERE {=id} = ANY(ARRAY(
    SELECT {=id} FROM {table} WHERE {=id} = ANY(%s::bigint[])
    UNION SELECT {=id} FROM {table} WHERE {=event_id} = ANY(%s::text[]::uuid[])))) o`
	parkedSQL = `(SELECT * FROM {table} WHERE {=next_attempt_at} IS NOT NULL OFFSET 0) o`
	walkSQL   = `(SELECT * FROM {table} WHERE {=id} < %s::bigint ORDER BY {=id} DESC LIMIT %s::bigint) o`
)

// selection translates a filter. Rows that are named or parked come with the
// oldest first, those of a walk with the newest.
func (t *Table) selection(f Filter) (*selection, error) {
	s := &selection{}
	switch f.source() {
	case byKey:
		s.from, s.order = t.namedRows(s, f), t.sql("o.{=id}")
	case byParked:
		s.from, s.order = t.sql(parkedSQL), t.sql("o.{=id}")
	case byWalk:
		s.from, s.order = fmt.Sprintf(t.sql(walkSQL), s.bind(f.walkFrom()), s.bind(MaxWalk)), t.sql("o.{=id} DESC")
	}
	if f.After > 0 && f.source() != byWalk {
		s.where = append(s.where, t.sql("o.{=id} > ")+s.bind(f.After)+"::bigint")
	}
	if err := t.conditions(s, f); err != nil {
		return nil, err
	}
	return s, nil
}

// namedRows are the rows that the filter names, as the text of a FROM.
func (t *Table) namedRows(s *selection, f Filter) string {
	return fmt.Sprintf(t.sql(keySQL), s.bind(notNil(f.IDs)), s.bind(eventTexts(f.EventIDs)))
}

// walkFrom is the id below which a walk begins.
func (f Filter) walkFrom() int64 {
	if f.After > 0 {
		return f.After
	}
	return math.MaxInt64
}

// conditions adds those of the filter.
func (t *Table) conditions(s *selection, f Filter) error {
	and := func(condition string) { s.where = append(s.where, t.sql(condition)) }
	equal := func(expression, value string) {
		if value != "" {
			s.where = append(s.where, t.sql(expression)+" = "+s.bind(value)+"::text")
		}
	}
	equal("{aggregate_type}", f.AggregateType)
	equal("{aggregate_id}", f.AggregateID)
	equal("{event_type}", f.EventType)
	equal("{error_code}", f.ErrorCode)
	if f.Topic != "" {
		equal(t.topicSQL(s.bind), f.Topic)
	}
	if len(f.Statuses) > 0 {
		codes := make([]int64, len(f.Statuses))
		for i, status := range f.Statuses {
			codes[i] = int64(status)
		}
		s.where = append(s.where, t.sql("{send_status} = ANY(")+s.bind(codes)+"::bigint[])")
	}
	if f.Open {
		and("({send_status} <> 3 OR {finished_at} IS NULL)")
	}
	if f.Held {
		and("{send_status} = 0 AND {next_attempt_at} = 'infinity'")
	}
	if f.Parked {
		and("{next_attempt_at} IS NOT NULL")
	}
	switch f.Phase {
	case PhasePublish:
		and("{sent_at} IS NULL")
	case PhaseConsume:
		and("{sent_at} IS NOT NULL")
	}
	return t.created(s, f)
}

// created adds the bounds of the time of creation.
func (t *Table) created(s *selection, f Filter) error {
	if f.Since.IsZero() && f.Until.IsZero() {
		return nil
	}
	if !t.has("created_at") {
		return &fault.Blocked{Reason: "table.columns",
			What:   fmt.Sprintf("the table %s has no created_at, so --since and --until cannot be answered", t.cfg.Table),
			Remedy: "leave them out, or map the column with outbox.columns"}
	}
	if !f.Since.IsZero() {
		s.where = append(s.where, t.sql("{created_at} >= ")+s.bind(f.Since)+"::timestamptz")
	}
	if !f.Until.IsZero() {
		s.where = append(s.where, t.sql("{created_at} < ")+s.bind(f.Until)+"::timestamptz")
	}
	return nil
}

func notNil(ids []int64) []int64 {
	if ids == nil {
		return []int64{}
	}
	return ids
}

// Page tells how far a list goes.
type Page struct {
	// Walked is how many rows a walk of the primary key looked at, 0 for lists
	// that did not have to walk, or ended at their limit.
	Walked int64
	// After is the id to go on after, 0 if nothing is left to look at.
	After int64
}

// page tells how far a list of these rows, one more than the limit if there are
// more, goes.
func (t *Table) page(ctx context.Context, f Filter, rows []Listed) (Page, error) {
	if len(rows) > f.Limit {
		return Page{After: rows[f.Limit-1].ID}, nil
	}
	if f.source() != byWalk {
		return Page{}, nil
	}
	const sql = `SELECT count(*), coalesce(min(w.id), 0)::bigint FROM (
  SELECT {=id} AS id FROM {table} WHERE {=id} < $1::bigint ORDER BY {=id} DESC LIMIT $2::bigint) w`
	var p Page
	if err := t.conn.QueryRow(ctx, t.sql(sql), f.walkFrom(), MaxWalk).Scan(&p.Walked, &p.After); err != nil {
		return Page{}, fmt.Errorf("reading how far the list goes: %w", t.explain(ctx, err))
	}
	if p.Walked < MaxWalk {
		p.After = 0
	}
	return p, nil
}

// Matched is what a filter picks, for a command that is to act on it.
type Matched struct {
	// IDs are the first Limit of them.
	IDs []int64
	// Count is how many there are in all, as far as was looked.
	Count int64
	// Page tells how far that is: its After is where a walk ended before the
	// end of the table, else 0.
	Page Page
}

// Match finds the rows that a filter picks, without locking them.
func (t *Table) Match(ctx context.Context, f Filter) (Matched, error) {
	s, err := t.selection(f)
	if err != nil {
		return Matched{}, err
	}
	var m Matched
	var id int64
	sql := t.sql("SELECT {id}, count(*) OVER ()") + s.rows(f.Limit)
	rows, err := t.conn.Query(ctx, sql, s.args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id, &m.Count}, func() error {
			m.IDs = append(m.IDs, id)
			return nil
		})
	}
	if err != nil {
		return Matched{}, fmt.Errorf("finding rows by the filter: %w", t.explain(ctx, err))
	}
	m.Page, err = t.page(ctx, f, nil)
	return m, err
}
