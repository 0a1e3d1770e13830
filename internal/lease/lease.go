package lease

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

// Config says which slot to lead and how patiently. No field but Pulse is
// optional.
type Config struct {
	// Connect opens a connection for the lease alone and proves the server
	// as pg.Connect does, against the session if there is one. The connection
	// commits with synchronous_commit = local: a renewal must not wait for a
	// standby. It is called again whenever a connection is lost.
	Connect func(context.Context, *event.Session) (*pgx.Conn, pg.Server, error)

	Schema   string // of cdc_relay_slot and cdc_relay_lease
	Slot     string
	Instance string // what people call this process, for the lease row and logs

	// TTL is how long a lease holds that nobody renews while its slot is
	// still active: a frozen leader is replaced after it.
	TTL time.Duration
	// RenewInterval is the time between two renewals, and between two looks
	// of an instance that waits. At most a third of PublishWithin.
	RenewInterval time.Duration
	// PublishWithin is the age of the last renewal up to which events may be
	// published. At most half of TakeoverAfter.
	PublishWithin time.Duration
	// TakeoverAfter is how long a lease holds that nobody renews while
	// nobody streams from the slot: a crashed leader is replaced after it.
	// At most TTL.
	TakeoverAfter time.Duration

	// Pulse gets the beat of whatever goroutine cares for the lease. It may be
	// nil.
	Pulse *pulse.Board
}

// part is what the lease is called on the board of beats.
const part = "lease"

func (c Config) validate() error {
	switch {
	case c.Connect == nil:
		return errors.New("lease: Connect is not set")
	case c.Schema == "" || c.Slot == "" || c.Instance == "":
		return errors.New("lease: Schema, Slot and Instance must be set")
	case c.RenewInterval <= 0:
		return errors.New("lease: RenewInterval must be positive")
	case c.RenewInterval > c.PublishWithin/3:
		return errors.New("lease: RenewInterval must be at most a third of PublishWithin")
	case c.PublishWithin > c.TakeoverAfter/2:
		return errors.New("lease: PublishWithin must be at most half of TakeoverAfter")
	case c.TakeoverAfter > c.TTL:
		return errors.New("lease: TakeoverAfter must be at most TTL")
	}
	return nil
}

// renewTimeout bounds one renewal, so that one that hangs is noticed, and
// another one can be tried, before publishing has to pause for long.
func (c Config) renewTimeout() time.Duration { return c.PublishWithin - c.RenewInterval }

// Lease competes for the leadership of one slot on behalf of this process. But
// for SeenAt it is not safe for concurrent use: a process holds at most one
// tenure at a time.
type Lease struct {
	cfg     Config
	owner   [16]byte
	sql     statements
	log     *slog.Logger
	metrics *metrics
	seen    seen
	led     pg.Server // where the last tenure began; zero before the first one
}

// New returns a Lease under a new random owner id. It does no I/O.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Lease, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	l := &Lease{cfg: cfg, sql: newStatements(cfg.Schema), log: log, metrics: newMetrics(reg)}
	rand.Read(l.owner[:])               // never fails
	l.owner[6] = l.owner[6]&0x0f | 0x40 // UUID version 4
	l.owner[8] = l.owner[8]&0x3f | 0x80 // RFC 9562 variant
	return l, nil
}

// Acquire blocks until this instance leads the slot. It calls standby, at most
// once, when it has to wait for another instance. A lost connection is made
// again without end; what only a person can fix is returned as a
// *fault.Blocked. The caller ends the tenure with Release, whatever else
// happens to it. A tenure of this process that was never released does not
// stand in the way of the next one.
func (l *Lease) Acquire(ctx context.Context, standby func()) (*Tenure, error) {
	retry := newBackoff()
	wait := l.waiter(standby)
	beat := l.cfg.Pulse.Start(part)
	defer beat.End()
	for {
		tenure, err := l.compete(ctx, wait, retry, beat)
		switch {
		case err == nil:
			return tenure, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("acquiring the lease: %w", ctx.Err())
		case fault.AsBlocked(err) != nil:
			return nil, fmt.Errorf("acquiring the lease: %w", err)
		}
		l.log.Warn("cannot read the lease, trying again", "slot", l.cfg.Slot, "err", err)
		rest(ctx, beat, retry.NextBackOff())
	}
}

// waiter returns what to call each time another instance is found to lead.
func (l *Lease) waiter(standby func()) func(view) {
	told := false
	return func(v view) {
		if told {
			return
		}
		told = true
		l.log.Info("another instance leads, standing by", "slot", l.cfg.Slot, "leader", v.instance, "epoch", v.fenceEpoch)
		standby()
	}
}

// compete watches the lease on one connection until it is won or the
// connection fails.
func (l *Lease) compete(ctx context.Context, wait func(view), retry backoff.BackOff, beat *pulse.Beat) (_ *Tenure, err error) {
	conn, server, err := l.open(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			conn.close()
		}
	}()
	if err := l.notOutdated(server); err != nil {
		return nil, err
	}
	if err := conn.ensureRows(ctx); err != nil {
		return nil, err
	}
	var before view
	var since time.Time // the lease was not renewed
	for {
		asked := time.Now()
		v, err := conn.observe(ctx)
		if err != nil {
			return nil, err
		}
		l.seen.read.Store(&asked)
		if since.IsZero() || v.renewedSince(before) {
			before, since = v, time.Now()
		}
		v.wait(asked.Sub(since), l.cfg.TTL)
		if err := l.sameSystem(v, server); err != nil {
			return nil, err
		}
		if v.free(l.owner, l.cfg.TakeoverAfter) {
			sent := time.Now()
			won, err := conn.take(ctx, v, server)
			if err != nil {
				return nil, err
			}
			if won {
				l.led = server
				tenure := l.tenure(conn, server, v, sent)
				l.seen.tenure.Store(tenure)
				return tenure, nil
			}
			continue // somebody was quicker: look again before standing by
		}
		wait(v)
		if err := rest(ctx, beat, l.cfg.RenewInterval); err != nil {
			return nil, err
		}
		retry.Reset() // the connection serves
	}
}

// notOutdated refuses the old primary of a failover that came back: it does not
// know what the new one has published since, and goes its own way.
func (l *Lease) notOutdated(s pg.Server) error {
	if s.SystemID != l.led.SystemID || s.Timeline >= l.led.Timeline {
		return nil
	}
	return &fault.Blocked{
		Reason: "pg.primary",
		What: fmt.Sprintf("a primary on timeline %d answers, and this process has led slot %q on timeline %d of the same system: the old primary of a failover is back",
			s.Timeline, l.cfg.Slot, l.led.Timeline),
		Remedy: "stop that server, or make it a standby of the new one; if it is the right one (restored on purpose), restart this relay",
	}
}

// sameSystem refuses a copy of the database: it would publish by accident
// what its original publishes.
func (l *Lease) sameSystem(v view, s pg.Server) error {
	if v.systemID == nil || *v.systemID == s.SystemID {
		return nil
	}
	return &fault.Blocked{
		Reason: "slot.system",
		What: fmt.Sprintf("slot %q was last led on database system %d and this is system %d: a restored dump, a clone or an upgraded cluster",
			l.cfg.Slot, *v.systemID, s.SystemID),
		Remedy: "if a relay still serves the original, stop this one; if this copy is to publish from now on, run: " +
			"cdc-relay slot adopt --confirm " + l.cfg.Slot,
	}
}

func newBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second),
		backoff.WithMaxElapsedTime(0), // endless
	)
}

// rest sleeps with a beat on each side.
func rest(ctx context.Context, beat *pulse.Beat, d time.Duration) error {
	beat.Rest()
	defer beat.Work()
	return sleep(ctx, d)
}

// sleep waits for d or the end of ctx, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
