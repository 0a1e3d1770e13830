package consumer

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/modeltest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	modelTopic      = "t"
	modelPartitions = 2
	modelKeys       = 6
)

// modelWorld is PostgreSQL, Kafka, the relay and people around the processes of
// one group. Safe for concurrent use.
type modelWorld struct {
	setup  modelSetup
	seed   uint64
	log    func(format string, args ...any) // what happens, for people; nil: nobody reads it
	random *modelRandom                     // of what is nobody's in particular

	mu      sync.Mutex
	table   *modelTable
	stories map[outbox.ID]*modelStory
	events  []outbox.ID // in the order of their making
	nextRow int64
	logs    [modelPartitions]modelLog
	kept    []*modelKept // the quarantine
	group   modelGroup
	trouble modelTrouble
	mended  bool // handlers succeed from now on
	running []*modelProcess
	all     []*modelProcess
	closed  bool // no more are started
	broken  []modelViolation
}

// modelTrouble is what does not work, until when.
type modelTrouble struct {
	refused time.Time // connections to the database
	silent  time.Time // the database answers nothing and does nothing
	lossy   time.Time // its answers are lost
	table   time.Time // somebody has the table locked
	kafka   time.Time
}

// modelViolation is something that must never be.
type modelViolation = modeltest.Violation

// modelLog is the log of a partition.
type modelLog struct {
	records []modelRecord
	end     int64
	added   chan struct{} // closed when there are more
}

// modelRecord is a record in a log.
type modelRecord struct {
	group.Record
	event outbox.ID // zero: it cannot be decoded
	at    time.Time // when it was appended
}

// modelKept is a row of the quarantine.
type modelKept struct {
	store.Stored
	seen       int
	resolution string
	resolved   bool
}

func newModelWorld(p modelProgram) *modelWorld {
	w := &modelWorld{setup: p.Setup, seed: p.Seed, stories: map[outbox.ID]*modelStory{}}
	w.random = w.newRandom()
	skew := time.Duration(w.random.upTo(3)-2) * time.Hour // of the database's clock
	w.table = &modelTable{
		receipts: p.Setup.Receipts, lease: p.Setup.lease(), limit: modelAbandonLimit, rows: map[outbox.ID]*modelRow{},
		clock: func() time.Time { return time.Now().Add(skew) },
	}
	for i := range w.logs {
		w.logs[i].added = make(chan struct{})
	}
	return w
}

// modelRandom is a source of chance. Safe for concurrent use.
type modelRandom struct {
	mu   sync.Mutex
	rng  *rand.Rand
	pace time.Duration // what mostly bounds a latency
}

// newRandom returns one for each process that is started.
func (w *modelWorld) newRandom() *modelRandom {
	rng := rand.New(rand.NewPCG(w.seed, uint64(len(w.all))))
	paces := []time.Duration{5 * time.Millisecond, 5 * time.Millisecond, 60 * time.Millisecond, 600 * time.Millisecond}
	return &modelRandom{rng: rng, pace: paces[rng.IntN(len(paces))]}
}

// latency is mostly short and seldom long, and hardly ever twice the same.
func (r *modelRandom) latency() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	most := r.pace
	switch n := r.rng.IntN(200); {
	case n < 1:
		most = 20 * time.Second
	case n < 5:
		most = 2 * time.Second
	case n < 25:
		most = 100 * time.Millisecond
	}
	return 1 + time.Duration(r.rng.Int64N(int64(most)))
}

func (r *modelRandom) chance(percent int) bool { return r.upTo(100) <= percent }

// upTo returns a number from 1 to n.
func (r *modelRandom) upTo(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return 1 + r.rng.IntN(n)
}

// trace tells people what happens.
func (w *modelWorld) trace(format string, args ...any) {
	if w.log != nil {
		w.log(time.Now().Format("04:05.000000 ")+format, args...)
	}
}

// violated notes a broken rule. The lock is held.
func (w *modelWorld) violated(rule, format string, args ...any) {
	w.trace("BROKEN %s: "+format, append([]any{rule}, args...)...)
	w.broken = append(w.broken, modelViolation{Rule: rule, Detail: fmt.Sprintf(format, args...)})
}

func (w *modelWorld) violations() []modelViolation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.broken
}

// elapse lets time pass.
func elapse(d time.Duration) { <-time.After(d) }

// insert makes rows of one key, which the relay publishes at once and marks as
// SENT later. Others than the relay do not see them at first, as behind a
// synchronous standby.
func (w *modelWorld) insert(key, n int, script []modelDeed, late, hidden time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range n {
		s := w.newEvent(key)
		if i == n-1 {
			s.script = script
		}
		w.trace("insert %d, key %s", s.row, s.key)
		if hidden == 0 {
			w.show(s)
		} else {
			time.AfterFunc(hidden, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.show(s)
			})
		}
		w.publish(s, hidden+late+w.random.latency())
	}
}

// show makes the row of an event visible. The lock is held.
func (w *modelWorld) show(s *modelStory) {
	if !w.setup.Receipts {
		w.table.rows[s.event] = &modelRow{id: s.row, event: s.event}
	}
}

// newEvent begins the story of an event. The lock is held.
func (w *modelWorld) newEvent(key int) *modelStory {
	w.nextRow++
	n := max(0, key-modelKeys) % modelKeys // the first key is hot
	s := &modelStory{row: w.nextRow, key: string(rune('a' + n)), part: n % modelPartitions, first: -1, claims: map[int32]string{}}
	s.event[0], s.event[1], s.event[15] = byte(w.nextRow>>8), byte(w.nextRow), 1
	w.stories[s.event] = s
	w.events = append(w.events, s.event)
	return s
}

// publish appends a record of an event and marks it as SENT after a while. The
// lock is held.
func (w *modelWorld) publish(s *modelStory, late time.Duration) {
	w.append(s)
	time.AfterFunc(late, func() { w.sent(s) })
}

// append appends a record of an event. The lock is held.
func (w *modelWorld) append(s *modelStory) {
	if offset := w.appendTo(s.part, s); s.first < 0 {
		s.first = offset
	}
}

// appendTo appends it to a partition. The lock is held.
func (w *modelWorld) appendTo(part int, s *modelStory) int64 {
	return w.put(part, s.event, group.Record{Key: []byte(s.key), Value: []byte("{}"), Headers: s.headers()})
}

// headers are those of its records.
func (s *modelStory) headers() []group.Header {
	headers := []group.Header{{Name: "ce_id", Value: []byte(s.event.String())}}
	if s.row%3 != 0 {
		headers = append(headers, group.Header{Name: "cdcr-id", Value: []byte(strconv.FormatInt(s.row, 10))})
	}
	return headers
}

// put appends a record to a partition. The lock is held.
func (w *modelWorld) put(part int, event outbox.ID, rec group.Record) int64 {
	l := &w.logs[part]
	if w.random.chance(5) {
		l.end++ // a control batch
	}
	rec.Partition, rec.Offset, rec.Time = group.Partition{Topic: modelTopic, Number: part}, l.end, time.Now()
	l.end++
	l.records = append(l.records, modelRecord{rec, event, time.Now()})
	close(l.added)
	l.added = make(chan struct{})
	return rec.Offset
}

// sent is the relay's write-back. It tries again while the row is locked.
func (w *modelWorld) sent(s *modelStory) {
	w.mu.Lock()
	defer w.mu.Unlock()
	row := w.table.rows[s.event]
	switch {
	case row == nil || row.status != outbox.Ready:
	case row.locked:
		time.AfterFunc(time.Second, func() { w.sent(s) })
	default:
		row.status, row.attempts, row.next, row.never, row.since = outbox.Sent, 0, time.Time{}, false, w.table.clock()
		w.trace("SENT %d", s.row)
	}
}

// sweep publishes again what nobody will take over, as the relay's leader does.
func (w *modelWorld) sweep() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, row := range w.sorted(func(row *modelRow) bool {
		return !w.setup.Receipts && row.status == outbox.Consuming && !row.locked && w.table.clock().Sub(row.lease) > 10*w.table.lease
	}) {
		s := w.stories[row.event]
		w.trace("swept %d", s.row)
		s.exempt("swept")
		row.code = store.CodeAbandoned
		w.requeue(s, row)
	}
}

// requeue makes a row READY and publishes it. The lock is held.
func (w *modelWorld) requeue(s *modelStory, row *modelRow) {
	w.left(s, row)
	row.status, row.attempts, row.since, row.finished, row.never, row.by = outbox.Ready, 0, time.Time{}, false, false, ""
	row.next, row.lease = w.table.clock(), time.Time{}
	s.notBefore = time.Time{}
	late := w.random.latency()
	time.AfterFunc(w.random.latency(), func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.publish(s, late)
	})
}

// sorted returns rows that fulfil a condition, by id. The lock is held.
func (w *modelWorld) sorted(want func(*modelRow) bool) []*modelRow {
	var rows []*modelRow
	for _, row := range w.table.rows {
		if want(row) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b *modelRow) int { return cmp.Compare(w.stories[a.event].row, w.stories[b.event].row) })
	return rows
}
