package retrysched

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

// lostRequeues of one row in a row mean that the trigger does not work.
const lostRequeues = 3

// mostBatches of rows are requeued at most whose messages have not come back: what
// is requeued beyond that comes no sooner while the slot lags behind, and each row
// is remembered and named in each statement.
const mostBatches = 20

// Config says which rows to requeue, for whom and how often.
type Config struct {
	DB    DB
	Table pg.Table
	// Columns gives, for a column of the design, the name of the table's
	// column that plays its part. What is missing has the same name.
	Columns map[string]string
	// HasPriority tells that the table has a column for it.
	HasPriority bool
	// Block tells that, of an aggregate's parked rows that have a commit
	// position, only the first one is requeued. Except names the aggregate types
	// for which the opposite holds.
	Block  bool
	Except []string
	Slot   string
	// Epoch and Owner are those of the tenure.
	Epoch int64
	Owner [16]byte
	// Tick is the time between two looks at the table.
	Tick time.Duration
	// Batch is how many rows are requeued at once, at most.
	Batch int
	// Patience is how long a requeue is waited for at least before the row is
	// requeued again.
	Patience time.Duration
	// Pulse is told that the loop comes round; nil: nobody wants to know.
	Pulse *pulse.Board
}

// table is what the scheduler needs of the database.
type table interface {
	// positions returns the end of the WAL and how far the slot has come.
	positions(ctx context.Context) (end, confirmed pglogrepl.LSN, err error)
	// requeue lets the trigger emit the message of rows that are due, except
	// of these ids. It returns them.
	requeue(ctx context.Context, except []int64) ([]requeued, error)
}

type requeued struct {
	id    int64
	retry bool // after the relay had parked it; else it was delayed from the beginning
}

// Scheduler requeues due rows. Run is called once; the other methods are safe
// for concurrent use with it.
type Scheduler struct {
	cfg   Config
	table table
	log   *slog.Logger
	m     *Metrics

	mu   sync.Mutex
	rows map[int64]*pending
	// back are the rows whose message came back while a requeue statement
	// runs: it may be theirs. nil while none runs.
	back map[int64]bool
}

// pending is a row that has been requeued and is not settled. Rows that
// somebody else has requeued are known once their message has come back.
type pending struct {
	returned bool // its message came back: the line has the row
	requeues int  // by us, since the last that came back
	at       time.Time
	// end is a position behind the requeue's commit, 0 while it is not known.
	end pglogrepl.LSN
}

// New returns a scheduler that does nothing until Run.
func New(cfg Config, log *slog.Logger, m *Metrics) *Scheduler {
	return &Scheduler{cfg: cfg, table: newDatabase(cfg), log: log, m: m, rows: map[int64]*pending{}}
}

// Run requeues due rows at each tick until ctx ends, which is no error. It
// leaves out while accepting says that the line has no room or makes no
// progress. A *fault.Blocked (table.trigger) says that requeues do not come
// back.
func (s *Scheduler) Run(ctx context.Context, accepting func() bool) error {
	pause := backoff.NewExponentialBackOff(backoff.WithInitialInterval(s.cfg.Tick),
		backoff.WithMaxInterval(max(s.cfg.Tick, 10*time.Second)), backoff.WithMaxElapsedTime(0))
	beat := s.cfg.Pulse.Start("scheduler")
	defer beat.End()
	for wait := s.cfg.Tick; ; {
		beat.Rest()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
		beat.Work()
		wait = s.cfg.Tick
		if !accepting() {
			continue
		}
		err := s.runOnce(ctx)
		switch {
		case err == nil:
			pause.Reset()
		case ctx.Err() != nil:
			return nil
		case final(err):
			return err
		default:
			wait = pause.NextBackOff()
			s.log.Warn("requeueing due rows, trying again", "err", err)
		}
	}
}

// final reports an error that another try in the same session cannot mend. A
// column that is gone is one: what is known of the table is out of date.
func final(err error) bool {
	return errors.Is(err, fault.ErrFenced) || fault.AsBlocked(err) != nil || pg.Code(err) == pg.CodeUndefinedColumn
}

// runOnce requeues one batch.
func (s *Scheduler) runOnce(ctx context.Context) error {
	lost, err := s.findLost(ctx)
	if err != nil || s.waiting()-len(lost) >= mostBatches*s.cfg.Batch {
		return err
	}
	except := s.beginRequeue(lost)
	rows, err := s.table.requeue(ctx, except)
	s.endRequeue(rows, lost, err == nil && len(rows) < s.cfg.Batch)
	if err != nil {
		return err
	}
	for _, row := range rows {
		s.m.requeued(row.retry)
	}
	return nil
}

// findLost returns the rows whose message will not come any more: the slot is
// past it. With a slot that lags behind, messages take as long as that.
func (s *Scheduler) findLost(ctx context.Context) ([]int64, error) {
	if s.waiting() == 0 {
		return nil, nil
	}
	end, confirmed, err := s.table.positions(ctx)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var lost []int64
	for id, p := range s.rows {
		switch {
		case p.returned:
		case p.end == 0:
			p.end = end
		case confirmed < p.end || time.Since(p.at) < s.cfg.Patience:
		case p.requeues >= lostRequeues:
			return nil, s.blocked(id)
		default:
			lost = append(lost, id)
		}
	}
	return lost, nil
}

// waiting is how many rows have a message that is still to come.
func (s *Scheduler) waiting() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.rows {
		if !p.returned {
			n++
		}
	}
	return n
}

func (s *Scheduler) blocked(id int64) error {
	return &fault.Blocked{
		Reason: "table.trigger",
		What:   fmt.Sprintf("row %d was requeued %d times and no message of it came through the slot", id, lostRequeues),
		Remedy: fmt.Sprintf("restore the trigger outbox_requeue of %s, which cdc-relay migrate print shows, and enable it ALWAYS", s.cfg.Table),
	}
}

// beginRequeue returns the rows that the next statement must leave out: all
// that are not settled, but for the lost ones.
func (s *Scheduler) beginRequeue(lost []int64) (except []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.back = map[int64]bool{}
	again := make(map[int64]bool, len(lost))
	for _, id := range lost {
		again[id] = true
	}
	except = make([]int64, 0, len(s.rows))
	for id := range s.rows {
		if !again[id] {
			except = append(except, id)
		}
	}
	return except
}

// endRequeue notes what the statement has requeued. all tells that there was
// nothing more: a lost row that is not among them is not due any more.
func (s *Scheduler) endRequeue(rows []requeued, lost []int64, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, row := range rows {
		if s.back[row.id] {
			continue // its message was faster than the statement's answer
		}
		p := s.rows[row.id]
		if p == nil {
			p = &pending{}
			s.rows[row.id] = p
		}
		p.at, p.end = now, 0
		p.requeues++
	}
	s.back = nil
	if !all {
		return
	}
	for _, id := range lost {
		if p := s.rows[id]; p != nil && !p.returned && p.end != 0 {
			delete(s.rows, id)
		}
	}
}

// Returned tells that the requeue messages of these rows came back, whoever
// requeued them; until Settled tells the same they are not requeued again. It
// does not block.
func (s *Scheduler) Returned(ids []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.rows[id] = &pending{returned: true}
		if s.back != nil {
			s.back[id] = true
		}
	}
}

// Settled tells that these rows have been settled: SENT, parked again, or as
// somebody else left them. It does not block.
func (s *Scheduler) Settled(ids []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		delete(s.rows, id)
	}
}
