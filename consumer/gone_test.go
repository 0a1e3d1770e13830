package consumer

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// TestHandlerThatEndsItsGoroutine, as a failed assertion in a test does: it never
// comes back. Its claim was renewed for ever, and nobody else got the event.
func TestHandlerThatEndsItsGoroutine(t *testing.T) {
	t.Parallel()
	t.Run("claim", func(t *testing.T) {
		t.Parallel()
		var n atomic.Int32
		b := newBed(t, 18, func(context.Context, *Event) error {
			if n.Add(1) == 1 {
				runtime.Goexit()
			}
			return nil
		})
		id := b.put("a")[0]
		b.start()
		b.await(1)
		b.want(id, row{outbox.Consumed, 2, 1, ""})
	})
	t.Run("transaction", func(t *testing.T) {
		t.Parallel()
		var n atomic.Int32
		b := newBed(t, 18, func(context.Context, *Event) error { return nil })
		b.inTx(func(ctx context.Context, tx pgx.Tx, ev *Event) error {
			if err := insertEffect(ctx, tx, ev); err != nil {
				return err
			}
			if n.Add(1) == 1 {
				runtime.Goexit()
			}
			return nil
		})
		id := b.put("a")[0]
		b.start()
		b.await(1)
		if r := b.receipt(id, "stock"); r.Status != outbox.Consumed || r.Attempts != 1 || b.effects() != 1 {
			t.Errorf("receipt %+v, %d effects", r, b.effects())
		}
	})
	t.Run("retry", func(t *testing.T) {
		t.Parallel()
		b := newBed(t, 18, func(context.Context, *Event) error {
			runtime.Goexit()
			return nil
		})
		b.start()
		id := b.rows(outbox.Sent, "a")[0]
		b.c.retryOne(b.c.working, asStored(b.record(id, "a")))
		b.want(id, row{outbox.Sent, 1, 1, "CONSUMER_PANIC"})
	})
}

// TestWhatEndingItsGoroutineMeans: the same as a panic. It used to be tried for
// ever, whatever MaxAttempts said, and was not in doubt after a stop.
func TestWhatEndingItsGoroutineMeans(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		attempt int
		cause   error // why its context has ended
		end     end
		code    string
	}{
		"not the last attempt":   {1, nil, release, store.CodePanic},
		"the last attempt":       {2, nil, fail, store.CodePanic},
		"at a stop":              {2, errStopping, release, store.CodeAmbiguous},
		"when its lease is over": {2, ErrClaimLost, release, store.CodeAmbiguous},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			c := &Consumer{opt: defaults(), log: slog.New(slog.DiscardHandler), tenures: newTenures(time.Minute), handling: ctx}
			c.opt.maxAttempts = 2
			c.engine = claiming{c}
			c.handler = func(context.Context, *Event) error {
				if tc.cause != nil {
					stop(tc.cause)
				}
				runtime.Goexit()
				return nil
			}
			it := &item{ev: &Event{Attempt: tc.attempt}, claim: newClaim(store.Claim{}, nil)}
			over := make(chan struct{})
			c.handle(it, func() { close(over) })
			if <-over; it.out.end != tc.end || it.out.code != tc.code {
				t.Errorf("end %d, code %q", it.out.end, it.out.code)
			}
		})
	}
}

// curious asks for the health whenever it is told that a partition waits.
type curious struct {
	nobody
	c     *Consumer
	asked atomic.Int32
}

func (c *curious) Paused(string, int, Reason, bool) {
	c.c.Health()
	c.asked.Add(1)
}

// TestObserverMayAskForTheHealth, such as to show since when a partition waits.
func TestObserverMayAskForTheHealth(t *testing.T) {
	t.Parallel()
	var o curious
	f := failing{with: Delay(50*time.Millisecond, nil)}
	b := newBed(t, 18, f.handle, Metrics(&o))
	o.c = b.c
	id := b.put("a")[0]
	f.refuse.Store(&id)
	b.start()
	b.c.mu.Lock()
	b.c.current = []*partition{b.p}
	b.c.mu.Unlock()
	pgtest.Eventually(t, "a wait that is told", func() bool { return o.asked.Load() > 0 }, b.state)
	b.c.membership([]*partition{b.p}, true, false)
	f.refuse.Store(nil)
	b.await(1)
}
