package main

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// eventAnswer is all that is told of one event. Pointers are null where there is
// no such value. Fields are only added.
type eventAnswer struct {
	envelope

	ID            int64          `json:"id"`
	EventID       string         `json:"event_id"`
	AggregateType string         `json:"aggregate_type"`
	AggregateID   string         `json:"aggregate_id"`
	EventType     string         `json:"event_type"`
	ContentType   string         `json:"content_type"`
	Topic         string         `json:"topic"`  // the row's own, else that of the template
	Pinned        *int32         `json:"pinned"` // its partition count; null: nothing was published to it
	Priority      int32          `json:"priority"`
	PayloadBytes  *int64         `json:"payload_bytes"` // null: a tombstone
	CreatedAt     operate.Moment `json:"created_at"`

	Status     string       `json:"status"`
	StatusCode int          `json:"status_code"`
	Kind       operate.Kind `json:"kind"`
	Meaning    string       `json:"meaning"`
	Holds      []string     `json:"holds"`   // what keeps it from going on
	HeldBy     *heldBy      `json:"held_by"` // the first parked event of its aggregate, if it is an earlier one
	// Blocking is how many held events stand behind it; BlockingComplete is
	// false if there may be more.
	Blocking         int      `json:"blocking"`
	BlockingComplete bool     `json:"blocking_complete"`
	NextSteps        []string `json:"next_steps"`

	Phase           string         `json:"phase"`
	Attempts        int32          `json:"attempts"`
	NextAttemptAt   operate.Moment `json:"next_attempt_at"`
	CommitLSN       *string        `json:"commit_lsn"`
	ClaimGeneration int32          `json:"claim_generation"`
	ClaimedBy       string         `json:"claimed_by"`
	LeaseUntil      operate.Moment `json:"lease_until"`
	SentAt          operate.Moment `json:"sent_at"`
	FinishedAt      operate.Moment `json:"finished_at"`
	ErrorCode       string         `json:"error_code"`
	ErrorMeaning    string         `json:"error_meaning"`
	ErrorMessage    string         `json:"error_message"`

	Audit []operate.AuditEntry `json:"audit"` // the latest first

	Effects  *effects        `json:"effects,omitempty"`
	Payload  *content        `json:"payload,omitempty"`
	Headers  json.RawMessage `json:"headers,omitempty"`
	Location *location       `json:"location,omitempty"`
}

// effects are told of FAILED events.
type effects struct {
	ErrorClass string `json:"error_class"` // record, topic, consumer; "": not known
	Permanent  bool   `json:"permanent"`   // FAILED at once, whatever attempts were left
	Replay     string `json:"replay"`
	Skip       string `json:"skip"`
}

// content is a payload, or other bytes of a record.
type content struct {
	Null     bool   `json:"null"`     // such as a tombstone
	Encoding string `json:"encoding"` // utf8, or base64
	Data     string `json:"data"`
}

// location is where the event is in Kafka.
type location struct {
	Topic     string            `json:"topic"`
	Partition *int32            `json:"partition"` // null: there is no such topic
	Records   []operate.Located `json:"records"`
	Searched  []operate.Offsets `json:"searched"`
	Read      int64             `json:"records_read"`
	Note      string            `json:"note"`
}

func newEventAnswer(pipeline string, d *operate.Detail) *eventAnswer {
	a := &eventAnswer{
		envelope: newEnvelope(pipeline, d.At), ID: d.ID, EventID: d.EventID.String(),
		AggregateType: d.AggregateType, AggregateID: d.AggregateID, EventType: d.EventType, ContentType: d.ContentType, Topic: d.Topic, Priority: d.Priority, CreatedAt: d.CreatedAt,
		Status: d.Status.String(), StatusCode: int(d.Status), Kind: d.Kind(), Meaning: d.Meaning(), Holds: notNil(d.Holds()),
		HeldBy: newHeldBy(d.First), Blocking: d.Blocking, BlockingComplete: d.Blocking < operate.MaxBlocking, NextSteps: notNil(d.NextSteps()),
		Phase: string(d.Phase()), Attempts: d.Attempts, NextAttemptAt: d.NextAttemptAt, CommitLSN: orNull(d.CommitLSN), ClaimGeneration: d.ClaimGeneration,
		ClaimedBy: d.ClaimedBy, LeaseUntil: d.LeaseUntil, SentAt: d.SentAt, FinishedAt: d.FinishedAt,
		ErrorCode: d.ErrorCode, ErrorMessage: d.ErrorMessage, Audit: notNil(d.Audit),
	}
	if d.Pinned.Partitions > 0 {
		a.Pinned = &d.Pinned.Partitions
	}
	if d.PayloadBytes >= 0 {
		a.PayloadBytes = &d.PayloadBytes
	}
	if d.ErrorCode != "" {
		a.ErrorMeaning = operate.Explain(d.ErrorCode).Meaning
	}
	return a
}

// notNil makes a list that JSON shows as [], not null.
func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

// addEffects says what can be done about a FAILED event. Any other one is not
// found among those.
func (a *eventAnswer) addEffects(d *operate.Detail) error {
	if d.Status != outbox.Failed {
		return &exitError{exitNotFound, fmt.Errorf("event %d is not FAILED but %s; run cdc-relay events show %d", d.ID, d.Status, d.ID)}
	}
	code := operate.Explain(d.ErrorCode)
	a.Effects = &effects{code.Class, code.Permanent, d.ReplayEffect(), d.SkipEffect()}
	return nil
}

func (a *eventAnswer) addPayload(payload []byte) { a.Payload = newContent(payload) }

// newContent shows bytes, nil for a null.
func newContent(b []byte) *content {
	switch {
	case b == nil:
		return &content{Null: true, Encoding: "utf8"}
	case utf8.Valid(b):
		return &content{Encoding: "utf8", Data: string(b)}
	default:
		return &content{Encoding: "base64", Data: base64.StdEncoding.EncodeToString(b)}
	}
}

// addHeaders takes over the row's headers. A table may have them as text that
// is no JSON.
func (a *eventAnswer) addHeaders(headers string) {
	switch {
	case headers == "":
		a.Headers = json.RawMessage("null")
	case json.Valid([]byte(headers)):
		a.Headers = json.RawMessage(headers)
	default:
		a.Headers, _ = json.Marshal(headers) // a string never fails
	}
}

func (a *eventAnswer) addLocation(where *operate.Location) {
	a.Location = &location{Topic: where.Topic, Records: notNil(where.Records), Searched: notNil(where.Searched), Read: where.Read, Note: where.Note}
	if where.Partition >= 0 {
		a.Location.Partition = &where.Partition
	}
}
