package statusback

import (
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// mailbox collects what is to be written, a call at a time.
type mailbox struct {
	wake chan struct{} // one slot: something is in the mailbox

	mu     sync.Mutex
	writes []write
	since  time.Time // when the first of writes came
}

func newMailbox() *mailbox { return &mailbox{wake: make(chan struct{}, 1)} }

func (m *mailbox) sent(refs []event.Ref) {
	m.mu.Lock()
	m.stamp()
	for i := range refs {
		m.writes = append(m.writes, write{Ref: refs[i]})
	}
	m.mu.Unlock()
	m.ring()
}

func (m *mailbox) park(parks []event.Park) {
	m.mu.Lock()
	m.stamp()
	for i := range parks {
		m.writes = append(m.writes, write{Ref: parks[i].Ref, park: &parks[i]})
	}
	m.mu.Unlock()
	m.ring()
}

func (m *mailbox) stamp() {
	if len(m.writes) == 0 {
		m.since = time.Now()
	}
}

func (m *mailbox) ring() {
	select {
	case m.wake <- struct{}{}:
	default: // the writer has not looked yet and will see this too
	}
}

// due is when what is in the mailbox should be written, zero if it is empty:
// as soon as a batch is worth a statement, else when the first has waited.
func (m *mailbox) due(cfg Config) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case len(m.writes) == 0:
		return time.Time{}
	case len(m.writes) >= cfg.Batch:
		return m.since
	}
	return m.since.Add(cfg.Interval)
}

// take empties the mailbox and leaves it the buffer of an earlier take.
func (m *mailbox) take(buffer []write) []write {
	clear(buffer) // lets go of the parks
	m.mu.Lock()
	defer m.mu.Unlock()
	writes := m.writes
	m.writes = buffer[:0]
	return writes
}
