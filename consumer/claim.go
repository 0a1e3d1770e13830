package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// Claim is the right to handle an event, for as long as its lease is renewed. A
// [Consumer] renews its claims and ends them by what the handler returns; a
// handler may end its claim itself only by [Claim.ConsumedTx]. Claims of
// [Claims] are renewed and ended by their methods.
//
// Whoever has lost the claim, because the lease ran out and somebody else took
// the event, changes nothing: the methods then return [ErrClaimLost]. They may
// be called from any goroutine. After another error, repeat the call: it is not
// known whether it took effect.
type Claim struct {
	// Age is how long ago the event was SENT, or its receipt made, when it was
	// claimed, by the database's clock: receivers forget an idempotency key after
	// a while, see [KeyTTL].
	Age time.Duration

	won  store.Claim
	from keeper
	inTx atomic.Bool // ConsumedTx succeeded in a transaction
}

// keeper is where a claim is kept: outbox rows or receipts.
type keeper interface {
	renewer
	Done(ctx context.Context, held []store.Held) (kept []store.Held, err error)
	Fail(ctx context.Context, f store.Failure) (bool, error)
	Release(ctx context.Context, r store.Release) (bool, error)
}

// newClaim makes the claim that a handler gets of one that the store has won;
// from is the Rows or Receipts that it came from.
func newClaim(c store.Claim, from keeper) *Claim { return &Claim{Age: c.Age, won: c, from: from} }

// ended reports whether ConsumedTx has ended the claim in a transaction. Only
// the row tells whether that was committed.
func (c *Claim) ended() bool { return c.inTx.Load() }

// Attempt is the number of this attempt, from 1.
func (c *Claim) Attempt() int { return c.won.Attempts + 1 }

// Ambiguous says that an earlier attempt may have had its effect.
func (c *Claim) Ambiguous() bool { return c.won.Ambiguous() }

// Generation is the number of the claim: each one of an event has a higher one.
// An effect that compares it can refuse those of stale owners.
func (c *Claim) Generation() int { return int(c.won.Generation) }

// ProviderRef is what [Claim.SetProviderRef] has recorded in an earlier
// attempt, "" if nothing.
func (c *Claim) ProviderRef() string { return c.won.ProviderRef }

// Renew extends the lease, from now; not while somebody has the row locked,
// which is no error: nobody can take it then.
func (c *Claim) Renew(ctx context.Context) error {
	renewed, locked, err := c.from.Renew(ctx, []store.Held{c.won.Held()})
	return c.unlessLost(len(renewed)+len(locked) == 1, err)
}

// Consumed ends the claim as CONSUMED, or its receipt as done.
func (c *Claim) Consumed(ctx context.Context) error {
	return c.many(ctx, c.from.Done)
}

// ConsumedTx ends the claim as Consumed does, in a transaction of the database
// that holds it: the effect in tx and the outcome commit together, or neither.
// A handler that has called it returns nil once it has committed tx, and an
// error if that failed.
func (c *Claim) ConsumedTx(ctx context.Context, tx pgx.Tx) error {
	var in keeper
	switch from := c.from.(type) {
	case *store.Rows:
		in = from.On(tx)
	case *store.Receipts:
		in = from.On(tx)
	default:
		return errors.New("ending the claim in a transaction: it is kept nowhere")
	}
	if err := c.many(ctx, in.Done); err != nil {
		return err
	}
	c.inTx.Store(true)
	return nil
}

func (c *Claim) many(ctx context.Context, do func(context.Context, []store.Held) ([]store.Held, error)) error {
	kept, err := do(ctx, []store.Held{c.won.Held()})
	return c.unlessLost(len(kept) == 1, err)
}

// Failed ends the claim as FAILED: a person must look at the event. The code is
// the application's, as in [DataError]; the message is a sentence for people, of
// at most 500 bytes, without secrets or data of the event.
func (c *Claim) Failed(ctx context.Context, code, message string) error {
	ok, err := c.from.Fail(ctx, store.Failure{Held: c.won.Held(), Code: dataCode(code), Message: message})
	return c.unlessLost(ok, err)
}

// Release gives the event back after a failed attempt, to be tried again after a
// delay.
func (c *Claim) Release(ctx context.Context, delay time.Duration) error {
	ok, err := c.from.Release(ctx, store.Release{Held: c.won.Held(), Delay: max(delay, 0), Code: store.CodeSystem,
		Message: "the attempt was given up, to be repeated"})
	return c.unlessLost(ok, err)
}

// BeginEffect records, before the call of an effect outside the database, that
// it may leave the process: should this attempt end without an outcome, the
// next one is ambiguous, and the policy decides. The digest is of the request,
// such as its SHA-256; [ErrDigestChanged] says that an earlier attempt began
// with another one, so the call must not be made. With receipts only: a row has
// no place for it, but is ambiguous after any attempt without an outcome.
func (c *Claim) BeginEffect(ctx context.Context, digest []byte) error {
	receipts, err := c.receipts()
	if err != nil {
		return err
	}
	ok, changed, err := receipts.BeginEffect(ctx, c.won.Held(), digest)
	if err == nil && changed {
		return fmt.Errorf("event %s: %w", c.won.EventID, ErrDigestChanged)
	}
	return c.unlessLost(ok, err)
}

// ClearEffect records that the call which [Claim.BeginEffect] announced was
// refused for good, so there is no effect: none of an earlier attempt either,
// whose request is forgotten. Where [Claim.Ambiguous], only an answer that says
// so is a reason, not one such as too many requests.
func (c *Claim) ClearEffect(ctx context.Context) error {
	receipts, err := c.receipts()
	if err != nil {
		return err
	}
	ok, err := receipts.ClearEffect(ctx, c.won.Held())
	return c.unlessLost(ok, err)
}

// SetProviderRef records what the receiver calls the effect, at most 500 bytes,
// such as for a [Query] in a later attempt, or for people.
func (c *Claim) SetProviderRef(ctx context.Context, ref string) error {
	receipts, err := c.receipts()
	if err != nil {
		return err
	}
	ok, err := receipts.SetProviderRef(ctx, c.won.Held(), ref)
	return c.unlessLost(ok, err)
}

func (c *Claim) receipts() (*store.Receipts, error) {
	receipts, ok := c.from.(*store.Receipts)
	if !ok {
		return nil, errors.New("a claim on an outbox row has no place for an effect's digest or reference: use receipts (option Receipts)")
	}
	return receipts, nil
}

func (c *Claim) unlessLost(ok bool, err error) error {
	if err == nil && !ok {
		return fmt.Errorf("event %s: %w", c.won.EventID, ErrClaimLost)
	}
	return err
}
