package recovery

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// DB is a connection or a pool of them. Its sessions are read committed: each
// statement sees what was committed before it.
type DB interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Config says which rows to ask about.
type Config struct {
	DB    DB
	Table pg.Table
	// Columns gives, for a column of the design, the name of the table's
	// column that plays its part. What is missing has the same name.
	Columns map[string]string
	Slot    string
}

// Rows asks the outbox table about its rows. It is as safe for concurrent use
// as its DB is.
type Rows struct {
	db       DB
	prefix   string // of probe messages
	count    string
	classify string
}

// New returns the Rows of a table. It does no I/O.
func New(cfg Config) *Rows {
	names := replacer(cfg.Table, cfg.Columns)
	return &Rows{
		db:       cfg.DB,
		prefix:   ProbePrefix(cfg.Slot),
		count:    names.Replace(countSQL),
		classify: names.Replace(classifySQL),
	}
}

func replacer(table pg.Table, columns map[string]string) *strings.Replacer {
	pairs := []string{"{table}", table.Ident()}
	for _, design := range []string{"id", "send_status", "next_attempt_at"} {
		name := design
		if mapped, ok := columns[design]; ok {
			name = mapped
		}
		pairs = append(pairs, "{"+design+"}", pgx.Identifier{name}.Sanitize())
	}
	return strings.NewReplacer(pairs...)
}

// pinSQL lets a statement of the same batch find its rows by the primary key
// alone: a plan made while the table was empty or never analysed would read
// all of it. The settings end with the batch, which is one transaction.
const pinSQL = `
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true),
       set_config('plan_cache_mode', 'force_generic_plan', true)`

// countSQL counts those that are to be published. Nearly always it is all of
// them, and then no row has to come back: half the cost.
const countSQL = `
SELECT count(*) FROM {table}
 WHERE {id} = ANY($1::bigint[]) AND {send_status} = 0 AND {next_attempt_at} IS NULL`

// classifySQL returns the places of those that are not to be published, and
// whether the row is gone. Row and transaction are judged by one snapshot.
const classifySQL = `
SELECT v.place, o.{id} IS NULL
  FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY v (id, xid, place)
  LEFT JOIN {table} o ON o.{id} = v.id
 WHERE CASE WHEN o.{id} IS NULL THEN pg_visible_in_snapshot(v.xid::text::xid8, pg_current_snapshot())
            ELSE o.{send_status} <> 0 OR o.{next_attempt_at} IS NOT NULL END`

// Lookup tells, for each ref in order, what the table says of an event that
// may have been delivered before.
func (r *Rows) Lookup(ctx context.Context, refs []event.Ref) ([]event.Fate, error) {
	fates := make([]event.Fate, len(refs)) // event.FatePublish
	if len(refs) == 0 {
		return fates, nil
	}
	ids, xids := make(bigints, len(refs)), make(bigints, len(refs))
	for i, ref := range refs {
		ids[i], xids[i] = ref.ID, int64(ref.XID)
	}
	var publish int
	if err := r.pinned(ctx, r.count, func(rows pgx.Rows) error { return rows.Scan(&publish) }, ids); err != nil {
		return nil, fmt.Errorf("looking up redelivered events: %w", err)
	}
	if publish == len(refs) {
		return fates, nil
	}
	err := r.pinned(ctx, r.classify, func(rows pgx.Rows) error {
		var place int
		var gone bool
		if err := rows.Scan(&place, &gone); err != nil {
			return err
		}
		fates[place-1] = event.FateSettled
		if gone {
			fates[place-1] = event.FateGone
		}
		return nil
	}, ids, xids)
	if err != nil {
		return nil, fmt.Errorf("looking up redelivered events: %w", err)
	}
	return fates, nil
}

// pinned runs one query under pinned plans and calls scan for each row.
func (r *Rows) pinned(ctx context.Context, sql string, scan func(pgx.Rows) error, args ...any) error {
	var batch pgx.Batch
	batch.Queue(pinSQL)
	batch.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	return r.db.SendBatch(ctx, &batch).Close()
}

// XMax returns the first transaction id, 64 bits wide, that is not assigned
// yet: a 32-bit id from the WAL is widened to the value nearest to it.
func (r *Rows) XMax(ctx context.Context) (uint64, error) {
	var xmax int64
	const sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
	if err := r.db.QueryRow(ctx, sql).Scan(&xmax); err != nil {
		return 0, fmt.Errorf("reading the next transaction id: %w", err)
	}
	return uint64(xmax), nil
}

// ProbePrefix is the prefix of the probe messages of a slot.
func ProbePrefix(slot string) string { return "cdc-relay-probe/" + slot }

// Probe commits a probe message with this id, which comes back through the
// stream after everything that was committed before it. The content is the id
// as text, in the usual form of a UUID.
func (r *Rows) Probe(ctx context.Context, id [16]byte) error {
	const sql = `SELECT pg_logical_emit_message(true, $1::text, $2::text)`
	if _, err := r.db.Exec(ctx, sql, r.prefix, uuidText(id)); err != nil {
		return fmt.Errorf("emitting a probe message: %w", err)
	}
	return nil
}

func uuidText(id [16]byte) string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
