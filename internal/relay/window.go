package relay

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// window is open from the start of a stream until a probe message, emitted
// after that start, has come back: everything before the probe may have been
// published by an earlier session, so the table is asked before it is
// published again. A nil window is closed.
type window struct {
	probe   []byte // content of the probe message that closes the window
	answers chan answer
	looking bool // Invariant: at most one lookup runs
	passed  bool // the probe is back; the running lookup is the last one
}

type answer struct {
	fates []event.Fate
	err   error
}

func (w *window) busy() bool { return w != nil && w.looking }

// openWindow emits the probe. Its id is random: any other message under the
// prefix is ignored, as anybody may emit one.
func (l *line) openWindow(ctx context.Context) {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails, says its contract
	probe := fmt.Appendf(nil, "%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
	l.window = &window{probe: probe, answers: make(chan answer, 1)}
	l.spawn(func() error {
		err := l.persist(ctx, "emitting a probe message", func() error { return l.parts.Rows.Probe(ctx, id) })
		if ctx.Err() != nil {
			return nil // the session is over
		}
		return err
	})
}

func (l *line) answers() <-chan answer {
	if l.window == nil {
		return nil
	}
	return l.window.answers
}

// message takes a logical message. Messages are hints that anybody may emit:
// what is not ours is counted and ignored.
func (l *line) message(ctx context.Context) {
	m := &l.msg
	switch {
	case !m.Transactional:
		l.m.ignored("not_transactional")
	case string(m.Prefix) == l.cfg.ProbePrefix:
		if l.window == nil || !bytes.Equal(m.Content, l.window.probe) {
			l.m.ignored("unknown_probe")
			return
		}
		l.passProbe(ctx)
	case string(m.Prefix) == l.cfg.RequeuePrefix:
		l.m.ignored("requeue")
	default:
		l.m.ignored("foreign")
	}
}

func (l *line) passProbe(ctx context.Context) {
	l.window.passed = true
	l.dispatch(ctx)
	if !l.window.looking {
		l.closeWindow()
	}
}

func (l *line) closeWindow() {
	l.window = nil
	l.log.Info("lookup window closed: everything from here on is new")
}

// lookUp asks the table about the batch. The line waits for the answer with
// the gulp in its hands, so that the order is kept.
func (l *line) lookUp(ctx context.Context) {
	refs := make([]event.Ref, len(l.batch))
	for i := range l.batch {
		refs[i] = l.batch[i].Ref
	}
	w := l.window
	w.looking = true
	l.spawn(func() error {
		var a answer
		a.err = l.persist(ctx, "looking up redelivered events", func() (err error) {
			a.fates, err = l.parts.Rows.Lookup(ctx, refs)
			return err
		})
		if ctx.Err() == nil { // else the session is over and nobody waits
			w.answers <- a
		}
		return nil
	})
}

// answer publishes what the table says is still to be published and resolves
// the rest.
func (l *line) answer(a answer) error {
	if a.err != nil {
		return a.err
	}
	if len(a.fates) != len(l.batch) {
		return fmt.Errorf("%w: a lookup of %d events answered for %d", ErrInvariant, len(l.batch), len(a.fates))
	}
	l.window.looking = false
	if l.draining {
		return nil // the batch stays with the slot
	}
	fresh := l.batch[:0]
	for i, fate := range a.fates {
		if fate == event.FatePublish {
			fresh = append(fresh, l.batch[i])
			continue
		}
		l.bytes -= int64(l.batch[i].Bytes)
		if err := l.ledger.Resolve(l.batch[i].Seq); err != nil {
			return fmt.Errorf("%w: %w", ErrInvariant, err)
		}
	}
	l.m.skipped(len(a.fates) - len(fresh))
	if len(fresh) > 0 {
		l.parts.Publisher.Publish(fresh)
	}
	l.batch = l.batch[:0]
	if l.full {
		l.flush()
	}
	l.breathe()
	if l.window.passed {
		l.closeWindow()
	}
	return nil
}

// persist repeats a database call until it succeeds or ctx ends: the session
// decides about losing leadership, not a broken connection.
func (l *line) persist(ctx context.Context, doing string, call func() error) error {
	b := backoff.NewExponentialBackOff(backoff.WithInitialInterval(50*time.Millisecond),
		backoff.WithMaxInterval(2*time.Second), backoff.WithMaxElapsedTime(0))
	return backoff.RetryNotify(func() error {
		err := call()
		if final(err) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(b, ctx), func(err error, _ time.Duration) {
		l.log.Warn(doing, "err", err)
	})
}
