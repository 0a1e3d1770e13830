package relay

import (
	"context"
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// window is open from the start of a stream until a probe message, emitted
// after that start, has come back: everything before the probe may have been
// published by an earlier session, so the table is asked before it is
// published again. A nil window is closed.
type window struct {
	probe   probe
	looking bool // Invariant: at most one lookup runs
	passed  bool // the probe is back; the running lookup is the last one
}

func (w *window) busy() bool { return w != nil && w.looking }

func (l *line) openWindow(ctx context.Context) {
	l.board.set(Recovering, nil)
	l.window = &window{probe: l.emitProbe(ctx)}
}

func (l *line) passWindow(ctx context.Context) {
	l.window.passed = true
	l.dispatch(ctx)
	if !l.window.looking {
		l.closeWindow()
	}
}

func (l *line) closeWindow() {
	l.window = nil
	l.board.set(Streaming, nil)
	l.reconcileAt = time.After(0)
}

// lookUp asks the table about the batch. The line waits for the answer with
// the gulp in its hands, so that the order is kept.
func (l *line) lookUp(ctx context.Context) {
	refs := make([]event.Ref, len(l.batch))
	for i := range l.batch {
		refs[i] = l.batch[i].Ref
	}
	l.window.looking = true
	var fates []event.Fate
	l.ask(ctx, "looking up redelivered events", func() (err error) {
		fates, err = l.parts.Rows.Lookup(ctx, refs)
		return err
	}, func() error { return l.lookedUp(fates) })
}

// lookedUp publishes what the table says is still to be published and resolves
// the rest.
func (l *line) lookedUp(fates []event.Fate) error {
	if len(fates) != len(l.batch) {
		return fmt.Errorf("%w: a lookup of %d events answered for %d", ErrInvariant, len(l.batch), len(fates))
	}
	l.window.looking = false
	if l.draining {
		return nil // the batch stays with the slot
	}
	fresh := l.batch[:0]
	for i, fate := range fates {
		// A row of the pass that is still on its way needs no second record.
		if fate == event.FatePublish && !l.passed[l.batch[i].ID] {
			fresh = append(fresh, l.batch[i])
			continue
		}
		l.bytes -= int64(l.batch[i].Bytes)
		if err := l.resolve([]event.Ref{l.batch[i].Ref}); err != nil {
			return err
		}
	}
	l.m.skipped(len(fates) - len(fresh))
	if len(fresh) > 0 {
		l.admit(fresh)
	}
	l.batch = l.batch[:0]
	if l.full {
		l.flush()
	}
	l.breathe()
	if l.window.passed {
		l.closeWindow()
	}
	return l.broken
}
