package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// claims is what [Rows] and [Receipts] have in common: the same statements on
// different columns. $1 is the row's id, or the ids, in the outbox and the
// purpose of receipts; $2 is the event id, or the ids.
type claims struct {
	db      DB
	texts   *texts
	purpose string // of receipts
	owner   string
	lease   time.Duration
	limit   int // AbandonLimit
}

// keys are $1 and $2 of a statement on many.
func (c claims) keys(refs []Ref) []any {
	events := make([]pgtype.UUID, len(refs))
	for i, r := range refs {
		events[i] = uuid(r.EventID)
	}
	if c.purpose != "" {
		return []any{c.purpose, events}
	}
	ids := make([]int64, len(refs))
	for i, r := range refs {
		ids[i] = r.RowID
	}
	return []any{ids, events}
}

// key are $1 and $2 of a statement on one.
func (c claims) key(r Ref) []any {
	if c.purpose != "" {
		return []any{c.purpose, uuid(r.EventID)}
	}
	return []any{r.RowID, uuid(r.EventID)}
}

// Claim claims those of refs that are free, in one statement. It does not wait
// for locks; what is not in the answer was not claimed, and States says why. An
// event that is named twice is claimed once.
func (c claims) Claim(ctx context.Context, refs []Ref) ([]Claim, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	rows, err := c.db.Query(ctx, c.texts.claim.of(refs), append(c.keys(refs), c.owner, micros(c.lease))...)
	if err == nil {
		var won []Claim
		if won, err = pgx.CollectRows(rows, claimOf); err == nil {
			named := nameRefs(refs)
			for i := range won {
				won[i].Ref = named.find(won[i].Ref)
			}
			return won, nil
		}
	}
	return nil, fmt.Errorf("claiming %d events: %w", len(refs), err)
}

// ClaimOne claims an event if it is free. It waits for its row's lock.
func (c claims) ClaimOne(ctx context.Context, ref Ref) (Claim, bool, error) {
	rows, err := c.db.Query(ctx, c.texts.claimOne.of([]Ref{ref}), append(c.key(ref), c.owner, micros(c.lease))...)
	if err == nil {
		var won Claim
		won, err = pgx.CollectOneRow(rows, claimOf)
		switch {
		case err == nil:
			won.Ref = ref
			return won, true, nil
		case errors.Is(err, pgx.ErrNoRows):
			return Claim{}, false, nil
		}
	}
	return Claim{}, false, fmt.Errorf("claiming event %s: %w", ref.EventID, err)
}

func claimOf(row pgx.CollectableRow) (Claim, error) { return scanClaim(row) }

// scanClaim reads the columns of a claim, and those that follow them.
func scanClaim(row pgx.CollectableRow, more ...any) (c Claim, err error) {
	var code, provider *string
	var age float64
	columns := []any{&c.RowID, &c.EventID, &c.Generation, &c.Attempts, &code, &age, &c.EffectBegun, &c.Digest, &provider}
	err = row.Scan(append(columns, more...)...)
	c.ErrorCode, c.ProviderRef, c.Age = orEmpty(code), orEmpty(provider), seconds(age)
	return c, err
}

// TakeOver claims an abandoned event: its lease is over. One that was abandoned
// before, and AbandonLimit times in all, becomes FAILED instead: parked.
func (c claims) TakeOver(ctx context.Context, ref Ref) (won Claim, parked, ok bool, err error) {
	rows, err := c.db.Query(ctx, c.texts.takeOver.of([]Ref{ref}), append(c.key(ref), c.owner, micros(c.lease), c.limit)...)
	if err == nil {
		won, err = pgx.CollectOneRow(rows, func(row pgx.CollectableRow) (Claim, error) { return scanClaim(row, &parked) })
		switch {
		case err == nil:
			won.Ref = ref
			return won, parked, true, nil
		case errors.Is(err, pgx.ErrNoRows):
			return Claim{}, false, false, nil
		}
	}
	return Claim{}, false, false, fmt.Errorf("taking over event %s: %w", ref.EventID, err)
}

// States returns what is known of each event, in the order of refs.
func (c claims) States(ctx context.Context, refs []Ref) ([]State, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	rows, err := c.db.Query(ctx, c.texts.states.of(refs), c.keys(refs)...)
	if err == nil {
		var states []State
		if states, err = pgx.CollectRows(rows, c.scanState); err == nil && len(states) != len(refs) {
			err = fmt.Errorf("%d answers", len(states))
		}
		if err == nil {
			return states, nil
		}
	}
	return nil, fmt.Errorf("reading the state of %d events: %w", len(refs), err)
}

func (c claims) scanState(row pgx.CollectableRow) (State, error) {
	var (
		status, generation *int32
		by                 *string
		settled            *bool
		left, due          *float64
	)
	if err := row.Scan(&status, &settled, &by, &generation, &left, &due); err != nil {
		return State{}, err
	}
	if status == nil {
		if c.purpose != "" {
			return State{Kind: Free}, nil // the claim makes the receipt
		}
		return State{Kind: Missing}, nil
	}
	s := State{Generation: *generation}
	switch outbox.Status(*status) {
	case outbox.Ready, outbox.InProgress:
		s.Kind = NotSent
	case outbox.Sent:
		if due != nil && *due > 0 {
			s.Kind, s.Left = Delayed, seconds(*due)
		}
	case outbox.Consuming:
		s.Kind, s.ClaimedBy = Abandoned, orEmpty(by)
		if left != nil && *left > 0 {
			s.Kind, s.Left = Live, seconds(*left)
		}
	case outbox.Failed:
		if s.Kind = Unpublished; *settled {
			s.Kind = Finished
		}
	default:
		s.Kind = Finished
	}
	return s, nil
}

// Renew extends the leases of claims that are still ours. It does not wait for
// locks: locked are those of ours whose rows somebody has locked, such as the
// transaction in which their handlers end them. They are not extended; but
// nobody can take them before that transaction is over.
func (c claims) Renew(ctx context.Context, held []Held) (renewed, locked []Held, err error) {
	return c.each(ctx, "renewing", c.texts.renew, held, micros(c.lease))
}

// Done ends claims as CONSUMED, in one statement, and returns those that were
// still ours. It waits for locks.
func (c claims) Done(ctx context.Context, held []Held) (kept []Held, err error) {
	kept, _, err = c.each(ctx, "completing", c.texts.done, held)
	return kept, err
}

// DoneNow is Done without waiting: locked are those of ours that somebody has
// locked, and that are as they were.
func (c claims) DoneNow(ctx context.Context, held []Held) (kept, locked []Held, err error) {
	return c.each(ctx, "completing", c.texts.doneNow, held)
}

// HandBack gives back claims whose handlers did not start: no attempt is used.
// Those that are lost are left alone.
func (c claims) HandBack(ctx context.Context, held []Held) error {
	_, _, err := c.each(ctx, "handing back", c.texts.handBack, held)
	return err
}

// each runs a statement on many claims and returns those it answers with:
// written, and locked by others.
func (c claims) each(ctx context.Context, doing string, st statement, held []Held, more ...any) (written, locked []Held, err error) {
	if len(held) == 0 {
		return nil, nil, nil
	}
	refs, generations := make([]Ref, len(held)), make([]int32, len(held))
	for i, h := range held {
		refs[i], generations[i] = h.Ref, h.Generation
	}
	named := nameRefs(refs)
	rows, err := c.db.Query(ctx, st.of(refs), append(append(c.keys(refs), generations), more...)...)
	if err == nil {
		var (
			h    Held
			done bool
		)
		_, err = pgx.ForEachRow(rows, []any{&h.RowID, &h.EventID, &h.Generation, &done}, func() error {
			h.Ref = named.find(h.Ref)
			if done {
				written = append(written, h)
			} else {
				locked = append(locked, h)
			}
			return nil
		})
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s %d claims: %w", doing, len(held), err)
	}
	return written, locked, nil
}

// Fail ends a claim as FAILED, which waits for a person; false if the claim is
// lost.
func (c claims) Fail(ctx context.Context, f Failure) (bool, error) {
	return c.one(ctx, "recording the failure of", c.texts.fail, f.Held, f.Code, sentence(f.Message))
}

// Release gives a claim back after a failed attempt, to be tried again after a
// delay; false if the claim is lost.
func (c claims) Release(ctx context.Context, r Release) (bool, error) {
	return c.one(ctx, "releasing", c.texts.release, r.Held, micros(r.Delay), r.Code, sentence(r.Message))
}

// one runs a statement on a claim and reports whether it was ours.
func (c claims) one(ctx context.Context, doing string, st statement, h Held, more ...any) (bool, error) {
	tag, err := c.db.Exec(ctx, st.of([]Ref{h.Ref}), append(append(c.key(h.Ref), h.Generation), more...)...)
	if err != nil {
		return false, fmt.Errorf("%s event %s: %w", doing, h.EventID, err)
	}
	return tag.RowsAffected() == 1, nil
}

// IsLocked reports whether a statement gave up waiting for a row that somebody
// has locked.
func IsLocked(err error) bool {
	const lockNotAvailable = "55P03"
	var answer *pgconn.PgError
	return errors.As(err, &answer) && answer.Code == lockNotAvailable
}
