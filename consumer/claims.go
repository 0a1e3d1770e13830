package consumer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/consumer/tables"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// DB is a pool, a connection or a transaction of pgx.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Claims claims events for those who get them in another way than by a
// [Consumer]. Only DB is required. It holds nothing, so it may be copied and
// used from several goroutines, as far as DB may.
//
// The statements run with the session settings of DB: synchronous_commit must
// not be off, or an outcome can be lost in a crash, and a lock_timeout bounds
// how long they wait for a row.
type Claims struct {
	// DB is where the outbox or the receipts are. If it is a transaction, the
	// claim, the effect and its end can be committed together.
	DB DB
	// Schema and Table name the outbox, "public" and "outbox" by default.
	Schema, Table string
	// Purpose, if set, claims receipts of the schema's outbox_receipt instead of
	// rows, see [Receipts].
	Purpose string
	// Owner is what people see as the holder, host and process id by default.
	Owner string
	// Lease is how long a claim lasts without renewal, 30 s by default.
	Lease time.Duration
	// AbandonLimit is that of the option of this name, 5 by default.
	AbandonLimit int
}

// Ref names an event, as the record's headers do.
type Ref struct {
	ID outbox.ID
	// OutboxID is the row's id; 0 if it is not known. With it, an event that has
	// another row, such as after a restore, is missing.
	OutboxID int64
}

// claimTries is how often Claim looks again at an event that changes its state
// between two statements.
const claimTries = 5

// Claim claims an event that is free, or abandoned: its lease is over. Else the
// error wraps [ErrConsumed], [ErrClaimed] (a [*ClaimedError] tells for how
// long), [ErrNotSent], [ErrFailed] or [ErrMissing]; any other error is of the
// database. ErrFailed is also for an event that was abandoned AbandonLimit times
// and therefore became FAILED just now.
func (c Claims) Claim(ctx context.Context, ref Ref) (*Claim, error) {
	from, err := c.keeper()
	if err != nil {
		return nil, fmt.Errorf("claiming event %s: %w", ref.ID, err)
	}
	row := store.Ref{RowID: ref.OutboxID, EventID: ref.ID}
	for range claimTries {
		won, ok, err := from.ClaimOne(ctx, row)
		if err != nil {
			return nil, err
		}
		if ok {
			return newClaim(won, from), nil
		}
		states, err := from.States(ctx, []store.Ref{row})
		if err != nil {
			return nil, err
		}
		if states[0].Kind == store.Abandoned {
			won, parked, ok, err := from.TakeOver(ctx, row)
			switch {
			case err != nil:
				return nil, err
			case parked:
				return nil, fmt.Errorf("claiming event %s: its attempts end without an outcome: %w", ref.ID, ErrFailed)
			case ok:
				return newClaim(won, from), nil
			}
		}
		if err := refusal(states[0]); err != nil {
			return nil, fmt.Errorf("claiming event %s: %w", ref.ID, err)
		}
	}
	return nil, fmt.Errorf("claiming event %s: others claim it all the time: %w", ref.ID, &ClaimedError{})
}

// refusal says why an event cannot be claimed; nil if it is worth another try.
func refusal(s store.State) error {
	switch s.Kind {
	case store.Delayed, store.Live:
		return &ClaimedError{Left: s.Left, Delayed: s.Kind == store.Delayed}
	case store.NotSent:
		return ErrNotSent
	case store.Finished:
		return ErrConsumed
	case store.Unpublished:
		return ErrFailed
	case store.Missing:
		return ErrMissing
	default: // Free, Abandoned
		return nil
	}
}

// claimer is what both kinds of claims can do.
type claimer interface {
	keeper
	ClaimOne(ctx context.Context, ref store.Ref) (store.Claim, bool, error)
	TakeOver(ctx context.Context, ref store.Ref) (won store.Claim, parked, ok bool, err error)
	States(ctx context.Context, refs []store.Ref) ([]store.State, error)
}

func (c Claims) keeper() (claimer, error) {
	if c.Lease == 0 {
		c.Lease = defaults().lease
	}
	if c.AbandonLimit == 0 {
		c.AbandonLimit = defaults().abandonLimit
	}
	switch {
	case c.DB == nil:
		return nil, errors.New("no database: set Claims.DB to a pool, a connection or a transaction")
	case c.Lease < 0 || c.AbandonLimit < 0:
		return nil, errors.New("a Lease or an AbandonLimit below zero: leave them out for 30 s and 5")
	case c.Purpose != "" && !purposeName.MatchString(c.Purpose):
		return nil, errPurpose
	}
	if c.Owner == "" {
		host, _ := os.Hostname() // for people only
		c.Owner = fmt.Sprintf("%s/%d", host, os.Getpid())
	}
	schema := orDefault(c.Schema, defaults().schema)
	if c.Purpose != "" {
		table := pgx.Identifier{schema, tables.Receipt}.Sanitize()
		return store.NewReceipts(c.DB, table, c.Purpose, c.Owner, c.Lease, c.AbandonLimit), nil
	}
	table := pgx.Identifier{schema, orDefault(c.Table, defaults().table)}.Sanitize()
	return store.NewRows(c.DB, table, c.Owner, c.Lease, c.AbandonLimit), nil
}

func orDefault(s, byDefault string) string {
	if s == "" {
		return byDefault
	}
	return s
}
