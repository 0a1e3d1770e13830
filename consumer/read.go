package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// source is where a line's records come from.
type source interface {
	// Read returns the records from an offset on, after a while also none; see
	// group.Reader.
	Read(ctx context.Context, p group.Partition, from int64) (group.Batch, error)
}

// read is what came of one look at the partition.
type read struct {
	batch group.Batch
	// reason is why there is no batch; empty if there is one.
	reason Reason
}

const (
	readFirst = 100 * time.Millisecond
	readLast  = 5 * time.Second
)

// takesReads is nil while there is no room for another batch.
func (p *partition) takesReads() <-chan read {
	if p.closing || len(p.backlog) > 0 || p.full() {
		return nil
	}
	return p.reads
}

func (p *partition) take(r read) {
	p.readReason = r.reason
	if r.reason != "" {
		return
	}
	p.backlog = r.batch.Records
	p.next, p.logEnd, p.seen = r.batch.Next, r.batch.End, true
}

// read reads the partition until ctx ends.
func (p *partition) read(ctx context.Context, from int64) {
	var told Reason // once, until it changes
	for failures := 0; ctx.Err() == nil; {
		batch, err := p.source.Read(ctx, p.at, from)
		var pause time.Duration
		r := read{batch: batch}
		if err == nil {
			from, failures, told = batch.Next, 0, ""
		} else if ctx.Err() == nil {
			failures++
			pause = backoff(readFirst, readLast, failures)
			if from, r.reason = p.readTrouble(ctx, err, from); r.reason != told {
				told = r.reason
				p.c.log.Warn("a partition cannot be read", "topic", p.at.Topic, "partition", p.at.Number, "reason", string(told), "err", err)
			}
		}
		select {
		case p.reads <- r:
		case <-ctx.Done():
			return
		}
		if pause > 0 {
			pauseFor(ctx, pause)
		}
	}
}

// readTrouble returns where to go on and why there is nothing to read.
func (p *partition) readTrouble(ctx context.Context, err error, from int64) (int64, Reason) {
	var (
		outside *group.OffsetError
		damaged *group.UndecodableError
	)
	switch {
	case errors.As(err, &outside):
		why := BlockedOffsetAhead
		if outside.Lost() {
			why = BlockedOffsetLost
		}
		if p.c.opt.resumeAtStart {
			p.c.log.Warn("reading on from the start of the log", "topic", p.at.Topic, "partition", p.at.Number,
				"from", outside.Start, "reason", string(why), "err", err)
			return outside.Start, why
		}
		return from, why
	case errors.As(err, &damaged):
		if p.c.opt.skipUndecodable && p.skip(ctx, damaged) {
			return damaged.To + 1, BlockedUndecodable
		}
		return from, BlockedUndecodable
	default:
		return from, WaitingKafka
	}
}

// skip quarantines the range of a batch that cannot be decoded.
func (p *partition) skip(ctx context.Context, damaged *group.UndecodableError) bool {
	within, cancel := context.WithTimeout(ctx, p.c.opt.statementWait)
	defer cancel()
	err := p.c.quarantine.Put(within, store.Record{
		Topic: p.at.Topic, Partition: p.at.Number, Offset: damaged.From,
		Reason: store.ReasonSkippedRange, Message: damaged.Error(),
	})
	if err != nil {
		p.c.trouble(ctx, err)
		return false
	}
	p.c.opt.observer.QuarantineRow(p.at.Topic, store.ReasonSkippedRange)
	return true
}
