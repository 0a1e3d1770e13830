package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

const insertText = `
INSERT INTO {table} (event_id, purpose, status, finished_at) VALUES ($2::uuid, $1::text, 4, clock_timestamp())
ON CONFLICT (event_id, purpose) DO NOTHING`

// abandoned is a claim of the mode without a transaction whose lease is over:
// the purpose was used so before.
const abandoned = `o.status = 5 AND ` + leaseOver

const againText = `
UPDATE {table} o
   SET status = 4, finished_at = clock_timestamp(), next_attempt_at = NULL, lease_until = NULL, error_code = NULL,
       error_message = NULL
  FROM (SELECT o.attempts, o.error_code FROM {table} o WHERE {one} AND (` + free + ` OR ` + abandoned + `) FOR NO KEY UPDATE) before
 WHERE {one}
RETURNING before.attempts, before.error_code`

const recordFailureText = `
INSERT INTO {table} AS o (event_id, purpose, status, attempts, next_attempt_at, error_code, error_message)
VALUES ($2::uuid, $1::text, 3, 1, 'infinity', $3::text, $4::text)
ON CONFLICT (event_id, purpose) DO UPDATE
   SET status = 3, attempts = o.attempts + 1, next_attempt_at = 'infinity', lease_until = NULL,
       error_code = EXCLUDED.error_code, error_message = EXCLUDED.error_message
 WHERE o.status = 2 OR ` + abandoned

const recordDelayText = `
INSERT INTO {table} AS o (event_id, purpose, status, attempts, next_attempt_at, error_code, error_message)
VALUES ($2::uuid, $1::text, 2, 1, clock_timestamp() + $5::bigint * interval '1 us', $3::text, $4::text)
ON CONFLICT (event_id, purpose) DO UPDATE
   SET status = 2, attempts = o.attempts + 1, next_attempt_at = EXCLUDED.next_attempt_at, claimed_by = NULL,
       lease_until = NULL, error_code = EXCLUDED.error_code, error_message = EXCLUDED.error_message
 WHERE o.status = 2 OR ` + abandoned

// Insert records an event as done in tx, before its effect. first is false if
// another transaction did, or if the event is FAILED or delayed: then there is
// nothing to do, and States says why. It waits for a concurrent one to end.
// attempts and code are those of the attempts that failed before.
func (r *Receipts) Insert(ctx context.Context, tx DB, id outbox.ID) (attempts int, code string, first bool, err error) {
	key := r.key(Ref{EventID: id})
	tag, err := tx.Exec(ctx, r.texts.insert, key...)
	if err == nil && tag.RowsAffected() == 1 {
		return 0, "", true, nil
	}
	if err == nil {
		var last *string
		err = tx.QueryRow(ctx, r.texts.again, key...).Scan(&attempts, &last)
		switch {
		case err == nil:
			return attempts, orEmpty(last), true, nil
		case errors.Is(err, pgx.ErrNoRows):
			return 0, "", false, nil
		}
	}
	return 0, "", false, fmt.Errorf("inserting the receipt of event %s: %w", id, err)
}

// RecordFailure records, outside the handler's transaction, which is rolled
// back, that an event is FAILED. False if another attempt has recorded an
// outcome.
func (r *Receipts) RecordFailure(ctx context.Context, id outbox.ID, code, message string) (bool, error) {
	tag, err := r.db.Exec(ctx, r.texts.recordFailure, append(r.key(Ref{EventID: id}), code, sentence(message))...)
	if err != nil {
		return false, fmt.Errorf("recording the failure of event %s: %w", id, err)
	}
	return tag.RowsAffected() == 1, nil
}

// RecordDelay records likewise that an event is to be tried again after a
// delay.
func (r *Receipts) RecordDelay(ctx context.Context, id outbox.ID, delay time.Duration, code, message string) (bool, error) {
	tag, err := r.db.Exec(ctx, r.texts.recordDelay, append(r.key(Ref{EventID: id}), code, sentence(message), micros(delay))...)
	if err != nil {
		return false, fmt.Errorf("recording the delay of event %s: %w", id, err)
	}
	return tag.RowsAffected() == 1, nil
}
