package retrysched

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// DB is a connection or a pool of them.
type DB interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// database is the table in PostgreSQL.
type database struct {
	cfg        Config
	requeueSQL string
}

// pinSQL keeps the statement on the index of parked rows and the primary key,
// whatever the statistics say. The settings end with the batch, which is one
// transaction.
const pinSQL = `
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true)`

// requeueSQL picks due rows, leaving out those that somebody has locked, and
// touches them: that fires the trigger. The due time stays as it is. A row that
// a person has requeued may be picked too, while it is on its way or in flight:
// its second message then names the same due time, by which the line knows it.
// Only the leader's tenure may.
const requeueSQL = `
WITH pick AS MATERIALIZED (
  SELECT p.{id} FROM {table} p
   WHERE p.{next_attempt_at} <= now() AND p.{send_status} = 0 AND p.{id} <> ALL ($4::bigint[])
     AND EXISTS (SELECT FROM {slot} WHERE slot = $1 AND epoch = $2 AND owner = $3)
   ORDER BY {order}
   LIMIT $5::bigint
     FOR NO KEY UPDATE OF p SKIP LOCKED)
UPDATE {table} o SET {next_attempt_at} = o.{next_attempt_at}
  FROM pick WHERE o.{id} = pick.{id}
RETURNING o.{id}::bigint, o.{attempts}::int`

func newDatabase(cfg Config) *database {
	quote := func(design string) string {
		name := design
		if mapped, ok := cfg.Columns[design]; ok {
			name = mapped
		}
		return pgx.Identifier{name}.Sanitize()
	}
	order := fmt.Sprintf("p.%s, p.%s", quote("next_attempt_at"), quote("id"))
	if cfg.HasPriority {
		order = fmt.Sprintf("p.%s DESC, %s", quote("priority"), order)
	}
	names := []string{"{table}", cfg.Table.Ident(), "{slot}", cfg.Table.Sibling("cdc_relay_slot").Ident(), "{order}", order}
	for _, design := range []string{"id", "send_status", "next_attempt_at", "attempts"} {
		names = append(names, "{"+design+"}", quote(design))
	}
	return &database{cfg: cfg, requeueSQL: strings.NewReplacer(names...).Replace(requeueSQL)}
}

func (d *database) positions(ctx context.Context) (end, confirmed pglogrepl.LSN, err error) {
	var endText, confirmedText string
	err = d.cfg.DB.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text,
		coalesce((SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1), '0/0')::text`, d.cfg.Slot).
		Scan(&endText, &confirmedText)
	if err == nil {
		end, err = pglogrepl.ParseLSN(endText)
	}
	if err == nil {
		confirmed, err = pglogrepl.ParseLSN(confirmedText)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("asking how far the slot has come: %w", pg.Explain(err))
	}
	return end, confirmed, nil
}

func (d *database) requeue(ctx context.Context, except []int64) ([]requeued, error) {
	var batch pgx.Batch
	batch.Queue(pinSQL)
	var rows []requeued
	batch.Queue(d.requeueSQL, d.cfg.Slot, d.cfg.Epoch, d.cfg.Owner, except, d.cfg.Batch).Query(func(result pgx.Rows) error {
		var row requeued
		_, err := pgx.ForEachRow(result, []any{&row.id, &row.attempts}, func() error {
			rows = append(rows, row)
			return nil
		})
		return err
	})
	if err := d.cfg.DB.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, fmt.Errorf("requeueing due rows: %w", pg.Explain(err))
	}
	return rows, nil
}
