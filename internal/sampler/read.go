package sampler

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// reader takes samples on one connection after the other. It keeps between
// them what makes the next one cheap.
type reader struct {
	cfg      Config
	server   pg.Server
	conn     *pgx.Conn // nil while there is none
	prepared bool      // conn is
	sql      queries

	fresh   walk // READY rows that are not parked
	consume walk // rows between SENT and CONSUMED
	rate    rate
}

func newReader(cfg Config) *reader {
	return &reader{cfg: cfg, fresh: newWalk(), consume: newWalk()}
}

// take takes one sample, on a new connection if need be. After an error the
// connection is gone.
func (r *reader) take(ctx context.Context) (_ *Sample, err error) {
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.close()
		}
		if pg.Code(err) == pg.CodeNoPrivilege && fault.AsBlocked(err) == nil {
			err = fmt.Errorf("%w; give the login SELECT on the outbox and on the cdc_relay tables", err)
		}
	}()
	if err := r.cfg.Accept(ctx, r.conn); err != nil {
		return nil, err
	}
	if err := r.prepare(ctx); err != nil {
		return nil, fmt.Errorf("preparing to read the outbox: %w", err)
	}
	s := &Sample{At: time.Now(), Rows: make([]Rows, len(Groups))}
	for i, g := range Groups {
		s.Rows[i].Group = g
		if r.sql.hasCreatedAt {
			s.Rows[i].OldestAge = new(float64)
		}
	}
	steps := []struct {
		doing string
		read  func(context.Context, *Sample) error
	}{
		{"reading the slot", r.readSlot},
		{"reading the lease", r.readLease},
		{"counting parked rows", r.readAttention},
		{"counting new rows", r.readNew},
		{"counting rows of consumers", r.readConsume},
	}
	for _, step := range steps {
		if err := step.read(ctx, s); err != nil {
			return nil, fmt.Errorf("%s: %w", step.doing, err)
		}
	}
	return s, nil
}

// connect makes the connection, and forgets what was learnt from another
// server than the one it reaches.
func (r *reader) connect(ctx context.Context) error {
	if r.conn != nil {
		return nil
	}
	conn, server, err := r.cfg.Connect(ctx)
	if err != nil {
		return err
	}
	if server.Identity() != r.server.Identity() {
		*r = *newReader(r.cfg)
	}
	r.conn, r.server, r.prepared = conn, server, false
	return nil
}

func (r *reader) close() {
	if r.conn != nil {
		pg.Close(r.conn)
		r.conn = nil
	}
}

func (r *reader) readSlot(ctx context.Context, s *Sample) error {
	t := &s.Slot
	var server, restart, confirmed string
	err := r.conn.QueryRow(ctx, slotSQL, r.cfg.Slot).Scan(&server, &t.Exists, &t.Active, &t.WALStatus, &restart, &confirmed,
		&t.RetainedBytes, &t.ConfirmedLagBytes, &t.SafeBytes, &t.CatalogXminAge)
	if err != nil {
		return err
	}
	for text, lsn := range map[*string]*pglogrepl.LSN{&server: &t.Server, &restart: &t.Restart, &confirmed: &t.Confirmed} {
		if *lsn, err = pglogrepl.ParseLSN(*text); err != nil {
			return fmt.Errorf("reading a position: %w", err)
		}
	}
	if perSecond, ok := r.rate.add(s.At, t.Server); ok {
		s.WALRate = &perSecond
	}
	return nil
}

// readLease also finds where the walks may begin.
func (r *reader) readLease(ctx context.Context, s *Sample) error {
	var saved string
	var seconds float64
	var lowWater, consumerLowWater, maxID int64
	l := &s.Lease
	err := r.conn.QueryRow(ctx, r.sql.lease, r.cfg.Slot, int64(math.MinInt64)).
		Scan(&l.Instance, &l.Epoch, &l.Held, &seconds, &saved, &lowWater, &consumerLowWater, &maxID)
	if err != nil {
		return err
	}
	l.Age = time.Duration(seconds * float64(time.Second))
	if l.Saved, err = pglogrepl.ParseLSN(saved); err != nil {
		return fmt.Errorf("reading the saved position: %w", err)
	}
	r.fresh.restart(maxID, lowWater)
	r.consume.restart(maxID, consumerLowWater)
	return nil
}

func (r *reader) readAttention(ctx context.Context, s *Sample) error {
	rows, err := r.conn.Query(ctx, r.sql.attention, r.cfg.MaxRows)
	if err != nil {
		return err
	}
	var g Group
	var count, walked int64
	var age *float64
	_, err = pgx.ForEachRow(rows, []any{&g.Status, &g.Kind, &count, &age}, func() error {
		walked += count
		s.add(g, count, age)
		return nil
	})
	s.Complete.Attention = walked < int64(r.cfg.MaxRows)
	return err
}

func (r *reader) readNew(ctx context.Context, s *Sample) (err error) {
	s.Complete.New, err = r.walk(ctx, &r.fresh, func(from int64) (p page, err error) {
		var age *float64
		err = r.conn.QueryRow(ctx, r.sql.fresh, from, r.cfg.MaxRows).
			Scan(&p.walked, &p.last, &p.first, &p.found, &p.oldest, &p.horizon, &age)
		if err == nil {
			s.add(Group{outbox.Ready, "new"}, p.found, age)
		}
		return p, err
	})
	return err
}

func (r *reader) readConsume(ctx context.Context, s *Sample) (err error) {
	var expired int64
	s.Complete.Consume, err = r.walk(ctx, &r.consume, func(from int64) (p page, err error) {
		var claimed, sent, consuming, late int64
		var claimedAge, sentAge, consumingAge *float64
		err = r.conn.QueryRow(ctx, r.sql.consume, from, r.cfg.MaxRows).
			Scan(&p.walked, &p.last, &p.first, &p.found, &p.oldest, &p.horizon,
				&claimed, &claimedAge, &sent, &sentAge, &consuming, &consumingAge, &late)
		if err == nil {
			s.add(Group{Status: outbox.InProgress}, claimed, claimedAge)
			s.add(Group{Status: outbox.Sent}, sent, sentAge)
			s.add(Group{Status: outbox.Consuming}, consuming, consumingAge)
			expired += late
		}
		return p, err
	})
	if r.sql.hasLeaseUntil {
		s.LeasesExpired = &expired
	}
	return err
}

// page is what one statement saw of a walk.
type page struct {
	walked  int64 // rows
	last    int64 // id of the last one, or where the page began
	first   int64 // id of the first one of interest
	found   int64 // rows of interest
	oldest  int64 // transactions below it have ended
	horizon int64 // transactions from it on have not begun
}

// walk reads pages from the mark on: one, and as long as they hold nothing of
// interest further ones, within a quarter of the time that is left. It reports
// whether it came to the end.
func (r *reader) walk(ctx context.Context, w *walk, read func(from int64) (page, error)) (complete bool, err error) {
	until := time.Now().Add(timeLeft(ctx) / 4)
	var oldest int64
	for from, begun := w.mark, false; ; begun = true {
		p, err := read(from)
		if err != nil {
			return false, err
		}
		if !begun {
			oldest = p.oldest
		}
		clean := p.last
		if p.found > 0 {
			clean = p.first - 1
		}
		from = p.last
		complete = p.walked < int64(r.cfg.MaxRows)
		if complete || p.found > 0 || !time.Now().Before(until) {
			w.ended(clean, p.last, oldest, p.horizon)
			return complete, nil
		}
	}
}

func timeLeft(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	return time.Until(deadline)
}

// add adds rows to their group. Rows of no group, such as parked SENT ones in
// the part that needs attention, count in another part or not at all. age is
// nil if there are none or the table does not tell.
func (s *Sample) add(g Group, count int64, age *float64) {
	for i := range s.Rows {
		rows := &s.Rows[i]
		if rows.Group != g {
			continue
		}
		rows.Count += count
		if age != nil {
			*rows.OldestAge = max(*rows.OldestAge, *age)
		}
	}
}

// prepare pins how this session finds rows, and learns the columns of the
// table. A plan made while the table was empty would read all of it later.
func (r *reader) prepare(ctx context.Context) error {
	if r.prepared {
		return nil
	}
	_, err := r.conn.Exec(ctx, `SELECT set_config('timezone', 'UTC', false),
		set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
		set_config('enable_sort', 'off', false), set_config('max_parallel_workers_per_gather', '0', false)`)
	if err != nil {
		return err
	}
	rows, err := r.conn.Query(ctx, `SELECT attname::text FROM pg_attribute
		WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, r.cfg.Table.Ident())
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return err
	case len(names) == 0:
		return errors.New("the table is not there, or this login may not see it")
	}
	columns := map[string]bool{}
	for _, name := range names {
		columns[name] = true
	}
	r.sql, r.prepared = newQueries(r.cfg, columns), true
	return nil
}
