package consumer

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
)

// engine does the work on items. Its methods run beside the line; while they
// do, the items are theirs.
type engine interface {
	// acquire leaves each item, in phase acquiring, ready, done, waiting or
	// unusable.
	acquire(ctx context.Context, items []*item)
	// attempt runs the handler of an item in phase running.
	attempt(ctx context.Context, it *item) outcome
	// settle leaves each item, in phase settling, done or waiting.
	settle(ctx context.Context, items []*item)
}

// partition is the line of one partition in one generation: a window of
// records in the order of the log, each on its way to a durable outcome. One
// goroutine owns it; claims, handlers and outcomes work beside that and come
// back by channels with room for all of them, so nothing waits for a line that
// is gone.
type partition struct {
	c      *Consumer
	at     group.Partition
	source source
	// assigned is the offset that the group had committed; negative: none.
	assigned int64

	window  []*item        // in order; the first one is not done
	bytes   int            // of their records
	backlog []group.Record // read, not in the window yet
	next    int64          // offset after all of these
	logEnd  int64          // the partition's, when it was read last; negative: not known
	seen    bool           // these are known
	// readReason is why the partition cannot be read; empty if it can.
	readReason Reason

	reads    chan read
	acquired chan []*item
	ended    chan *item
	settled  chan []*item
	rejected chan *item

	claiming, recording bool // at most one statement of each is on its way
	handling            int  // handlers
	// overdue: a claimed event may not start until its claim is renewed.
	overdue bool
	pace    pace
	flood   flood

	closing  bool
	released chan struct{} // closed when nobody needs to wait for this line
	free     bool          // released is closed

	position atomic.Int64 // offset of the first record without an outcome; negative: not known
	status   *status
}

func newPartition(c *Consumer, a group.Assignment, s source) *partition {
	p := &partition{
		c: c, at: a.Partition, source: s, assigned: a.Offset,
		reads: make(chan read), acquired: make(chan []*item, 1), ended: make(chan *item, c.opt.concurrency),
		settled: make(chan []*item, 1), rejected: make(chan *item, c.opt.window),
		flood:    flood{limit: c.opt.floodLimit, within: c.opt.floodWindow},
		released: make(chan struct{}),
		status:   newStatus(a.Partition, c.opt.observer),
		logEnd:   -1,
	}
	p.position.Store(a.Offset)
	return p
}

// run works until revoked or stopped, then on until nothing of it is on its
// way. released tells earlier that a rebalance or a stop need not wait longer:
// what still runs then keeps its claim and records its outcome, and the offset
// is for the next owner.
func (p *partition) run(revoked, stopped <-chan struct{}) {
	reading, stopReading := context.WithCancel(p.c.working)
	defer stopReading()
	p.c.lines.Go(func() { p.read(reading, p.position.Load()) })
	defer p.release()
	wake := time.NewTimer(0)
	defer wake.Stop()
	var over <-chan time.Time
	for {
		// First of all, as nothing may start any more then, whatever came back
		// at the same time.
		select {
		case <-revoked:
			revoked, stopped = nil, nil
			p.close(stopReading)
			over = time.After(p.c.opt.revokeGrace)
		default:
		}
		select {
		case <-stopped:
			stopped = nil
			p.close(stopReading)
			over = time.After(p.c.opt.drain + p.c.opt.revokeGrace)
		default:
		}
		wake.Reset(p.step())
		if p.closing && p.idle() {
			return
		}
		select {
		case r := <-p.takesReads():
			p.take(r)
		case items := <-p.acquired:
			p.claiming = false
			takeBack(items)
		case it := <-p.ended:
			p.handling--
			p.pace.add(it.took)
			it.phase = ended
		case items := <-p.settled:
			p.recording = false
			takeBack(items)
		case it := <-p.rejected:
			it.back()
		case <-wake.C:
		case <-revoked:
		case <-stopped:
		case <-over:
			p.release()
		}
	}
}

func takeBack(items []*item) {
	for _, it := range items {
		it.back()
	}
}

// close starts nothing any more.
func (p *partition) close(stopReading func()) {
	p.closing = true
	stopReading()
}

// release lets those go on who wait for this line.
func (p *partition) release() {
	if !p.free {
		p.free = true
		p.status.leave()
		close(p.released)
	}
}

// idle reports whether nothing is on its way.
func (p *partition) idle() bool {
	for _, it := range p.window {
		switch it.phase {
		case acquiring, ready, running, ended, settling, rejecting:
			return false
		}
	}
	return true
}

// step does all that can be done now, and returns for how long there is
// nothing more unless something comes back.
func (p *partition) step() time.Duration {
	p.wake()
	p.advance()
	if p.closing {
		p.handBack()
	} else {
		for p.fill() { // what is left out by a filter is done at once
			p.advance()
		}
		p.reject()
		p.start()
		p.acquire() // behind those that have started
		p.unclaim()
	}
	p.settle()
	p.tell()
	return p.sleep()
}

// wake lets items go on whose wait is over.
func (p *partition) wake() {
	now := time.Now()
	for _, it := range p.window {
		if it.phase != waiting || now.Before(it.due) {
			continue
		}
		if it.phase = fresh; it.bad != nil {
			it.phase = unusable
		}
	}
}

// sleep returns how long until the next wait is over.
func (p *partition) sleep() time.Duration {
	next := time.Hour
	if p.overdue {
		next = ownWait
	}
	for _, it := range p.window {
		if it.phase == waiting || it.phase == ended && !p.recording {
			next = min(next, time.Until(it.due))
		}
	}
	if len(p.window) > 0 && p.window[0].asksDatabase() {
		next = min(next, slowWait) // to tell
	}
	if p.handling > 0 && p.any(ready) {
		next = min(next, p.c.opt.lease/3) // to hand back
	}
	return max(next, 0)
}

// advance forgets finished records at the front and tells how far it is.
func (p *partition) advance() {
	n := 0
	for n < len(p.window) && p.window[n].phase == done {
		n++
	}
	for _, it := range p.window[:n] {
		p.bytes -= it.rec.Size()
	}
	clear(p.window[:n]) // the array behind it may live on for long
	p.window = p.window[n:]
	switch {
	case len(p.window) > 0:
		p.position.Store(p.window[0].rec.Offset)
	case len(p.backlog) > 0:
		p.position.Store(p.backlog[0].Offset)
	case p.seen:
		p.position.Store(p.next)
	}
}

// tell shows where the line stands, and why the record that holds up its offset
// waits.
func (p *partition) tell() {
	why := p.readReason
	if len(p.window) > 0 {
		why = ""
		switch head := p.window[0]; {
		case head.phase == waiting:
			why = head.reason
		case head.phase == ended && time.Now().Before(head.due):
			why = WaitingClaim // somebody has locked the row
		case head.asksDatabase() && time.Since(head.lent) >= slowWait:
			why = WaitingDatabase
		}
	}
	p.status.set(p.position.Load(), p.logEnd, why)
}
