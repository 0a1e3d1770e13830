package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// replaySet makes a row due now, as if it had never been tried. Its place in the
// order of its aggregate, commit_lsn, is kept. The trigger of the table tells
// the relay.
const replaySet = `send_status = 0, next_attempt_at = now(), attempts = 0, error_code = NULL, error_message = NULL,
         sent_at = NULL{unfinished}`

// lookInterval is the time between two looks at rows that are waited for.
const lookInterval = 200 * time.Millisecond

// Wait looks at the replayed rows among results until each is SENT or further,
// FAILED again or gone, and changes the results accordingly. When the time is
// over, those left after a last look are StillWaiting, which is no error.
func (a *Actions) Wait(ctx context.Context, results []Result, patience time.Duration) error {
	var waiting []*Result
	for i := range results {
		if results[i].Outcome == Replayed {
			waiting = append(waiting, &results[i])
		}
	}
	ends, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		over := ends.Err() != nil
		began := time.Now()
		left, err := a.settled(ctx, waiting)
		if err != nil {
			return fmt.Errorf("waiting for %d rows, which have been replayed: %w", len(waiting), a.table.explain(ctx, err))
		}
		if waiting = left; len(waiting) == 0 || over {
			break
		}
		// Many rows are looked at less often: the database has more to do. That
		// the time is over is seen after the next look.
		_ = sleep(ends, lookInterval+4*time.Since(began))
	}
	for _, r := range waiting {
		r.Outcome = StillWaiting
	}
	return nil
}

// settled looks at rows once and returns those that are not settled.
func (a *Actions) settled(ctx context.Context, waiting []*Result) (left []*Result, err error) {
	ids := make([]int64, len(waiting))
	for i, r := range waiting {
		ids[i] = r.ID
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	seen, err := a.look(ctx, a.table.conn, ids)
	if err != nil {
		return nil, err
	}
	for _, r := range waiting {
		if r.settle(seen[r.ID]); r.Outcome == Replayed {
			left = append(left, r)
		}
	}
	return left, nil
}

// settle takes over how a replayed row is now.
func (r *Result) settle(row *state) {
	if row == nil {
		r.Found, r.Outcome, r.Detail = false, NotFound, "it was deleted after it was replayed"
		return
	}
	r.Status, r.ErrorCode, r.Detail = row.status, row.errorCode, ""
	switch row.status {
	case outbox.Sent, outbox.Consuming, outbox.Consumed:
		r.Outcome = Sent
	case outbox.Failed:
		r.Outcome = FailedAgain
		if row.finished {
			r.Outcome, r.Detail = Waived, "it was skipped after it was replayed"
		}
	default:
		if row.held {
			r.Detail = "it is held behind an earlier event of its aggregate; cdc-relay events show tells which"
		}
	}
}
