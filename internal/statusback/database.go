package statusback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	// lockTimeout bounds the wait for one row's lock where the configuration
	// does not, and so how long a takeover waits for a statement that holds
	// the fence.
	lockTimeout = 500 * time.Millisecond
	// statementGrace is what a statement in flight gets when Run has to end.
	statementGrace = 2 * time.Second
	// answerGrace is what the server's own limit of a statement gets before
	// the connection counts as lost.
	answerGrace = 5 * time.Second
)

// pinnedPlans keeps the statements on the primary key: a plan made while the
// table was empty would be a sequential scan until the next ANALYZE. A generic
// plan takes an array for ten elements, and nested loops over two of them cost
// 1.2 s for 1400 rows where a hash join takes 16 ms.
var pinnedPlans = map[string]string{
	"enable_seqscan":    "off",
	"enable_bitmapscan": "off",
	"enable_nestloop":   "off",
	"plan_cache_mode":   "force_generic_plan",
}

// database runs the statements on one connection, and makes a new one when it
// is lost. It never waits between two tries: retryAt says when the next one
// is worth it.
type database struct {
	cfg     Config
	options pg.Options
	limit   time.Duration // of a statement, as this side sees it
	sql     statements
	log     *slog.Logger
	m       *Metrics

	conn    *pgx.Conn // nil while there is none
	pause   *backoff.ExponentialBackOff
	retryAt time.Time // of the next connect, zero at once
	changed []int64   // buffer of update's result
}

func newDatabase(cfg Config, log *slog.Logger, m *Metrics) *database {
	options := cfg.Database
	if options.LockTimeout == 0 {
		options.LockTimeout = lockTimeout
	}
	options.Settings = maps.Clone(pinnedPlans)
	maps.Copy(options.Settings, cfg.Database.Settings)
	limit := options.StatementTimeout
	if limit == 0 {
		limit = pg.DefaultStatementTimeout
	}
	return &database{
		cfg: cfg, options: options, limit: limit + answerGrace, sql: newStatements(cfg.Table), log: log, m: m,
		pause: backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
			backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0)),
	}
}

// errLost says that no answer came: the connection failed, or there is none
// yet.
var errLost = errors.New("no connection to PostgreSQL")

// update writes rows of one form, ordered by id, and returns the ids it
// changed; they are valid until the next call. skip leaves locked rows out
// instead of waiting. The error holds the server's answer (pg.Code), or is
// errLost, fault.ErrFenced or *fault.Blocked.
func (d *database) update(ctx context.Context, writes []write, skip bool) ([]int64, error) {
	f := writes[0].form()
	sql := d.sql.wait[f]
	if skip {
		sql = d.sql.skip[f]
	}
	d.changed = d.changed[:0]
	begin := time.Now()
	err := d.query(ctx, sql, append(d.fence(), arguments(f, writes)...), func(rows pgx.Rows) error {
		var id int64
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			d.changed = append(d.changed, id)
			return nil
		})
		return err
	})
	if verdictOf(err) != lost { // else it is no statement's duration
		d.m.duration.Observe(time.Since(begin).Seconds())
	}
	if err != nil {
		return nil, err
	}
	return d.changed, nil
}

// findings is what the table says of rows that an update did not change.
type findings struct {
	leads bool // the fence is still ours
	rows  []rowState
}

// look asks about rows, in the order of writes, in one snapshot.
func (d *database) look(ctx context.Context, writes []write) (findings, error) {
	xids := make([]*string, len(writes))
	for i, w := range writes {
		if w.XID != 0 { // else it is not known, and the row was read from the table
			xid := strconv.FormatUint(w.XID, 10)
			xids[i] = &xid
		}
	}
	var f findings
	err := d.query(ctx, d.sql.look, append(d.fence(), idArray(writes), xids), func(rows pgx.Rows) error {
		var found, visible, placed bool
		var status pgtype.Int2
		var due pgtype.Timestamptz
		_, err := pgx.ForEachRow(rows, []any{&f.leads, &found, &visible, &status, &due, &placed}, func() error {
			f.rows = append(f.rows, rowState{
				found: found, visible: visible, status: outbox.Status(status.Int16), due: dueOf(due), placed: placed})
			return nil
		})
		return err
	})
	if err == nil && len(f.rows) != len(writes) {
		err = fmt.Errorf("asking about %d rows: got %d answers: %w", len(writes), len(f.rows), errLost)
	}
	return f, err
}

// query runs one statement in its own transaction. When it returns nil, that
// transaction is committed.
func (d *database) query(ctx context.Context, sql string, args []any, read func(pgx.Rows) error) error {
	if err := d.connect(ctx); err != nil {
		return err
	}
	limited, cancel := d.limited(ctx)
	defer cancel()
	rows, err := d.conn.Query(limited, sql, args...)
	if err == nil {
		err = read(rows)
	}
	switch code := pg.Code(err); {
	case err == nil:
		d.pause.Reset()
		return nil
	case code != "" && code != pg.CodeReadOnly && !d.conn.IsClosed():
		return fmt.Errorf("writing row states: %w", err)
	}
	// No answer, the server is ending, or it is no primary any more: the next
	// connection will prove what it is.
	d.close()
	d.retryAt = time.Now().Add(d.pause.NextBackOff())
	d.log.Warn("connection for row states lost, connecting again", "code", pg.Code(err), "err", pg.Explain(err))
	return errLost
}

func (d *database) connect(ctx context.Context) error {
	if d.conn != nil {
		return nil
	}
	if time.Now().Before(d.retryAt) {
		return errLost
	}
	conn, _, err := pg.Connect(ctx, d.options, &d.cfg.Session)
	if err == nil {
		d.conn = conn
		return nil
	}
	d.retryAt = time.Now().Add(d.pause.NextBackOff())
	if v := verdictOf(err); v == fenced || v == denied {
		return fmt.Errorf("connecting to write row states: %w", err)
	}
	d.log.Warn("connecting to write row states", "err", err)
	return errLost
}

func (d *database) close() {
	if d.conn == nil {
		return
	}
	pg.Close(d.conn)
	d.conn = nil
}

// limited bounds a statement. The end of ctx leaves the one in flight a moment
// to finish.
func (d *database) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), d.limit)
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(statementGrace, cancel) })
	return limited, func() {
		stop()
		cancel()
	}
}
