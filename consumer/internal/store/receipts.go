package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Receipts claims events for one purpose in outbox_receipt (effects outside
// the database), and records them in a handler's transaction (Insert). A
// purpose is used in one of the two ways.
type Receipts struct{ claims }

// NewReceipts claims receipts in a table, given qualified and quoted, for an
// owner, whose name is for people.
func NewReceipts(db DB, table, purpose, owner string, lease time.Duration, abandonLimit int) *Receipts {
	return &Receipts{claims{db: db, texts: receiptTexts(table), purpose: purpose, owner: owner, lease: lease, limit: abandonLimit}}
}

// On returns the same on another connection, such as a handler's transaction.
func (r *Receipts) On(db DB) *Receipts {
	on := *r
	on.db = db
	return &on
}

// receiptTexts: a receipt has no row id, so both ways of naming are the same.
func receiptTexts(table string) *texts {
	names := strings.NewReplacer(
		"{table}", table, "{status}", "status", "{since}", "created_at",
		"{id}", "0::bigint", "{effect}", "o.effect_at IS NOT NULL, o.request_digest, o.provider_ref",
		"{settled}", "true",
		"{one}", "o.purpose = $1::text AND o.event_id = $2::uuid",
		"{match}", "o.event_id = k.event_id",
		"{among}", "o.purpose = $1::text AND o.event_id = ANY($2::uuid[])",
		"{ordered}", "unnest($2::uuid[]) WITH ORDINALITY k(event_id, n)",
		"{held}", "unnest($2::uuid[], $3::int[]) k(event_id, gen)",
	)
	t := dialect{claim: claimReceipts, claimOne: claimReceipt, byRow: names, byEvent: names}.fill()
	t.beginEffect, t.clearEffect, t.providerRef = names.Replace(beginEffectText), names.Replace(clearEffectText), names.Replace(providerRefText)
	t.insert, t.again = names.Replace(insertText), names.Replace(againText)
	t.recordFailure, t.recordDelay = names.Replace(recordFailureText), names.Replace(recordDelayText)
	return t
}

const dueReceipt = `o.status = 2 AND (o.next_attempt_at IS NULL OR o.next_attempt_at <= clock_timestamp())`

// claimReceipts makes the receipts that are not there, in order, so that two
// who do that wait for each other in one direction only.
const claimReceipts = `
WITH free AS MATERIALIZED (
  SELECT o.event_id FROM {table} o WHERE {among} AND ` + dueReceipt + `
   ORDER BY o.event_id FOR NO KEY UPDATE SKIP LOCKED),
again AS (
  UPDATE {table} o
     SET status = 5, claim_generation = o.claim_generation + 1, claimed_by = $3::text,
         lease_until = clock_timestamp() + $4::bigint * interval '1 us'
    FROM free k WHERE {match} AND {among}
  RETURNING ` + claimed + `),
first AS (
  INSERT INTO {table} AS o (event_id, purpose, status, claim_generation, claimed_by, lease_until)
  SELECT DISTINCT k.event_id, $1::text, 5, 1, $3::text, clock_timestamp() + $4::bigint * interval '1 us'
    FROM unnest($2::uuid[]) k(event_id) ORDER BY k.event_id
  ON CONFLICT (event_id, purpose) DO NOTHING
  RETURNING ` + claimed + `)
SELECT * FROM again UNION ALL SELECT * FROM first`

const claimReceipt = `
INSERT INTO {table} AS o (event_id, purpose, status, claim_generation, claimed_by, lease_until)
VALUES ($2::uuid, $1::text, 5, 1, $3::text, clock_timestamp() + $4::bigint * interval '1 us')
ON CONFLICT (event_id, purpose) DO UPDATE
   SET status = 5, claim_generation = o.claim_generation + 1, claimed_by = EXCLUDED.claimed_by,
       lease_until = EXCLUDED.lease_until
 WHERE ` + dueReceipt + `
RETURNING ` + claimed

const beginEffectText = `
UPDATE {table} o
   SET effect_at = coalesce(o.effect_at, clock_timestamp()), request_digest = coalesce(o.request_digest, $4::bytea)
 WHERE {one} AND o.status = 5 AND o.claim_generation = $3::int
RETURNING o.request_digest <> $4::bytea`

const clearEffectText = `
UPDATE {table} o SET effect_at = NULL, request_digest = NULL
 WHERE {one} AND o.status = 5 AND o.claim_generation = $3::int`

const providerRefText = `
UPDATE {table} o SET provider_ref = $4::text
 WHERE {one} AND o.status = 5 AND o.claim_generation = $3::int`

// BeginEffect records, before the call, that it may leave the process, with a
// request of this digest; ok is false if the claim is lost. changed says that
// an earlier attempt began with another request, which stays recorded.
func (r *Receipts) BeginEffect(ctx context.Context, h Held, digest []byte) (ok, changed bool, err error) {
	if digest == nil {
		digest = []byte{} // NULL would be equal to nothing
	}
	err = r.db.QueryRow(ctx, r.texts.beginEffect, append(r.key(h.Ref), h.Generation, digest)...).Scan(&changed)
	switch {
	case err == nil:
		return true, changed, nil
	case errors.Is(err, pgx.ErrNoRows):
		return false, false, nil
	}
	return false, false, fmt.Errorf("recording that the effect of event %s begins: %w", h.EventID, err)
}

// ClearEffect records that there is no effect: the call was refused for good.
// False if the claim is lost.
func (r *Receipts) ClearEffect(ctx context.Context, h Held) (bool, error) {
	same := statement{r.texts.clearEffect, r.texts.clearEffect}
	return r.one(ctx, "recording that there is no effect of", same, h)
}

// SetProviderRef records what the receiver of the effect calls it. False if the
// claim is lost.
func (r *Receipts) SetProviderRef(ctx context.Context, h Held, ref string) (bool, error) {
	same := statement{r.texts.providerRef, r.texts.providerRef}
	return r.one(ctx, "recording the provider's reference of", same, h, sentence(ref))
}

// Transactional receipts.

const insertText = `
INSERT INTO {table} (event_id, purpose, status, finished_at) VALUES ($2::uuid, $1::text, 4, clock_timestamp())
ON CONFLICT (event_id, purpose) DO NOTHING`

const againText = `
UPDATE {table} o
   SET status = 4, finished_at = clock_timestamp(), next_attempt_at = NULL, error_code = NULL, error_message = NULL
  FROM (SELECT o.attempts, o.error_code FROM {table} o WHERE {one} AND ` + dueReceipt + ` FOR NO KEY UPDATE) before
 WHERE {one}
RETURNING before.attempts, before.error_code`

const recordFailureText = `
INSERT INTO {table} AS o (event_id, purpose, status, attempts, next_attempt_at, error_code, error_message)
VALUES ($2::uuid, $1::text, 3, 1, 'infinity', $3::text, $4::text)
ON CONFLICT (event_id, purpose) DO UPDATE
   SET status = 3, attempts = o.attempts + 1, next_attempt_at = 'infinity', error_code = EXCLUDED.error_code,
       error_message = EXCLUDED.error_message
 WHERE o.status = 2`

const recordDelayText = `
INSERT INTO {table} AS o (event_id, purpose, status, attempts, next_attempt_at, error_code, error_message)
VALUES ($2::uuid, $1::text, 2, 1, clock_timestamp() + $5::bigint * interval '1 us', $3::text, $4::text)
ON CONFLICT (event_id, purpose) DO UPDATE
   SET attempts = o.attempts + 1, next_attempt_at = EXCLUDED.next_attempt_at, error_code = EXCLUDED.error_code,
       error_message = EXCLUDED.error_message
 WHERE o.status = 2`

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
