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
	// Rows of the pass that are still on their way need no second record. Those
	// of now count: when the answer comes, it may be older than what became of them.
	passing := map[int64]bool{}
	for i := range l.batch {
		refs[i] = l.batch[i].Ref
		if l.passed[refs[i].ID] {
			passing[refs[i].ID] = true
		}
	}
	l.window.looking = true
	var fates []event.Fate
	l.ask(ctx, "looking up redelivered events", func() (err error) {
		fates, err = l.parts.Rows.Lookup(ctx, refs)
		return err
	}, func() error { return l.lookedUp(fates, passing) })
}

// lookedUp publishes what the table says is still to be published, but for rows
// that the pass has handed over, and resolves the rest.
func (l *line) lookedUp(fates []event.Fate, passing map[int64]bool) error {
	if len(fates) != len(l.batch) {
		return fmt.Errorf("%w: a lookup of %d events answered for %d", ErrInvariant, len(l.batch), len(fates))
	}
	l.window.looking = false
	if l.draining {
		return nil // the batch stays with the slot
	}
	fresh := l.batch[:0]
	for i, fate := range fates {
		if fate == event.FatePublish && !passing[l.batch[i].ID] {
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
