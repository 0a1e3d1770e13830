package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// TestTransactionOfAHandlerWhoseContextHasEnded: it did its work and says so, only
// later than its context lasted. Under a claim that is CONSUMED; the transaction
// was never committed, and the handler ran again and again.
func TestTransactionOfAHandlerWhoseContextHasEnded(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		opts []Option
		stop bool
	}{
		"timeout": {[]Option{HandlerTimeout(50 * time.Millisecond)}, false},
		"stop":    {[]Option{Drain(0), RevokeGrace(maxGrace)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var n atomic.Int32
			entered := make(chan struct{}, 10)
			b := newBed(t, 18, func(context.Context, *Event) error { return nil }).inTx(func(ctx context.Context, tx pgx.Tx, ev *Event) error {
				n.Add(1)
				if err := insertEffect(context.WithoutCancel(ctx), tx, ev); err != nil { // however slow this machine is
					return err
				}
				entered <- struct{}{}
				<-ctx.Done()
				return nil
			}, tc.opts...)
			id := b.put("a")[0]
			b.start()
			if <-entered; tc.stop {
				b.stop()
				<-b.gone
			} else {
				b.await(1)
			}
			if r := b.receipt(id, "stock"); r.Status != outbox.Consumed || b.effects() != 1 || n.Load() != 1 {
				t.Errorf("receipt %+v, %d effects after %d calls", r, b.effects(), n.Load())
			}
		})
	}
}

// TestMiddlewareThatPanicsWhileItWraps: for NewTx it wraps anew for each attempt,
// such as with a counter that may be registered once. The process lives.
func TestMiddlewareThatPanicsWhileItWraps(t *testing.T) {
	t.Parallel()
	var wraps atomic.Int32
	b := newBed(t, 18, func(context.Context, *Event) error { return nil })
	b.inTx(insertEffect, Use(func(next Handler) Handler {
		if n := wraps.Add(1); n == 1 {
			panic(errors.New("registered already"))
		}
		return next
	}))
	id := b.put("a")[0]
	b.start()
	b.await(1)
	if r := b.receipt(id, "stock"); r.Status != outbox.Consumed || r.Attempts != 1 || b.effects() != 1 {
		t.Errorf("receipt %+v, %d effects", r, b.effects())
	}
}
