package consumer

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Handler does the work for an event. ctx ends when the claim can no longer be
// relied on, at [HandlerTimeout], and when a stop has drained for too long.
// Handlers of one key run one at a time, in the order of the log; those of
// different partitions, and of different keys above [Concurrency] 1, run side
// by side. A record that a person retries from the quarantine has no place in
// that order.
//
// What it returns decides: nil is CONSUMED; [DataError] is FAILED, for a
// person; [Ambiguous] asks the policy; [Delay] is SENT again, to be tried in
// that time; any other error, and a panic, is SENT again with a growing delay.
type Handler func(ctx context.Context, ev *Event) error

// TxHandler is a Handler whose effect is in tx. The receipt is in tx too: both
// commit, or neither. It must not end tx.
type TxHandler func(ctx context.Context, tx pgx.Tx, ev *Event) error

// Middleware wraps a Handler, for traces, logs and the like.
type Middleware func(Handler) Handler

// Event is what a handler gets. Its bytes are the handler's to keep, not to
// change.
type Event struct {
	// ID is the identity of the event, the same on every retry and duplicate.
	ID outbox.ID
	// OutboxID is the row's id; 0 if the record does not carry it.
	OutboxID int64
	// AggregateType and Type are empty where the header preset has no place for
	// them.
	AggregateType, AggregateID, Type, ContentType string
	Payload                                       []byte
	// Tombstone tells a null value from an empty one.
	Tombstone bool
	Headers   []Header
	Topic     string
	Partition int
	Offset    int64
	// Time is the record's timestamp.
	Time time.Time
	// Attempt counts from 1.
	Attempt int
	// Ambiguous says that an earlier attempt may have had its effect; never so for
	// a TxHandler, whose failed attempts are rolled back.
	Ambiguous bool
	// Claim is what the event is held by; nil for a TxHandler.
	Claim *Claim
}

// Header is a header of the record.
type Header struct {
	Name  string
	Value []byte
}

// Header returns the first value of a header, or "" if there is none.
func (e *Event) Header(name string) string {
	for _, h := range e.Headers {
		if h.Name == name {
			return string(h.Value)
		}
	}
	return ""
}

// Key is the idempotency key of this event for a purpose: the same on every
// attempt, of every process.
func (e *Event) Key(purpose string) string { return e.ID.String() + ":" + purpose }
