package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// modelDeed is what a handler does in an attempt.
type modelDeed uint8

const (
	succeeds       modelDeed = iota
	refuses                  // DataError
	breaks                   // SystemError
	doubts                   // Ambiguous
	delays                   // Delay
	givesUp                  // InDoubt
	panics                   //
	dawdles                  // takes longer than a lease
	ignores                  // dawdles, and does not hear that its context has ended
	idles                    // dawdles before it starts
	dies                     // its process dies
	commitsItself            // ends its claim in a transaction of its own
	commitsInVain            // the same, but that the transaction is rolled back
	commitsUnheard           // the same, but that the answer is lost
)

// modelScripts are what handlers do in the attempts of an event before they
// succeed.
var modelScripts = [][]modelDeed{
	nil, nil, {breaks}, {breaks, doubts, panics}, {refuses}, {doubts}, {delays}, {delays, refuses}, {givesUp}, {panics, panics, panics, panics},
	{dawdles}, {ignores}, {idles}, {dies}, {dies, breaks, dies}, {dies, dies, dies, dies, dies}, {commitsItself}, {commitsInVain}, {commitsUnheard},
	{ignores, doubts, ignores}, {breaks, dawdles, refuses}, {dawdles, dies}, {dawdles, dawdles}, {ignores, ignores}, {ignores}, {dawdles},
}

// modelDelay is what handlers ask for.
const modelDelay = 7 * time.Second

// modelAttempt is a handler at work.
type modelAttempt struct {
	p          *modelProcess
	s          *modelStory
	generation int32
	number     int
	ctx        context.Context
	ended      bool
	err        error
	cause      error // why ctx had ended by then
	panicked   bool
	inTx       bool // it has ended its claim itself, it says
}

// handle is the handler of a process.
func (p *modelProcess) handle(ctx context.Context, ev *Event) (err error) {
	if err := p.gate(); err != nil {
		return err
	}
	a, deed := p.w.began(p, ctx, ev)
	panicked := true
	defer func() { p.w.returned(a, err, panicked) }()
	err = p.behave(ctx, ev, a, deed)
	if gone := p.gate(); gone != nil {
		err = gone
	}
	panicked = false
	return err
}

func (p *modelProcess) behave(ctx context.Context, ev *Event, a *modelAttempt, deed modelDeed) error {
	long := 2*p.w.setup.lease() + time.Duration(p.random.upTo(2000))*time.Millisecond
	switch deed {
	case dawdles:
		return p.pause(ctx, long)
	case idles:
		if p.pause(ctx, long) != nil {
			return ErrNotStarted
		}
		return nil
	case ignores:
		return p.pause(context.Background(), long)
	case dies:
		go p.w.replace(p)
		<-p.dead
		return errModelDead
	case commitsItself, commitsInVain, commitsUnheard:
		return p.transact(ev, a, deed)
	}
	if err := p.pause(ctx, p.random.latency()/2); err != nil {
		return err
	}
	switch deed {
	case refuses:
		return DataError("APP_BAD", errors.New("bad"))
	case breaks:
		return SystemError(errors.New("broken"))
	case doubts:
		return Ambiguous(errors.New("in doubt"))
	case delays:
		return Delay(modelDelay, errors.New("later"))
	case givesUp:
		return InDoubt(errors.New("in doubt for good"))
	case panics:
		panic("oh")
	}
	return nil
}

// transact ends the claim in a transaction of the handler's own, as
// Claim.ConsumedTx does.
func (p *modelProcess) transact(ev *Event, a *modelAttempt, deed modelDeed) error {
	h := ev.Claim.won.Held()
	p.w.mu.Lock()
	row := p.w.table.ours(h)
	if row == nil || row.locked {
		p.w.mu.Unlock()
		return ErrClaimLost
	}
	row.locked = true
	p.w.mu.Unlock()
	ev.Claim.inTx.Store(true)
	p.pause(context.Background(), p.random.latency())
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	row.locked = false
	if a.inTx = true; p.over || deed == commitsInVain {
		return nil
	}
	p.w.table.doneNow([]store.Held{h})
	p.w.trace("row %d is CONSUMED by the handler", a.s.row)
	if deed == commitsUnheard {
		return errors.New("whether the transaction is committed is not known")
	}
	return nil
}

// replace kills a process, and starts another one a while later.
func (w *modelWorld) replace(p *modelProcess) {
	p.kill()
	elapse(time.Duration(p.random.upTo(5000)) * time.Millisecond)
	w.addProcess()
}

// asked answers a query after an effect.
func (w *modelWorld) asked(ev *Event) (Found, error) {
	elapse(w.random.latency() / 2)
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stories[ev.ID]
	found := Absent
	switch {
	case s.effect:
		found = Present
		s.present = append(s.present, ev.Claim.won.Generation)
	case w.random.chance(30):
		found = Unknown
	default:
		s.absent = append(s.absent, ev.Claim.won.Generation)
	}
	return found, nil
}
