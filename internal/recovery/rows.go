package recovery

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

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

// Config says which rows to ask about, and for whom.
type Config struct {
	DB DB
	// Connect makes a connection of its own for a READY-first pass.
	Connect func(context.Context) (*pgx.Conn, error)
	Table   pg.Table
	// Columns gives, for a column of the design, the name of the table's
	// column that plays its part. What is missing has the same name.
	Columns map[string]string
	// HasPriority tells that the table has a column for it.
	HasPriority bool
	Slot        string
	// Epoch and Owner are those of the tenure: rows are requeued by the
	// slot's leader only.
	Epoch int64
	Owner [16]byte
	// Page is how many rows one statement walks over, and how many a
	// reconcile lists at most.
	Page int
	// Missed counts the rows that a reconcile has requeued.
	Missed prometheus.Counter
}

// Rows asks the outbox table about its rows. It is as safe for concurrent use
// as its DB is, except for Unsent and OpenPass, which are called one at a time.
type Rows struct {
	cfg  Config
	db   DB
	sql  statements
	walk walk // of Unsent
}

// statements are the texts for one table.
type statements struct {
	count, classify           string
	read, page                string
	survey, walk              string
	aggregates, heads, held   string
	raiseLowWater, requeueAll string
}

// New returns the Rows of a table. It does no I/O.
func New(cfg Config) *Rows {
	names := replacer(cfg)
	return &Rows{
		cfg: cfg,
		db:  cfg.DB,
		sql: statements{
			count:         names.Replace(countSQL),
			classify:      names.Replace(classifySQL),
			read:          names.Replace(readSQL),
			page:          names.Replace(pageSQL),
			survey:        names.Replace(surveySQL),
			walk:          names.Replace(walkSQL),
			aggregates:    names.Replace(aggregatesSQL),
			heads:         names.Replace(headsSQL),
			held:          names.Replace(heldSQL),
			raiseLowWater: names.Replace(raiseLowWaterSQL),
			requeueAll:    names.Replace(requeueSQL),
		},
		walk: walk{lowWaterAge: lowWaterAge},
	}
}

func replacer(cfg Config) *strings.Replacer {
	columns := pg.Columns(cfg.Columns)
	priority := "0::smallint"
	if cfg.HasPriority {
		priority = "coalesce(p." + columns.Ident("priority") + ", 0)::smallint"
	}
	pairs := []string{
		"{table}", cfg.Table.Ident(),
		"{slot}", cfg.Table.Sibling("cdc_relay_slot").Ident(),
		"{lease}", cfg.Table.Sibling("cdc_relay_lease").Ident(),
		"{audit}", cfg.Table.Sibling("cdc_relay_audit").Ident(),
		"{priority_of_p}", priority,
	}
	for _, design := range []string{
		"id", "event_id", "send_status", "next_attempt_at", "payload", "commit_lsn", "aggregate_type", "aggregate_id",
		"attempts", "sent_at", "claim_generation", "claimed_by", "lease_until", "error_code", "error_message",
	} {
		pairs = append(pairs, "{"+design+"}", columns.Ident(design))
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
	ids, xids := idsOf(refs)
	var publish int
	err := pinned(ctx, r.db, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&publish}, func() error { return nil })
		return err
	}, r.sql.count, ids)
	if err != nil {
		return nil, fmt.Errorf("looking up redelivered events: %w", err)
	}
	if publish == len(refs) {
		return fates, nil
	}
	err = pinned(ctx, r.db, func(rows pgx.Rows) error {
		var place int
		var gone bool
		_, err := pgx.ForEachRow(rows, []any{&place, &gone}, func() error {
			fates[place-1] = event.FateSettled
			if gone {
				fates[place-1] = event.FateGone
			}
			return nil
		})
		return err
	}, r.sql.classify, ids, xids)
	if err != nil {
		return nil, fmt.Errorf("looking up redelivered events: %w", err)
	}
	return fates, nil
}

// pinned runs one query under pinned plans. What read leaves of its rows is
// passed over.
func pinned(ctx context.Context, db DB, read func(pgx.Rows) error, sql string, args ...any) error {
	var batch pgx.Batch
	batch.Queue(pinSQL)
	batch.Queue(sql, args...).Query(read)
	return db.SendBatch(ctx, &batch).Close()
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
	if _, err := r.db.Exec(ctx, sql, ProbePrefix(r.cfg.Slot), uuidText(id)); err != nil {
		return fmt.Errorf("emitting a probe message: %w", err)
	}
	return nil
}

func uuidText(id [16]byte) string {
	h := hex.EncodeToString(id[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
