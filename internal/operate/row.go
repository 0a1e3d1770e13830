package operate

import (
	"encoding/json"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Moment is a point in time as a row has it: none, a time, or infinity, which
// never comes.
type Moment struct{ pgtype.Timestamptz }

// IsSet reports whether there is one, infinity included.
func (m Moment) IsSet() bool { return m.Valid }

// Never reports whether it is infinity.
func (m Moment) Never() bool { return m.Valid && m.InfinityModifier == pgtype.Infinity }

// After reports whether it is set and later than a time.
func (m Moment) After(at time.Time) bool { return m.Never() || m.Finite() && m.Time.After(at) }

// Finite reports whether it is an ordinary time.
func (m Moment) Finite() bool { return m.Valid && m.InfinityModifier == pgtype.Finite }

// MarshalJSON writes RFC 3339 in UTC, "infinity", "-infinity" or null.
func (m Moment) MarshalJSON() ([]byte, error) {
	switch {
	case !m.Valid:
		return []byte("null"), nil
	case m.Finite():
		return json.Marshal(m.Time.UTC())
	default:
		return json.Marshal(m.InfinityModifier.String())
	}
}

// Row is an outbox row without its payload and headers.
type Row struct {
	ID              int64
	EventID         outbox.ID
	AggregateType   string
	AggregateID     string
	EventType       string
	ContentType     string
	Topic           string // the row's own, else that of the template
	Priority        int32
	CreatedAt       Moment
	Status          outbox.Status
	Attempts        int32
	NextAttemptAt   Moment
	CommitLSN       string // "" if none
	ClaimGeneration int32
	ClaimedBy       string // "" if nobody
	LeaseUntil      Moment
	SentAt          Moment
	FinishedAt      Moment
	ErrorCode       string // "" if none
	ErrorMessage    string
}

// rowColumns are those of a Row, in order; %s is the topic.
const rowColumns = `{id}, {event_id}, {aggregate_type}, {aggregate_id}, {event_type}, coalesce({content_type}, 'application/json'), %s,
  coalesce({priority}, 0), {created_at}, {send_status}, coalesce({attempts}, 0), {next_attempt_at}, coalesce({commit_lsn}::text, ''),
  coalesce({claim_generation}, 0), coalesce({claimed_by}, ''), {lease_until}, {sent_at}, {finished_at},
  coalesce({error_code}, ''), coalesce({error_message}, '')`

// dest is where a result's columns of a Row go.
func (r *Row) dest() []any {
	return []any{&r.ID, &r.EventID, &r.AggregateType, &r.AggregateID, &r.EventType, &r.ContentType, &r.Topic,
		&r.Priority, &r.CreatedAt, &r.Status, &r.Attempts, &r.NextAttemptAt, &r.CommitLSN,
		&r.ClaimGeneration, &r.ClaimedBy, &r.LeaseUntil, &r.SentAt, &r.FinishedAt, &r.ErrorCode, &r.ErrorMessage}
}

// Phase is where the event is, or where it failed.
func (r *Row) Phase() Phase {
	if r.SentAt.IsSet() {
		return PhaseConsume
	}
	return PhasePublish
}
