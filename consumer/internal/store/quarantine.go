package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/consumer/tables"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Reasons of quarantined records.
const (
	ReasonNoEventID     = "NO_EVENT_ID"
	ReasonBadHeaders    = "BAD_HEADERS"
	ReasonMissing       = "MISSING"
	ReasonStateConflict = "STATE_CONFLICT"
	ReasonBeyondHorizon = "BEYOND_HORIZON"
	ReasonSkippedRange  = "SKIPPED_RANGE"
)

// Retried is the resolution of a record that was retried and has its outcome.
const Retried = "retried"

// Header is a header of a record; a nil value is a null.
type Header = tables.Header

// Record is a record that could not be handled. Nil keys and values are nulls.
type Record struct {
	Topic      string
	Partition  int
	Offset     int64
	Time       time.Time
	Key, Value []byte
	Headers    []Header
	EventID    outbox.ID // zero: none
	RowID      int64     // zero: none
	Reason     string
	Message    string // a safe sentence, at most 500 bytes
}

// Stored is a record with the id of its quarantine row.
type Stored struct {
	ID int64
	Record
}

// Quarantine keeps the records that one consumer could not handle, with their
// bytes.
type Quarantine struct {
	db                         DB
	consumer                   string
	put, asked, settle, reopen string
}

// NewQuarantine keeps records in a table, given qualified and quoted. consumer
// is the group, or group/purpose.
func NewQuarantine(db DB, table, consumer string) *Quarantine {
	fill := strings.NewReplacer("{table}", table).Replace
	return &Quarantine{db: db, consumer: consumer,
		put: fill(putText), asked: fill(askedText), settle: fill(settleText), reopen: fill(reopenText)}
}

const putText = `
INSERT INTO {table} AS q (consumer, topic, partition, "offset", digest, record_time, event_id, outbox_id, reason, message,
                          record_key, record_value, record_headers)
VALUES ($1::text, $2::text, $3::int, $4::bigint, $5::bytea, $6::timestamptz, $7::uuid, $8::bigint, $9::text, $10::text,
        $11::bytea, $12::bytea, $13::bytea)
ON CONFLICT (consumer, topic, partition, "offset", digest) DO UPDATE SET seen = q.seen + 1`

const askedText = `
SELECT id, topic, partition, "offset", record_time, record_key, record_value, record_headers, event_id, outbox_id,
       reason, message
  FROM {table} WHERE consumer = $1::text AND resolved_at IS NULL AND resolution = 'retry' AND id > $2::bigint
 ORDER BY id LIMIT $3::int`

const settleText = `
UPDATE {table} SET resolution = $3::text, resolved_at = clock_timestamp()
 WHERE id = $2::bigint AND consumer = $1::text AND resolved_at IS NULL AND resolution = 'retry'`

const reopenText = `
UPDATE {table} SET resolution = NULL, resolved_by = NULL, resolved_reason = NULL, reason = $3::text, message = $4::text
 WHERE id = $2::bigint AND consumer = $1::text AND resolved_at IS NULL AND resolution = 'retry'`

// Put stores a record. One that is there already is counted: it was delivered
// again. If a person has resolved it, it stays so.
func (q *Quarantine) Put(ctx context.Context, r Record) error {
	headers := tables.EncodeHeaders(r.Headers)
	_, err := q.db.Exec(ctx, q.put, q.consumer, r.Topic, r.Partition, r.Offset, digest(r.Key, r.Value, headers), recordTime(r.Time),
		pgtype.UUID{Bytes: r.EventID, Valid: !r.EventID.IsZero()}, pgtype.Int8{Int64: r.RowID, Valid: r.RowID != 0},
		r.Reason, sentence(r.Message), r.Key, r.Value, headers)
	if err != nil {
		return fmt.Errorf("storing the record at offset %d of partition %d of topic %s in the quarantine: %w",
			r.Offset, r.Partition, r.Topic, err)
	}
	return nil
}

// AskedToRetry returns records behind a row that a person wants to be tried
// again, the first ones first. They stay asked for until Resolve or Reopen.
func (q *Quarantine) AskedToRetry(ctx context.Context, after int64, limit int) ([]Stored, error) {
	rows, err := q.db.Query(ctx, q.asked, q.consumer, after, limit)
	if err == nil {
		var list []Stored
		if list, err = pgx.CollectRows(rows, scanStored); err == nil {
			return list, nil
		}
	}
	return nil, fmt.Errorf("reading the quarantined records that are to be retried: %w", err)
}

func scanStored(row pgx.CollectableRow) (s Stored, err error) {
	var (
		at      *time.Time
		headers []byte
		event   pgtype.UUID
		id      pgtype.Int8
	)
	err = row.Scan(&s.ID, &s.Topic, &s.Partition, &s.Offset, &at, &s.Key, &s.Value, &headers, &event, &id, &s.Reason, &s.Message)
	if err != nil {
		return Stored{}, err
	}
	if at != nil {
		s.Time = *at
	}
	s.EventID, s.RowID = event.Bytes, id.Int64
	if s.Headers, err = tables.DecodeHeaders(headers); err != nil {
		return Stored{}, fmt.Errorf("quarantine row %d: %w", s.ID, err)
	}
	return s, nil
}

// Resolve closes a row that was asked to be retried. One that a person has
// resolved meanwhile stays as it is.
func (q *Quarantine) Resolve(ctx context.Context, id int64, resolution string) error {
	if _, err := q.db.Exec(ctx, q.settle, q.consumer, id, resolution); err != nil {
		return fmt.Errorf("resolving quarantine row %d: %w", id, err)
	}
	return nil
}

// Reopen makes a row that was asked to be retried open again, as that failed. It
// reports whether it did: another process, or a person, may have been faster.
func (q *Quarantine) Reopen(ctx context.Context, id int64, reason, message string) (bool, error) {
	tag, err := q.db.Exec(ctx, q.reopen, q.consumer, id, reason, sentence(message))
	if err != nil {
		return false, fmt.Errorf("opening quarantine row %d again: %w", id, err)
	}
	return tag.RowsAffected() == 1, nil
}

// digest tells records apart that have the same place, and nulls from what is
// empty.
func digest(key, value, headers []byte) []byte {
	h := sha256.New()
	for _, part := range [][]byte{key, value, headers} {
		var length [9]byte
		if part != nil {
			length[0] = 1
		}
		binary.BigEndian.PutUint64(length[1:], uint64(len(part)))
		h.Write(length[:])
		h.Write(part)
	}
	return h.Sum(nil)
}

// recordTime is NULL where the record says nothing, or nonsense that the column
// cannot hold.
func recordTime(t time.Time) pgtype.Timestamptz {
	return pgtype.Timestamptz{Time: t, Valid: !t.IsZero() && t.Year() >= 1 && t.Year() <= 9999}
}
