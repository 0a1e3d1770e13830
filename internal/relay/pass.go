package relay

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// pass is the READY-first pass under way: rows of one snapshot are published
// by id before the stream is read. Its rows are tracked like an open
// transaction, which the first commit of the stream seals: nothing is saved
// before the last one is resolved, and a crash repeats the pass.
type pass struct {
	rows   Pass
	asking bool
	ended  bool
	left   bool             // what is not resolved by now is not waited for
	grace  <-chan time.Time // runs from the end on
}

// passGrace is how long the rows of a pass are waited for after its end. One
// that is locked by somebody must not hold up the stream.
const passGrace = 5 * time.Second

func (p *pass) overdue() <-chan time.Time {
	if p == nil {
		return nil
	}
	return p.grace
}

func (p *pass) leave() { p.left, p.grace = true, nil }

// startPass opens the snapshot.
func (l *line) startPass(ctx context.Context) {
	l.log.Info("publishing the READY rows of the table first")
	l.board.set(Recovering, nil)
	p := &pass{asking: true}
	l.pass, l.passed = p, map[int64]bool{}
	l.ledger.Begin(0)
	l.ask(ctx, "opening a snapshot of the table", func() (err error) {
		p.rows, err = l.parts.OpenPass(ctx)
		return err
	}, func() error {
		p.asking = false
		return nil
	})
}

// advancePass asks for the next page while there is room, and ends the pass
// when everything of it is resolved.
func (l *line) advancePass(ctx context.Context) {
	p := l.pass
	if p == nil || p.asking || l.full || l.draining {
		return
	}
	if p.ended {
		if l.ledger.Pending() > 0 && !p.left {
			return
		}
		l.endPass()
		l.openWindow(ctx)
		return
	}
	p.asking = true
	var page []event.Event
	var failed error
	l.ask(ctx, "reading READY rows", func() error {
		page, failed = p.rows.Next(ctx, l.cfg.InflightBytes/4)
		return nil
	}, func() error {
		p.asking = false
		if failed != nil { // the snapshot is lost: drain, then repeat
			l.fail(failed)
			return nil
		}
		l.publishPage(page)
		return nil
	})
}

func (l *line) publishPage(page []event.Event) {
	if l.draining {
		return
	}
	if len(page) == 0 {
		l.pass.ended, l.pass.grace = true, time.After(passGrace)
		return
	}
	for i := range page {
		page[i].Seq = l.ledger.Track()
		l.identify(&page[i])
		l.passed[page[i].ID] = true
		l.bytes += int64(page[i].Bytes)
	}
	l.m.receivedVia("pass", len(page))
	l.board.tookIn()
	l.admit(page)
	l.flush()
	l.measure()
}

func (l *line) endPass() {
	if l.pass != nil && l.pass.rows != nil {
		l.pass.rows.Close()
	}
	l.pass = nil
}
