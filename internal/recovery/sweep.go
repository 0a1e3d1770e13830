package recovery

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/pg"
)

const (
	// sweepPause is the least pause between two pages; it is also nine times
	// what the page took, so that a walk over a large table takes a tenth of a
	// connection.
	sweepPause = 100 * time.Millisecond
	// sweepBatch is how many rows one transaction sweeps.
	sweepBatch = 500
	// sweepNamed is how many rows a log entry names.
	sweepNamed = 10
)

// SweepConfig says when a claim counts as stranded.
type SweepConfig struct {
	// Every is the time between two walks.
	Every time.Duration
	// After is how long a lease must have been over: ten leases of consumers.
	After time.Duration
	// Swept counts the rows.
	Swept prometheus.Counter
}

// Sweep finds events that are stranded: CONSUMING with a lease that is over for
// long, so no consumer has been given the record again and none will take the
// claim over. An offset that passed an open event does that, by a reset or a
// mistake. Their rows are set READY and due, audited, and the slot brings them
// to be published again. A needless sweep costs a duplicate record.
//
// SENT rows are never swept, however old: a consumer that is down would get all
// of its backlog again and again.
type Sweep struct {
	rows Config
	cfg  SweepConfig
	log  *slog.Logger
	sql  sweepStatements
	walk walk

	// claimed tells that this walk has met a row that was ever claimed;
	// unclaimed, that the last one has met none. Then nobody seems to claim
	// events of this table, and looking for a first claim among its oldest and
	// its newest rows is enough, but for the walk over all of it once a day.
	claimed, unclaimed bool
	newest             int64 // where those begin; 0: the walk leaves nothing out
}

type sweepStatements struct{ survey, walk, requeue, raise string }

// NewSweep returns the sweep of a table that has the columns of claims. It does
// nothing until Run.
func NewSweep(rows Config, cfg SweepConfig, log *slog.Logger) *Sweep {
	names := replacer(rows)
	return &Sweep{
		rows: rows, cfg: cfg, log: log,
		sql: sweepStatements{
			survey:  names.Replace(sweepSurveySQL),
			walk:    names.Replace(sweepWalkSQL),
			requeue: names.Replace(sweepSQL),
			raise:   names.Replace(raiseConsumerLowWaterSQL),
		},
		walk: walk{lowWaterAge: lowWaterAge},
	}
}

// sweepSurveySQL also tells where the newest page begins.
const sweepSurveySQL = `
SELECT coalesce((SELECT consumer_low_water_id FROM {lease} WHERE slot = $1), 0),
       coalesce((SELECT max({id}) FROM {table}), 0)::bigint,
       coalesce((SELECT {id} FROM {table} ORDER BY {id} DESC OFFSET $2::bigint LIMIT 1), 0)::bigint,
       pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint
  FROM pg_current_snapshot() s`

// sweepWalkSQL takes CONSUMED and FAILED rows for closed. A person may replay a
// FAILED one: the walk from the first row on finds what becomes of it. A row
// that somebody made CONSUMING without a lease has no time to judge it by.
const sweepWalkSQL = `
SELECT max(w.id)::bigint, coalesce(min(w.id) FILTER (WHERE w.status NOT IN (3, 4)), 0)::bigint,
       coalesce(bool_or(w.generation > 0), false),
       coalesce(array_agg(w.id::bigint ORDER BY w.id) FILTER (WHERE w.status = 5 AND w.lease_until <= now() - $3::bigint * interval '1 microsecond'), '{}')
  FROM (SELECT {id} AS id, {send_status} AS status, {claim_generation} AS generation, {lease_until} AS lease_until
          FROM {table} WHERE {id} > $1::bigint ORDER BY {id} LIMIT $2::bigint) w`

// sweepSQL leaves out rows that somebody has locked: who finishes or takes over
// a claim just now is not stranded. The attempts were the consumer's; those of
// publishing begin anew. Without a commit position the row passes the gate, as
// it did when it was sent first. SENT keeps the error code, so the next claim
// knows that an earlier attempt may have had its effect.
const sweepSQL = `
WITH pick AS MATERIALIZED (
  SELECT o.{id} AS id, o.{event_id} AS event_id, o.{claim_generation} AS generation, o.{claimed_by} AS claimed_by, o.{lease_until} AS lease_until
    FROM {table} o
   WHERE o.{id} = ANY ($4::bigint[]) AND o.{send_status} = 5 AND o.{lease_until} <= now() - $5::bigint * interval '1 microsecond'
     AND EXISTS (SELECT FROM {slot} WHERE slot = $1 AND epoch = $2 AND owner = $3)
   ORDER BY o.{id} FOR NO KEY UPDATE OF o SKIP LOCKED),
swept AS (
  UPDATE {table} o
     SET {send_status} = 0, {next_attempt_at} = now(), {commit_lsn} = NULL, {sent_at} = NULL, {attempts} = 0,
         {claimed_by} = NULL, {lease_until} = NULL, {error_code} = 'CONSUMER_ABANDONED',
         {error_message} = 'an attempt ended without an outcome, and no consumer received the event again'
    FROM pick p WHERE o.{id} = p.id AND o.{id} = ANY ($4::bigint[])
  RETURNING o.{id} AS id),
noted AS (
  INSERT INTO {audit} (actor, action, id, event_id, reason)
  SELECT session_user || ' (cdc-relay)', 'sweep', p.id, p.event_id,
         format('claim %s of %s: its lease has been over since %s', p.generation, coalesce(left(p.claimed_by, 200), 'nobody'),
                to_char(p.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
    FROM pick p JOIN swept USING (id))
SELECT id::bigint FROM swept ORDER BY id`

const raiseConsumerLowWaterSQL = `
UPDATE {lease} SET consumer_low_water_id = $4 WHERE slot = $1 AND epoch = $2 AND owner = $3`

// Run walks over the table again and again until ctx ends, for the first time
// when a while has passed: consumers that start at the same moment take over
// what is theirs. It rests while accepting says that the line has no room or
// makes no progress. What goes wrong is logged and tried again later: nothing
// else depends on it.
func (s *Sweep) Run(ctx context.Context, accepting func() bool) error {
	for pause := s.cfg.Every; ; {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause = s.cfg.Every
		if !accepting() {
			continue
		}
		began := time.Now()
		err := s.step(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.log.Warn("looking for claims that nobody will end, trying again", "err", pg.Explain(err))
		case s.walk.underway:
			pause = max(sweepPause, 9*time.Since(began))
		}
	}
}

// step looks at one page, the first of a new walk if none is underway.
func (s *Sweep) step(ctx context.Context) error {
	if !s.walk.underway {
		if err := s.begin(ctx); err != nil {
			return fmt.Errorf("beginning to look for stranded claims: %w", err)
		}
	}
	stranded, open, last, err := s.page(ctx)
	if err != nil {
		return fmt.Errorf("looking for stranded claims: %w", err)
	}
	if last == 0 {
		return s.end(ctx)
	}
	s.walk.pass(open, last)
	if !s.claimed {
		s.walk.skip(s.newest)
	}
	// A row that cannot be swept, such as one that a trigger refuses, keeps the
	// mark below it, but not the walk from going on.
	return s.requeue(ctx, stranded)
}

func (s *Sweep) begin(ctx context.Context) error {
	var low, newest, xmin int64
	now := mark{at: time.Now()}
	err := s.rows.DB.QueryRow(ctx, s.sql.survey, s.rows.Slot, s.rows.Page).Scan(&low, &now.id, &newest, &xmin, &now.xmax)
	if err != nil {
		return err
	}
	whole := s.walk.begin(low, now, xmin)
	s.claimed, s.newest = false, 0
	if s.unclaimed && !whole {
		s.newest = newest
	}
	return nil
}

// page returns last = 0 behind the last row.
func (s *Sweep) page(ctx context.Context) (stranded []int64, open, last int64, err error) {
	var upto *int64
	var claimed bool
	err = pinned(ctx, s.rows.DB, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&upto, &open, &claimed, &stranded}, func() error { return nil })
		return err
	}, s.sql.walk, s.walk.after, s.rows.Page, s.cfg.After.Microseconds())
	if err != nil || upto == nil {
		return nil, 0, 0, err
	}
	s.claimed = s.claimed || claimed
	return stranded, open, *upto, nil
}

// end saves the low-water mark, if it has risen.
func (s *Sweep) end(ctx context.Context) error {
	if to := s.walk.raised(); to > s.walk.low {
		if _, err := s.rows.DB.Exec(ctx, s.sql.raise, s.rows.Slot, s.rows.Epoch, s.rows.Owner, to); err != nil {
			return fmt.Errorf("saving the low-water mark of claims: %w", err)
		}
	}
	s.unclaimed = !s.claimed
	s.walk.underway = false
	return nil
}

// requeue sweeps those rows that are still stranded, if the tenure has not
// ended.
func (s *Sweep) requeue(ctx context.Context, ids []int64) error {
	for len(ids) > 0 {
		n := min(sweepBatch, len(ids))
		if err := s.requeueBatch(ctx, ids[:n]); err != nil {
			return fmt.Errorf("requeueing stranded events: %w", err)
		}
		ids = ids[n:]
	}
	return nil
}

func (s *Sweep) requeueBatch(ctx context.Context, ids []int64) error {
	var swept []int64
	err := pinned(ctx, s.rows.DB, func(rows pgx.Rows) (err error) {
		swept, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	}, s.sql.requeue, s.rows.Slot, s.rows.Epoch, s.rows.Owner, bigints(ids), s.cfg.After.Microseconds())
	switch {
	case pg.Code(err) == pg.CodeNoPrivilege:
		return fmt.Errorf("%w; give the login that writes status INSERT on cdc_relay_audit, and UPDATE of the columns of claims", err)
	case err != nil || len(swept) == 0:
		return err
	}
	s.cfg.Swept.Add(float64(len(swept)))
	s.log.Warn("events that a consumer claimed and never ended, and that none received again, are published again",
		"rows", len(swept), "ids", swept[:min(sweepNamed, len(swept))])
	return nil
}
