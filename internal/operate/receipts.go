package operate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// ReceiptKey names a receipt: what the kit calls the event's idempotency key.
type ReceiptKey struct {
	EventID outbox.ID
	Purpose string // "": any
}

var purposeName = regexp.MustCompile(`^[a-z0-9._-]{1,64}$`)

// ParseReceiptKey reads an event id, and after a colon a purpose.
func ParseReceiptKey(text string) (ReceiptKey, error) {
	event, purpose, with := strings.Cut(text, ":")
	id, err := outbox.ParseID(event)
	if err != nil || with && !purposeName.MatchString(purpose) {
		return ReceiptKey{}, fmt.Errorf("%q names no receipt; write an event id, or with the purpose 0190163d-8694-739b-aea5-966c26f8ad91:welcome-mail", text)
	}
	return ReceiptKey{id, purpose}, nil
}

// Receipt is what a consumer remembers of an event for a purpose.
type Receipt struct {
	EventID       outbox.ID
	Purpose       string
	Status        outbox.Status // SENT, FAILED, CONSUMED or CONSUMING
	Attempts      int32
	Generation    int32
	ClaimedBy     string
	LeaseUntil    Moment
	NextAttemptAt Moment
	EffectAt      Moment
	Digest        []byte
	ProviderRef   string
	Code          string
	Message       string
	CreatedAt     Moment
	FinishedAt    Moment
}

const receiptColumns = `r.event_id, r.purpose, r.status, r.attempts, r.claim_generation, coalesce(r.claimed_by, ''), r.lease_until,
  r.next_attempt_at, r.effect_at, r.request_digest, coalesce(r.provider_ref, ''), coalesce(r.error_code, ''), coalesce(r.error_message, ''),
  r.created_at, r.finished_at`

func (r *Receipt) dest() []any {
	return []any{&r.EventID, &r.Purpose, &r.Status, &r.Attempts, &r.Generation, &r.ClaimedBy, &r.LeaseUntil, &r.NextAttemptAt,
		&r.EffectAt, &r.Digest, &r.ProviderRef, &r.Code, &r.Message, &r.CreatedAt, &r.FinishedAt}
}

// Waived reports whether a person has given it up.
func (r *Receipt) Waived() bool { return r.Status == outbox.Failed && r.FinishedAt.IsSet() }

// InDoubt reports whether an earlier attempt may have had its effect.
func (r *Receipt) InDoubt() bool {
	return r.Status != outbox.Consumed && (r.EffectAt.IsSet() || doubtful(r.Code))
}

func (r *Receipt) key() ReceiptKey { return ReceiptKey{r.EventID, r.Purpose} }

func (r *Receipt) result() KitResult {
	return KitResult{EventID: r.EventID.String(), Purpose: r.Purpose, Status: r.Status.String(), Code: r.Code}
}

// ReceiptFilter picks receipts: those for which everything that is set holds.
type ReceiptFilter struct {
	// Keys name receipts; one that is among them is picked.
	Keys     []ReceiptKey
	Purpose  string
	Code     string
	Statuses []outbox.Status // empty: any
	// Open leaves out receipts that a person has waived.
	Open bool
	// Since (inclusive) and Until (exclusive) bound the time when the receipt
	// was made; zero is no bound.
	Since, Until time.Time
	Limit        int
}

// Named reports whether the filter does nothing but name receipts.
func (f ReceiptFilter) Named() bool { return len(f.Keys) > 0 && !f.narrows() }

// Empty reports whether nothing but states is said about which ones to pick.
func (f ReceiptFilter) Empty() bool { return len(f.Keys) == 0 && !f.narrows() }

func (f ReceiptFilter) narrows() bool { return len(f.conditions().flags) > 0 }

// Validate says what about the filter makes no sense.
func (f ReceiptFilter) Validate() error {
	return validate(f.Limit, f.Since, f.Until, []text{{"purpose", f.Purpose}, {"error-code", f.Code}})
}

// String is the filter as flags, for the audit.
func (f ReceiptFilter) String() string {
	c := f.conditions()
	for _, key := range f.Keys {
		c.flag("event-id", key.EventID.String())
	}
	for _, s := range f.Statuses {
		c.flag("status", strings.ToLower(s.String()))
	}
	text := strings.Join(c.flags, " ")
	if len(f.Statuses) > 0 && !f.Open {
		text += " --include-waived"
	}
	return text
}

// conditions are those on columns, but for keys and states.
func (f ReceiptFilter) conditions() *kitConditions {
	c := &kitConditions{}
	c.text("purpose", "r.purpose", f.Purpose)
	c.text("error-code", "r.error_code", f.Code)
	c.times("r.created_at", f.Since, f.Until)
	return c
}

// Where receipts are looked for: by their keys, among those that wait, which
// an index has, or among the newest ones.
const (
	receiptsByKeySQL = `(SELECT * FROM {receipt} o WHERE o.event_id = ANY (%[1]s::text[]::uuid[])
    AND EXISTS (SELECT FROM unnest(%[1]s::text[]::uuid[], %[2]s::text[]) k (event_id, purpose)
                 WHERE k.event_id = o.event_id AND k.purpose IN ('', o.purpose))) r`
	receiptsWaitingSQL = `(SELECT * FROM {receipt} WHERE next_attempt_at IS NOT NULL OFFSET 0) r`
	receiptsNewestSQL  = `(SELECT * FROM {receipt} ORDER BY created_at DESC LIMIT %s::bigint) r`
)

// waiting reports whether all that the filter picks waits for a time or a
// person.
func (f ReceiptFilter) waiting() bool {
	return f.Open && len(f.Statuses) > 0 &&
		!slices.ContainsFunc(f.Statuses, func(s outbox.Status) bool { return s != outbox.Sent && s != outbox.Failed })
}

// where is the filter as the end of a statement, the oldest first and limited.
func (f ReceiptFilter) where(limit int) (string, []any) {
	c := f.conditions()
	var from string
	switch {
	case len(f.Keys) > 0:
		events, purposes := splitKeys(f.Keys)
		from = fmt.Sprintf(receiptsByKeySQL, c.bind(events), c.bind(purposes))
	case f.waiting():
		from = receiptsWaitingSQL
	default:
		from = fmt.Sprintf(receiptsNewestSQL, c.bind(MaxWalk))
	}
	if len(f.Statuses) > 0 {
		c.where = append(c.where, fmt.Sprintf("r.status = ANY (%s::smallint[])", c.bind(codes(f.Statuses))))
	}
	if f.Open {
		c.where = append(c.where, "(r.status <> 3 OR r.finished_at IS NULL)")
	}
	return c.end(from, "r.created_at, r.event_id, r.purpose", limit), c.args
}

func splitKeys(keys []ReceiptKey) (events, purposes []string) {
	events, purposes = make([]string, len(keys)), make([]string, len(keys))
	for i, key := range keys {
		events[i], purposes[i] = key.EventID.String(), key.Purpose
	}
	return events, purposes
}

// ReceiptList is the answer to a filter, the oldest first.
type ReceiptList struct {
	At   time.Time // by the clock of the database
	Rows []Receipt
	// More tells that there are more than the limit.
	More bool
	// Walked tells that only the newest MaxWalk receipts were looked at.
	Walked bool
}

// Receipts lists receipts.
func (k *Kit) Receipts(ctx context.Context, f ReceiptFilter) (*ReceiptList, error) {
	at, err := timeOf(ctx, k.conn)
	if err != nil {
		return nil, err
	}
	where, args := f.where(f.Limit + 1)
	rows, err := k.receipts(ctx, k.conn, where, args)
	if err != nil {
		return nil, err
	}
	list := &ReceiptList{At: at, Rows: rows[:min(len(rows), f.Limit)], More: len(rows) > f.Limit}
	if len(f.Keys) == 0 && !f.waiting() && !list.More {
		list.Walked, err = k.manyReceipts(ctx)
	}
	return list, err
}

// manyReceipts reports whether there are more than a walk looks at.
func (k *Kit) manyReceipts(ctx context.Context) (many bool, err error) {
	const sql = "SELECT EXISTS (SELECT FROM {receipt} ORDER BY created_at DESC OFFSET $1::bigint LIMIT 1)"
	if err := k.conn.QueryRow(ctx, k.sql(sql), MaxWalk).Scan(&many); err != nil {
		return false, fmt.Errorf("reading how far the list goes: %w", k.explain(err))
	}
	return many, nil
}

// receipts reads receipts by the end of a statement.
func (k *Kit) receipts(ctx context.Context, db querier, where string, args []any) (list []Receipt, err error) {
	rows, err := db.Query(ctx, k.sql("SELECT "+receiptColumns+where), args...)
	if err == nil {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Receipt, err error) {
			err = row.Scan(r.dest()...)
			return r, err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("reading receipts: %w", k.explain(err))
	}
	return list, nil
}

// ErrNoReceipt says that no consumer has a receipt of that name here.
var ErrNoReceipt = errors.New("there is no such receipt in this database: the event was never begun for that purpose, or its receipt was purged")

// ShowReceipts returns all receipts that a key names.
func (k *Kit) ShowReceipts(ctx context.Context, key ReceiptKey) (*ReceiptList, error) {
	list, err := k.Receipts(ctx, ReceiptFilter{Keys: []ReceiptKey{key}, Limit: math.MaxInt32 - 1})
	if err == nil && len(list.Rows) == 0 {
		err = ErrNoReceipt
	}
	return list, err
}
