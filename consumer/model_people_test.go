package consumer

import (
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// What people do. Each is one transaction, and does nothing when its guard does
// not hold or somebody has the row locked.

// pick calls change with one of the rows that fulfil a condition.
func (w *modelWorld) pick(n int, want func(*modelRow) bool, change func(*modelStory, *modelRow)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rows := w.sorted(func(row *modelRow) bool { return !row.locked && want(row) })
	if len(rows) == 0 {
		return
	}
	row := rows[n%len(rows)]
	change(w.stories[row.event], row)
	w.trace("a person has changed %v", row)
}

func modelFailed(row *modelRow) bool { return row.status == outbox.Failed && !row.finished }

// replay requeues a FAILED row, or makes a FAILED receipt due.
func (w *modelWorld) replay(n int) {
	w.pick(n, modelFailed, func(s *modelStory, row *modelRow) {
		s.exempt("replayed")
		row.code = ""
		if !w.setup.Receipts {
			w.requeue(s, row)
			return
		}
		w.left(s, row)
		row.status, row.attempts, row.never, row.next = outbox.Sent, 0, false, w.table.clock()
		s.notBefore = time.Time{}
		w.append(s)
	})
}

// replaySent requeues a SENT row, as an operator's filter does.
func (w *modelWorld) replaySent(n int) {
	if w.setup.Receipts {
		return
	}
	w.pick(n, func(row *modelRow) bool { return row.status == outbox.Sent }, func(s *modelStory, row *modelRow) {
		s.exempt("replayed")
		row.code = ""
		w.requeue(s, row)
	})
}

// skip waives a FAILED row.
func (w *modelWorld) skip(n int) {
	w.pick(n, modelFailed, func(_ *modelStory, row *modelRow) { row.finished, row.never, row.next = true, false, time.Time{} })
}

// remove deletes a row, whatever its state.
func (w *modelWorld) remove(n int) {
	w.pick(n, func(*modelRow) bool { return !w.setup.Receipts }, func(s *modelStory, row *modelRow) {
		s.exempt("deleted")
		w.left(s, row)
		s.deleted = true
		delete(w.table.rows, row.event)
	})
}

// lock has a row locked for a while.
func (w *modelWorld) lock(n int, d time.Duration) {
	w.pick(n, func(*modelRow) bool { return true }, func(_ *modelStory, row *modelRow) {
		row.locked = true
		time.AfterFunc(d, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			row.locked = false
		})
	})
}

// stray appends a record without a row.
func (w *modelWorld) stray(key int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.newEvent(key)
	s.deleted = true
	s.exempt("no row")
	w.append(s)
	w.trace("stray record of %d", s.row)
}

// garbage appends a record that cannot be decoded.
func (w *modelWorld) garbage(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	bad := [][]group.Header{nil, {{Name: "ce_id", Value: []byte("x")}}, {{Name: "ce_id", Value: []byte("00000000-0000-0000-0000-000000000009")}, {Name: "cdcr-id", Value: []byte("-1")}}}
	w.put(n%modelPartitions, outbox.ID{}, group.Record{Key: []byte("a"), Headers: bad[n%len(bad)]})
}

// unpublished makes a row that is FAILED, the relay says, and yet in the log.
func (w *modelWorld) unpublished(key int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.setup.Receipts {
		return
	}
	s := w.newEvent(key)
	s.exempt("unpublished")
	w.table.rows[s.event] = &modelRow{id: s.row, event: s.event, status: outbox.Failed, never: true}
	w.append(s)
	w.trace("unpublished %d", s.row)
}

// duplicate appends a record once more.
func (w *modelWorld) duplicate(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) > 0 {
		w.append(w.stories[w.events[n%len(w.events)]])
	}
}

// elsewhere appends a record to another partition than that of its key, as after
// some were added.
func (w *modelWorld) elsewhere(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) == 0 {
		return
	}
	s := w.stories[w.events[n%len(w.events)]]
	s.exempt("in two partitions")
	w.appendTo((s.part+1)%modelPartitions, s)
	w.trace("record of %d in another partition", s.row)
}

// retryElsewhere wants a record to be retried whose event is in the log as well.
func (w *modelWorld) retryElsewhere(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events) == 0 {
		return
	}
	s := w.stories[w.events[n%len(w.events)]]
	s.exempt("retried from the quarantine")
	id := int64(len(w.kept) + 1)
	at := group.Partition{Topic: modelTopic, Number: modelPartitions} // there is none of this number
	r := store.Record{Topic: at.Topic, Partition: at.Number, Offset: id, Time: time.Now(), EventID: s.event, Reason: store.ReasonMissing}
	for _, h := range s.headers() {
		r.Headers = append(r.Headers, store.Header(h))
	}
	w.kept = append(w.kept, &modelKept{Stored: store.Stored{ID: id, Record: r}, seen: 1, resolution: "retry"})
	w.trace("retry of %d, quarantine row %d", s.row, id)
}

// askRetry wants a quarantined record to be retried.
func (w *modelWorld) askRetry(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var open []*modelKept
	for _, k := range w.kept {
		if !k.resolved && k.resolution == "" {
			open = append(open, k)
		}
	}
	if len(open) == 0 {
		return
	}
	k := open[n%len(open)]
	k.resolution = "retry"
	if s := w.stories[k.EventID]; s != nil {
		s.exempt("retried from the quarantine")
	}
	w.trace("retry of quarantine row %d", k.ID)
}

// reset moves the group's offset of a partition; Kafka refuses it while somebody
// is in the group.
func (w *modelWorld) reset(part, eighths int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.group.members) > 0 {
		return
	}
	part %= modelPartitions
	w.group.reset = true
	w.group.committed[part] = w.logs[part].end * int64(eighths) / 8
	for _, s := range w.stories {
		if s.part == part {
			s.exempt("the offset was moved")
		}
	}
	w.trace("offset of %d moved to %d", part, w.group.committed[part])
}
