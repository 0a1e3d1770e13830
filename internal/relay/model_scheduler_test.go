package relay

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pglogrepl"
)

const (
	modelTick     = time.Second
	modelPatience = 10 * time.Second
	modelRequeued = 20 // rows at once
)

// modelScheduler keeps the contract of Scheduler: due rows are touched, of
// those with a place in a block type only the first one of each aggregate, and
// none that the line has not settled.
type modelScheduler struct {
	w      *modelWorld
	term   *modelTenure
	random *modelRandom

	mu   sync.Mutex
	rows map[int64]*modelPending
}

// modelPending is a row that was requeued and is not settled.
type modelPending struct {
	returned bool
	requeues int
	at       time.Time
	end      pglogrepl.LSN
}

func newModelScheduler(w *modelWorld, term *modelTenure) *modelScheduler {
	return &modelScheduler{w: w, term: term, random: w.random("scheduler"), rows: map[int64]*modelPending{}}
}

func (s *modelScheduler) Run(ctx context.Context, accepting func() bool) error {
	for {
		if modelPause(ctx, modelTick+s.random.latency()/4) != nil {
			return nil
		}
		if accepting() {
			s.requeue()
		}
	}
}

// requeue touches due rows in one transaction.
func (s *modelScheduler) requeue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.term.over {
		return
	}
	due := s.w.sorted(func(row *modelRow) bool {
		return row.status == modelReady && row.isDue() && row.visible() && !row.locked() && s.w.mayRequeue(row) && s.free(row.id)
	})
	slices.SortStableFunc(due, func(a, b *modelRow) int {
		at, _ := a.due.Time()
		bt, _ := b.due.Time()
		return cmp.Or(-cmp.Compare(a.priority, b.priority), at.Compare(bt), cmp.Compare(a.id, b.id))
	})
	due = due[:min(len(due), modelRequeued)]
	if len(due) == 0 {
		return
	}
	tx := s.w.begin()
	for _, row := range due {
		p := s.rows[row.id]
		if p == nil {
			p = &modelPending{}
			s.rows[row.id] = p
		}
		p.requeues++
		p.at, p.end = time.Now(), tx.end
		if p.requeues > 3 {
			s.w.violated("requeue", "three requeues of row %d did not come back", row.id)
		}
		s.w.touch(tx, row)
	}
	s.w.commit(tx)
}

// mayRequeue is the rule of the first parked row. The lock is held.
func (w *modelWorld) mayRequeue(row *modelRow) bool {
	return row.commitLSN == 0 || !modelBlocks(row.typ) || w.parked(row.typ, row.agg)[0] == row
}

// free tells that no requeue of a row is under way, but for one that is lost.
// The locks are held.
func (s *modelScheduler) free(id int64) bool {
	p := s.rows[id]
	return p == nil || !p.returned && time.Since(p.at) >= modelPatience && s.w.confirmed >= p.end
}

func (s *modelScheduler) Returned(ids []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.rows[id] = &modelPending{returned: true}
	}
}

func (s *modelScheduler) Settled(ids []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.rows, id)
	}
}
