package operate

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// ReceiptOrder is what is to be done to receipts that FAILED.
type ReceiptOrder struct {
	Kit    *Kit
	Action Action // ReceiptRetry or ReceiptDrop
	Filter ReceiptFilter
	// ClearDoubt lets a retry forget that an earlier attempt may have had its
	// effect: the person knows that it had none.
	ClearDoubt bool
	// Reason is for the audit trail; it may be empty.
	Reason string
}

// Pick tells what Apply would do to each receipt, and changes nothing.
func (o *ReceiptOrder) Pick(ctx context.Context) (KitPicked, error) {
	f := o.Filter
	if f.Named() { // each gets an answer, whatever its state is
		f.Statuses, f.Open = nil, false
	}
	where, args := f.where(f.Limit)
	rows, err := o.Kit.receipts(ctx, o.Kit.conn, where, args)
	if err != nil {
		return KitPicked{}, err
	}
	total := int64(len(rows))
	if len(rows) == f.Limit {
		if total, err = o.Kit.countReceipts(ctx, f); err != nil {
			return KitPicked{}, err
		}
	}
	results := make([]KitResult, len(rows))
	for i := range rows {
		results[i] = o.judge(&rows[i], orderOutcomes[o.Action].would)
	}
	return pick(results, f.missing(rows), total), nil
}

func (k *Kit) countReceipts(ctx context.Context, f ReceiptFilter) (n int64, err error) {
	where, args := f.where(MaxWalk)
	err = k.conn.QueryRow(ctx, k.sql("SELECT count(*) FROM (SELECT"+where+") r"), args...).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting receipts: %w", k.explain(err))
	}
	return n, nil
}

// missing are the named receipts that are not among rows.
func (f ReceiptFilter) missing(rows []Receipt) []KitResult {
	there := map[ReceiptKey]bool{}
	for i := range rows {
		there[rows[i].key()], there[ReceiptKey{EventID: rows[i].EventID}] = true, true
	}
	var missing []KitResult
	for _, key := range f.Keys {
		if f.Named() && !there[key] {
			missing = append(missing, KitResult{EventID: key.EventID.String(), Purpose: key.Purpose, Outcome: NotFound, Detail: "there is no such receipt"})
		}
	}
	return missing
}

// judge is the result of a receipt as it is: refused, or with the outcome.
func (o *ReceiptOrder) judge(r *Receipt, outcome Outcome) KitResult {
	result := r.result()
	if result.Outcome, result.Detail = o.refusal(r); result.Outcome != "" {
		return result
	}
	result.Outcome = outcome
	if o.Action == ReceiptRetry && r.InDoubt() && !o.ClearDoubt {
		result.Detail = "its effect may have happened: the consumer's ambiguity policy decides; --clear-doubt if you know that it did not"
	}
	return result
}

// refusal is why an order does not take a receipt; "" if it does.
func (o *ReceiptOrder) refusal(r *Receipt) (Outcome, string) {
	switch {
	case r.Status != outbox.Failed:
		return NotFailed, "it is " + r.Status.String()
	case r.Waived() && (o.Action == ReceiptDrop || o.Filter.Open):
		return Waived, "it was dropped before"
	}
	return "", ""
}

// What an order sets. Attempts are kept: they count towards the consumer's own
// limit. Doubt is kept unless a person clears it, in the form that does not
// count towards the limit of abandoned attempts.
const (
	receiptRetrySet = `status = 2, next_attempt_at = clock_timestamp(), finished_at = NULL, claimed_by = NULL, lease_until = NULL, error_message = NULL,
    error_code = CASE WHEN r.error_code IN ('CONSUMER_ABANDONED', 'CONSUMER_AMBIGUOUS') THEN 'CONSUMER_AMBIGUOUS' END`
	receiptClearSet = `status = 2, next_attempt_at = clock_timestamp(), finished_at = NULL, claimed_by = NULL, lease_until = NULL, error_message = NULL,
    error_code = NULL, effect_at = NULL, request_digest = NULL`
	receiptDropSet = `finished_at = clock_timestamp(), next_attempt_at = NULL`
)

const receiptSQL = `
WITH pick AS MATERIALIZED (
  SELECT r.event_id, r.purpose FROM {receipt} r JOIN unnest($1::text[]::uuid[], $2::text[]) k (event_id, purpose)
      ON r.event_id = k.event_id AND r.purpose = k.purpose
   WHERE r.status = 3 AND (r.finished_at IS NULL OR $5::boolean)
   ORDER BY r.event_id, r.purpose FOR NO KEY UPDATE OF r SKIP LOCKED),
changed AS (
  UPDATE {receipt} r SET %s FROM pick p WHERE r.event_id = p.event_id AND r.purpose = p.purpose
  RETURNING r.event_id, r.purpose),
noted AS (
  INSERT INTO {audit} (actor, action, event_id, reason, filter)
  SELECT ` + actorSQL + `, $3::text, c.event_id, $6::text, 'purpose ' || c.purpose || coalesce('; ' || $7::text, '') FROM changed c)
SELECT event_id, purpose FROM changed`

func (o *ReceiptOrder) text() string {
	set := receiptDropSet
	switch {
	case o.Action == ReceiptRetry && o.ClearDoubt:
		set = receiptClearSet
	case o.Action == ReceiptRetry:
		set = receiptRetrySet
	}
	return o.Kit.sql(fmt.Sprintf(receiptSQL, set))
}

// Apply carries the order out on the picked receipts, in one transaction.
func (o *ReceiptOrder) Apply(ctx context.Context, picked KitPicked) ([]KitResult, error) {
	keys := make([]ReceiptKey, 0, len(picked.Results))
	for _, r := range picked.Results {
		if r.Outcome == NotFound {
			continue
		}
		id, err := outbox.ParseID(r.EventID)
		if err != nil {
			return nil, err
		}
		keys = append(keys, ReceiptKey{id, r.Purpose})
	}
	var results []KitResult
	err := pgx.BeginFunc(ctx, o.Kit.conn, func(tx pgx.Tx) (err error) {
		results, err = o.apply(ctx, tx, keys)
		return err
	})
	if err != nil {
		return nil, err // what was to be committed was not
	}
	return append(results, o.gone(picked, results)...), nil
}

func (o *ReceiptOrder) apply(ctx context.Context, tx pgx.Tx, keys []ReceiptKey) ([]KitResult, error) {
	changed, err := o.change(ctx, tx, keys)
	if err != nil {
		return nil, err
	}
	where, args := ReceiptFilter{Keys: keys}.where(len(keys))
	rows, err := o.Kit.receipts(ctx, tx, where, args)
	if err != nil {
		return nil, err
	}
	results := make([]KitResult, len(rows))
	for i := range rows {
		r := rows[i].result()
		switch {
		case changed[rows[i].key()]:
			r.Outcome, r.changed = orderOutcomes[o.Action].did, true
			if rows[i].InDoubt() && o.Action == ReceiptRetry {
				r.Detail = "its effect may have happened: the consumer's ambiguity policy decides"
			}
		default:
			if r.Outcome, r.Detail = o.refusal(&rows[i]); r.Outcome == "" {
				r.Outcome, r.Detail = Locked, lockedByConsumer
			}
		}
		results[i] = r
	}
	return results, nil
}

// gone are the picked receipts that are not there any more, or never were.
func (o *ReceiptOrder) gone(picked KitPicked, results []KitResult) []KitResult {
	type name struct{ event, purpose string }
	there := map[name]bool{}
	for _, r := range results {
		there[name{r.EventID, r.Purpose}] = true
	}
	var gone []KitResult
	for _, r := range picked.Results {
		if !there[name{r.EventID, r.Purpose}] {
			r.Outcome = NotFound
			gone = append(gone, r)
		}
	}
	return gone
}

func (o *ReceiptOrder) change(ctx context.Context, tx pgx.Tx, keys []ReceiptKey) (map[ReceiptKey]bool, error) {
	filter := ""
	if !o.Filter.Named() {
		filter = o.Filter.String()
	}
	if o.ClearDoubt {
		filter = strings.TrimSpace("--clear-doubt " + filter)
	}
	events, purposes := splitKeys(keys)
	rows, err := tx.Query(ctx, o.text(), events, purposes, string(o.Action), o.Kit.person, !o.Filter.Open, orNull(o.Reason), orNull(filter))
	changed := map[ReceiptKey]bool{}
	if err == nil {
		var key ReceiptKey
		_, err = pgx.ForEachRow(rows, []any{&key.EventID, &key.Purpose}, func() error {
			changed[key] = true
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("changing receipts: %w", o.Kit.explain(err))
	}
	return changed, nil
}
