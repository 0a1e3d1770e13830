package recovery

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// flushPoll is how long to wait before looking at the flushed WAL again.
const flushPoll = 20 * time.Millisecond

// pageSQL returns the READY rows, not parked, among the next so many rows by
// id, as far as the stored size of their payloads is below a limit, and always
// one row without a row of the table: how far the walk came.
const pageSQL = `
SELECT * FROM (
  SELECT w.upto AS cdc_relay_upto,
         o.{id} IS NOT NULL AS cdc_relay_found,
         coalesce(sum(pg_column_size(o.{payload})) OVER (ORDER BY o.{id} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)
           AS cdc_relay_before,
         o.*
    FROM (SELECT max(x.{id}) AS upto FROM (SELECT {id} FROM {table} WHERE {id} > $1::bigint ORDER BY {id} LIMIT $2::bigint) x) w
    LEFT JOIN {table} o ON o.{id} > $1::bigint AND o.{id} <= w.upto AND o.{send_status} = 0 AND o.{next_attempt_at} IS NULL) r
 WHERE r.cdc_relay_before < $3::bigint
 ORDER BY r.{id}`

// Pass reads the READY rows of one snapshot that are not parked, by id. It is
// not safe for concurrent use.
type Pass struct {
	conn    *pgx.Conn
	sql     string
	columns map[string]string
	rows    int           // of the table that one statement walks over
	before  pglogrepl.LSN // a position before the snapshot
	after   int64         // all rows up to this id have been returned or left out
}

// OpenPass takes the snapshot, on a connection of its own. It waits until the
// WAL of all that the snapshot shows is flushed: writers may commit
// asynchronously, and what a crash can undo must not be published.
func (r *Rows) OpenPass(ctx context.Context) (*Pass, error) {
	r.walk.restart()
	conn, err := r.cfg.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("opening a READY-first pass: %w", err)
	}
	p := &Pass{conn: conn, sql: r.sql.page, columns: r.cfg.Columns, rows: r.cfg.Page}
	if err := p.begin(ctx); err != nil {
		p.Close()
		return nil, fmt.Errorf("opening a READY-first pass: %w", err)
	}
	return p, nil
}

const insertLSN = "SELECT pg_current_wal_insert_lsn()::text"

func (p *Pass) begin(ctx context.Context) (err error) {
	if p.before, err = p.position(ctx); err != nil {
		return err
	}
	if _, err := p.conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"); err != nil {
		return err
	}
	if _, err := p.conn.Exec(ctx, pinSQL); err != nil { // takes the snapshot
		return err
	}
	end, err := p.position(ctx)
	if err != nil {
		return err
	}
	return p.awaitFlush(ctx, end)
}

func (p *Pass) position(ctx context.Context) (pglogrepl.LSN, error) {
	var text string
	if err := p.conn.QueryRow(ctx, insertLSN).Scan(&text); err != nil {
		return 0, err
	}
	return pglogrepl.ParseLSN(text)
}

// awaitFlush waits for the server's own flushing. Renewals of the lease commit
// all the time, so there is some.
func (p *Pass) awaitFlush(ctx context.Context, end pglogrepl.LSN) error {
	for {
		var flushed bool
		err := p.conn.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn() >= $1::text::pg_lsn", end.String()).Scan(&flushed)
		if err != nil || flushed {
			return err
		}
		select {
		case <-time.After(flushPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Next returns the next rows, about maxBytes of them; none at the end. The
// events own their bytes. Their commit position is one before the snapshot,
// and their transactions are visible. An error ends the pass: it is never
// resumed but repeated.
func (p *Pass) Next(ctx context.Context, maxBytes int64) ([]event.Event, error) {
	for {
		rows, err := p.conn.Query(ctx, p.sql, p.after, p.rows, max(maxBytes, 1))
		if err != nil {
			return nil, fmt.Errorf("reading READY rows: %w", err)
		}
		page, more, err := p.scan(rows, maxBytes)
		rows.Close()
		if err == nil {
			err = rows.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("reading READY rows: %w", err)
		}
		if len(page) > 0 || !more {
			return page, nil
		}
	}
}

// scan moves after behind the last row that it returns, or behind what was
// walked over when there is none. more is false at the end of the table.
func (p *Pass) scan(rows pgx.Rows, maxBytes int64) (page []event.Event, more bool, err error) {
	var upto *int64
	var found bool
	var before int64
	s := newScanner(rows, p.columns, &upto, &found, &before)
	for bytes := int64(0); len(page) == 0 || bytes < maxBytes; {
		if more, err := s.next(); err != nil {
			return nil, false, err
		} else if !more {
			break
		}
		if !found {
			break
		}
		e, err := s.event()
		if err != nil {
			return nil, false, err
		}
		e.CommitLSN = p.before
		bytes += int64(e.Bytes)
		page = append(page, e)
		p.after = e.ID
	}
	if len(page) == 0 && upto != nil {
		p.after = *upto
	}
	return page, upto != nil, nil
}

// Close gives the snapshot back.
func (p *Pass) Close() { pg.Close(p.conn) }
