package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// modelProcess is one process of the group. Once it is over, nothing of it
// reaches the world any more, although its goroutines take a while to end.
type modelProcess struct {
	w      *modelWorld
	owner  string
	c      *Consumer
	random *modelRandom
	member *modelMember
	stop   context.CancelFunc
	gone   chan struct{} // closed when it has ended, in order or not
	dead   chan struct{} // closed when it is over
	err    error         // of its end

	over   bool      // guarded by the world's lock, as is
	frozen time.Time // it stands still until then
}

var errModelDead = errors.New("the process is dead")

// modelMost is how many processes there are at most.
const modelMost = 3

// addProcess starts a process, if there is room for it.
func (w *modelWorld) addProcess() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.running) >= modelMost {
		return
	}
	p := &modelProcess{w: w, owner: fmt.Sprintf("p%d", len(w.all)+1), random: w.newRandom(), gone: make(chan struct{}), dead: make(chan struct{})}
	w.all, w.running = append(w.all, p), append(w.running, p)
	p.member = &modelMember{p: p, next: make(chan []group.Assignment, 1)}
	p.c = w.consumer(p)
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	w.trace("%s starts", p.owner)
	go func() {
		defer close(p.gone)
		p.err = p.c.consume(ctx, func(work work) error { return p.member.run(ctx, work) })
	}()
}

// consumer makes the consumer of a process.
func (w *modelWorld) consumer(p *modelProcess) *Consumer {
	c, err := New(Config{Brokers: []string{"127.0.0.1:1"}, Group: "g", Topics: []string{modelTopic}, DB: &pgxpool.Pool{}}, p.handle, w.setup.options(p)...)
	if err != nil {
		panic(err)
	}
	if w.log != nil {
		c.log = slog.New(slog.NewTextHandler(modelWriter{p}, nil))
	}
	c.owner, c.reader, c.quarantine = p.owner, p, modelQuarantine{p}
	c.memory, c.renewer, c.engine = modelStore{p}, modelStore{p}, claiming{c}
	return c
}

// takeProcess takes one out of those that run, nil if there is none.
func (w *modelWorld) takeProcess(n int) *modelProcess {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.running) == 0 {
		return nil
	}
	i := n % len(w.running)
	p := w.running[i]
	w.running = slices.Delete(w.running, i, i+1)
	return p
}

// modelWriter traces what a process logs.
type modelWriter struct{ p *modelProcess }

func (m modelWriter) Write(line []byte) (int, error) {
	m.p.w.trace("%s: %s", m.p.owner, line[:len(line)-1])
	return len(line), nil
}

// kill ends a process at once.
func (p *modelProcess) kill() {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	if p.over {
		return
	}
	p.w.running = slices.DeleteFunc(p.w.running, func(o *modelProcess) bool { return o == p })
	p.over = true
	close(p.dead)
	p.w.trace("%s is killed", p.owner)
	time.AfterFunc(modelSession, func() {
		p.w.mu.Lock()
		defer p.w.mu.Unlock()
		p.w.evict(p.member)
	})
	p.stop()
}

// freeze makes a process stand still for a while: its statements, reads,
// commits and handlers. Its timers go on, but what they do reaches nobody.
func (p *modelProcess) freeze(d time.Duration) {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	p.frozen = time.Now().Add(d)
	p.w.trace("%s is frozen for %v", p.owner, d)
	time.AfterFunc(modelSession, func() {
		p.w.mu.Lock()
		defer p.w.mu.Unlock()
		if time.Now().Before(p.frozen) {
			p.w.evict(p.member)
		}
	})
}

// stands reports whether a process stands still or is over. The lock is held.
func (p *modelProcess) stands() bool { return p.over || time.Now().Before(p.frozen) }

// gate waits while the process is frozen.
func (p *modelProcess) gate() error {
	for {
		p.w.mu.Lock()
		over, left := p.over, time.Until(p.frozen)
		p.w.mu.Unlock()
		if over {
			return errModelDead
		}
		if left <= 0 {
			return nil
		}
		select {
		case <-time.After(left):
		case <-p.dead:
		}
	}
}

// pause lets time pass for the process.
func (p *modelProcess) pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	case <-p.dead:
	}
	return errors.Join(ctx.Err(), p.gate())
}

// modelPlan is what chance has in store for a statement.
type modelPlan struct {
	before, after time.Duration
	refused       bool // it does not get there
	lost          bool // its answer does not come back
	silently      bool // nobody says so
}

func (p *modelProcess) plan() modelPlan {
	return modelPlan{
		before: p.random.latency(), after: p.random.latency(),
		refused: p.random.chance(1), lost: p.random.chance(1), silently: p.random.chance(30),
	}
}

var errModelLost = errors.New("the connection is lost")

// modelAnswer is what the database says.
type modelAnswer[T any] struct {
	value T
	err   error
}

// modelAsk sends a statement to the database, whose effect is under the world's
// lock. If ctx ends before the answer comes, it may take effect later.
func modelAsk[T any](ctx context.Context, p *modelProcess, effect func() (T, error)) (T, error) {
	var none T
	if err := errors.Join(ctx.Err(), p.gate()); err != nil {
		return none, err
	}
	answer := make(chan modelAnswer[T], 1)
	go modelServe(p, p.plan(), effect, answer)
	select {
	case a := <-answer:
		return a.value, errors.Join(p.gate(), a.err)
	case <-ctx.Done():
		return none, errors.Join(p.gate(), ctx.Err())
	case <-p.dead:
		return none, errModelDead
	}
}

// modelServe is the way of a statement to the database and back.
func modelServe[T any](p *modelProcess, plan modelPlan, effect func() (T, error), answer chan<- modelAnswer[T]) {
	lose := func() {
		if !plan.silently {
			answer <- modelAnswer[T]{err: errModelLost}
		}
	}
	elapse(plan.before)
	if plan.refused {
		lose()
		return
	}
	a, reached := modelExecute(p, effect)
	if elapse(plan.after); plan.lost || !reached {
		lose()
		return
	}
	answer <- a
}

// modelExecute executes a statement, which waits for locks as long as it may;
// false if there will be no answer. What a process has sent before it was killed
// may take effect.
func modelExecute[T any](p *modelProcess, effect func() (T, error)) (modelAnswer[T], bool) {
	w := p.w
	for from := time.Now(); ; elapse(100 * time.Millisecond) {
		w.mu.Lock()
		now := time.Now()
		if now.Before(w.trouble.refused) || now.Before(w.trouble.silent) {
			w.mu.Unlock()
			return modelAnswer[T]{}, false
		}
		a := modelAnswer[T]{err: errModelLocked}
		if !now.Before(w.trouble.table) {
			a.value, a.err = effect()
		}
		lossy := now.Before(w.trouble.lossy)
		w.mu.Unlock()
		if !store.IsLocked(a.err) || now.Sub(from) >= 5*time.Second {
			return a, !lossy
		}
	}
}
