package relay

import (
	"context"
	"time"

	"github.com/jackc/pglogrepl"
)

// reconcile finds rows that the slot never showed: committed behind its
// creation, or while the publication was away, or jumped over by hand. It
// lists rows that are READY and not parked, lets a probe go through the slot,
// and waits until everything before the probe is resolved. What is READY and
// not parked even then was missed, and is requeued: an anomaly.
type reconcile struct {
	ids   []int64
	probe probe
	seen  bool          // the probe is in the open transaction
	end   pglogrepl.LSN // of that transaction, once it has ended
}

// startReconcile begins a round. One that is still waiting is left alone.
func (l *line) startReconcile(ctx context.Context) {
	l.reconcileAt = nil
	if l.draining {
		return
	}
	var ids []int64
	l.ask(ctx, "listing READY rows", func() (err error) {
		ids, err = l.parts.Rows.Unsent(ctx)
		return err
	}, func() error {
		if len(ids) == 0 {
			l.reconcileAfter(l.cfg.ReconcileEvery)
			return nil
		}
		l.reconcile = &reconcile{ids: ids, probe: l.emitProbe(ctx)}
		return nil
	})
}

func (l *line) reconcileAfter(pause time.Duration) {
	l.reconcile = nil
	l.reconcileAt = time.After(pause)
}

// committed notes the end of the transaction that held the round's probe.
func (l *line) committed(end pglogrepl.LSN) {
	if r := l.reconcile; r != nil && r.seen && r.end == 0 {
		r.end = end
	}
}

// advanceReconcile requeues what was missed, once all before the probe is
// resolved.
func (l *line) advanceReconcile(ctx context.Context) {
	r := l.reconcile
	if r == nil || r.end == 0 || l.ledger.Watermark() < r.end || l.draining {
		return
	}
	r.end, r.seen = 0, false
	var missed int
	l.ask(ctx, "requeueing missed rows", func() (err error) {
		missed, err = l.parts.Rows.Requeue(ctx, r.ids)
		return err
	}, func() error {
		if missed == 0 {
			l.reconcileAfter(l.cfg.ReconcileEvery)
			return nil
		}
		l.m.missed(missed)
		l.log.Warn("READY rows that the slot never showed were requeued", "rows", missed)
		l.reconcileAfter(0) // there may be many more
		return nil
	})
}
