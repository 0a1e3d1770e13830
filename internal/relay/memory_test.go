package relay

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
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

// pass lets the bubble's time go on.
func pass(d time.Duration) { <-time.After(d) }

// world is PostgreSQL and Kafka in memory: one table, one slot, one topic. It
// is shared by the in-memory edges of all sessions of a test. Safe for
// concurrent use.
type world struct {
	mu        sync.Mutex
	wal       [][]byte // one element a transaction or message, in order
	ends      []pglogrepl.LSN
	lsn       pglogrepl.LSN
	builder   waltest.Builder
	status    map[int64]int16
	log       []int64 // ids in the order of the topic
	confirmed pglogrepl.LSN
	saved     pglogrepl.LSN
	released  int
	mute      bool            // the broker does not answer
	early     []pglogrepl.LSN // confirmed before it was saved: breaks I2
	sources   []*memSource
}

func newWorld() *world { return &world{status: map[int64]int16{}} }

// silence makes the broker take records without an answer.
func (w *world) silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mute = true
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
		w.status[row.ID] = row.Status
		frames = append(frames, w.builder.Insert(row)...)
	}
	return w.append(frames)
}

func (w *world) emit(prefix, content string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.append(append(w.builder.Begin(w.lsn+50, uint32(w.lsn)), w.builder.Message(prefix, content)...))
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

func (t *memTenure) Session() event.Session       { return event.Session{SystemID: 1, Timeline: 1, Epoch: 1} }
func (t *memTenure) Permit(context.Context) error { return nil }

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
		t.w.saved = max(t.w.saved, lsn)
		t.w.mu.Unlock()
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
		r.w.mu.Lock()
		for i := range refs {
			r.w.status[refs[i].ID] = 2
		}
		r.w.mu.Unlock()
		r.out.Resolved(refs)
	}
}

type memRows struct{ w *world }

func (m memRows) Lookup(_ context.Context, refs []event.Ref) ([]event.Fate, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	fates := make([]event.Fate, len(refs))
	for i := range refs {
		if s, found := m.w.status[refs[i].ID]; !found {
			fates[i] = event.FateGone
		} else if s != ready {
			fates[i] = event.FateSettled
		}
	}
	return fates, nil
}

func (m memRows) Probe(_ context.Context, id [16]byte) error {
	m.w.emit(probePrefix, fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]))
	return nil
}

// fixedPolicy retries after a second, without end.
type fixedPolicy struct{}

func (fixedPolicy) Next(int32, event.Failure) (time.Duration, bool) { return time.Second, false }

func newRelay(t *testing.T, w *world, open Open, change func(*Config)) *Relay {
	t.Helper()
	cfg := Config{RequeuePrefix: requeuePrefix, ProbePrefix: probePrefix, InflightEvents: 1000, InflightBytes: 1 << 20, DrainTimeout: 25 * time.Second}
	if change != nil {
		change(&cfg)
	}
	if open == nil {
		open = w.parts
	}
	return New(cfg, memLeadership{w}, open, fixedPolicy{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}
