package relay

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/modeltest"
	"github.com/cdc-relay/cdc-relay/internal/waltest"
)

// The codes of send_status that the model needs.
const (
	modelReady  = 0
	modelSent   = 2
	modelFailed = 3
)

// modelWorld is PostgreSQL and Kafka in memory, as faithful as the order of
// events and the fate of rows ask for: one outbox table with its trigger, row
// locks, transactions that become visible late, one slot, its lease and fence,
// and topics with partitions. All relays of a program share it, one leads at a
// time. Safe for concurrent use.
type modelWorld struct {
	seed uint64
	log  func(format string, args ...any) // what happens, for people; nil: nobody reads it

	mu      sync.Mutex
	rows    map[int64]*modelRow
	stories map[int64]*modelStory // of all rows that there ever were
	nextID  int64
	xid     uint64

	wal      []modelTx
	lsn      pglogrepl.LSN
	work     pglogrepl.LSN   // the end of the last transaction with a row or a requeue
	foreign  []pglogrepl.LSN // positions behind WAL that is not for us
	builder  waltest.Builder
	sources  []*modelSource // those that are read
	requeues []modelRequeue

	epoch     int64 // of the fence
	led       bool  // the lease is held, or was not released
	renewedAt time.Time
	saved     pglogrepl.LSN
	confirmed pglogrepl.LSN
	lossy     bool // somebody moved the slot: rows may be missed

	kafka    modelKafka
	openings uint64 // sessions opened, to tell their random numbers apart
	broken   []modelViolation
}

// modelViolation is something that must never be.
type modelViolation = modeltest.Violation

// modelRow is a row of the outbox.
type modelRow struct {
	id          int64
	typ, agg    string
	status      int16
	due         event.Due
	commitLSN   pglogrepl.LSN // the column
	attempts    int32
	finished    bool
	priority    int16
	xid         uint64
	visibleAt   time.Time // from when on its insert is seen by others
	lockedUntil time.Time // by a person
}

// modelTx is a committed transaction in the WAL, a frame each message.
type modelTx struct {
	frames [][]byte
	end    pglogrepl.LSN
}

// modelRequeue is a message that the trigger wrote.
type modelRequeue struct {
	id  int64
	due event.Due
	end pglogrepl.LSN
}

// modelInsert is a row to be inserted.
type modelInsert struct {
	typ, agg string
	priority int16
	delay    time.Duration // 0: at once
	fault    modelFault
}

func newModelWorld(seed uint64) *modelWorld {
	return &modelWorld{
		seed: seed, rows: map[int64]*modelRow{}, stories: map[int64]*modelStory{}, xid: 1000,
		kafka: newModelKafka(),
	}
}

// random returns random numbers of its own for each part of each session, so
// that a program runs alike each time.
func (w *modelWorld) random(part string) *modelRandom {
	h := w.openings << 32
	for _, c := range []byte(part) {
		h = h*31 + uint64(c)
	}
	rng := rand.New(rand.NewPCG(w.seed, h))
	paces := []time.Duration{5 * time.Millisecond, 5 * time.Millisecond, 60 * time.Millisecond, 600 * time.Millisecond}
	return &modelRandom{rng: rng, pace: paces[rng.IntN(len(paces))]}
}

// modelRandom is not safe for concurrent use.
type modelRandom struct {
	rng  *rand.Rand
	pace time.Duration // what mostly bounds a latency
}

// latency is mostly short and seldom long, and hardly ever twice the same.
func (r *modelRandom) latency() time.Duration {
	most := r.pace
	switch n := r.rng.IntN(100); {
	case n < 3:
		most = 2 * time.Second
	case n < 15:
		most = 100 * time.Millisecond
	}
	return 1 + time.Duration(r.rng.Int64N(int64(most)))
}

func (r *modelRandom) chance(percent int) bool { return r.rng.IntN(100) < percent }

// upTo returns a number from 1 to n.
func (r *modelRandom) upTo(n int) int { return 1 + r.rng.IntN(n) }

// trace tells people what happens.
func (w *modelWorld) trace(format string, args ...any) {
	if w.log != nil {
		w.log(time.Now().Format("04:05.000000 ")+format, args...)
	}
}

// violated notes a broken rule. The lock is held.
func (w *modelWorld) violated(rule, format string, args ...any) {
	w.trace("%s: "+format, append([]any{rule}, args...)...)
	w.broken = append(w.broken, modelViolation{Rule: rule, Detail: fmt.Sprintf(format, args...)})
}

// begin opens a transaction at the end of the WAL. The lock is held.
func (w *modelWorld) begin() *modelTx {
	w.xid++
	return &modelTx{end: w.lsn + 100, frames: [][]byte{w.builder.BeginAt(w.lsn+50, uint32(w.xid), time.Now())}}
}

// position is the commit position that the open transaction will have.
func (w *modelWorld) position() pglogrepl.LSN { return w.lsn + 50 }

// commit appends tx to the WAL and wakes who reads it. The lock is held.
func (w *modelWorld) commit(tx *modelTx) {
	w.lsn = tx.end
	tx.frames = append(tx.frames, w.builder.Commit(tx.end))
	w.wal = append(w.wal, *tx)
	for _, s := range w.sources {
		s.wake()
	}
}

// insert commits rows in one transaction, which others see only after hidden.
func (w *modelWorld) insert(rows []modelInsert, hidden time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	tx := w.begin()
	for _, in := range rows {
		w.nextID++
		row := &modelRow{
			id: w.nextID, typ: in.typ, agg: in.agg, priority: in.priority,
			xid: w.xid, visibleAt: time.Now().Add(hidden),
		}
		frame := waltest.Row{ID: row.id, AggregateType: row.typ, AggregateID: row.agg, Priority: row.priority, Payload: []byte("{}")}
		if in.delay > 0 {
			at := time.Now().Add(in.delay)
			row.due, frame.Due = event.DueAt(at), at
		}
		w.rows[row.id] = row
		w.work = tx.end
		w.trace("insert %d %s %s", row.id, row.typ, row.agg)
		w.stories[row.id] = newModelStory(row, tx.end, w.position())
		if in.fault != (modelFault{}) {
			w.kafka.faults[row.id] = in.fault
		}
		tx.frames = append(tx.frames, w.builder.Insert(frame))
	}
	w.commit(tx)
}

// touch does what the trigger does after an update of next_attempt_at. The
// lock is held.
func (w *modelWorld) touch(tx *modelTx, row *modelRow) {
	if row.status != modelReady || !row.isDue() {
		return
	}
	tx.frames = append(tx.frames, w.builder.Message(requeuePrefix, strconv.FormatInt(row.id, 10)))
	w.work = tx.end
	w.trace("requeue %d", row.id)
	w.requeues = append(w.requeues, modelRequeue{row.id, row.due, tx.end})
}

// String is for people.
func (r *modelRow) String() string {
	return fmt.Sprintf("row %d of %s %s: status %d, due %s, commit position %s, %d attempts",
		r.id, r.typ, r.agg, r.status, modelDue(r.due), r.commitLSN, r.attempts)
}

func (r *modelRow) isDue() bool {
	at, ok := r.due.Time()
	return ok && at.UnixMicro() <= time.Now().UnixMicro()
}

func (r *modelRow) visible() bool { return !time.Now().Before(r.visibleAt) }

func (r *modelRow) locked() bool { return time.Now().Before(r.lockedUntil) }

// placed tells that the row counts for the order of its aggregate: it is in the
// index of parked rows.
func (r *modelRow) placed() bool { return !r.due.IsNull() && r.commitLSN != 0 }

// held tells that the row only waits for its release.
func (r *modelRow) held() bool { return r.status == modelReady && r.due.IsInfinity() }

// openFailure tells that the row waits for a person.
func (r *modelRow) openFailure() bool { return r.status == modelFailed && !r.finished }

func (r *modelRow) before(other *modelRow) bool {
	return cmp.Or(cmp.Compare(r.commitLSN, other.commitLSN), cmp.Compare(r.id, other.id)) < 0
}

// parked returns the placed rows of an aggregate in order. The lock is held.
func (w *modelWorld) parked(typ, agg string) []*modelRow {
	var rows []*modelRow
	for _, row := range w.rows {
		if row.typ == typ && row.agg == agg && row.placed() && row.visible() {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b *modelRow) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	return rows
}

// sorted returns rows that fulfil a condition, by id. The lock is held.
func (w *modelWorld) sorted(want func(*modelRow) bool) []*modelRow {
	var rows []*modelRow
	for _, row := range w.rows {
		if want(row) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b *modelRow) int { return cmp.Compare(a.id, b.id) })
	return rows
}

// check is the table's CHECK, and what else must be true of a row after an
// update. The lock is held.
func (w *modelWorld) check(row *modelRow) {
	if row.due.IsInfinity() && row.status != modelFailed && row.commitLSN == 0 {
		w.violated("CHECK", "row %d would wait for nobody", row.id)
	}
	if row.status == modelSent && (!row.due.IsNull() || row.commitLSN != 0) {
		w.violated("I8", "row %d is SENT and parked", row.id)
	}
}

// What people do. Each is one transaction, and does nothing when its guard
// does not hold or somebody has the row locked.

// pick calls change with one of the rows that fulfil a condition and that a
// person can get hold of, in a transaction.
func (w *modelWorld) pick(n int, want func(*modelRow) bool, change func(tx *modelTx, row *modelRow)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rows := w.sorted(func(row *modelRow) bool { return row.visible() && !row.locked() && want(row) })
	if len(rows) == 0 {
		return
	}
	row := rows[n%len(rows)]
	w.stories[row.id].loose = true
	tx := w.begin()
	change(tx, row)
	w.trace("a person has changed %v", row)
	if w.rows[row.id] != nil {
		w.check(row)
	}
	w.commit(tx)
}

// replay requeues a FAILED row.
func (w *modelWorld) replay(n int) { w.pick(n, (*modelRow).openFailure, w.replayRow) }

// replayWaived requeues a row that was skipped.
func (w *modelWorld) replayWaived(n int) {
	w.pick(n, func(row *modelRow) bool { return row.status == modelFailed && row.finished }, w.replayRow)
}

// replaySent requeues a row that was published.
func (w *modelWorld) replaySent(n int) {
	w.pick(n, func(row *modelRow) bool { return row.status == modelSent }, func(tx *modelTx, row *modelRow) {
		w.stories[row.id].ask("replayed after SENT")
		w.replayRow(tx, row)
	})
}

func (w *modelWorld) replayRow(tx *modelTx, row *modelRow) {
	w.stories[row.id].replayed()
	row.status, row.due, row.attempts, row.finished = modelReady, event.DueAt(time.Now()), 0, false
	w.touch(tx, row)
}

// skip waives a FAILED row. By command what is first behind it then, if it is
// held, is requeued in the same transaction; in psql it is not.
func (w *modelWorld) skip(n int, byCommand bool) {
	w.pick(n, (*modelRow).openFailure, func(tx *modelTx, row *modelRow) {
		w.stories[row.id].exempt("waived")
		was := *row
		row.finished, row.due, row.commitLSN = true, event.Due{}, 0
		next := w.parked(row.typ, row.agg)
		if byCommand && was.placed() && len(next) > 0 && was.before(next[0]) && next[0].held() && !next[0].locked() {
			w.stories[next[0].id].loose = true
			next[0].due = event.DueAt(time.Now())
			w.touch(tx, next[0])
		}
	})
}

// remove deletes a row, whatever its state.
func (w *modelWorld) remove(n int, want func(*modelRow) bool) {
	w.pick(n, want, func(_ *modelTx, row *modelRow) {
		w.stories[row.id].exempt("deleted")
		delete(w.rows, row.id)
	})
}

// hasten sets next_attempt_at = now() by hand.
func (w *modelWorld) hasten(n int, want func(*modelRow) bool) {
	w.pick(n, want, func(tx *modelTx, row *modelRow) {
		if row.commitLSN == 0 {
			w.stories[row.id].ask("made due by hand before it had a place")
		} else {
			w.stories[row.id].allowed++
		}
		row.due, w.stories[row.id].notBefore = event.DueAt(time.Now()), time.Time{}
		w.touch(tx, row)
	})
}

// lock holds a row for a while.
func (w *modelWorld) lock(n int, want func(*modelRow) bool, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rows := w.sorted(func(row *modelRow) bool { return row.visible() && want(row) })
	if len(rows) > 0 {
		rows[n%len(rows)].lockedUntil = time.Now().Add(d)
	}
}

func (w *modelWorld) unlockAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, row := range w.rows {
		row.lockedUntil = time.Time{}
	}
}

// moveSlot sets the slot beyond what it has delivered, as a person can while
// nobody reads it.
func (w *modelWorld) moveSlot() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.confirmed, w.lossy = w.lsn, true
	w.requeues = nil // the scheduler will find their rows again
	for id, row := range w.rows {
		if row.status == modelReady {
			w.stories[id].exempt("passed over by the slot")
		}
		if !row.visible() {
			w.stories[id].end = 0 // nobody can know of it
		}
	}
}
