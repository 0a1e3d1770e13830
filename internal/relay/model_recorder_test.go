package relay

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// modelRecorder keeps the contract of Recorder: one statement at a time,
// fenced, compare-and-set; locked rows and rows that are not visible yet are
// tried again, and so is a statement whose answer is lost.
type modelRecorder struct {
	w      *modelWorld
	term   *modelTenure
	out    RecorderInbox
	random *modelRandom
	more   chan struct{}
	later  []modelWrite // owned by Run

	mu  sync.Mutex
	box []modelWrite
}

// modelWrite is one row to be written.
type modelWrite struct {
	event.Ref
	park  *event.Park // nil: SENT
	at    time.Time   // not before
	tries int
}

func newModelRecorder(w *modelWorld, term *modelTenure, out RecorderInbox) *modelRecorder {
	return &modelRecorder{w: w, term: term, out: out, random: w.random("recorder"), more: make(chan struct{}, 1)}
}

func (r *modelRecorder) Sent(refs []event.Ref) {
	writes := make([]modelWrite, len(refs))
	for i := range refs {
		writes[i].Ref = refs[i]
	}
	r.put(writes)
}

func (r *modelRecorder) Park(parks []event.Park) {
	writes := make([]modelWrite, len(parks))
	for i := range parks {
		writes[i] = modelWrite{Ref: parks[i].Ref, park: &parks[i]}
	}
	r.put(writes)
}

func (r *modelRecorder) put(writes []modelWrite) {
	r.mu.Lock()
	r.box = append(r.box, writes...)
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
}

func (r *modelRecorder) Run(ctx context.Context) error {
	for {
		select {
		case <-r.more:
		case <-r.next():
		case <-ctx.Done():
			return nil
		}
		if modelPause(ctx, r.random.latency()/4) != nil {
			return nil
		}
		for _, writes := range r.take() {
			if err := r.write(ctx, writes); err != nil {
				return ignoreEnd(ctx, err)
			}
		}
	}
}

// next is when something of what waits is due.
func (r *modelRecorder) next() <-chan time.Time {
	if len(r.later) == 0 {
		return nil
	}
	first := slices.MinFunc(r.later, func(a, b modelWrite) int { return a.at.Compare(b.at) })
	return time.After(time.Until(first.at))
}

// take returns what is due now, a statement each. The writes of a row keep
// their order.
func (r *modelRecorder) take() [][]modelWrite {
	var statements [][]modelWrite
	var due []modelWrite
	r.later = slices.DeleteFunc(r.later, func(w modelWrite) bool {
		if time.Now().Before(w.at) {
			return false
		}
		due = append(due, w)
		return true
	})
	r.mu.Lock()
	fresh := r.box
	r.box = nil
	r.mu.Unlock()
	for _, writes := range [][]modelWrite{due, fresh} {
		for len(writes) > 0 {
			n := untilRepeated(writes)
			statements = append(statements, byForm(writes[:n])...)
			writes = writes[n:]
		}
	}
	return statements
}

// untilRepeated is how many writes there are before a row comes again.
func untilRepeated(writes []modelWrite) int {
	seen := map[int64]bool{}
	for i, w := range writes {
		if seen[w.ID] {
			return i
		}
		seen[w.ID] = true
	}
	return len(writes)
}

// byForm cuts writes into statements: SENT, then each action.
func byForm(writes []modelWrite) (statements [][]modelWrite) {
	form := func(w modelWrite) int {
		if w.park == nil {
			return -1
		}
		return int(w.park.Action)
	}
	writes = slices.Clone(writes)
	slices.SortStableFunc(writes, func(a, b modelWrite) int { return cmp.Or(cmp.Compare(form(a), form(b)), cmp.Compare(a.ID, b.ID)) })
	for len(writes) > 0 {
		n := 1
		for n < len(writes) && form(writes[n]) == form(writes[0]) {
			n++
		}
		statements = append(statements, writes[:n])
		writes = writes[n:]
	}
	return statements
}

// write is one statement.
func (r *modelRecorder) write(ctx context.Context, writes []modelWrite) error {
	if err := modelPause(ctx, r.random.latency()/2); err != nil {
		return err
	}
	lost := r.random.chance(3)
	resolved, again, err := r.execute(writes)
	if err != nil {
		return err
	}
	if err := modelPause(ctx, r.random.latency()/2); err != nil {
		return err
	}
	if lost {
		r.later = append(r.later, writes...)
		return nil
	}
	r.later = append(r.later, again...)
	if len(resolved) > 0 {
		r.out.Resolved(resolved)
	}
	return nil
}

// execute is the statement's transaction.
func (r *modelRecorder) execute(writes []modelWrite) (resolved []event.Ref, again []modelWrite, err error) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	if r.term.over {
		return nil, nil, fault.ErrFenced
	}
	for _, w := range writes {
		row := r.w.rows[w.ID]
		switch {
		case row != nil && !row.visible():
			w.at = time.Now().Add(time.Millisecond << min(w.tries, 10))
			w.tries++
			again = append(again, w)
			continue
		case row == nil, row.status != modelReady, row.due != w.Due:
			// gone, or settled by somebody else
		case row.locked():
			w.at = time.Now().Add(time.Second)
			again = append(again, w)
			continue
		default:
			r.w.record(row, w)
		}
		resolved = append(resolved, w.Ref)
	}
	return resolved, again, nil
}

// record changes a row that is as it was last seen. The lock is held.
func (w *modelWorld) record(row *modelRow, c modelWrite) {
	if c.park == nil {
		w.sent(row.id)
		row.status, row.due, row.commitLSN, row.attempts = modelSent, event.Due{}, 0, 0
		w.trace("SENT %d", row.id)
		return
	}
	if row.commitLSN == 0 {
		row.commitLSN = c.CommitLSN
	}
	switch c.park.Action {
	case event.ParkRetry:
		row.due = event.DueAt(time.Now().Add(c.park.Delay))
		row.attempts++
		w.attempted(row.id)
	case event.ParkFailed:
		row.status, row.due = modelFailed, event.DueInfinity()
		row.attempts++
		w.attempted(row.id)
	case event.ParkHeld:
		row.due = event.DueInfinity()
	case event.ParkLater:
		row.due = event.DueAt(time.Now().Add(c.park.Delay))
	}
	w.trace("parked %v", row)
	w.check(row)
}
