// Package load writes outbox rows the way applications do and records what
// was committed, in commit order, for package check to compare with.
package load

import (
	"slices"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/e2e/check"
)

// History is what was committed. It is safe for concurrent use; the order
// within an aggregate is the commit order because only one writer at a time
// owns an aggregate.
type History struct {
	mu     sync.Mutex
	events []check.Event
	past   map[int64]pglogrepl.LSN
	asked  map[int64]time.Time
	end    pglogrepl.LSN

	committed, rolledBack int // transactions
}

// NewHistory returns an empty one.
func NewHistory() *History {
	return &History{past: map[int64]pglogrepl.LSN{}, asked: map[int64]time.Time{}}
}

// Add appends the events of a transaction. past is a WAL position read after
// its commit (0: not known), asked the time just before the commit was sent.
func (h *History) Add(events []check.Event, past pglogrepl.LSN, asked time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.committed++
	h.events = append(h.events, events...)
	for _, e := range events {
		h.asked[e.ID] = asked
		if past != 0 {
			h.past[e.ID] = past
		}
	}
	h.end = max(h.end, past)
}

// Abandon counts a transaction that was rolled back.
func (h *History) Abandon() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rolledBack++
}

// Transactions is how many were committed and rolled back.
func (h *History) Transactions() (committed, rolledBack int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.committed, h.rolledBack
}

// Events returns a copy of all events.
func (h *History) Events() []check.Event { return h.Since(0) }

// Since returns a copy of the events after the first n.
func (h *History) Since(n int) []check.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events[n:])
}

// Len is the number of events.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.events)
}

// End is a WAL position at or after the end of every commit so far.
func (h *History) End() pglogrepl.LSN {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.end
}

// Asked is when the commit of a row was sent; ok is false for unknown rows.
func (h *History) Asked(id int64) (t time.Time, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t, ok = h.asked[id]
	return t, ok
}

// Passed returns those of ids whose commit certainly lies at or before lsn.
func (h *History) Passed(ids []int64, lsn pglogrepl.LSN) (passed []int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		if past, ok := h.past[id]; ok && past <= lsn {
			passed = append(passed, id)
		}
	}
	return passed
}
