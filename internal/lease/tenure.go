package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// link is one connection to the lease row, as a tenure needs it. It is used by
// one goroutine at a time. Any error may be followed by a new link; held is
// false when the row, read and visible, belongs to somebody else.
type link interface {
	renew(ctx context.Context, epoch int64, timeline uint32, lsn pglogrepl.LSN) (held bool, err error)
	release(ctx context.Context, epoch int64, timeline uint32, lsn pglogrepl.LSN) (held bool, err error)
	close()
}

// never is the time of a renewal that lets nothing be published.
const never = math.MinInt64 / 2

// Tenure is one period of leadership. All methods are safe for concurrent use,
// except that Release must not be called before Run has returned.
type Tenure struct {
	session   event.Session
	owner     [16]byte
	saved     pglogrepl.LSN // as found
	switched  bool
	cfg       Config
	log       *slog.Logger
	metrics   *metrics
	reconnect func(context.Context) (link, error) // to the session's server, else fault.ErrFenced

	link link // Run's while it runs, then Release's; nil while there is none

	start   time.Time    // what renewed counts from
	renewed atomic.Int64 // nanoseconds from start to when the last successful renewal was sent
	wall    atomic.Int64 // the same by the clock on the wall, Unix nanoseconds
	offered atomic.Uint64

	mu     sync.Mutex
	news   chan struct{} // closed and replaced by each renewal, closed by the end
	ended  bool
	paused bool // somebody waits in Permit for a renewal
}

// tenure starts at the time when the statement that won was sent.
func (l *Lease) tenure(c *conn, s pg.Server, v view, sent time.Time) *Tenure {
	session := event.Session{SystemID: s.SystemID, Timeline: s.Timeline, Epoch: v.nextEpoch()}
	t := &Tenure{
		session:  session,
		owner:    l.owner,
		saved:    v.saved,
		switched: v.timeline != nil && *v.timeline != s.Timeline,
		cfg:      l.cfg,
		log:      l.log,
		metrics:  l.metrics,
		reconnect: func(ctx context.Context) (link, error) {
			c, _, err := l.open(ctx, &session)
			if err != nil {
				return nil, err
			}
			return c, nil
		},
		link:  c,
		start: sent,
		news:  make(chan struct{}),
	}
	t.note(sent)
	l.metrics.leader.Set(1)
	l.log.Info("leading the slot", "slot", l.cfg.Slot, "epoch", session.Epoch, "timeline", session.Timeline)
	return t
}

// Session is the server, timeline and epoch that this tenure is bound to.
func (t *Tenure) Session() event.Session { return t.session }

// Owner is the id of this process in cdc_relay_slot, which write-backs name.
func (t *Tenure) Owner() [16]byte { return t.owner }

// SavedLSN is the position that was saved when the tenure began; 0 if none.
func (t *Tenure) SavedLSN() pglogrepl.LSN { return t.saved }

// TimelineSwitched reports whether SavedLSN was saved on another timeline than
// this tenure's: there was a failover since.
func (t *Tenure) TimelineSwitched() bool { return t.switched }

// Run renews the lease until ctx ends, which is no error, or until leadership
// is lost: then the error wraps fault.ErrFenced. A *fault.Blocked ends it too.
// Each renewal carries the highest offered position; saved is called with it,
// when it is new, after the commit. A renewal under way is not cut off by the
// end of ctx, only by its own deadline.
func (t *Tenure) Run(ctx context.Context, saved func(pglogrepl.LSN)) error {
	retry := newBackoff()
	wait := t.cfg.RenewInterval
	var done pglogrepl.LSN
	beat := t.cfg.Pulse.Start(part)
	defer beat.End()
	for {
		if rest(ctx, beat, wait) != nil {
			return nil
		}
		sent, lsn, err := t.renew(ctx)
		switch {
		case err == nil:
			retry.Reset()
			wait = max(0, t.cfg.RenewInterval-time.Since(sent))
			if lsn > done {
				done = lsn
				saved(lsn)
			}
		case errors.Is(err, fault.ErrFenced) || fault.AsBlocked(err) != nil:
			t.end()
			return err
		case ctx.Err() != nil:
			return nil
		default:
			t.unlink()
			wait = retry.NextBackOff()
			t.log.Warn("cannot renew the lease, trying again", "slot", t.cfg.Slot, "epoch", t.session.Epoch, "err", err)
		}
	}
}

// renew renews the lease once, on a new connection if need be, and returns
// when the renewal was sent and which position it saved.
func (t *Tenure) renew(ctx context.Context) (sent time.Time, lsn pglogrepl.LSN, err error) {
	if err := t.connect(ctx); err != nil {
		return sent, 0, err
	}
	sent, lsn = time.Now(), pglogrepl.LSN(t.offered.Load())
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.cfg.renewTimeout())
	defer cancel()
	held, err := t.link.renew(ctx, t.session.Epoch, t.session.Timeline, lsn)
	if err != nil {
		return sent, 0, err
	}
	if !held {
		t.metrics.fencedLease.Inc()
		return sent, 0, fmt.Errorf("renewing the lease of slot %s under epoch %d: %w", t.cfg.Slot, t.session.Epoch, fault.ErrFenced)
	}
	t.publishFrom(sent)
	return sent, lsn, nil
}

// connect makes a link if there is none.
func (t *Tenure) connect(ctx context.Context) error {
	if t.link != nil {
		return nil
	}
	link, err := t.reconnect(ctx)
	if errors.Is(err, fault.ErrFenced) {
		t.metrics.fencedSession.Inc()
	}
	if err != nil {
		return err
	}
	t.link = link
	return nil
}

func (t *Tenure) unlink() {
	if t.link != nil {
		t.link.close()
		t.link = nil
	}
}

// Offer gives a position to the next renewal to save. It never blocks. A
// position below an earlier one is ignored.
func (t *Tenure) Offer(lsn pglogrepl.LSN) {
	for {
		old := t.offered.Load()
		if uint64(lsn) <= old || t.offered.CompareAndSwap(old, uint64(lsn)) {
			return
		}
	}
}

// Permit returns nil while the last successful renewal was sent less than
// PublishWithin ago (I9). Otherwise it waits for a fresh one; the error is
// fault.ErrFenced after the end of the tenure, or that of ctx.
func (t *Tenure) Permit(ctx context.Context) error {
	if t.fresh() {
		return nil
	}
	for {
		news, err := t.pause()
		if err != nil || news == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-news:
		}
	}
}

// fresh goes by the monotonic clock, which nobody sets, and by the one on the
// wall as well, as the former may stand still while the machine sleeps.
func (t *Tenure) fresh() bool {
	now := time.Now()
	return now.Sub(t.start)-time.Duration(t.renewed.Load()) < t.cfg.PublishWithin &&
		time.Duration(now.UnixNano()-t.wall.Load()) < t.cfg.PublishWithin
}

// pause returns what to wait for, nil if a renewal has come meanwhile. It
// counts the first of all who wait for the same renewal.
func (t *Tenure) pause() (<-chan struct{}, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended:
		return nil, fault.ErrFenced
	case t.fresh():
		return nil, nil
	}
	if !t.paused {
		t.paused = true
		t.metrics.pauses.Inc()
	}
	return t.news, nil
}

// note notes when a successful renewal was sent.
func (t *Tenure) note(sent time.Time) {
	t.renewed.Store(int64(sent.Sub(t.start)))
	t.wall.Store(sent.UnixNano())
}

// publishFrom permits publishing for PublishWithin from when a successful
// renewal was sent.
func (t *Tenure) publishFrom(sent time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.note(sent)
	t.paused = false
	close(t.news)
	t.news = make(chan struct{})
}

// end lets nothing more be published. The second time it does nothing and
// returns false.
func (t *Tenure) end() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return false
	}
	t.ended = true
	t.renewed.Store(never)
	close(t.news)
	t.metrics.leader.Set(0)
	return true
}

// Release ends the tenure: it saves lsn (0 leaves the position as it is),
// gives the lease up, so that a standby need not wait for it to run out, and
// closes the connection. It is fault.ErrFenced if leadership was lost before;
// after any other error the lease runs out by itself.
func (t *Tenure) Release(ctx context.Context, lsn pglogrepl.LSN) error {
	defer t.unlink()
	if !t.end() {
		return fmt.Errorf("releasing the lease: %w", fault.ErrFenced)
	}
	held, err := t.release(ctx, lsn)
	if err != nil && ctx.Err() == nil { // the connection may have been lost since the last renewal
		t.unlink()
		held, err = t.release(ctx, lsn)
	}
	if err != nil {
		return fmt.Errorf("releasing the lease: %w", err)
	}
	if !held {
		t.metrics.fencedLease.Inc()
		return fmt.Errorf("releasing the lease: %w", fault.ErrFenced)
	}
	t.log.Info("leadership given up", "slot", t.cfg.Slot, "epoch", t.session.Epoch)
	return nil
}

func (t *Tenure) release(ctx context.Context, lsn pglogrepl.LSN) (held bool, err error) {
	if err := t.connect(ctx); err != nil {
		return false, err
	}
	return t.link.release(ctx, t.session.Epoch, t.session.Timeline, lsn)
}
