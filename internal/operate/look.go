package operate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// state is a row as it was seen.
type state struct {
	eventID   string
	status    outbox.Status
	finished  bool // finished_at is set
	held      bool // next_attempt_at is infinity
	errorCode string
}

type states map[int64]*state

func (s states) result(id int64) Result {
	row := s[id]
	if row == nil {
		return Result{ID: id}
	}
	return Result{ID: id, EventID: row.eventID, Found: true, Status: row.status, ErrorCode: row.errorCode}
}

const lookSQL = `
SELECT {id}, {event_id}::text, {send_status}, {finished_at} IS NOT NULL,
       coalesce({next_attempt_at} = 'infinity', false), coalesce({error_code}, '')
  FROM {table} o WHERE o.{=id} = ANY ($1::bigint[])`

// look reads rows. What is not there is missing in the answer.
func (a *Actions) look(ctx context.Context, db querier, ids []int64) (states, error) {
	seen := make(states, len(ids))
	var id int64
	var row state
	rows, err := db.Query(ctx, a.table.sql(lookSQL), ids)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id, &row.eventID, &row.status, &row.finished, &row.held, &row.errorCode}, func() error {
			copied := row
			seen[id] = &copied
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("reading rows: %w", err)
	}
	return seen, nil
}

// lockersSQL goes by a row's xmax, which is a transaction that has locked or
// changed it; several that share a lock are not told.
const lockersSQL = `
SELECT {id}, l.pid, coalesce(a.application_name, '')
  FROM {table} o
  JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = o.xmax AND l.granted AND l.pid <> pg_backend_pid()
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE o.{=id} = ANY ($1::bigint[]) AND o.xmax <> '0'`

// lockers returns who has locked rows, as far as the server tells.
func (t *Table) lockers(ctx context.Context, db querier, ids []int64) (map[int64][]Locker, error) {
	who := make(map[int64][]Locker)
	var id int64
	var l Locker
	rows, err := db.Query(ctx, t.sql(lockersSQL), ids)
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id, &l.PID, &l.Application}, func() error {
			who[id] = append(who[id], l)
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("asking who has locked rows: %w", err)
	}
	return who, nil
}
