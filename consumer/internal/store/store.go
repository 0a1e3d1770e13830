// Package store is the consumer kit's SQL: claims on outbox rows and on
// receipts, and the quarantine. It decides nothing; every statement that ends a
// claim carries its generation, so a stale owner changes nothing.
//
// Time is the database's. All methods are safe for concurrent use. An error is
// always of the database or of ctx; whether the statement took effect is then
// unknown, and repeating it is harmless.
package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// DB is what the statements run on: a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Ref names an event.
type Ref struct {
	RowID   int64 // 0: not known, EventID alone counts
	EventID outbox.ID
}

// Claim is a claim that was won.
type Claim struct {
	Ref
	Generation int32
	// Attempts are those that failed or were abandoned before this one.
	Attempts int
	// ErrorCode is the last failure's, empty if there was none.
	ErrorCode string
	// Age is how long ago the event was SENT, or its receipt made, by the
	// database's clock.
	Age time.Duration
	// EffectBegun and Digest are those of a receipt: the call may have left the
	// process, with this request.
	EffectBegun bool
	Digest      []byte
	// ProviderRef is what the receiver of an earlier attempt's effect called it.
	ProviderRef string
}

// Error codes of the consumer side.
const (
	CodeData      = "CONSUMER_DATA"
	CodeSystem    = "CONSUMER_SYSTEM"
	CodePanic     = "CONSUMER_PANIC"
	CodeAbandoned = "CONSUMER_ABANDONED"
	CodeAmbiguous = "CONSUMER_AMBIGUOUS"
)

// Ambiguous reports whether an earlier attempt may have had its effect.
func (c Claim) Ambiguous() bool {
	return c.EffectBegun || c.ErrorCode == CodeAbandoned || c.ErrorCode == CodeAmbiguous
}

// Held names a claim for the statements of its owner.
type Held struct {
	Ref
	Generation int32
}

// Held returns the name of the claim.
func (c Claim) Held() Held { return Held{c.Ref, c.Generation} }

// State is what a row or receipt says when it cannot be claimed.
type State struct {
	Kind Kind
	// Left is how long the lease (Live) or the delay (Delayed) lasts.
	Left time.Duration
	// ClaimedBy is the holder (Live, Abandoned).
	ClaimedBy string
	// Generation is that of the last claim; 0 if there was none.
	Generation int32
}

// Kind tells why an event could not be claimed.
type Kind int

// Kinds of a State.
const (
	// Free could be claimed: lost a race, or locked at that moment.
	Free Kind = iota
	// Delayed is to be tried again after Left.
	Delayed
	// Live is claimed, the lease lasts.
	Live
	// Abandoned is claimed, the lease is over.
	Abandoned
	// NotSent is READY or INPROGRESS.
	NotSent
	// Finished has its outcome: consumed, waived or its failure recorded.
	Finished
	// Unpublished is FAILED before it was published, says the relay.
	Unpublished
	// Missing has no row.
	Missing
)

// Release says how a claim is given back after a failed attempt.
type Release struct {
	Held
	// Delay is from now, by the database's clock.
	Delay time.Duration
	// Code is the failure's; an attempt that began ambiguous stays so.
	Code string
	// Message is a safe sentence, at most 500 bytes.
	Message string
}

// Failure says how a claim ends FAILED.
type Failure struct {
	Held
	Code    string
	Message string // a safe sentence, at most 500 bytes
}
