package relay

import (
	"cmp"
	"slices"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// modelStory is what the checker knows of a row, also after its end. It is
// guarded by the world's lock.
type modelStory struct {
	id        int64
	typ, agg  string
	end       pglogrepl.LSN // of the inserting transaction
	position  pglogrepl.LSN // its commit position
	visibleAt time.Time
	exempted  string // why its place in the order is not checked (G2); empty: it is
	back      bool   // the publisher ever gave it back: what comes later may pass, unless the type blocks
	acked     bool   // the broker's ack came to some session
	refused   int32  // how often the publisher refused it
	attempts  int32  // how often that was recorded
	loose     bool   // a report or a write-back may have been lost, or a person has changed the row
	notBefore time.Time
	records   int // in the log
	allowed   int // Invariant: records <= allowed (G3)
}

func newModelStory(row *modelRow, end, position pglogrepl.LSN) *modelStory {
	s := &modelStory{visibleAt: row.visibleAt, id: row.id, typ: row.typ, agg: row.agg, end: end, position: position, allowed: 1}
	if at, delayed := row.due.Time(); delayed {
		s.notBefore = at
		s.exempt("delayed")
	}
	return s
}

// exempt takes the row out of the check of the order.
func (s *modelStory) exempt(why string) {
	if s.exempted == "" {
		s.exempted = why
	}
}

// ask notes that a person wants the row published out of order, or again.
func (s *modelStory) ask(why string) {
	s.exempt(why)
	s.allowed++
}

func (s *modelStory) replayed() {
	if s.records > 0 { // else nobody has seen it yet
		s.allowed++
	}
}

func (s *modelStory) before(other *modelStory) bool {
	return cmp.Or(cmp.Compare(s.position, other.position), cmp.Compare(s.id, other.id)) < 0
}

// sessionEnded notes that what the session had published, but not written
// back, may be published again. Nothing of it is in flight any more. The lock
// is held.
func (w *modelWorld) sessionEnded() {
	for id, row := range w.rows {
		s := w.stories[id]
		if row.status != modelReady {
			continue
		}
		s.loose = true
		if s.records >= s.allowed {
			s.allowed = s.records + 1
		}
	}
}

// appended checks a record that has just come into the log (I5, G3). The lock
// is held.
func (w *modelWorld) appended(id int64) {
	s := w.stories[id]
	s.records++
	w.trace("record of %d", id)
	if s.records > s.allowed {
		w.violated("G3", "row %d has %d records, %d allowed", id, s.records, s.allowed)
	}
	if time.Now().Before(s.notBefore) {
		w.violated("delay", "row %d was published before its time", id)
	}
	if row := w.rows[id]; row != nil && row.status == modelFailed {
		w.violated("I5", "row %d was published while it was FAILED", id)
	}
	if s.records > 1 || s.exempted != "" {
		return
	}
	for _, earlier := range w.stories {
		if earlier.typ != s.typ || earlier.agg != s.agg || !earlier.before(s) || earlier.exempted != "" || earlier.records > 0 {
			continue
		}
		if modelBlocks(s.typ) || !earlier.back {
			w.violated("I5", "row %d of %s %s came before row %d", id, s.typ, s.agg, earlier.id)
		}
	}
}

// sent checks that a row may be SENT (I6). The lock is held.
func (w *modelWorld) sent(id int64) {
	if s := w.stories[id]; !s.acked {
		w.violated("I6", "row %d became SENT before its ack", id)
	}
}

// attempted checks that an attempt which is recorded took place. The lock is
// held.
func (w *modelWorld) attempted(id int64) {
	s := w.stories[id]
	s.attempts++
	if s.attempts > s.refused {
		w.violated("attempts", "row %d was refused %d times, %d attempts are recorded", id, s.refused, s.attempts)
	}
}

// offered checks a position that a session takes for resolved (I3, I4). The
// lock is held.
func (w *modelWorld) offered(lsn pglogrepl.LSN) {
	known := slices.Contains(w.foreign, lsn)
	for _, tx := range w.wal {
		known = known || tx.end == lsn
	}
	if !known {
		w.violated("I3", "%s is neither a commit's end nor a keepalive's position", lsn)
	}
	for id, row := range w.rows {
		if s := w.stories[id]; s.end <= lsn && s.end > 0 && row.status == modelReady && row.due.IsNull() {
			w.violated("I4", "%s is past row %d at %s, which is neither SENT nor parked", lsn, id, s.end)
		}
	}
	kept := w.requeues[:0]
	for _, r := range w.requeues {
		row := w.rows[r.id]
		waiting := row != nil && row.status == modelReady && row.due == r.due
		if waiting && r.end <= lsn {
			w.violated("I4", "%s is past the requeue of row %d at %s, which is not resolved", lsn, r.id, r.end)
		}
		if waiting {
			kept = append(kept, r)
		}
	}
	w.requeues = kept
}

// standing returns the rows that are not at their end: SENT, waived or gone.
// The lock is held.
func (w *modelWorld) standing() []*modelRow {
	return w.sorted(func(row *modelRow) bool { return row.status == modelReady || row.openFailure() })
}

// atEnd checks that nothing waits for nobody once everything is mended (I7).
func (w *modelWorld) atEnd() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, row := range w.standing() {
		w.violated("end", "left: %v", row)
	}
	for id, row := range w.rows {
		if row.status == modelSent && w.stories[id].records == 0 {
			w.violated("I7", "row %d is SENT and has no record", id)
		}
		if row.placed() {
			w.violated("end", "row %d has a place among the parked ones, status %d", id, row.status)
		}
	}
	for id, s := range w.stories {
		if s.attempts != s.refused && !s.loose {
			w.violated("attempts", "row %d was refused %d times, %d attempts are recorded", id, s.refused, s.attempts)
		}
	}
	if w.confirmed < w.work {
		w.violated("end", "the slot stands at %s, the last transaction with something for us ends at %s", w.confirmed, w.work)
	}
}

func modelDue(d event.Due) string {
	if at, ok := d.Time(); ok {
		return at.Format("15:04:05.000000")
	}
	if d.IsInfinity() {
		return "infinity"
	}
	return "NULL"
}
