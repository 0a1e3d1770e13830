package consumer

import (
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
)

// Health is where a consumer stands.
type Health struct {
	// Joined says that this is a member of the group with partitions to read, or
	// without any as there are fewer than members. Since tells from when that is
	// so, or not so: a short while in each rebalance, for as long as Kafka cannot
	// be reached, refuses, or has no such topic.
	Joined bool
	Since  time.Time
	// TopicsMissing are topics of the group that do not exist; while there are
	// any, nobody joins.
	TopicsMissing []string
	Partitions    []PartitionHealth
}

// PartitionHealth is where a partition stands that this member reads.
type PartitionHealth struct {
	Topic     string
	Partition int
	// Position is the offset of the first record without a durable outcome, End
	// that of the next record to be written, as it was when the partition was
	// read last. Negative: not known yet.
	Position, End int64
	// Reason is why the partition does not move, empty if it does, and Since
	// when that began.
	Reason Reason
	Since  time.Time
	// Moved is when Position moved last, or when the partition was assigned.
	Moved time.Time
}

// Lag is how many offsets are without a durable outcome.
func (p PartitionHealth) Lag() int64 {
	if p.Position < 0 {
		return 0
	}
	return max(0, p.End-p.Position)
}

// Stalled returns the partitions that have a lag, or a reason why they cannot be
// read, and that have not moved for longer than after. Kafka does not notice
// these: their member sends heartbeats.
func (h Health) Stalled(after time.Duration) []PartitionHealth {
	var list []PartitionHealth
	for _, p := range h.Partitions {
		if (p.Lag() > 0 || p.Reason != "") && time.Since(p.Moved) > after {
			list = append(list, p)
		}
	}
	return list
}

// status is a line's PartitionHealth, for readers in other goroutines. It is
// written by the line alone, and the Observer is told without the lock: it may
// ask for the health.
type status struct {
	observer Observer
	gone     bool // the line's

	mu  sync.Mutex
	now PartitionHealth
}

func newStatus(p group.Partition, o Observer) *status {
	now := time.Now()
	return &status{observer: o, now: PartitionHealth{
		Topic: p.Topic, Partition: p.Number, Position: -1, End: -1, Since: now, Moved: now,
	}}
}

func (s *status) set(position, end int64, why Reason) {
	before := s.note(position, end, why)
	if s.gone || why == before {
		return
	}
	if before != "" {
		s.observer.Paused(s.now.Topic, s.now.Partition, before, false)
	}
	if why != "" {
		s.observer.Paused(s.now.Topic, s.now.Partition, why, true)
	}
}

// note returns the reason until now.
func (s *status) note(position, end int64, why Reason) Reason {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, before := time.Now(), s.now.Reason
	if position != s.now.Position {
		s.now.Position, s.now.Moved = position, now
	}
	if s.now.End = end; why != before {
		s.now.Reason, s.now.Since = why, now
	}
	return before
}

// leave ends it: the partition is no longer this member's.
func (s *status) leave() {
	s.set(s.now.Position, s.now.End, "")
	s.gone = true
}

func (s *status) read() PartitionHealth {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// misses counts events in a row that have no row. Many mean that this is not
// their database.
type misses struct {
	mu  sync.Mutex
	ids map[[16]byte]bool
}

const missLimit = 20

// hit: an event was found.
func (m *misses) hit() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.ids)
}

// miss: an event has no row.
func (m *misses) miss(id [16]byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ids == nil {
		m.ids = map[[16]byte]bool{}
	}
	if len(m.ids) < missLimit {
		m.ids[id] = true
	}
}

func (m *misses) tooMany() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ids) >= missLimit
}
