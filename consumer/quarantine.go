package consumer

import (
	"context"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// quarantine is where records are kept that cannot be handled, see
// store.Quarantine.
type quarantine interface {
	Put(ctx context.Context, r store.Record) error
	AskedToRetry(ctx context.Context, after int64, limit int) ([]store.Stored, error)
	Resolve(ctx context.Context, id int64, resolution string) error
	Reopen(ctx context.Context, id int64, reason, message string) (bool, error)
}

// flood tells records that are wrong from a consumer that is.
type flood struct {
	limit  int
	within time.Duration
	recent []time.Time // the last ones, oldest first
}

// admit reports whether one more may go to the quarantine, and otherwise how
// long to wait.
func (f *flood) admit(now time.Time) (time.Duration, bool) {
	for len(f.recent) > 0 && now.Sub(f.recent[0]) >= f.within {
		f.recent = f.recent[1:]
	}
	if len(f.recent) >= f.limit {
		return f.recent[0].Add(f.within).Sub(now), false
	}
	f.recent = append(f.recent, now)
	return 0, true
}

// reject writes the quarantine rows of unusable records.
func (p *partition) reject() {
	for _, it := range p.window {
		if it.phase != unusable {
			continue
		}
		if wait, ok := p.flood.admit(time.Now()); !ok {
			it.wait(wait, BlockedFlood)
			it.back()
			continue
		}
		it.lend(rejecting)
		go func() {
			p.c.quarantineItem(p.c.working, it)
			p.rejected <- it
		}()
	}
}

// quarantineItem leaves an item done or, if the row could not be written,
// waiting.
func (c *Consumer) quarantineItem(ctx context.Context, it *item) {
	isNew, err := c.putAway(ctx, it)
	if err != nil {
		c.trouble(ctx, err)
		it.look(databaseTrouble)
		it.wait(backoff(databaseFirst, databaseLast, it.tries), WaitingDatabase)
		return
	}
	if it.then = done; !isNew {
		return
	}
	c.opt.observer.Records(it.rec.Topic, Quarantined, 1)
	c.opt.observer.QuarantineRow(it.rec.Topic, it.bad.reason)
	c.log.Error("a record is in the quarantine", "event_id", it.ev.ID, "topic", it.rec.Topic, "partition", it.rec.Number,
		"offset", it.rec.Offset, "code", it.bad.reason, "reason", it.bad.message)
	if c.copier != nil {
		if err := c.copier.Send(ctx, group.Copy{
			Record: it.rec, Group: c.cfg.Group, Code: it.bad.reason, Message: it.bad.message, At: time.Now(), Also: group.Names(c.opt.quarantineNames),
		}); err != nil {
			c.log.Warn("the copy of a quarantined record was not sent; its row is written", "topic", it.rec.Topic,
				"partition", it.rec.Number, "offset", it.rec.Offset, "err", err)
		}
	}
}

// putAway reports whether it changed anything: another process may retry the
// same record.
func (c *Consumer) putAway(ctx context.Context, it *item) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opt.statementWait)
	defer cancel()
	if it.asked != 0 {
		return c.quarantine.Reopen(ctx, it.asked, it.bad.reason, it.bad.message)
	}
	headers := make([]store.Header, len(it.rec.Headers))
	for i, h := range it.rec.Headers {
		headers[i] = store.Header(h)
	}
	return true, c.quarantine.Put(ctx, store.Record{
		Topic: it.rec.Topic, Partition: it.rec.Number, Offset: it.rec.Offset, Time: it.rec.Time,
		Key: it.rec.Key, Value: it.rec.Value, Headers: headers, EventID: it.ev.ID, RowID: it.ev.OutboxID,
		Reason: it.bad.reason, Message: it.bad.message,
	})
}

// Looks for quarantined records that a person wants to be retried.
const (
	askedEvery  = 5 * time.Second
	askedAtOnce = 50
)

// retryAsked runs the records that a person asked for through the line, one
// after the other, until ctx ends; what it has begun it finishes. Their place in
// the order of their key is lost.
func (c *Consumer) retryAsked(ctx context.Context) {
	for after := int64(0); ctx.Err() == nil; {
		rows := c.asked(ctx, after)
		for _, row := range rows {
			if after = row.ID; ctx.Err() == nil {
				c.retryOne(c.working, row)
			}
		}
		if len(rows) < askedAtOnce {
			after = 0 // what has to wait is looked at again
		}
		pauseFor(ctx, askedEvery)
	}
}

func (c *Consumer) asked(ctx context.Context, after int64) []store.Stored {
	within, cancel := context.WithTimeout(ctx, c.opt.statementWait)
	defer cancel()
	rows, err := c.quarantine.AskedToRetry(within, after, askedAtOnce)
	if err != nil {
		c.trouble(ctx, err)
	}
	return rows
}

// retryOne handles a stored record. What has to wait is found again at the next
// look.
func (c *Consumer) retryOne(ctx context.Context, row store.Stored) {
	it := c.item(storedRecord(row))
	it.asked = row.ID
	it.unsure = true // the claim of an earlier look may have had no answer
	if it.phase == fresh {
		c.passOnce(ctx, it)
	}
	switch it.back(); it.phase {
	case unusable:
		c.quarantineItem(ctx, it)
	case done:
		within, cancel := context.WithTimeout(ctx, c.opt.statementWait)
		defer cancel()
		if err := c.quarantine.Resolve(within, row.ID, store.Retried); err != nil {
			c.trouble(ctx, err)
		}
	}
}

// passOnce claims, handles and settles an item if all that is possible now.
func (c *Consumer) passOnce(ctx context.Context, it *item) {
	it.lend(acquiring)
	if c.engine.acquire(ctx, []*item{it}); it.then == waiting && it.reason == WaitingMissing {
		it.reject(store.ReasonMissing, missingMessage)
	}
	if it.then != ready {
		return
	}
	it.lend(running)
	if it.out = (outcome{end: handBack}); c.startable(it) {
		over := make(chan struct{})
		c.handle(it, func() { close(over) })
		<-over
	}
	for it.then = ended; it.then == ended && ctx.Err() == nil; {
		pauseFor(ctx, time.Until(it.due)) // while somebody has the row locked
		it.lend(settling)
		c.engine.settle(ctx, []*item{it})
	}
}

// startable reports whether the handler of a claimed item may run: there is none
// in a line, and the claim is believed in.
func (c *Consumer) startable(it *item) bool {
	if c.tenures.runs(it.ev.ID) {
		return false
	}
	if it.live == nil {
		return true
	}
	usable, _ := c.tenures.standing(it.live)
	return usable
}

func storedRecord(row store.Stored) group.Record {
	rec := group.Record{
		Partition: group.Partition{Topic: row.Topic, Number: row.Partition}, Offset: row.Offset, Time: row.Time,
		Key: row.Key, Value: row.Value, Headers: make([]group.Header, len(row.Headers)),
	}
	for i, h := range row.Headers {
		rec.Headers[i] = group.Header(h)
	}
	return rec
}
