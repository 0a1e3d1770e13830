package relay

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// The model is only worth what its edges keep of the contracts in edges.go.

// modelTable is a world with these rows, numbered from 1, all visible.
func modelTable(rows ...modelRow) *modelWorld {
	w := newModelWorld(1)
	for i := range rows {
		rows[i].id = int64(i + 1)
		w.nextID = rows[i].id
		w.rows[rows[i].id] = &rows[i]
		w.stories[rows[i].id] = newModelStory(&rows[i], 0, rows[i].commitLSN)
		s := w.stories[rows[i].id]
		s.exempted, s.acked, s.refused = "", true, 1
	}
	w.epoch = 1
	return w
}

func (w *modelWorld) tenure() *modelTenure {
	return &modelTenure{w: w, epoch: w.epoch, renewedAt: time.Now()}
}

// bubble runs f in a bubble whose goroutines end with it.
func bubble(t *testing.T, f func(t *testing.T, ctx context.Context)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		f(t, ctx)
		cancel()
		synctest.Wait()
	})
}

func TestModelRecorder(t *testing.T) {
	t.Parallel()
	infinity, at := event.DueInfinity(), event.DueAtMicros(5)
	type outcome struct {
		Status   int16
		Due      string
		LSN      pglogrepl.LSN
		Attempts int32
	}
	for _, c := range []struct {
		name   string
		row    modelRow
		seen   event.Due
		action event.Action
		sent   bool
		want   outcome
	}{
		{"SENT", modelRow{attempts: 2}, event.Due{}, 0, true, outcome{2, "NULL", 0, 0}},
		{"SENT of a released row", modelRow{due: infinity, commitLSN: 7}, infinity, 0, true, outcome{2, "NULL", 0, 0}},
		{"SENT of a row held meanwhile", modelRow{due: infinity, commitLSN: 7}, event.Due{}, 0, true, outcome{0, "infinity", 7, 0}},
		{"SENT of a row requeued meanwhile", modelRow{due: event.DueAtMicros(6)}, at, 0, true, outcome{0, modelDue(event.DueAtMicros(6)), 0, 0}},
		{"a retry", modelRow{attempts: 1}, event.Due{}, event.ParkRetry, false, outcome{0, "later", 9, 2}},
		{"a retry keeps the position", modelRow{due: at, commitLSN: 7}, at, event.ParkRetry, false, outcome{0, "later", 7, 1}},
		{"the last attempt", modelRow{}, event.Due{}, event.ParkFailed, false, outcome{3, "infinity", 9, 1}},
		{"a hold", modelRow{attempts: 1}, event.Due{}, event.ParkHeld, false, outcome{0, "infinity", 9, 1}},
		{"a pause", modelRow{attempts: 1}, event.Due{}, event.ParkLater, false, outcome{0, "later", 9, 1}},
		{"a hold of a FAILED row", modelRow{status: 3, due: infinity}, event.Due{}, event.ParkHeld, false, outcome{3, "infinity", 0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, ctx context.Context) {
				w, in := modelTable(c.row), NewInbox()
				w.rows[1].lockedUntil = time.Now().Add(1500 * time.Millisecond)
				w.rows[1].visibleAt = time.Now().Add(500 * time.Millisecond)
				r := newModelRecorder(w, w.tenure(), in.Recorder())
				go func() { _ = r.Run(ctx) }()
				ref := event.Ref{ID: 1, Due: c.seen, CommitLSN: 9}
				if c.sent {
					r.Sent([]event.Ref{ref})
				} else {
					r.Park([]event.Park{{Ref: ref, Action: c.action, Delay: time.Hour}})
				}
				elapse(20 * time.Second)
				row := w.rows[1]
				got := outcome{row.status, modelDue(row.due), row.commitLSN, row.attempts}
				if at, ok := row.due.Time(); ok && time.Until(at) > 50*time.Minute {
					got.Due = "later"
				}
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("row (-want +got):\n%s", diff)
				}
				if mail := in.take(); len(mail.resolved) != 1 {
					t.Errorf("resolved %v, want the write once", mail.resolved)
				}
			})
		})
	}
}

// A statement of an epoch that is over changes nothing.
func TestModelRecorderIsFenced(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, ctx context.Context) {
		w, in := modelTable(modelRow{}), NewInbox()
		term := w.tenure()
		r := newModelRecorder(w, term, in.Recorder())
		w.mu.Lock()
		term.end()
		w.mu.Unlock()
		r.Sent([]event.Ref{{ID: 1}})
		if err := r.Run(ctx); err == nil || w.rows[1].status != modelReady {
			t.Errorf("Run returned %v, the row is %v", err, w.rows[1])
		}
	})
}

// modelParkedTable has an aggregate with a row of each kind, in another order
// by commit position than by id, and three others.
func modelParkedTable() *modelWorld {
	past := event.DueAt(time.Now().Add(-time.Minute))
	held := event.DueInfinity()
	a := func(due event.Due, lsn pglogrepl.LSN) modelRow {
		return modelRow{typ: "order", agg: "a", due: due, commitLSN: lsn}
	}
	of := func(typ, agg string, due event.Due, lsn pglogrepl.LSN, priority int16) modelRow {
		return modelRow{typ: typ, agg: agg, due: due, commitLSN: lsn, priority: priority}
	}
	return modelTable(
		a(held, 30), a(past, 20), a(held, 10), a(held, 10), a(past, 0), a(event.Due{}, 0), // 1 to 6
		of("order", "b", past, 5, 0), of("order", "b", held, 6, 0), // 7, 8
		of("mail", "a", past, 5, 1), of("mail", "a", past, 6, 0), // 9, 10
		of("stock", "a", event.Due{}, 0, 0),                                                     // 11
		modelRow{typ: "stock", agg: "b", status: 3, due: held, commitLSN: 5},                    // 12
		modelRow{typ: "stock", agg: "b", status: 0, due: past, commitLSN: 6},                    // 13
		modelRow{typ: "stock", agg: "c", status: modelFailed, due: event.Due{}, finished: true}, // 14
	)
}

func TestModelRows(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, ctx context.Context) {
		w := modelParkedTable()
		m := newModelRows(w, w.tenure())
		var parked []event.Aggregate
		for after := (event.Aggregate{}); ; {
			page, err := m.Parked(ctx, after.Type, after.ID, 2)
			if err != nil {
				continue // it may pass with another try
			}
			if len(page) == 0 {
				break
			}
			parked, after = append(parked, page...), page[len(page)-1]
		}
		if diff := cmp.Diff([]event.Aggregate{
			{Type: "mail", ID: "a", First: 9, Priority: 1},
			{Type: "order", ID: "a", First: 3, Held: true},
			{Type: "order", ID: "b", First: 7},
			{Type: "stock", ID: "b", First: 12},
		}, parked); diff != "" {
			t.Errorf("Parked (-want +got):\n%s", diff)
		}
		heads := persist(func() ([]event.Aggregate, error) { return m.Heads(ctx, []int64{8, 99, 11, 1}) })
		if diff := cmp.Diff([]event.Aggregate{
			{Type: "order", ID: "b", First: 7}, {}, {Type: "stock", ID: "a"}, {Type: "order", ID: "a", First: 3, Held: true},
		}, heads); diff != "" {
			t.Errorf("Heads (-want +got):\n%s", diff)
		}
		var behind []bool
		for _, id := range []int64{2, 5, 7, 10, 13} {
			found := persist(func() ([]event.Found, error) { return m.Read(ctx, []event.Ref{{ID: id}}, 1) })
			behind = append(behind, found[0].Behind)
		}
		if diff := cmp.Diff([]bool{true, false, false, true, true}, behind); diff != "" {
			t.Errorf("Behind (-want +got):\n%s", diff)
		}
	})
}

func persist[T any](ask func() (T, error)) T {
	for {
		if got, err := ask(); err == nil {
			return got
		}
	}
}

// Held ends before the first row that waits for something else.
func TestModelRowsHeld(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, typ, agg string
		change         func(*modelWorld)
		want           []int64
		whole          bool
	}{
		{"up to a retry", "order", "a", func(*modelWorld) {}, []int64{3, 4}, false},
		{"all", "order", "a", func(w *modelWorld) { w.rows[2].due = event.Due{} }, []int64{3, 4, 1}, true},
		{"none", "order", "b", func(*modelWorld) {}, nil, false},
		{"nothing parked", "stock", "a", func(*modelWorld) {}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, ctx context.Context) {
				w := modelParkedTable()
				c.change(w)
				m := newModelRows(w, w.tenure())
				for range 100 {
					events, whole, err := m.Held(ctx, c.typ, c.agg, 10, 1)
					var ids []int64
					for i := range events {
						ids = append(ids, events[i].ID)
					}
					if err == nil && len(ids) == len(c.want) {
						if !slices.Equal(ids, c.want) || whole != c.whole {
							t.Errorf("%v, whole %t; want %v, %t", ids, whole, c.want, c.whole)
						}
						return
					}
				}
				t.Error("never a whole page")
			})
		})
	}
}

// Of rows with a place in a type that blocks only the first parked one is
// requeued, and none again before it is settled.
func TestModelScheduler(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, ctx context.Context) {
		w := modelParkedTable()
		s := newModelScheduler(w, w.tenure())
		go func() { _ = s.Run(ctx, func() bool { return true }) }()
		elapse(5 * time.Second)
		requeued := func() (ids []int64) {
			for _, r := range w.requeues {
				ids = append(ids, r.id)
			}
			return ids
		}
		if diff := cmp.Diff([]int64{9, 5, 7, 10}, requeued()); diff != "" {
			t.Errorf("requeued (-want +got):\n%s", diff)
		}
		s.Returned([]int64{9, 5, 7, 10})
		elapse(time.Minute)
		s.Settled([]int64{9})
		elapse(5 * time.Second)
		if diff := cmp.Diff([]int64{9, 5, 7, 10, 9}, requeued()); diff != "" {
			t.Errorf("requeued after one was settled (-want +got):\n%s", diff)
		}
	})
}
