// Package relay is the line from the replication slot to Kafka and back, and
// the order of start and stop.
//
// It owns the ledger of a session, the lookup window, the limits of what is
// in flight and the state that people see. It sees PostgreSQL and Kafka only
// through the interfaces in edges.go. A session is bound to a server, its
// timeline and an epoch; whatever ends it, everything learnt in it is dropped
// and the slot delivers again what was not confirmed. It keeps I2 (what is
// confirmed has been saved), I4 (nothing unresolved is passed), I6 (SENT only
// after the ack) and I7 (no loss).
package relay

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/decoder"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

// ready is the send_status of a row that is to be published.
const ready = 0

// Config is what the line must know; everything else belongs to the edges.
type Config struct {
	RequeuePrefix  string // prefix of the requeue trigger's messages
	ProbePrefix    string // prefix of our probe messages
	InflightEvents int    // bound on unresolved events
	InflightBytes  int64  // bound on the bytes of events not acknowledged yet
	DrainTimeout   time.Duration
	ReconcileEvery time.Duration // between two rounds
	CheckEvery     time.Duration // between two checks of the server
	Tick           time.Duration // between two looks for held rows to be released
	SweepEvery     time.Duration // between two looks at all aggregates with parked rows
	HeldRetry      time.Duration // until an event without a place in an order is tried again when its partition does not answer
	ProbeEvery     time.Duration // between two probes that show that the slot delivers
	// Beats gets the beats of the line and of the loop that starts sessions.
	// It may be nil.
	Beats *pulse.Board
}

// Parts are the edges of one session, opened under its epoch.
type Parts struct {
	Source    Source
	Publisher Publisher
	Recorder  Recorder
	Rows      Rows
	Scheduler Scheduler
	Sweeper   Sweeper // nil: the table has no place for claims
	Decoder   *decoder.Decoder
	// OpenPass opens the READY-first pass; nil when none is needed.
	OpenPass func(context.Context) (Pass, error)
	// Check tells whether the server is still as it must be: a *fault.Blocked
	// ends the session, any other error may pass.
	Check func(context.Context) error
	// XMax is a recent transaction id of the server, to widen others by.
	XMax uint64
	// Close frees what the parts hold. Their Run methods have returned then.
	Close func()
}

// Open connects the parts of a session. An error that wraps a *fault.Blocked
// is for a person; any other one is tried again.
type Open func(ctx context.Context, tenure Tenure, inbox *Inbox) (*Parts, error)

// Policy decides about failures, by aggregate type. It is pure.
type Policy interface {
	// Of returns the number of the policy for a type, and whether later events
	// of an aggregate of that type wait for a parked one.
	Of(aggregateType []byte) (kind uint8, block bool)
	// Next returns the delay before the next attempt, or failed = true when
	// there is none. attempts is the number of failures before this one.
	Next(kind uint8, attempts int32, f event.Failure) (delay time.Duration, failed bool)
}

// Relay runs sessions one after the other until it is stopped.
type Relay struct {
	cfg     Config
	leaders Leadership
	open    Open
	policy  Policy
	log     *slog.Logger
	m       *metrics
	board   *board
}

// New returns a relay that does nothing until Run. log gets one line for each
// change of state.
func New(cfg Config, leaders Leadership, open Open, policy Policy, log *slog.Logger, reg prometheus.Registerer) *Relay {
	r := &Relay{cfg: cfg, leaders: leaders, open: open, policy: policy, log: log, m: newMetrics(reg)}
	r.board = newBoard(r.changed)
	r.m.watch(reg, r.board)
	r.m.state(Starting, "")
	return r
}

// Waiting tells what of the table waits for a person, as somebody who looks at it
// now and then has seen; nil: nothing does. Safe for concurrent use.
func (r *Relay) Waiting(b *fault.Blocked) { r.board.trouble(rowsTrouble, b) }

// Status is a snapshot of what the relay is doing. Safe for concurrent use.
func (r *Relay) Status() Status { return r.board.snapshot() }

// settledAfter is how long a session must have lasted for a condition that
// blocks to be a new one: what only shows once the stream runs must not be met
// every few seconds.
const settledAfter = time.Minute

// Run leads, relays and starts over until ctx ends, then drains and returns
// nil. Its only error is a broken invariant.
func (r *Relay) Run(ctx context.Context) error {
	soon, slow := pause(500*time.Millisecond, 5*time.Second), pause(5*time.Second, time.Minute)
	beat := r.cfg.Beats.Start("relay")
	defer beat.End()
	beat.Rest() // what it waits for has beats of its own
	for {
		began := time.Now()
		err := r.term(ctx)
		switch {
		case errors.Is(err, ErrInvariant):
			return err
		case ctx.Err() != nil:
			return nil
		}
		if r.board.hasStreamed() {
			soon.Reset()
		}
		if time.Since(began) > settledAfter {
			slow.Reset()
		}
		wait := soon
		if b := fault.AsBlocked(err); b != nil {
			r.board.set(Blocked, b)
			wait = slow
		} else {
			r.board.set(Starting, nil)
			r.log.Warn("session ended, starting over", "err", err)
		}
		select {
		case <-time.After(wait.NextBackOff()):
		case <-ctx.Done():
			return nil
		}
	}
}

func pause(first, longest time.Duration) *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(backoff.WithInitialInterval(first), backoff.WithMaxInterval(longest),
		backoff.WithMultiplier(2), backoff.WithRandomizationFactor(0.1), backoff.WithMaxElapsedTime(0))
}

// term is one period of leadership: acquire, run a session, release.
func (r *Relay) term(ctx context.Context) error {
	tenure, err := r.leaders.Acquire(ctx, func() { r.board.set(Standby, nil) })
	if err != nil {
		return err
	}
	r.board.lead(tenure.Session().Epoch)
	defer r.board.unlead()

	// The parts outlive ctx: they are needed to drain.
	parts, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	inbox := NewInbox()
	group, gctx := errgroup.WithContext(parts)
	group.Go(func() error { return tenure.Run(gctx, inbox.Saved) })
	group.Go(func() error {
		defer cancel()
		return r.session(ctx, gctx, tenure, inbox)
	})
	err = group.Wait()
	r.release(parts, tenure)
	return err
}

// release gives the lease up, so that a standby need not wait for it to run
// out, and frees what the tenure holds, lost or not. It may fail: the lease
// then does run out.
func (r *Relay) release(ctx context.Context, tenure Tenure) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := tenure.Release(ctx, 0); err != nil && !errors.Is(err, fault.ErrFenced) {
		r.log.Warn("releasing the lease", "err", err)
	}
}

// session opens the parts and runs the line until stop ends (a graceful end)
// or ctx does (leadership is lost).
func (r *Relay) session(stop, ctx context.Context, tenure Tenure, inbox *Inbox) error {
	opening, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(stop, cancel)()
	defer cancel()
	parts, err := r.open(opening, tenure, inbox)
	if err != nil {
		return err
	}
	defer parts.Close()

	// The source stops before the others: its last word is the confirmation.
	ended := make(chan error, 1)
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	go func() { ended <- parts.Source.Run(reading) }()

	err = r.runLine(stop, ctx, parts, tenure, inbox)
	stopReading()
	return errors.Join(err, <-ended)
}

// runLine runs the line and the edges it hands over to, until the line ends.
func (r *Relay) runLine(stop, ctx context.Context, parts *Parts, tenure Tenure, inbox *Inbox) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	l := newLine(r.cfg, parts, tenure, inbox)
	l.board, l.m, l.policy, l.log, l.spawn = r.board, r.m, r.policy, r.log, group.Go
	group.Go(func() error { return inOrder(inbox, parts.Publisher.Run(ctx)) })
	group.Go(func() error { return parts.Recorder.Run(ctx) })
	group.Go(func() error { return inOrder(inbox, parts.Scheduler.Run(ctx, l.accepting.Load)) })
	if parts.Sweeper != nil {
		group.Go(func() error { return parts.Sweeper.Run(ctx, l.accepting.Load) })
	}
	group.Go(func() error { return r.keepChecking(ctx, parts.Check, inbox) })
	group.Go(func() error {
		defer cancel()
		return l.run(ctx, stop.Done())
	})
	err := group.Wait()
	l.endPass()
	return err
}

// inOrder lets an error that is met again at each try end the session in order,
// so that the tries do not repeat what was in flight.
func inOrder(inbox *Inbox, err error) error {
	if err == nil || errors.Is(err, fault.ErrFenced) {
		return err
	}
	inbox.Fail(err)
	return nil
}

// keepChecking looks at the server again and again. What makes it unfit ends
// the session; a look that fails is no answer.
func (r *Relay) keepChecking(ctx context.Context, check func(context.Context) error, inbox *Inbox) error {
	tick := time.NewTicker(r.cfg.CheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		err := check(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case final(err):
			inbox.Fail(err)
			return nil
		case err != nil:
			r.log.Warn("checking the server", "err", err)
		}
	}
}

// final reports an error that another try in the same session cannot mend.
func final(err error) bool {
	return errors.Is(err, fault.ErrFenced) || fault.AsBlocked(err) != nil
}

// changed logs each change of state, and of what needs a person in it, once.
func (r *Relay) changed(from, to Status) {
	r.m.state(to.State, to.Reason)
	trouble := []any{"state", string(to.State), "reason", to.Reason, "what", to.What, "remedy", to.Remedy}
	switch {
	case to.State == Blocked:
		r.log.Error("blocked", append(trouble, "was", string(from.State))...)
	case to.State == Degraded:
		r.log.Warn("degraded: events flow, and somebody should look", append(trouble, "was", string(from.State))...)
	case from.State != to.State:
		r.log.Info("state changed", "state", string(to.State), "was", string(from.State))
	case to.Reason != "":
		r.log.Warn("somebody should look", trouble...)
	default:
		r.log.Info("nothing needs a person any more", "state", string(to.State), "reason", from.Reason)
	}
}
