package statusback

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

const (
	// refusedRetry is how long a row waits that the server refuses to change.
	refusedRetry = 2 * time.Second
	// maxNamed bounds the search for the rows at fault: with more of them than
	// this a whole batch waits that fails.
	maxNamed = 100
)

// refusals are writes that the server refuses for reasons of the row: a
// trigger, a policy or a constraint of the user's.
type refusals struct {
	writes []write
	next   time.Time // of the next try, zero if there are none
	code   string    // SQLSTATE of the last refusal
}

func (f *refusals) add(writes []write, code string) {
	f.writes = append(f.writes, writes...)
	f.code = code
	f.next = time.Now().Add(refusedRetry)
}

func (f *refusals) trouble() *fault.Blocked {
	if len(f.writes) == 0 {
		return nil
	}
	return &fault.Blocked{Reason: "table.triggers",
		What: fmt.Sprintf("the server refuses to change outbox row %d (SQLSTATE %s): a trigger, a policy or a constraint of that table raises",
			f.writes[0].ID, f.code),
		Remedy: "see the server's log for the error; correct the trigger, policy or constraint, or the row"}
}

// narrow halves writes of which at least one was refused, down to the rows at
// fault, so that all others are written.
func (r *Recorder) narrow(ctx context.Context, writes []write, cause error) error {
	if len(writes) > 1 && len(r.refused.writes) < maxNamed {
		half := len(writes) / 2
		if err := r.attempt(ctx, writes[:half]); err != nil {
			return err
		}
		return r.attempt(ctx, writes[half:])
	}
	code := pg.Code(cause)
	r.m.count(writes[0].form(), resultError, len(writes))
	r.refused.add(writes, code)
	return nil
}

// retryRefused tries one of the refused writes. When it succeeds the cause may
// be gone, and the others follow; else another one is next.
func (r *Recorder) retryRefused(ctx context.Context, now time.Time) error {
	if r.refused.next.IsZero() || now.Before(r.refused.next) {
		return nil
	}
	probe, rest := r.refused.writes[:1:1], r.refused.writes[1:]
	r.refused = refusals{code: r.refused.code}
	if err := r.attempt(ctx, probe); err != nil {
		return err
	}
	if len(r.refused.writes) == 0 {
		return r.writeAll(ctx, rest)
	}
	if len(rest) > 0 {
		r.refused.writes = append(rest, r.refused.writes...)
	}
	return nil
}
