package statusback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

// Outcomes is told what became of the writes. Its methods never block and are
// called by the goroutine in Run.
type Outcomes interface {
	// Resolved reports events whose row is settled; it takes the slice over.
	Resolved(refs []event.Ref)
	// Trouble reports a condition for a person while writing goes on; nil
	// clears it.
	Trouble(b *fault.Blocked)
}

// Config is where and under which fence to write.
type Config struct {
	// Database is how to connect; what this package needs of the session is
	// set on top of it.
	Database pg.Options
	// Table is the outbox; the fence, cdc_relay_slot, is in the same schema.
	Table pg.Table
	// Slot and Owner, with the session's epoch, are the fence.
	Slot  string
	Owner [16]byte
	// Session is the server that the events came from. Another one fences.
	Session event.Session
	// Batch is how many rows are worth a statement at once; fewer wait until
	// the first of them is Interval old. 0 is 2000.
	Batch int
	// MaxBatch bounds the rows of a statement. 0 is 4000.
	MaxBatch int
	// Interval is how long the first row of a batch waits for others. 0 is
	// 5 ms.
	Interval time.Duration
	// Pulse gets the beat of Run's goroutine. It may be nil.
	Pulse *pulse.Board
}

// What a Config left at zero becomes.
const (
	defaultBatch    = 2000
	defaultMaxBatch = 4000
	defaultInterval = 5 * time.Millisecond
)

// Recorder writes what became of the events of one session. Sent and Park are
// safe for concurrent use; Run is called once.
type Recorder struct {
	cfg Config
	out Outcomes
	log *slog.Logger
	m   *Metrics
	box *mailbox
	db  *database

	// owned by the goroutine in Run
	sequence sequence // what waits for an earlier write of its row
	later    waitlist // to be tried again at a time
	refused  refusals // rows that cannot be written
	denied   *fault.Blocked
	reported *fault.Blocked
	beat     *pulse.Beat
}

// New returns a recorder for one session. It does not connect.
func New(cfg Config, out Outcomes, log *slog.Logger, m *Metrics) (*Recorder, error) {
	if cfg.Slot == "" || cfg.Table.Schema == "" || cfg.Table.Name == "" || cfg.Session.Epoch == 0 {
		return nil, errors.New("recorder of row states: table, slot and epoch are required")
	}
	if cfg.Batch == 0 {
		cfg.Batch = defaultBatch
	}
	if cfg.MaxBatch == 0 {
		cfg.MaxBatch = max(defaultMaxBatch, cfg.Batch)
	}
	if cfg.Interval == 0 {
		cfg.Interval = defaultInterval
	}
	if cfg.Batch < 1 || cfg.MaxBatch < cfg.Batch || cfg.Interval < 0 {
		return nil, errors.New("recorder of row states: want 1 <= batch <= largest batch, interval >= 0")
	}
	log = log.With("slot", cfg.Slot)
	return &Recorder{cfg: cfg, out: out, log: log, m: m, box: newMailbox(), db: newDatabase(cfg, log, m), sequence: sequence{}}, nil
}

// Sent takes acknowledged events over, to be written as SENT. It does not
// block; the bound is what the caller has in flight. A ref whose row was handed
// to Park before names the next_attempt_at that this leaves, and is written
// after it.
func (r *Recorder) Sent(refs []event.Ref) { r.box.sent(refs) }

// Park takes events over, and the slice with them, whose rows are to be parked:
// with their attempt, or without one. It does not block.
func (r *Recorder) Park(parks []event.Park) { r.box.park(parks) }

// Run writes until ctx ends, and then returns nil after the statement in
// flight; what is not written by then is unresolved. Its error wraps
// fault.ErrFenced when the epoch has moved, or the server is another one; any
// other one says that an event was to be held without a commit position.
func (r *Recorder) Run(ctx context.Context) error {
	defer r.db.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	r.beat = r.cfg.Pulse.Start("write-back")
	defer r.beat.End()
	var batch []write
	for {
		r.beat.Work()
		if err := r.runOnce(ctx, &batch); err != nil {
			return err
		}
		r.report()
		timer.Reset(r.idle(time.Now()))
		r.beat.Rest()
		select {
		case <-ctx.Done():
			return nil
		case <-r.box.wake:
		case <-timer.C:
		}
	}
}

// forever is a wait that something else will end.
const forever = time.Hour

// idle is how long there is nothing to write, or nowhere to write it.
func (r *Recorder) idle(now time.Time) time.Duration {
	wait := forever
	for _, at := range []time.Time{r.box.due(r.cfg), r.later.next, r.refused.next} {
		if !at.IsZero() {
			wait = min(wait, at.Sub(now))
		}
	}
	return max(wait, r.db.retryAt.Sub(now), 0)
}

// runOnce writes what is due now. batch is a buffer to be used again.
func (r *Recorder) runOnce(ctx context.Context, batch *[]write) error {
	now := time.Now()
	if now.Before(r.db.retryAt) {
		return nil
	}
	if at := r.box.due(r.cfg); !at.IsZero() && !now.Before(at) {
		*batch = r.box.take(*batch)
		if err := r.writeAll(ctx, r.sequence.enter(*batch)); err != nil {
			return err
		}
	}
	if err := r.writeAll(ctx, r.later.take(now)); err != nil {
		return err
	}
	return r.retryRefused(ctx, now)
}

// writeAll writes in as few statements as there are kinds of them, and orders
// writes for that. The end of ctx leaves the rest unwritten.
func (r *Recorder) writeAll(ctx context.Context, writes []write) error {
	order(writes)
	for len(writes) > 0 && ctx.Err() == nil {
		r.beat.Work() // a statement may take long, several of them longer
		n := 1
		for n < len(writes) && n < r.cfg.MaxBatch && writes[n].form() == writes[0].form() &&
			writes[n].locked() == writes[0].locked() {
			n++
		}
		if err := r.attempt(ctx, writes[:n]); err != nil {
			return err
		}
		writes = writes[n:]
	}
	return nil
}

// attempt writes rows of one kind with one statement and settles what became
// of each. Its only error is that of Run.
func (r *Recorder) attempt(ctx context.Context, writes []write) error {
	f := writes[0].form()
	if f == formKept {
		r.m.count(f, resultOK, len(writes))
		r.finish(f, refsOf(writes))
		return nil
	}
	skip := writes[0].locked()
	changed, err := r.db.update(ctx, writes, skip)
	if verdictOf(err) == lockedOut && !skip {
		skip = true // a locked row must not hold the others back
		changed, err = r.db.update(ctx, writes, skip)
	}
	switch verdictOf(err) {
	case wrote:
		r.denied = nil
		return r.settle(ctx, writes, changed, skip)
	case lost:
		r.later.again(writes)
	case lockedOut: // the fence by a takeover, or the table by a change of it
		r.m.count(f, resultLocked, len(writes))
		r.later.add(writes, whyLocked)
	case again:
		r.m.count(f, resultError, len(writes))
		r.log.Warn("writing row states, trying again", "rows", len(writes), "code", pg.Code(err))
		r.later.add(writes, whyFailed)
	case denied:
		r.m.count(f, resultError, len(writes))
		r.denied = deniedBy(err, r.cfg.Table)
		r.later.add(writes, whyFailed)
	case rowRefused:
		return r.narrow(ctx, writes, err)
	case fenced:
		r.m.count(f, resultFenced, len(writes))
		return err
	}
	return nil
}

// settle reports the rows that were changed, and finds out about the others.
// skipped says that locked ones were left out.
func (r *Recorder) settle(ctx context.Context, writes []write, changed []int64, skipped bool) error {
	resolved := make([]event.Ref, 0, len(writes))
	var rest []write
	split(writes, changed, func(w write, done bool) {
		if done {
			resolved = append(resolved, w.Ref)
		} else {
			rest = append(rest, w)
		}
	})
	f := writes[0].form()
	r.m.count(f, resultOK, len(resolved))
	var err error
	if len(rest) > 0 {
		resolved, err = r.investigate(ctx, rest, skipped, resolved)
	}
	r.finish(f, resolved)
	return err
}

// finish reports rows that are settled, and has tried what waited for that.
func (r *Recorder) finish(f form, resolved []event.Ref) {
	if f.parks() {
		var next []write
		for i := range resolved {
			next = append(next, r.sequence.leave(resolved[i].ID)...)
		}
		r.later.again(r.sequence.enter(next))
	}
	if len(resolved) > 0 {
		r.out.Resolved(resolved)
	}
}

// investigate asks about rows that were not changed, and appends those to
// resolved that need not be.
func (r *Recorder) investigate(ctx context.Context, rest []write, skipped bool, resolved []event.Ref) ([]event.Ref, error) {
	found, err := r.db.look(ctx, rest)
	if err == nil && !found.leads {
		err = errFenced
	}
	switch verdictOf(err) {
	case wrote:
	case fenced:
		r.m.count(rest[0].form(), resultFenced, len(rest))
		r.m.fenced.Inc()
		return resolved, err
	case lost:
		r.later.again(rest)
		return resolved, nil
	default: // what failed is the question: writing again asks it again
		r.later.add(rest, whyFailed)
		return resolved, nil
	}
	for i, w := range rest {
		done, err := r.sort(w, found.rows[i], skipped)
		if err != nil {
			return resolved, err
		}
		if done {
			resolved = append(resolved, w.Ref)
		}
	}
	return resolved, nil
}

// sort says whether a row that was not changed is resolved, counts it, and has
// it tried again if not. Its error is that of Run.
func (r *Recorder) sort(w write, row rowState, skipped bool) (resolved bool, err error) {
	one := []write{w}
	switch classify(w, row) {
	case settled:
		r.m.count(w.form(), resultStale, 1)
		return true, nil
	case gone:
		r.m.count(w.form(), resultGone, 1)
		r.m.gone.Inc()
		return true, nil
	case unplaced:
		r.m.count(w.form(), resultError, 1)
		return false, fmt.Errorf("holding outbox row %d: neither the event nor the row has a commit position, so it could never be released; "+
			"the slot delivers the event again", w.ID)
	case invisible:
		r.m.count(w.form(), resultInvisible, 1)
		r.later.add(one, whyInvisible)
	case unchanged:
		if skipped {
			r.m.count(w.form(), resultLocked, 1)
			r.later.add(one, whyLocked)
		} else { // it became visible in between, or something suppresses the change
			r.later.add(one, whyUnchanged)
		}
	}
	return false, nil
}

// report tells the outcome of this pass to people, when it changes.
func (r *Recorder) report() {
	now := r.trouble()
	if same(now, r.reported) {
		return
	}
	r.reported = now
	r.out.Trouble(now)
	if now == nil {
		r.log.Info("row states are written again")
		return
	}
	r.log.Warn("row states cannot be written", "reason", now.Reason, "what", now.What, "remedy", now.Remedy)
}

// trouble is the gravest condition there is, nil if there is none.
func (r *Recorder) trouble() *fault.Blocked {
	if r.denied != nil {
		return r.denied
	}
	if b := r.refused.trouble(); b != nil {
		return b
	}
	return r.later.trouble(r.cfg.Table)
}

func same(a, b *fault.Blocked) bool {
	return a == b || a != nil && b != nil && a.Reason == b.Reason && a.What == b.What
}
