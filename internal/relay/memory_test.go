package relay

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/decoder"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/waltest"
)

const (
	requeuePrefix = "cdc-relay/public.outbox"
	probePrefix   = "cdc-relay-probe/test"

	renewEvery = 500 * time.Millisecond
	roundTrip  = 2 * time.Millisecond
)

// elapse lets the bubble's time go on.
func elapse(d time.Duration) { <-time.After(d) }

// world is PostgreSQL and Kafka in memory: one table, one slot, one topic. It
// is shared by the in-memory edges of all sessions of a test. Safe for
// concurrent use.
type world struct {
	mu        sync.Mutex
	wal       [][]byte // one element a transaction or message, in order
	ends      []pglogrepl.LSN
	lsn       pglogrepl.LSN
	builder   waltest.Builder
	rows      map[int64]*memRow
	scheduled []string // what the scheduler was told
	readTime  time.Duration
	log       []int64 // ids in the order of the topic
	confirmed pglogrepl.LSN
	saved     pglogrepl.LSN
	released  int
	locked    int64           // row that cannot be written, 0: none
	hold      chan struct{}   // unless nil, acknowledgements wait until it is closed
	mute      bool            // the broker does not answer
	away      bool            // PostgreSQL does not
	early     []pglogrepl.LSN // confirmed before it was saved: breaks I2
	sources   []*memSource
}

// memRow is what the relay needs to know of a row.
type memRow struct {
	status int16
	due    event.Due
}

func newWorld() *world { return &world{rows: map[int64]*memRow{}} }

// set changes a row as somebody else would, in a transaction.
func (w *world) set(id int64, status int16, due event.Due) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rows[id] = &memRow{status, due}
}

func (w *world) remove(id int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.rows, id)
}

// requeue does what the trigger does for an update that makes rows due now.
func (w *world) requeue(ids ...int64) (end pglogrepl.LSN) {
	w.mu.Lock()
	defer w.mu.Unlock()
	frames := w.builder.Begin(w.lsn+50, uint32(w.lsn))
	for _, id := range ids {
		if row := w.rows[id]; row != nil {
			row.status, row.due = ready, event.DueAt(time.Now())
		}
		frames = append(frames, w.builder.Message(requeuePrefix, strconv.FormatInt(id, 10))...)
	}
	return w.append(frames)
}

// answerAfter makes reads of rows answer late.
func (w *world) answerAfter(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.readTime = d
}

// silence makes the broker take records without an answer.
func (w *world) silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mute = true
}

// down makes PostgreSQL go away, or come back: its rows cannot be written, nor
// the lease renewed.
func (w *world) down(away bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.away = away
}

// deafen makes the slot deliver nothing more to the sessions that there are.
func (w *world) deafen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sources = nil
}

func (w *world) session(i int) *memSource {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sources[i]
}

// commit appends a transaction with one READY row for each id.
func (w *world) commit(ids ...int64) pglogrepl.LSN {
	rows := make([]waltest.Row, len(ids))
	for i, id := range ids {
		rows[i] = waltest.Row{ID: id, AggregateID: "a", Payload: []byte("{}")}
	}
	return w.insert(rows...)
}

func (w *world) insert(rows ...waltest.Row) pglogrepl.LSN {
	w.mu.Lock()
	defer w.mu.Unlock()
	frames := w.builder.Begin(w.lsn+50, uint32(w.lsn))
	for _, row := range rows {
		w.rows[row.ID] = &memRow{status: row.Status}
		frames = append(frames, w.builder.Insert(row)...)
	}
	return w.append(frames)
}

func (w *world) emit(prefix, content string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.append(append(w.builder.Begin(w.lsn+50, uint32(w.lsn)), w.builder.Message(prefix, content)...))
}

// spoil appends a row that cannot be decoded.
func (w *world) spoil() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.append(append(w.builder.Begin(w.lsn+50, uint32(w.lsn)), w.builder.InsertInto(waltest.DefaultTable, []byte("1"))...))
}

// emitLoose emits a message outside of any transaction.
func (w *world) emitLoose(prefix, content string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	frames := w.builder.LooseMessage(w.lsn, prefix, content)
	w.append(append(frames, w.builder.Begin(w.lsn+50, uint32(w.lsn))...))
}

// append ends a transaction and wakes the sources.
func (w *world) append(frames []byte) pglogrepl.LSN {
	w.lsn += 100
	w.wal = append(w.wal, append(frames, w.builder.Commit(w.lsn)...))
	w.ends = append(w.ends, w.lsn)
	for _, s := range w.sources {
		s.wake()
	}
	return w.lsn
}

func (w *world) published() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log)
}

func (w *world) position() (saved, confirmed pglogrepl.LSN) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.saved, w.confirmed
}

// parts opens a session's edges on the world.
func (w *world) parts(_ context.Context, _ Tenure, in *Inbox) (*Parts, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &memSource{w: w, gulps: make(chan event.Gulp), more: make(chan struct{}, 1), cut: make(chan struct{})}
	s.wake()
	w.sources = append(w.sources, s)
	return &Parts{
		Source:    s,
		Publisher: &memPublisher{w: w, out: in.Publisher(), more: make(chan struct{}, 1)},
		Recorder:  &memRecorder{w: w, out: in.Recorder(), more: make(chan struct{}, 1)},
		Rows:      memRows{w},
		Scheduler: memScheduler{w},
		Check:     func(context.Context) error { return nil },
		Decoder:   decoder.New(decoder.Config{Table: waltest.DefaultTable}),
		Close:     func() {},
	}, nil
}

type memLeadership struct{ w *world }

func (m memLeadership) Acquire(context.Context, func()) (Tenure, error) {
	return &memTenure{w: m.w}, nil
}

type memTenure struct {
	w       *world
	mu      sync.Mutex
	offered pglogrepl.LSN
}

func (t *memTenure) Session() event.Session { return event.Session{SystemID: 1, Timeline: 1, Epoch: 1} }

// Permit waits while PostgreSQL is away.
func (t *memTenure) Permit(ctx context.Context) error {
	for {
		t.w.mu.Lock()
		away := t.w.away
		t.w.mu.Unlock()
		if !away {
			return nil
		}
		select {
		case <-time.After(renewEvery):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *memTenure) Offer(lsn pglogrepl.LSN) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.offered = lsn
}

func (t *memTenure) Run(ctx context.Context, saved func(pglogrepl.LSN)) error {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		t.mu.Lock()
		lsn := t.offered
		t.mu.Unlock()
		t.w.mu.Lock()
		away := t.w.away
		if !away {
			t.w.saved = max(t.w.saved, lsn)
		}
		t.w.mu.Unlock()
		if away {
			continue
		}
		select {
		case <-time.After(roundTrip):
			saved(lsn)
		case <-ctx.Done(): // the answer is lost
			return nil
		}
	}
}

func (t *memTenure) Release(context.Context, pglogrepl.LSN) error {
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	t.w.released++
	return nil
}

// memSource delivers the world's WAL from the confirmed position on, as a
// walsender does.
type memSource struct {
	w     *world
	gulps chan event.Gulp
	more  chan struct{}
	cut   chan struct{} // closed: the connection breaks
}

func (s *memSource) wake() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *memSource) Gulps() <-chan event.Gulp { return s.gulps }

func (s *memSource) Confirm(lsn pglogrepl.LSN) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if lsn > s.w.saved {
		s.w.early = append(s.w.early, lsn)
	}
	s.w.confirmed = max(s.w.confirmed, lsn)
}

func (s *memSource) Run(ctx context.Context) error {
	defer close(s.gulps)
	s.w.mu.Lock()
	from := s.w.confirmed
	s.w.mu.Unlock()
	frames := s.w.builder.Relation()
	for i := 0; ; {
		s.w.mu.Lock()
		for ; i < len(s.w.wal); i++ {
			if s.w.ends[i] > from {
				frames = append(frames, s.w.wal[i]...)
			}
		}
		s.w.mu.Unlock()
		if len(frames) > 0 {
			select {
			case s.gulps <- event.Gulp{Frames: frames, Paused: true, Release: func() {}}:
			case <-s.cut:
				return errCut
			case <-ctx.Done():
				return nil
			}
			frames = nil
		}
		select {
		case <-s.more:
		case <-s.cut:
			return errCut
		case <-ctx.Done():
			return nil
		}
	}
}

var errCut = context.DeadlineExceeded

// memPublisher acknowledges what it was given a round trip later.
type memPublisher struct {
	w    *world
	out  PublisherInbox
	more chan struct{}

	mu   sync.Mutex
	refs []event.Ref
}

func (p *memPublisher) Publish(events []event.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range events {
		p.refs = append(p.refs, events[i].Ref)
	}
}

func (p *memPublisher) Guard([]uint64) {}

func (p *memPublisher) Flush() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

func (p *memPublisher) Run(ctx context.Context) error {
	for {
		select {
		case <-p.more:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-time.After(roundTrip):
		case <-ctx.Done():
			return nil
		}
		p.mu.Lock()
		refs := p.refs
		p.refs = nil
		p.mu.Unlock()
		p.w.mu.Lock()
		mute := p.w.mute
		for i := range refs {
			p.w.log = append(p.w.log, refs[i].ID)
		}
		p.w.mu.Unlock()
		if p.w.hold != nil {
			select {
			case <-p.w.hold:
			case <-ctx.Done():
				return nil
			}
		}
		if !mute {
			p.out.Acked(refs)
		}
	}
}

type memRecorder struct {
	w    *world
	out  RecorderInbox
	more chan struct{}

	mu   sync.Mutex
	refs []event.Ref
}

func (r *memRecorder) Sent(refs []event.Ref) { r.add(refs) }

func (r *memRecorder) Park(parks []event.Park) {
	for i := range parks {
		r.add([]event.Ref{parks[i].Ref})
	}
}

func (r *memRecorder) add(refs []event.Ref) {
	r.mu.Lock()
	r.refs = append(r.refs, refs...)
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
}

func (r *memRecorder) Run(ctx context.Context) error {
	for {
		select {
		case <-r.more:
		case <-ctx.Done():
			return nil
		}
		r.mu.Lock()
		refs := r.refs
		r.refs = nil
		r.mu.Unlock()
		for r.isAway() {
			select {
			case <-time.After(renewEvery):
			case <-ctx.Done():
				return nil
			}
		}
		r.w.mu.Lock()
		refs = slices.DeleteFunc(refs, func(ref event.Ref) bool { return ref.ID == r.w.locked })
		for i := range refs {
			// Compare and set, as the write-back does.
			if row := r.w.rows[refs[i].ID]; row != nil && row.status == ready && row.due == refs[i].Due {
				*row = memRow{status: 2}
			}
		}
		r.w.mu.Unlock()
		r.out.Resolved(refs)
	}
}

func (r *memRecorder) isAway() bool {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	return r.w.away
}

type memRows struct{ w *world }

func (m memRows) Lookup(_ context.Context, refs []event.Ref) ([]event.Fate, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	fates := make([]event.Fate, len(refs))
	for i := range refs {
		if row := m.w.rows[refs[i].ID]; row == nil {
			fates[i] = event.FateGone
		} else if row.status != ready || !row.due.IsNull() {
			fates[i] = event.FateSettled
		}
	}
	return fates, nil
}

// Read answers for two rows at most, as a real one does for large rows.
func (m memRows) Read(ctx context.Context, refs []event.Ref, _ int64) ([]event.Found, error) {
	found, wait := m.look(refs)
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return found, nil
}

// look is the snapshot of a Read, whose answer takes a while.
func (m memRows) look(refs []event.Ref) (found []event.Found, answerTime time.Duration) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	for _, ref := range refs[:min(2, len(refs))] {
		f := event.Found{Event: event.Event{Ref: ref}}
		row := m.w.rows[ref.ID]
		due, isTime := event.Due{}, false
		if row != nil {
			due = row.due
			_, isTime = due.Time()
		}
		switch {
		case row == nil:
			f.Fate = event.FateGone
		case row.status != ready || !isTime:
			f.Fate = event.FateSettled
		}
		f.Event.Due = due
		found = append(found, f)
	}
	return found, m.w.readTime
}

func (m memRows) Parked(context.Context, string, string, int) ([]event.Aggregate, error) {
	return nil, nil
}

func (m memRows) Heads(_ context.Context, ids []int64) ([]event.Aggregate, error) {
	return make([]event.Aggregate, len(ids)), nil
}

func (m memRows) Held(context.Context, string, string, int, int64) ([]event.Event, bool, error) {
	return nil, true, nil
}

func (m memRows) Probe(_ context.Context, id [16]byte) error {
	m.w.emit(probePrefix, fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]))
	return nil
}

func (m memRows) Unsent(context.Context) ([]int64, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	ids := m.w.unsent()
	return ids[:min(2, len(ids))], nil // a page
}

func (m memRows) Requeue(_ context.Context, ids []int64) (int, error) {
	m.w.mu.Lock()
	left := slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return !slices.Contains(m.w.unsent(), id) })
	m.w.mu.Unlock()
	m.w.requeue(left...)
	return len(left), nil
}

func (w *world) unsent() []int64 {
	var ids []int64
	for id, row := range w.rows {
		if row.status == ready && row.due.IsNull() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// memPass is a snapshot in pages of two rows.
type memPass struct {
	ids    []int64
	broken bool // fails where it would end
}

func (w *world) openPass(context.Context) (Pass, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &memPass{ids: w.unsent()}, nil
}

func (p *memPass) Next(context.Context, int64) ([]event.Event, error) {
	if p.broken && len(p.ids) == 0 {
		return nil, errCut
	}
	n := min(2, len(p.ids))
	page := make([]event.Event, n)
	for i := range page {
		page[i].ID = p.ids[i]
	}
	p.ids = p.ids[n:]
	return page, nil
}

func (p *memPass) Close() {}

type memScheduler struct{ w *world }

func (m memScheduler) Run(ctx context.Context, _ func() bool) error {
	<-ctx.Done()
	return nil
}

func (m memScheduler) Returned(ids []int64) { m.note("returned", ids) }
func (m memScheduler) Settled(ids []int64)  { m.note("settled", ids) }

func (m memScheduler) note(what string, ids []int64) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	for _, id := range ids {
		m.w.scheduled = append(m.w.scheduled, fmt.Sprint(what, " ", id))
	}
}

// fixedPolicy retries after a second, without end.
type fixedPolicy struct{}

func (fixedPolicy) Of([]byte) (uint8, bool) { return 0, false }

func (fixedPolicy) Next(uint8, int32, event.Failure) (time.Duration, bool) { return time.Second, false }

func newRelay(t *testing.T, w *world, open Open, change func(*Config)) *Relay {
	t.Helper()
	cfg := Config{RequeuePrefix: requeuePrefix, ProbePrefix: probePrefix, InflightEvents: 1000, InflightBytes: 1 << 20, DrainTimeout: 25 * time.Second,
		ReconcileEvery: time.Minute, Tick: time.Second, SweepEvery: time.Minute, HeldRetry: time.Minute, CheckEvery: 30 * time.Second, ProbeEvery: time.Hour}
	if change != nil {
		change(&cfg)
	}
	if open == nil {
		open = w.parts
	}
	return New(cfg, memLeadership{w}, open, fixedPolicy{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}
