package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Purge says which receipts to remove.
type Purge struct {
	Table   string // qualified and quoted
	Purpose string // empty: all
	// OlderThan is the age above which they go. Horizon is the age up to which
	// records can come again: OlderThan must not be below it.
	OlderThan, Horizon time.Duration
	// Page is how many are looked at in one transaction, Pause the time between
	// two.
	Page  int
	Pause time.Duration
}

// purgePage looks at the oldest receipts after a moment and removes those that
// are done or waived. One that is locked stays for the next purge. All that were
// made at the same moment are in the same page.
const purgePage = `
WITH page AS MATERIALIZED (
  SELECT created_at, event_id, purpose FROM {table}
   WHERE created_at > $3::timestamptz AND created_at < statement_timestamp() - $1::bigint * interval '1 us'
     AND ($2::text = '' OR purpose = $2::text)
   ORDER BY created_at FETCH FIRST ($4::int) ROWS WITH TIES),
dead AS MATERIALIZED (
  SELECT r.event_id, r.purpose FROM {table} r JOIN page ON r.event_id = page.event_id AND r.purpose = page.purpose
   WHERE r.event_id = ANY(ARRAY(SELECT event_id FROM page)) AND (r.status = 4 OR r.status = 3 AND r.finished_at IS NOT NULL)
     FOR UPDATE OF r SKIP LOCKED),
gone AS (
  DELETE FROM {table} r USING dead
   WHERE r.event_id = ANY(ARRAY(SELECT event_id FROM dead)) AND r.event_id = dead.event_id AND r.purpose = dead.purpose
  RETURNING 1)
SELECT max(created_at), (SELECT count(*) FROM gone) FROM page`

// Run removes them, a page a transaction, and returns how many. After an error
// it can be repeated.
func (p Purge) Run(ctx context.Context, db DB) (deleted int64, err error) {
	if err := p.check(); err != nil {
		return 0, err
	}
	sql := strings.ReplaceAll(purgePage, "{table}", p.Table)
	at := pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	for {
		var n int64
		if err := db.QueryRow(ctx, sql, micros(p.OlderThan), p.Purpose, at, p.Page).Scan(&at, &n); err != nil {
			return deleted, fmt.Errorf("purging receipts: %w", err)
		}
		if !at.Valid { // there are no more
			return deleted, nil
		}
		deleted += n
		if err := pause(ctx, p.Pause); err != nil {
			return deleted, fmt.Errorf("purging receipts: %w", err)
		}
	}
}

func (p Purge) check() error {
	switch {
	case p.Horizon <= 0:
		return errors.New("purging receipts: no horizon: say for how long records can come again, at least the retention of the topics")
	case p.OlderThan < p.Horizon:
		return fmt.Errorf("purging receipts older than %v: refused, as records up to %v old can come again and would look new: "+
			"purge what is older than that, or lower the horizon of the consumers first", p.OlderThan, p.Horizon)
	case p.Page < 1:
		return errors.New("purging receipts: a page is at least 1")
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
