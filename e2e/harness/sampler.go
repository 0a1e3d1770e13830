package harness

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/check"
)

// sampler looks at the slot, the saved position and the unresolved rows again
// and again while relays work.
type sampler struct {
	bed     *Bed
	initial pglogrepl.LSN // where the slot was created
	cancel  context.CancelFunc
	done    chan struct{}
	samples []check.Sample // valid once done is closed
}

// startSampler begins to sample; Finish ends it.
func (b *Bed) startSampler() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	s := &sampler{bed: b, cancel: cancel, done: make(chan struct{})}
	b.sampler = s
	go func() {
		defer close(s.done)
		s.run(ctx)
	}()
	b.t.Cleanup(func() {
		cancel()
		<-s.done
	})
}

// stop ends the sampling and returns what was seen.
func (s *sampler) stop() []check.Sample {
	s.cancel()
	<-s.done
	return s.samples
}

// run samples until ctx ends, also across restarts of the server. It leaves
// the server ten times as long in peace as a sample took.
func (s *sampler) run(ctx context.Context) {
	const least = 50 * time.Millisecond
	var conn *pgx.Conn
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			if conn != nil {
				conn.Close(context.WithoutCancel(ctx))
			}
			return
		case <-timer.C:
		}
		start := time.Now()
		if conn == nil || conn.IsClosed() {
			conn, _ = s.bed.Connect(ctx) // the next round tries again
		}
		if conn != nil {
			if sample, err := s.sample(ctx, conn); err == nil {
				s.samples = append(s.samples, sample)
			}
		}
		timer.Reset(max(least, 10*time.Since(start)))
	}
}

// sample asks by three statements, each with a snapshot of its own, because
// the order matters: what the slot confirmed must have been saved, and
// resolved, by the time of the later questions. In one statement the slot is
// read live, after the snapshot was taken, and would seem to be ahead.
func (s *sampler) sample(ctx context.Context, conn *pgx.Conn) (check.Sample, error) {
	var sample check.Sample
	confirmed, err := lsn(ctx, conn, `SELECT coalesce((SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1), '0/0')::text`, s.bed.Slot)
	if err != nil {
		return sample, err
	}
	if s.initial == 0 {
		s.initial = confirmed
	}
	saved, err := lsn(ctx, conn, `SELECT coalesce((SELECT saved_lsn FROM public.cdc_relay_lease WHERE slot = $1), '0/0')::text`, s.bed.Slot)
	if err != nil {
		return sample, err
	}
	rows, err := conn.Query(ctx, fmt.Sprintf(`SELECT id FROM %s WHERE send_status = 0 AND next_attempt_at IS NULL LIMIT 1000`, s.bed.Table))
	if err != nil {
		return sample, err
	}
	open, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return sample, err
	}
	return check.Sample{Confirmed: confirmed, Saved: max(saved, s.initial), Passed: s.bed.History.Passed(open, confirmed)}, nil
}

func lsn(ctx context.Context, conn *pgx.Conn, sql string, args ...any) (pglogrepl.LSN, error) {
	var text string
	if err := conn.QueryRow(ctx, sql, args...).Scan(&text); err != nil {
		return 0, err
	}
	return pglogrepl.ParseLSN(text)
}
