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
	exceptions []string // to cfg.Block, by aggregate type
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
//
// What is due is sorted first and then asked for its turn, in order and only
// until the batch is full. IS NOT DISTINCT FROM keeps that join on the primary
// key.
const requeueSQL = `
WITH pick AS MATERIALIZED (
  SELECT o.{id}
    FROM (SELECT p.{id} AS id, p.{next_attempt_at} AS due, {priority} AS priority FROM {table} p
           WHERE p.{next_attempt_at} <= now() AND p.{send_status} = 0 AND p.{id} <> ALL ($4::bigint[])
             AND EXISTS (SELECT FROM {slot} WHERE slot = $1 AND epoch = $2 AND owner = $3)
           ORDER BY priority DESC, due, id) d
    JOIN {table} o ON o.{id} = d.id
   WHERE o.{send_status} = 0 AND o.{next_attempt_at} IS NOT DISTINCT FROM d.due AND (` + turnSQL + `)
   ORDER BY d.priority DESC, d.due, d.id
   LIMIT $5::bigint
     FOR NO KEY UPDATE OF o SKIP LOCKED)
UPDATE {table} o SET {next_attempt_at} = o.{next_attempt_at}
  FROM pick WHERE o.{id} = pick.{id}
RETURNING o.{id}::bigint, coalesce(o.{attempts}, 0) > 0 OR o.{commit_lsn} IS NOT NULL`

// turnSQL says whether it is the turn of a row o: it has no place in the order
// of its aggregate, or its type keeps none, or it is the first parked one. In
// this form that takes one step in the index on parked rows, whatever the
// statistics say.
const turnSQL = `o.{commit_lsn} IS NULL OR (o.{aggregate_type} = ANY ($6::text[])) = $7::boolean
      OR o.{id} = (SELECT p.{id} FROM {table} p
                    WHERE p.{aggregate_type} = o.{aggregate_type} AND p.{aggregate_id} = o.{aggregate_id}
                      AND p.{commit_lsn} IS NOT NULL AND p.{send_status} IN (0, 3) AND p.{next_attempt_at} IS NOT NULL
                    ORDER BY p.{aggregate_type}, p.{aggregate_id}, p.{commit_lsn}, p.{id} LIMIT 1)`

func newDatabase(cfg Config) *database {
	columns := pg.Columns(cfg.Columns)
	priority := "0"
	if cfg.HasPriority {
		priority = "coalesce(p." + columns.Ident("priority") + ", 0)"
	}
	names := []string{"{table}", cfg.Table.Ident(), "{slot}", cfg.Table.Sibling("cdc_relay_slot").Ident(), "{priority}", priority}
	for _, design := range []string{"id", "send_status", "next_attempt_at", "attempts", "commit_lsn", "aggregate_type", "aggregate_id"} {
		names = append(names, "{"+design+"}", columns.Ident(design))
	}
	return &database{
		cfg:        cfg,
		exceptions: append([]string{}, cfg.Except...), // nil would be NULL
		requeueSQL: strings.NewReplacer(names...).Replace(requeueSQL),
	}
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
	args := []any{d.cfg.Slot, d.cfg.Epoch, d.cfg.Owner, except, d.cfg.Batch, d.exceptions, d.cfg.Block}
	batch.Queue(d.requeueSQL, args...).Query(func(result pgx.Rows) error {
		var row requeued
		_, err := pgx.ForEachRow(result, []any{&row.id, &row.retry}, func() error {
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
