package recovery

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// How long to wait before looking again for a transaction that is not visible.
const (
	visibleRetryFirst = time.Millisecond
	visibleRetryMost  = 100 * time.Millisecond
)

const visibleSQL = `
SELECT coalesce(bool_and(pg_visible_in_snapshot(x::text::xid8, pg_current_snapshot())), true)
  FROM unnest($1::bigint[]) x`

// readSQL returns, for each id in its place, the row if it is READY and due,
// and then whether another one is the first parked row of its aggregate, else
// whether it is gone. It ends where the stored size of the payloads
// before reaches the limit. infinity and NULL are never due; coalesce keeps the
// planner from the index on next_attempt_at, which would find all that is due.
const readSQL = `
SELECT * FROM (
  SELECT v.place AS cdc_relay_place,
         o.{id} IS NOT NULL AS cdc_relay_due,
         o.{id} IS NULL AND NOT EXISTS (SELECT FROM {table} g WHERE g.{id} = v.id) AS cdc_relay_gone,
         o.{commit_lsn}::text AS cdc_relay_lsn,
         o.{commit_lsn} IS NOT NULL AND o.{id} <> ` + firstSQL + ` AS cdc_relay_behind,
         coalesce(sum(pg_column_size(o.{payload})) OVER (ORDER BY v.place ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)
           AS cdc_relay_before,
         o.*
    FROM unnest($1::bigint[]) WITH ORDINALITY v (id, place)
    LEFT JOIN {table} o ON o.{id} = v.id AND o.{send_status} = 0 AND coalesce(o.{next_attempt_at}, 'infinity') <= now()) r
 WHERE r.cdc_relay_before < $2::bigint
 ORDER BY r.cdc_relay_place`

// Read returns what the table holds of requeued rows: for each ref in order,
// ending early once what was read exceeds maxBytes, but never before the
// first. It waits until the refs' transactions are visible, so a row that is
// missing then is gone. Memory is bounded by maxBytes and one row.
func (r *Rows) Read(ctx context.Context, refs []event.Ref, maxBytes int64) ([]event.Found, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	ids, xids := idsOf(refs)
	if err := r.awaitVisible(ctx, xids); err != nil {
		return nil, fmt.Errorf("waiting for requeued rows to be visible: %w", err)
	}
	found := make([]event.Found, 0, len(refs))
	err := pinned(ctx, r.db, func(rows pgx.Rows) (err error) {
		found, err = r.scanFound(rows, refs, maxBytes)
		return err
	}, r.sql.read, ids, max(maxBytes, 1))
	if err != nil {
		return nil, fmt.Errorf("reading requeued rows: %w", err)
	}
	return found, nil
}

func (r *Rows) scanFound(rows pgx.Rows, refs []event.Ref, maxBytes int64) ([]event.Found, error) {
	var place, before int64
	var due, gone, behind bool
	var lsn *string
	s := newScanner(rows, r.cfg.Columns, &place, &due, &gone, &lsn, &behind, &before)
	found := make([]event.Found, 0, len(refs))
	// The stored size may be a compressed one: count again.
	for bytes := int64(0); len(found) == 0 || bytes < maxBytes; {
		more, err := s.next()
		if err != nil || !more {
			return found, err
		}
		ref := refs[place-1]
		f := event.Found{Fate: event.FateSettled, Event: event.Event{Ref: event.Ref{ID: ref.ID}}}
		switch {
		case due:
			f.Fate, f.Behind = event.FatePublish, behind
			if f.Event, err = s.event(); err != nil {
				return nil, err
			}
			if f.Event.CommitLSN, err = parseLSN(lsn); err != nil {
				return nil, err
			}
			f.Event.Seq, f.Event.XID = ref.Seq, ref.XID
			bytes += int64(f.Event.Bytes)
		case gone:
			f.Fate = event.FateGone
		}
		found = append(found, f)
	}
	return found, nil
}

// awaitVisible waits until a new snapshot sees all of these transactions: WAL
// is received before its commit is visible, and with a synchronous standby that
// may be long before.
func (r *Rows) awaitVisible(ctx context.Context, xids bigints) error {
	for wait := visibleRetryFirst; ; wait = min(2*wait, visibleRetryMost) {
		var visible bool
		if err := r.db.QueryRow(ctx, visibleSQL, xids).Scan(&visible); err != nil || visible {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func idsOf(refs []event.Ref) (ids, xids bigints) {
	ids, xids = make(bigints, len(refs)), make(bigints, len(refs))
	for i, ref := range refs {
		ids[i], xids[i] = ref.ID, int64(ref.XID)
	}
	return ids, xids
}
