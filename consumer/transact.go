package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// transacting is the engine of handlers whose effect is in the transaction of
// their receipt. There are no claims: who inserts the receipt second waits for
// the first.
type transacting struct {
	*Consumer
	receipts *store.Receipts
	pool     *pgxpool.Pool // the application's own
	handler  TxHandler
}

// acquire leaves out what has its outcome, or is to wait.
func (t transacting) acquire(ctx context.Context, items []*item) {
	ctx, cancel := context.WithTimeout(ctx, t.opt.statementWait)
	defer cancel()
	if err := t.explain(ctx, items, t.decide); err != nil {
		t.putOff(items, err)
	}
}

func (t transacting) decide(ctx context.Context, it *item, s store.State) error {
	switch s.Kind {
	// Abandoned is a receipt of another mode, or of an older program.
	case store.Missing, store.Free, store.Abandoned:
		it.then = ready
		return nil
	default:
		return t.Consumer.decide(ctx, it, s)
	}
}

// attempt handles an event and commits its effect with its receipt.
func (t transacting) attempt(ctx context.Context, it *item) outcome {
	ctx, cancel := t.limited(ctx)
	defer cancel()
	tx, attempts, first, err := t.begin(ctx, it)
	if tx == nil {
		return t.unsure(ctx, it, err)
	}
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
		defer cancel()
		tx.Rollback(ending) // of what is not committed; a lost connection does it too
	}()
	switch {
	case err != nil:
		return t.unwritten(ctx, it, err)
	case !first:
		return outcome{end: put, delay: soon}
	}
	it.ev.Attempt = attempts + 1
	handle := func(ctx context.Context, ev *Event) error { // the middleware is the application's, too, and may panic
		return t.wrap(func(ctx context.Context, ev *Event) error { return t.handler(ctx, tx, ev) })(ctx, ev)
	}
	if err := t.call(ctx, handle, it.ev); err != nil {
		return t.undone(it, err, context.Cause(ctx))
	}
	return t.commit(it, tx)
}

// begin begins a transaction with the receipt; there is none if tx is nil. The
// connection is the application's, and may have died silently.
func (t transacting) begin(ctx context.Context, it *item) (tx pgx.Tx, attempts int, first bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, t.opt.statementWait)
	defer cancel()
	if tx, err = t.pool.Begin(ctx); err != nil {
		return nil, 0, false, fmt.Errorf("beginning the transaction of event %s: %w", it.ev.ID, err)
	}
	attempts, _, first, err = t.receipts.Insert(ctx, tx, it.ev.ID)
	return tx, attempts, first, err
}

// undone judges an attempt whose transaction is rolled back: whatever it says, it
// has had no effect, and nothing is in doubt.
func (t transacting) undone(it *item, err, cause error) outcome {
	var own *outcomeError
	if errors.As(err, &own) && own.verdict == ambiguous {
		err = SystemError(err)
	}
	if errors.Is(cause, errTimeout) {
		cause = nil
	}
	o := t.judge(t.handling, it, err, cause)
	if o.end == release && o.code == store.CodeAmbiguous {
		o.code = store.CodeSystem
	}
	return o
}

// rollbackTimeout bounds how long the end of a failed transaction is waited for.
const rollbackTimeout = 5 * time.Second

// commit commits what a handler has done, although the handler's context may have
// ended meanwhile.
func (t transacting) commit(it *item, tx pgx.Tx) outcome {
	within, cancel := context.WithTimeout(t.working, t.opt.statementWait)
	defer cancel()
	err := tx.Commit(within)
	var refused *pgconn.PgError
	switch {
	case err == nil:
		return outcome{end: succeed, counted: Consumed}
	case errors.As(err, &refused), errors.Is(err, pgx.ErrTxCommitRollback), errors.Is(err, pgx.ErrTxClosed):
		return t.again(it, store.CodeSystem, "the transaction of the effect could not be committed", err)
	default:
		return t.unsure(t.working, it, err) // the receipt tells whether it was
	}
}

// unwritten is for a receipt that could not be inserted.
func (t transacting) unwritten(ctx context.Context, it *item, err error) outcome {
	var refused *pgconn.PgError
	if errors.As(err, &refused) && !slices.Contains(passing, refused.Code[:min(2, len(refused.Code))]) {
		return t.again(it, store.CodeSystem, "the receipt could not be written", err)
	}
	return t.unsure(ctx, it, err)
}

// passing are the classes of SQLSTATE that go away by themselves: connection,
// rollback, resources, locks, operator.
var passing = []string{"08", "40", "53", "55", "57"}

// unsure is for a database that did not answer: nothing is known, nothing can
// be recorded.
func (t transacting) unsure(ctx context.Context, it *item, err error) outcome {
	t.trouble(ctx, err)
	it.look(databaseTrouble)
	return outcome{end: put, delay: backoff(databaseFirst, databaseLast, it.tries)}
}

// settle records failures beside the transaction that was rolled back.
func (t transacting) settle(ctx context.Context, items []*item) {
	ctx, cancel := context.WithTimeout(ctx, t.opt.statementWait)
	defer cancel()
	for _, it := range items {
		o := it.out
		var (
			ok  = true
			err error
		)
		switch o.end {
		case put, handBack:
			it.wait(o.delay, "")
			if it.tries > 0 && it.looking == databaseTrouble {
				it.reason = WaitingDatabase
			}
			continue
		case fail:
			ok, err = t.receipts.RecordFailure(ctx, it.ev.ID, o.code, o.message)
		case release:
			ok, err = t.receipts.RecordDelay(ctx, it.ev.ID, o.delay, o.code, o.message)
		}
		switch {
		case err != nil:
			t.trouble(t.working, err)
			it.look(databaseTrouble)
			it.wait(backoff(databaseFirst, databaseLast, it.tries), WaitingDatabase)
		case !ok: // somebody else has recorded an outcome
			it.wait(0, "")
		case o.end == release:
			t.opt.observer.Records(it.rec.Topic, o.counted, 1)
			it.wait(min(o.delay, delayLook), WaitingDelay)
		default:
			it.then = done
			t.opt.observer.Records(it.rec.Topic, o.counted, 1)
		}
	}
}
