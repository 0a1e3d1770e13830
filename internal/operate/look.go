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
  FROM {table} o WHERE o.id = ANY ($1::bigint[])`

// look reads rows. What is not there is missing in the answer.
func (a *Actions) look(ctx context.Context, db querier, ids []int64) (states, error) {
	rows, err := db.Query(ctx, a.table.sql(lookSQL), ids)
	if err != nil {
		return nil, fmt.Errorf("reading rows: %w", err)
	}
	seen := make(states, len(ids))
	var id int64
	var row state
	_, err = pgx.ForEachRow(rows, []any{&id, &row.eventID, &row.status, &row.finished, &row.held, &row.errorCode}, func() error {
		copied := row
		seen[id] = &copied
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading rows: %w", err)
	}
	return seen, nil
}

// lockersSQL finds the transaction that holds a row by the row's xmax. It finds
// nobody when several transactions share the lock.
const lockersSQL = `
SELECT o.id::bigint, l.pid
  FROM {table} o
  JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = o.xmax AND l.granted
 WHERE o.id = ANY ($1::bigint[])`

// nameLockers says of the locked rows who holds them.
func (a *Actions) nameLockers(ctx context.Context, db querier, results []Result, locked []int64) error {
	rows, err := db.Query(ctx, a.table.sql(lockersSQL), locked)
	if err != nil {
		return fmt.Errorf("asking who has locked rows: %w", err)
	}
	pids := make(map[int64]int32)
	var id int64
	var pid int32
	_, err = pgx.ForEachRow(rows, []any{&id, &pid}, func() error {
		pids[id] = pid
		return nil
	})
	if err != nil {
		return fmt.Errorf("asking who has locked rows: %w", err)
	}
	for i := range results {
		if results[i].Outcome != Locked {
			continue
		}
		who := "another transaction"
		if pid, ok := pids[results[i].ID]; ok {
			who = fmt.Sprintf("another transaction (pid %d)", pid)
		}
		results[i].Detail = who + " has locked it; let that end, or end it, and do this again"
	}
	return nil
}
