package operate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// skipSet waives a row: it is done with, and has no place in the order of its
// aggregate any more.
const skipSet = `finished_at = now(), next_attempt_at = NULL, commit_lsn = NULL`

// touchSQL makes the first parked row of each skipped row's aggregate due, if
// that row is held and stood behind the skipped one: the trigger of the table
// then tells the relay, which publishes it and what follows. A held row that was
// first before is on its way already. What is locked, or hidden by another
// operator's open transaction, is left to the relay's own look, every minute.
const touchSQL = `
WITH first AS MATERIALIZED (
  SELECT f.id FROM unnest($1::bigint[], $2::text[]) s (id, lsn)
    JOIN {table} k ON k.id = s.id AND k.id = ANY ($1::bigint[])
   CROSS JOIN LATERAL (
     SELECT p.id, p.commit_lsn FROM {table} p
      WHERE p.{=aggregate_type} = k.{=aggregate_type} AND p.{=aggregate_id} = k.{=aggregate_id}
        AND p.commit_lsn IS NOT NULL
      ORDER BY p.{=aggregate_type}, p.{=aggregate_id}, p.commit_lsn, p.id LIMIT 1) f
   WHERE (s.lsn::pg_lsn, s.id) < (f.commit_lsn, f.id)),
pick AS MATERIALIZED (
  SELECT o.id FROM {table} o
   WHERE o.id = ANY (ARRAY(SELECT id FROM first)) AND o.send_status = 0 AND o.next_attempt_at = 'infinity'
   ORDER BY o.id FOR NO KEY UPDATE OF o SKIP LOCKED)
UPDATE {table} o SET next_attempt_at = now() WHERE o.id = ANY (ARRAY(SELECT id FROM pick))`

// releaseBehind lets held rows behind skipped ones follow at once. skipped has
// the commit positions that the rows had.
func (a *Actions) releaseBehind(ctx context.Context, tx pgx.Tx, skipped map[int64]string) error {
	var ids []int64
	var positions []string
	for id, position := range skipped {
		if position != "" { // else nothing waited for it
			ids, positions = append(ids, id), append(positions, position)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, a.table.sql(touchSQL), ids, positions); err != nil {
		return fmt.Errorf("releasing what was held behind skipped rows: %w", err)
	}
	return nil
}
