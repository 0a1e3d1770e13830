package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
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
var receiptTexts = perTable(func(table string) *texts {
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
})

// claimReceipts makes the receipts that are not there, in order, so that two
// who do that wait for each other in one direction only.
const claimReceipts = `
WITH free AS MATERIALIZED (
  SELECT o.event_id FROM {table} o WHERE {among} AND ` + free + `
   ORDER BY o.event_id FOR NO KEY UPDATE SKIP LOCKED),
again AS (
  UPDATE {table} o` + take + `
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
 WHERE ` + free + `
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
