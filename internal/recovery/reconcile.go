package recovery

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// walkPages bounds what one call of Unsent walks over: it goes on in the next.
const walkPages = 100

const surveySQL = `
SELECT coalesce((SELECT low_water_id FROM {lease} WHERE slot = $1), 0),
       coalesce((SELECT max({id}) FROM {table}), 0)::bigint,
       pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint
  FROM pg_current_snapshot() s`

// walkSQL walks over a page by the primary key; no index knows send_status.
const walkSQL = `
SELECT max(w.{id})::bigint,
       coalesce(array_agg(w.{id}::bigint ORDER BY w.{id}) FILTER (WHERE w.{send_status} = 0 AND w.{next_attempt_at} IS NULL), '{}')
  FROM (SELECT {id}, {send_status}, {next_attempt_at} FROM {table} WHERE {id} > $1::bigint ORDER BY {id} LIMIT $2::bigint) w`

const raiseLowWaterSQL = `
UPDATE {lease} SET low_water_id = $4 WHERE slot = $1 AND epoch = $2 AND owner = $3`

// requeueSQL leaves out rows that somebody has locked: another reconcile will
// find them.
const requeueSQL = `
WITH r AS MATERIALIZED (
  SELECT o.{id} FROM {table} o
   WHERE o.{id} = ANY ($4::bigint[]) AND o.{send_status} = 0 AND o.{next_attempt_at} IS NULL
     AND EXISTS (SELECT FROM {slot} WHERE slot = $1 AND epoch = $2 AND owner = $3)
   ORDER BY o.{id} FOR NO KEY UPDATE OF o SKIP LOCKED)
UPDATE {table} o SET {next_attempt_at} = now()
 WHERE o.{id} = ANY (ARRAY(SELECT r.{id} FROM r)) AND o.{send_status} = 0 AND o.{next_attempt_at} IS NULL
RETURNING o.{id}::bigint`

// Unsent lists rows that are READY and not parked, by id and at most a page of
// them. Each call goes on where the last one ended; a large table takes
// several calls.
func (r *Rows) Unsent(ctx context.Context) ([]int64, error) {
	unsent, err := r.unsent(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing READY rows: %w", err)
	}
	return unsent, nil
}

// unsent walks on to the next page with something unsent. It begins a new walk
// at most once: a table without anything unsent is walked over once.
func (r *Rows) unsent(ctx context.Context) ([]int64, error) {
	for begun, pages := false, 0; pages < walkPages; pages++ {
		if !r.walk.underway {
			if begun {
				break
			}
			begun = true
			if err := r.survey(ctx); err != nil {
				return nil, err
			}
		}
		unsent, last, err := r.walkPage(ctx)
		if err != nil {
			return nil, err
		}
		if last == 0 {
			if err := r.endWalk(ctx); err != nil {
				return nil, err
			}
			continue
		}
		if len(unsent) == 0 {
			r.walk.pass(0, last)
			continue
		}
		r.walk.pass(unsent[0], last)
		return unsent, nil
	}
	return nil, nil
}

func (r *Rows) survey(ctx context.Context) error {
	var low, xmin int64
	now := mark{at: time.Now()}
	if err := r.db.QueryRow(ctx, r.sql.survey, r.cfg.Slot).Scan(&low, &now.id, &xmin, &now.xmax); err != nil {
		return err
	}
	r.walk.begin(low, now, xmin)
	return nil
}

// walkPage returns last = 0 behind the last row.
func (r *Rows) walkPage(ctx context.Context) (unsent []int64, last int64, err error) {
	var upto *int64
	err = pinned(ctx, r.db, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&upto, &unsent}, func() error { return nil })
		return err
	}, r.sql.walk, r.walk.after, r.cfg.Page)
	if upto != nil {
		last = *upto
	}
	return unsent, last, err
}

// endWalk saves the low-water mark, if it has risen.
func (r *Rows) endWalk(ctx context.Context) error {
	if to := r.walk.raised(); to > r.walk.low {
		if _, err := r.db.Exec(ctx, r.sql.raiseLowWater, r.cfg.Slot, r.cfg.Epoch, r.cfg.Owner, to); err != nil {
			return fmt.Errorf("saving the low-water mark: %w", err)
		}
	}
	r.walk.underway = false
	return nil
}

// Requeue sets rows that are still READY and not parked to be due now, if the
// tenure has not ended, and returns how many those were. The trigger's message
// then brings them through the slot.
func (r *Rows) Requeue(ctx context.Context, ids []int64) (n int, err error) {
	err = pinned(ctx, r.db, func(rows pgx.Rows) error {
		var id int64
		tag, err := pgx.ForEachRow(rows, []any{&id}, func() error { return nil })
		n = int(tag.RowsAffected())
		return err
	}, r.sql.requeueAll, r.cfg.Slot, r.cfg.Epoch, r.cfg.Owner, bigints(ids))
	if err != nil {
		return 0, fmt.Errorf("requeueing READY rows: %w", err)
	}
	r.cfg.Missed.Add(float64(n))
	return n, nil
}
