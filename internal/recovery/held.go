package recovery

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// parkedSQL is the condition of a row p that has a place in the order of its
// aggregate: parked, with a commit position, and neither SENT nor further by
// somebody's hand.
const parkedSQL = `p.{commit_lsn} IS NOT NULL AND p.{send_status} IN (0, 3) AND p.{next_attempt_at} IS NOT NULL`

// orderSQL is the order of the index on parked rows.
const orderSQL = `ORDER BY p.{aggregate_type}, p.{aggregate_id}, p.{commit_lsn}, p.{id}`

// firstSQL is the id of the first parked row in the aggregate of a row o.
// Asked in this form it takes one step in the index, whatever the statistics
// say.
const firstSQL = `(SELECT p.{id} FROM {table} p
     WHERE p.{aggregate_type} = o.{aggregate_type} AND p.{aggregate_id} = o.{aggregate_id} AND ` + parkedSQL + `
     ` + orderSQL + ` LIMIT 1)`

// headSQL are the columns of an event.Aggregate of a first parked row p.
// Type and id are as the stream has them: a cast would cut a char(n).
const headSQL = `p.{aggregate_type}, p.{aggregate_id}, {priority_of_p}, p.{id},
       p.{send_status} = 0 AND p.{next_attempt_at} = 'infinity'`

// aggregatesSQL steps from the first parked row of an aggregate to that of the
// next one, and never reads what is between. The columns are named by place.
const aggregatesSQL = `
WITH RECURSIVE a (type, id, priority, first, held) AS (
  (SELECT ` + headSQL + ` FROM {table} p
    WHERE (p.{aggregate_type}, p.{aggregate_id}) > ($1, $2) AND ` + parkedSQL + `
    ` + orderSQL + ` LIMIT 1)
  UNION ALL
  SELECT n.* FROM a CROSS JOIN LATERAL (SELECT ` + headSQL + ` FROM {table} p
    WHERE (p.{aggregate_type}, p.{aggregate_id}) > (a.type, a.id) AND ` + parkedSQL + `
    ` + orderSQL + ` LIMIT 1) n)
SELECT a.type, a.id, a.priority, a.first, a.held FROM a LIMIT $3::bigint`

// headsSQL returns, for each id in its place, the aggregate of the row and its
// first parked row.
const headsSQL = `
SELECT o.{aggregate_type}, o.{aggregate_id}, coalesce(h.priority, 0), coalesce(h.first, 0), coalesce(h.held, false)
  FROM unnest($1::bigint[]) WITH ORDINALITY v (id, place)
  LEFT JOIN {table} o ON o.{id} = v.id
  LEFT JOIN LATERAL (SELECT ` + headSQL + ` FROM {table} p
    WHERE p.{aggregate_type} = o.{aggregate_type} AND p.{aggregate_id} = o.{aggregate_id} AND ` + parkedSQL + `
    ` + orderSQL + ` LIMIT 1) h (type, id, priority, first, held) ON true
 ORDER BY v.place`

// heldSQL returns parked rows of an aggregate from the first one on, held or
// not, as far as the stored size of the payloads before is below a limit. The
// total tells how many parked rows there were to look at.
const heldSQL = `
SELECT * FROM (
  SELECT count(*) OVER () AS cdc_relay_total,
         p.{send_status} = 0 AND p.{next_attempt_at} = 'infinity' AS cdc_relay_held,
         p.{commit_lsn}::text AS cdc_relay_lsn,
         coalesce(sum(pg_column_size(p.{payload})) OVER before, 0) AS cdc_relay_before,
         row_number() OVER before AS cdc_relay_place,
         p.*
    FROM (SELECT p.* FROM {table} p WHERE p.{aggregate_type} = $1 AND p.{aggregate_id} = $2 AND ` + parkedSQL + `
           ` + orderSQL + ` LIMIT $3::bigint) p
  WINDOW before AS (ORDER BY p.{commit_lsn}, p.{id} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) r
 WHERE r.cdc_relay_before < $4::bigint
 ORDER BY r.cdc_relay_place`

// Parked walks the aggregates that have a parked row with a commit position,
// by type and id, after the given one ("", "": from the beginning). It returns
// at most limit of them; none at the end.
func (r *Rows) Parked(ctx context.Context, afterType, afterID string, limit int) ([]event.Aggregate, error) {
	list, err := r.aggregates(ctx, r.sql.aggregates, afterType, afterID, limit)
	if err != nil {
		return nil, fmt.Errorf("listing aggregates with parked rows: %w", err)
	}
	return list, nil
}

// Heads tells the same about the aggregates of these rows, in order. Of a row
// that is gone nothing is known: its Aggregate is zero.
func (r *Rows) Heads(ctx context.Context, ids []int64) ([]event.Aggregate, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	list, err := r.aggregates(ctx, r.sql.heads, bigints(ids))
	if err != nil {
		return nil, fmt.Errorf("looking for the first parked rows of aggregates: %w", err)
	}
	return list, nil
}

func (r *Rows) aggregates(ctx context.Context, sql string, args ...any) (list []event.Aggregate, err error) {
	err = pinned(ctx, r.db, func(rows pgx.Rows) error {
		var kind, id *string // NULL of a row that is gone
		var a event.Aggregate
		_, err := pgx.ForEachRow(rows, []any{&kind, &id, &a.Priority, &a.First, &a.Held}, func() error {
			a.Type, a.ID = "", ""
			if kind != nil && id != nil {
				a.Type, a.ID = *kind, *id
			}
			list = append(list, a)
			return nil
		})
		return err
	}, sql, args...)
	return list, err
}

// Held returns the rows of an aggregate that wait for their release, in the
// order of commit position and id, from the first parked row on: it ends before
// the first one that waits for something else, after limit rows and once what
// was read exceeds maxBytes (never before the first). whole tells that no parked
// row is left behind them. The events own their bytes, and their transactions
// are visible. Memory is bounded by maxBytes and one row.
func (r *Rows) Held(ctx context.Context, aggregateType, aggregateID string, limit int, maxBytes int64) (events []event.Event, whole bool, err error) {
	limit = max(limit, 1)
	err = pinned(ctx, r.db, func(rows pgx.Rows) (err error) {
		events, whole, err = r.scanHeld(rows, limit, maxBytes)
		return err
	}, r.sql.held, aggregateType, aggregateID, limit+1, max(maxBytes, 1)) // one more: is anything behind them?
	if err != nil {
		return nil, false, fmt.Errorf("reading held rows: %w", err)
	}
	return events, whole, nil
}

func (r *Rows) scanHeld(rows pgx.Rows, limit int, maxBytes int64) (events []event.Event, whole bool, err error) {
	var total, before, place int64
	var held bool
	var lsn *string
	s := newScanner(rows, r.cfg.Columns, &total, &held, &lsn, &before, &place)
	// The stored size may be a compressed one: count again.
	for bytes := int64(0); len(events) < limit && (len(events) == 0 || bytes < maxBytes); {
		more, err := s.next()
		if err != nil {
			return nil, false, err
		}
		if !more || !held {
			break
		}
		e, err := s.event()
		if err != nil {
			return nil, false, err
		}
		if e.CommitLSN, err = parseLSN(lsn); err != nil {
			return nil, false, err
		}
		bytes += int64(e.Bytes)
		events = append(events, e)
	}
	return events, int64(len(events)) == total, nil
}
