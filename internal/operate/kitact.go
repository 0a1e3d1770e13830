package operate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// What a person does to what consumers keep, as the audit trail names it.
const (
	QuarantineRetry Action = "quarantine_retry"
	QuarantineDrop  Action = "quarantine_drop"
	ReceiptRetry    Action = "receipt_retry"
	ReceiptDrop     Action = "receipt_drop"
)

// Outcomes besides those of Actions.
const (
	Asked      Outcome = "retry_asked" // a consumer will run the stored record
	Retried    Outcome = "retried"     // the receipt is due, for when the record comes again
	Dropped    Outcome = "dropped"
	WouldRetry Outcome = "would_retry" // by a dry run
	WouldDrop  Outcome = "would_drop"
	NotOpen    Outcome = "not_open"  // resolved, or a retry is asked for already
	NoRecord   Outcome = "no_record" // there are no bytes to retry
)

// orderOutcomes are those of an order that is carried out, and of a dry run.
var orderOutcomes = map[Action]struct{ did, would Outcome }{
	QuarantineRetry: {Asked, WouldRetry}, QuarantineDrop: {Dropped, WouldDrop},
	ReceiptRetry: {Retried, WouldRetry}, ReceiptDrop: {Dropped, WouldDrop},
}

const (
	// skippedRange is the code of quarantined records without bytes: a batch
	// that could not be read was passed over.
	skippedRange = "SKIPPED_RANGE"
	// beyondHorizon is that of records that are as old when they are retried,
	// so a retry helps only if the consumer's horizon was too short.
	beyondHorizon = "BEYOND_HORIZON"
)

// QuarantineOrder is what is to be done to quarantined records.
type QuarantineOrder struct {
	Kit    *Kit
	Action Action // QuarantineRetry or QuarantineDrop
	Filter QuarantineFilter
	// Reason is for the audit trail; it may be empty.
	Reason string
}

// Pick tells what Apply would do to each record, and changes nothing.
func (o *QuarantineOrder) Pick(ctx context.Context) (KitPicked, error) {
	where, args := o.Filter.where(o.Filter.Limit)
	rows, err := o.Kit.quarantined(ctx, o.Kit.conn, where, args)
	if err != nil {
		return KitPicked{}, err
	}
	total := int64(len(rows))
	if len(rows) == o.Filter.Limit {
		if total, err = o.Kit.count(ctx, o.Filter); err != nil {
			return KitPicked{}, err
		}
	}
	results := make([]KitResult, len(rows))
	for i := range rows {
		r := rows[i].result()
		if r.Outcome, r.Detail = o.refusal(&rows[i]); r.Outcome == "" {
			r.Outcome = orderOutcomes[o.Action].would
		}
		results[i] = r
	}
	return pick(results, o.Filter.missing(rows), total), nil
}

// count is how many records a filter picks without its limit.
func (k *Kit) count(ctx context.Context, f QuarantineFilter) (n int64, err error) {
	where, args := f.where(MaxWalk)
	err = k.conn.QueryRow(ctx, k.sql("SELECT count(*) FROM (SELECT"+where+") q"), args...).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("counting quarantined records: %w", k.explain(err))
	}
	return n, nil
}

// missing are the named records that are not among rows.
func (f QuarantineFilter) missing(rows []Quarantined) []KitResult {
	if !f.Named() {
		return nil
	}
	ids, events := map[int64]bool{}, map[string]bool{}
	for _, r := range rows {
		ids[r.ID], events[r.EventID] = true, true
	}
	var missing []KitResult
	for _, id := range f.IDs {
		if !ids[id] {
			missing = append(missing, KitResult{ID: id, Outcome: NotFound, Detail: "there is no such record"})
		}
	}
	for _, id := range f.EventIDs {
		if !events[id.String()] {
			missing = append(missing, KitResult{EventID: id.String(), Outcome: NotFound, Detail: "there is no record of this event"})
		}
	}
	return missing
}

// refusal is why an order does not take a record; "" if it does.
func (o *QuarantineOrder) refusal(r *Quarantined) (Outcome, string) {
	switch {
	case r.State == QuarantineAsked && o.Action == QuarantineRetry:
		return NotOpen, "a retry is asked for already; its consumer makes it when it runs"
	case r.State == QuarantineRetried:
		return NotOpen, "it was retried"
	case r.State == QuarantineDropped:
		return NotOpen, "it was dropped"
	case r.Code == skippedRange && o.Action == QuarantineRetry:
		return NoRecord, "nothing of the batch could be read: replay its events by the time when they were created, then drop it"
	}
	return "", ""
}

// quarantineSQL changes records that are open and notes it in the audit trail.
// A record that its consumer is just resolving is left out. What the record
// says of its row is not proved, so the trail names the record.
const quarantineSQL = `
WITH pick AS MATERIALIZED (
  SELECT q.id FROM {quarantine} q WHERE q.id = ANY ($1::bigint[]) AND q.resolved_at IS NULL AND (%s)
   ORDER BY q.id FOR NO KEY UPDATE OF q SKIP LOCKED),
changed AS (
  UPDATE {quarantine} q SET %s, resolved_by = ` + actorSQL + `, resolved_reason = $3::text
    FROM pick p WHERE q.id = p.id AND q.id = ANY ($1::bigint[])
  RETURNING q.id, q.event_id, q.consumer, q.topic, q.partition, q."offset"),
noted AS (
  INSERT INTO {audit} (actor, action, event_id, reason, filter)
  SELECT ` + actorSQL + `, $2::text, c.event_id, $3::text,
         format('record %%s of %%s: %%s, partition %%s, offset %%s', c.id, c.consumer, c.topic, c.partition, c."offset")
           || coalesce('; ' || $5::text, '') FROM changed c)
SELECT id FROM changed`

var quarantineTexts = map[Action]string{
	QuarantineRetry: fmt.Sprintf(quarantineSQL, "q.resolution IS NULL AND q.reason <> '"+skippedRange+"'", "resolution = 'retry'"),
	QuarantineDrop:  fmt.Sprintf(quarantineSQL, "true", "resolution = 'dropped', resolved_at = clock_timestamp()"),
}

// Apply carries the order out on the picked records, in one transaction.
func (o *QuarantineOrder) Apply(ctx context.Context, picked KitPicked) ([]KitResult, error) {
	var ids []int64
	for _, r := range picked.Results {
		if r.Outcome != NotFound {
			ids = append(ids, r.ID)
		}
	}
	results := make([]KitResult, 0, len(picked.Results))
	err := pgx.BeginFunc(ctx, o.Kit.conn, func(tx pgx.Tx) error {
		changed, err := o.change(ctx, tx, ids)
		if err != nil {
			return err
		}
		rows, err := o.Kit.quarantined(ctx, tx, " FROM {quarantine} q WHERE q.id = ANY ($1::bigint[]) ORDER BY q.id", []any{ids})
		for i := range rows {
			r := rows[i].result()
			if r.changed = changed[r.ID]; r.changed {
				r.Outcome = orderOutcomes[o.Action].did
			} else if r.Outcome, r.Detail = o.refusal(&rows[i]); r.Outcome == "" {
				r.Outcome, r.Detail = Locked, lockedByConsumer
			}
			results = append(results, r)
		}
		return err
	})
	if err != nil {
		return nil, err // what was to be committed was not
	}
	return append(results, o.gone(picked, results)...), nil
}

const lockedByConsumer = "another transaction has locked it, its consumer perhaps; do this again"

// gone are the picked records that are not there any more, or never were.
func (o *QuarantineOrder) gone(picked KitPicked, results []KitResult) []KitResult {
	there := map[int64]bool{}
	for _, r := range results {
		there[r.ID] = true
	}
	var gone []KitResult
	for _, r := range picked.Results {
		if r.ID == 0 || !there[r.ID] {
			r.Outcome = NotFound
			gone = append(gone, r)
		}
	}
	return gone
}

func (o *QuarantineOrder) change(ctx context.Context, tx pgx.Tx, ids []int64) (map[int64]bool, error) {
	filter := ""
	if !o.Filter.Named() {
		filter = o.Filter.String()
	}
	rows, err := tx.Query(ctx, o.Kit.sql(quarantineTexts[o.Action]), ids, string(o.Action), orNull(o.Reason), o.Kit.person, orNull(filter))
	changed := map[int64]bool{}
	if err == nil {
		var id int64
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
			changed[id] = true
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("changing quarantined records: %w", o.Kit.explain(err))
	}
	return changed, nil
}
