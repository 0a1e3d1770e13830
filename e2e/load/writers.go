package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/e2e/check"
)

// Spec describes a load of concurrent writers.
type Spec struct {
	Connect    func(ctx context.Context) (*pgx.Conn, error)
	Table      string   // quoted and qualified
	Types      []string // aggregate types; aggregate i has type i modulo their number
	Aggregates int
	Writers    int
	Events     int    // to be committed, in all
	Seed       uint64 // of the shapes and sizes
	// Pace is the time from one transaction of a writer to its next; 0: no pause.
	Pace time.Duration
}

// Run writes exactly Events committed events through concurrent writers. Each
// writer owns its share of the aggregates, so that the commit order of an
// aggregate is the order in which its writer records it. Between the committed
// events lie rolled back transactions and savepoints.
func (s Spec) Run(ctx context.Context, h *History) error {
	if s.Writers < 1 || s.Aggregates < s.Writers || len(s.Types) == 0 {
		return fmt.Errorf("a load of %d aggregates needs 1 to %d writers and a type, not %d and %v",
			s.Aggregates, s.Aggregates, s.Writers, s.Types)
	}
	g, ctx := errgroup.WithContext(ctx)
	for w := range s.Writers {
		g.Go(func() error {
			if err := s.write(ctx, w, h); err != nil {
				return fmt.Errorf("writer %d: %w", w, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// write is one writer: every Writers-th aggregate, starting with w.
func (s Spec) write(ctx context.Context, w int, h *History) error {
	conn, err := s.Connect(ctx)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	p := shaper{Spec: s, writer: w, rnd: rand.New(rand.NewPCG(s.Seed, uint64(w)))}
	left := s.Events / s.Writers
	if w < s.Events%s.Writers {
		left++
	}
	next := s.pace()
	defer next.Stop()
	for left > 0 {
		select {
		case <-next.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		tx, err := Begin(ctx, conn, s.Table)
		if err != nil {
			return err
		}
		if err := p.fill(ctx, tx, left); err != nil {
			return err
		}
		if p.rnd.IntN(10) == 0 {
			err = tx.Rollback(ctx, h)
		} else {
			left -= len(tx.events)
			err = tx.Commit(ctx, h)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// pace ticks for every transaction.
func (s Spec) pace() *time.Ticker { return time.NewTicker(max(s.Pace, time.Microsecond)) }

// shaper draws transactions of mixed sizes and shapes.
type shaper struct {
	Spec
	writer int
	rnd    *rand.Rand
}

// fill inserts between 1 and most rows that stay, and perhaps some that a
// savepoint takes back.
func (p shaper) fill(ctx context.Context, tx *Tx, most int) error {
	n := min(most, p.size())
	if err := tx.Insert(ctx, p.rows(n)); err != nil {
		return err
	}
	if p.rnd.IntN(5) > 0 {
		return nil
	}
	n = min(most-n, 1+p.rnd.IntN(5))
	keep := n > 0 && p.rnd.IntN(2) == 0
	return tx.Savepoint(ctx, keep, func() error { return tx.Insert(ctx, p.rows(max(n, 1))) })
}

// size: mostly one row, often some, now and then many.
func (p shaper) size() int {
	switch d := p.rnd.IntN(20); {
	case d < 9:
		return 1
	case d < 19:
		return 2 + p.rnd.IntN(18)
	default:
		return 100 + p.rnd.IntN(100)
	}
}

func (p shaper) rows(n int) []Row {
	rows := make([]Row, n)
	share := (p.Aggregates - p.writer + p.Writers - 1) / p.Writers
	for i := range rows {
		a := p.writer + p.rnd.IntN(share)*p.Writers
		rows[i] = Row{
			Aggregate: check.Aggregate{Type: p.Types[a%len(p.Types)], ID: fmt.Sprintf("%s-%d", p.Types[a%len(p.Types)], a)},
			EventType: "changed",
			Payload:   fmt.Appendf(nil, `{"n":%d,"fill":"%0*d"}`, p.rnd.Uint64(), 1+p.rnd.IntN(300), 0),
		}
	}
	return rows
}
