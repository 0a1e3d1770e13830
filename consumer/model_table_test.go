package consumer

import (
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// modelTable is the outbox, or outbox_receipt for one purpose, with the
// statements of package store; TestModelTable compares the two. Each takes
// effect at once, and none waits: where the real one would wait for a row that
// somebody has locked, it answers as if that had taken too long. Not safe for
// concurrent use.
type modelTable struct {
	receipts bool
	lease    time.Duration
	limit    int              // AbandonLimit
	clock    func() time.Time // the database's
	rows     map[outbox.ID]*modelRow
}

// modelRow is a row of the outbox, or a receipt. A zero time is NULL.
type modelRow struct {
	id         int64 // of the outbox
	event      outbox.ID
	status     outbox.Status
	generation int32
	attempts   int
	by         string
	lease      time.Time
	next       time.Time
	never      bool // next_attempt_at is infinity
	code       string
	since      time.Time // sent_at, or created_at of a receipt
	finished   bool
	locked     bool // by a person
}

// String is for people.
func (r *modelRow) String() string {
	return fmt.Sprintf("row %d: status %d, generation %d of %q, %d attempts, code %q", r.id, r.status, r.generation, r.by, r.attempts, r.code)
}

// errModelLocked is what waiting for a lock ends with.
var errModelLocked = fmt.Errorf("the row is locked: %w", &pgconn.PgError{Code: "55P03"})

// find returns the row of an event, nil if there is none.
func (t *modelTable) find(ref store.Ref) *modelRow {
	row := t.rows[ref.EventID]
	if row == nil || !t.receipts && ref.RowID != 0 && ref.RowID != row.id {
		return nil
	}
	return row
}

func (t *modelTable) free(row *modelRow) bool {
	return row.status == outbox.Sent && !row.never && (row.next.IsZero() || !row.next.After(t.clock()))
}

func (t *modelTable) abandoned(row *modelRow) bool {
	return row.status == outbox.Consuming && (row.lease.IsZero() || !row.lease.After(t.clock()))
}

// settled reports whether a row has its outcome.
func (t *modelTable) settled(row *modelRow) bool {
	return row.status == outbox.Consumed || row.status == outbox.Failed && (t.receipts || !row.since.IsZero() || row.finished)
}

func (t *modelTable) take(row *modelRow, owner string) {
	row.status, row.by, row.lease = outbox.Consuming, owner, t.clock().Add(t.lease)
	row.generation++
}

func (t *modelTable) claim(owner string, refs []store.Ref) (won []store.Claim) {
	for _, ref := range refs {
		row := t.find(ref)
		switch {
		case row == nil && t.receipts:
			row = &modelRow{event: ref.EventID, since: t.clock()}
			t.rows[ref.EventID] = row
		case row == nil || row.locked || !t.free(row):
			continue
		}
		t.take(row, owner)
		won = append(won, t.claimOf(ref, row))
	}
	return won
}

func (t *modelTable) claimOf(ref store.Ref, row *modelRow) store.Claim {
	c := store.Claim{Ref: ref, Generation: row.generation, Attempts: row.attempts, ErrorCode: row.code}
	if !row.since.IsZero() {
		c.Age = t.clock().Sub(row.since)
	}
	return c
}

func (t *modelTable) takeOver(owner string, ref store.Ref) (won store.Claim, parked, ok bool) {
	row := t.find(ref)
	if row == nil || row.locked || !t.abandoned(row) {
		return store.Claim{}, false, false
	}
	parked = row.code == store.CodeAbandoned && row.attempts+1 >= t.limit
	t.take(row, owner)
	row.attempts++
	row.code = store.CodeAbandoned
	if parked {
		row.status, row.lease, row.never, row.next = outbox.Failed, time.Time{}, true, time.Time{}
	}
	return t.claimOf(ref, row), parked, true
}

func (t *modelTable) states(refs []store.Ref) []store.State {
	states := make([]store.State, len(refs))
	for i, ref := range refs {
		states[i] = t.state(t.find(ref))
	}
	return states
}

func (t *modelTable) state(row *modelRow) store.State {
	if row == nil {
		if t.receipts {
			return store.State{Kind: store.Free}
		}
		return store.State{Kind: store.Missing}
	}
	s := store.State{Generation: row.generation}
	switch row.status {
	case outbox.Ready, outbox.InProgress:
		s.Kind = store.NotSent
	case outbox.Sent:
		if s.Left = row.next.Sub(t.clock()); row.never {
			s.Left = 24 * time.Hour
		}
		if s.Kind = store.Delayed; t.free(row) {
			s.Kind, s.Left = store.Free, 0
		}
	case outbox.Consuming:
		s.ClaimedBy = row.by
		if s.Kind = store.Abandoned; !t.abandoned(row) {
			s.Kind, s.Left = store.Live, row.lease.Sub(t.clock())
		}
	default:
		if s.Kind = store.Finished; !t.settled(row) {
			s.Kind = store.Unpublished
		}
	}
	return s
}

// ours returns the row of a claim, nil if that is lost.
func (t *modelTable) ours(h store.Held) *modelRow {
	row := t.find(h.Ref)
	if row == nil || row.status != outbox.Consuming || row.generation != h.Generation {
		return nil
	}
	return row
}

// unlocked writes the claims that are ours, other than locked ones.
func (t *modelTable) unlocked(held []store.Held, write func(*modelRow)) (written, locked []store.Held) {
	for _, h := range held {
		switch row := t.ours(h); {
		case row == nil:
		case row.locked:
			locked = append(locked, h)
		default:
			write(row)
			written = append(written, h)
		}
	}
	return written, locked
}

func (t *modelTable) renew(held []store.Held) (renewed, locked []store.Held) {
	return t.unlocked(held, func(row *modelRow) { row.lease = t.clock().Add(t.lease) })
}

func (t *modelTable) doneNow(held []store.Held) (kept, locked []store.Held) {
	return t.unlocked(held, func(row *modelRow) {
		row.status, row.finished, row.lease, row.next, row.never, row.code = outbox.Consumed, true, time.Time{}, time.Time{}, false, ""
	})
}

// waiting writes the claims that are ours, unless one is locked: then none.
func (t *modelTable) waiting(held []store.Held, write func(*modelRow)) (n int, err error) {
	if slices.ContainsFunc(held, func(h store.Held) bool { row := t.ours(h); return row != nil && row.locked }) {
		return 0, errModelLocked
	}
	written, _ := t.unlocked(held, write)
	return len(written), nil
}

func (t *modelTable) handBack(held []store.Held) error {
	_, err := t.waiting(held, func(row *modelRow) { row.status, row.by, row.lease = outbox.Sent, "", time.Time{} })
	return err
}

func (t *modelTable) fail(f store.Failure) (bool, error) {
	n, err := t.waiting([]store.Held{f.Held}, func(row *modelRow) {
		row.status, row.never, row.next, row.lease, row.code = outbox.Failed, true, time.Time{}, time.Time{}, f.Code
		row.attempts++
	})
	return n == 1, err
}

func (t *modelTable) release(r store.Release) (bool, error) {
	n, err := t.waiting([]store.Held{r.Held}, func(row *modelRow) {
		row.status, row.never, row.next, row.lease, row.by = outbox.Sent, false, t.clock().Add(r.Delay), time.Time{}, ""
		row.attempts++
		if row.code == store.CodeAbandoned || row.code == store.CodeAmbiguous {
			row.code = store.CodeAmbiguous
		} else {
			row.code = r.Code
		}
	})
	return n == 1, err
}
