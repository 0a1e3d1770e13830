package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// modelRows keeps the contract of Rows. Each question is answered by one
// snapshot, and its answer takes a while before and after that.
type modelRows struct {
	w    *modelWorld
	term *modelTenure

	mu     sync.Mutex
	random *modelRandom
}

func newModelRows(w *modelWorld, term *modelTenure) *modelRows {
	return &modelRows{w: w, term: term, random: w.random("rows")}
}

var errModelConnection = errors.New("connection lost")

// ask runs question as one statement. Now and then the connection breaks, after
// the statement or before.
func (m *modelRows) ask(ctx context.Context, question func()) error {
	m.mu.Lock()
	before, after, n := m.random.latency()/2, m.random.latency()/2, m.random.rng.IntN(100)
	m.mu.Unlock()
	if err := modelPause(ctx, before); err != nil {
		return err
	}
	if n == 0 {
		return errModelConnection
	}
	m.w.mu.Lock()
	question()
	m.w.mu.Unlock()
	if err := modelPause(ctx, after); err != nil {
		return err
	}
	if n == 1 {
		return errModelConnection
	}
	return nil
}

// some returns a number from 1 to n: the page of this call.
func (m *modelRows) some(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.random.upTo(max(n, 1))
}

func (m *modelRows) Lookup(ctx context.Context, refs []event.Ref) ([]event.Fate, error) {
	fates := make([]event.Fate, len(refs))
	err := m.ask(ctx, func() {
		for i, ref := range refs {
			row, known := m.w.rows[ref.ID], m.w.stories[ref.ID]
			switch {
			case time.Now().Before(known.visibleAt):
				fates[i] = event.FatePublish
			case row == nil:
				fates[i] = event.FateGone
			case row.status != modelReady || !row.due.IsNull():
				fates[i] = event.FateSettled
			default:
				fates[i] = event.FatePublish
			}
		}
	})
	return fates, err
}

// event is the row as an event. The lock is held.
func (r *modelRow) event() event.Event {
	return event.Event{
		Ref: event.Ref{
			ID: r.id, XID: r.xid, CommitLSN: r.commitLSN, Due: r.due, Attempts: r.attempts,
			Bytes: int32(len(r.typ) + len(r.agg) + 2),
		},
		AggregateType: []byte(r.typ), AggregateID: []byte(r.agg), EventType: []byte("created"), Payload: []byte("{}"),
		Priority: r.priority, Status: r.status,
	}
}

func (m *modelRows) Read(ctx context.Context, refs []event.Ref, _ int64) ([]event.Found, error) {
	n := min(len(refs), m.some(4)) // a page
	var found []event.Found
	err := m.ask(ctx, func() {
		for _, ref := range refs[:n] {
			row := m.w.rows[ref.ID]
			f := event.Found{Event: event.Event{Ref: event.Ref{ID: ref.ID}}}
			switch {
			case row == nil:
				f.Fate = event.FateGone
			case row.status != modelReady || !row.isDue():
				f.Fate = event.FateSettled
			default:
				f.Event = row.event()
				f.Event.Seq, f.Event.XID = ref.Seq, ref.XID
				f.Behind = row.commitLSN != 0 && m.w.parked(row.typ, row.agg)[0] != row
			}
			found = append(found, f)
		}
	})
	return found, err
}

// aggregate tells about the aggregate of a row. The lock is held.
func (w *modelWorld) aggregate(typ, agg string) event.Aggregate {
	a := event.Aggregate{Type: typ, ID: agg}
	if parked := w.parked(typ, agg); len(parked) > 0 {
		a.First, a.Held, a.Priority = parked[0].id, parked[0].held(), parked[0].priority
	}
	return a
}

func (m *modelRows) Parked(ctx context.Context, afterType, afterID string, limit int) ([]event.Aggregate, error) {
	limit = min(limit, m.some(3))
	var all []event.Aggregate
	err := m.ask(ctx, func() {
		for _, row := range m.w.rows {
			if !row.placed() || !row.visible() || cmp.Or(cmp.Compare(row.typ, afterType), cmp.Compare(row.agg, afterID)) <= 0 {
				continue
			}
			if a := m.w.aggregate(row.typ, row.agg); !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	})
	slices.SortFunc(all, func(a, b event.Aggregate) int { return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.ID, b.ID)) })
	return all[:min(limit, len(all))], err
}

func (m *modelRows) Heads(ctx context.Context, ids []int64) ([]event.Aggregate, error) {
	heads := make([]event.Aggregate, len(ids))
	err := m.ask(ctx, func() {
		for i, id := range ids {
			if row := m.w.rows[id]; row != nil {
				heads[i] = m.w.aggregate(row.typ, row.agg)
			}
		}
	})
	return heads, err
}

func (m *modelRows) Held(ctx context.Context, typ, agg string, limit int, _ int64) (events []event.Event, whole bool, err error) {
	limit = min(limit, m.some(6))
	err = m.ask(ctx, func() {
		parked := m.w.parked(typ, agg)
		for _, row := range parked {
			if len(events) == limit || !row.held() {
				break
			}
			events = append(events, row.event())
		}
		whole = len(events) == len(parked)
	})
	return events, whole, err
}

func (m *modelRows) Probe(ctx context.Context, id [16]byte) error {
	return m.ask(ctx, func() {
		tx := m.w.begin()
		content := fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
		tx.frames = append(tx.frames, m.w.builder.Message(probePrefix, content))
		m.w.commit(tx)
	})
}

func unsent(row *modelRow) bool { return row.status == modelReady && row.due.IsNull() && row.visible() }

func (m *modelRows) Unsent(ctx context.Context) (ids []int64, err error) {
	err = m.ask(ctx, func() {
		for _, row := range m.w.sorted(unsent) {
			ids = append(ids, row.id)
		}
	})
	return ids, err
}

// Requeue finds nothing to do unless somebody has moved the slot.
func (m *modelRows) Requeue(ctx context.Context, ids []int64) (n int, err error) {
	err = m.ask(ctx, func() {
		if m.term.over {
			return
		}
		tx := m.w.begin()
		for _, row := range m.w.sorted(unsent) {
			if !slices.Contains(ids, row.id) || row.locked() {
				continue
			}
			if !m.w.lossy {
				m.w.violated("reconcile", "row %d was taken for missed", row.id)
			}
			m.w.stories[row.id].exempt("missed by the slot")
			row.due = event.DueAt(time.Now())
			m.w.touch(tx, row)
			n++
		}
		m.w.commit(tx)
	})
	return n, err
}

// modelPass is a snapshot: the ids that it shows, with the rows as they were.
type modelPass struct {
	*modelRows
	rows []event.Event
}

// openPass is nil when the saved position vouches for the slot's.
func (m *modelRows) openPass() func(context.Context) (Pass, error) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.w.confirmed <= m.w.saved {
		return nil
	}
	return func(ctx context.Context) (Pass, error) {
		p := &modelPass{modelRows: m}
		return p, m.ask(ctx, func() { p.rows = m.w.snapshot(m.w.lsn) })
	}
}

// snapshot returns the rows for a pass. before is a position before it. The
// lock is held.
func (w *modelWorld) snapshot(before pglogrepl.LSN) (events []event.Event) {
	for _, row := range w.sorted(unsent) {
		w.stories[row.id].exempt("recovered by a pass")
		e := row.event()
		e.CommitLSN = before
		events = append(events, e)
	}
	return events
}

func (p *modelPass) Next(ctx context.Context, _ int64) (page []event.Event, err error) {
	n := min(p.some(3), len(p.rows))
	page, p.rows = p.rows[:n], p.rows[n:]
	return page, modelPause(ctx, time.Duration(p.some(int(20*time.Millisecond))))
}

func (p *modelPass) Close() {}
