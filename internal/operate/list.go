package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Listed is a row of a list.
type Listed struct {
	Row
	// Blocking is how many held rows stand behind this one, up to MaxBlocking;
	// of Failed only.
	Blocking int
	// First is the earliest parked row of the aggregate before this one, which
	// holds it; of Held only.
	First Head
}

// MaxBlocking bounds the count of rows behind one.
const MaxBlocking = 1000

// List is the answer to a filter.
type List struct {
	At   time.Time // by the clock of the database
	Rows []Listed
	Page Page
}

// Events lists rows.
func (t *Table) Events(ctx context.Context, f Filter) (*List, error) {
	return t.list(ctx, f, "", "", func(*Listed) []any { return nil })
}

// Failed lists rows with how many are held behind each.
func (t *Table) Failed(ctx context.Context, f Filter) (*List, error) {
	return t.list(ctx, f, ", "+blockingSQL, "", func(row *Listed) []any { return []any{&row.Blocking} })
}

// Held lists rows with what holds each.
func (t *Table) Held(ctx context.Context, f Filter) (*List, error) {
	return t.list(ctx, f, ", "+headColumns, headSQL, func(row *Listed) []any { return row.First.dest() })
}

// blockingSQL counts the held rows behind the row o.
const blockingSQL = `(SELECT count(*) FROM (SELECT FROM {table} b
  WHERE b.{=aggregate_type} = o.{=aggregate_type} AND b.{=aggregate_id} = o.{=aggregate_id}
    AND b.{=commit_lsn} IS NOT NULL AND (b.{=commit_lsn}, b.{=id}) > (o.{=commit_lsn}, o.{=id})
    AND b.{=send_status} = 0 AND b.{=next_attempt_at} = 'infinity' LIMIT 1000) behind)`

// list reads rows; join and more add to each what dest takes.
func (t *Table) list(ctx context.Context, f Filter, more, join string, dest func(*Listed) []any) (*List, error) {
	s, err := t.selection(f)
	if err != nil {
		return nil, err
	}
	sql := s.query(t.rowColumns(s)+t.sql(more), t.sql(join), f.Limit+1)
	list := &List{}
	if list.At, err = t.now(ctx); err != nil {
		return nil, err
	}
	rows, err := t.conn.Query(ctx, sql, s.args...)
	if err != nil {
		return nil, fmt.Errorf("listing rows: %w", t.explain(ctx, err))
	}
	list.Rows, err = pgx.CollectRows(rows, func(r pgx.CollectableRow) (row Listed, err error) {
		err = r.Scan(append(row.dest(), dest(&row)...)...)
		return row, err
	})
	if err != nil {
		return nil, fmt.Errorf("listing rows: %w", t.explain(ctx, err))
	}
	if list.Page, err = t.page(ctx, f, list.Rows); err != nil {
		return nil, err
	}
	list.Rows = list.Rows[:min(len(list.Rows), f.Limit)]
	return list, nil
}

func (t *Table) rowColumns(s *selection) string {
	return fmt.Sprintf(t.sql(rowColumns), t.topicSQL(s.bind))
}

// now is the time by the clock of the database.
func (t *Table) now(ctx context.Context) (time.Time, error) { return timeOf(ctx, t.conn) }

func timeOf(ctx context.Context, conn *pgx.Conn) (at time.Time, err error) {
	if err := conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&at); err != nil {
		return at, fmt.Errorf("asking the database for the time: %w", err)
	}
	return at.UTC(), nil
}

// Head is the earliest parked row of an aggregate, for which a later one waits.
type Head struct {
	ID            int64 // 0: there is none
	Status        outbox.Status
	ErrorCode     string
	NextAttemptAt Moment
}

func (h *Head) dest() []any { return []any{&h.ID, &h.Status, &h.ErrorCode, &h.NextAttemptAt} }

// headColumns are those of a Head.
const headColumns = `coalesce(h.id, 0)::bigint, coalesce(h.status, 0)::smallint, coalesce(h.error_code, '')::text, h.next_attempt_at`

// headSQL joins the earliest parked row before the row o. Its order is that of
// the index, in full, so that the first entry is the answer.
const headSQL = `
  LEFT JOIN LATERAL (
    SELECT p.{=id} AS id, p.{=send_status} AS status, p.{=error_code} AS error_code, p.{=next_attempt_at} AS next_attempt_at
      FROM {table} p
     WHERE p.{=aggregate_type} = o.{=aggregate_type} AND p.{=aggregate_id} = o.{=aggregate_id}
       AND p.{=commit_lsn} IS NOT NULL AND p.{=next_attempt_at} IS NOT NULL
       AND (p.{=commit_lsn}, p.{=id}) < (o.{=commit_lsn}, o.{=id})
     ORDER BY p.{=aggregate_type}, p.{=aggregate_id}, p.{=commit_lsn}, p.{=id} LIMIT 1) h ON true`
