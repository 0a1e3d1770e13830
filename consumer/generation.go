package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
)

// commitEvery is the time between two commits of offsets.
const commitEvery = time.Second

// work is what is done in a generation of the group, see group.Work.
type work func(revoked context.Context, assigned []group.Assignment, offsets offsets)

// offsets are those of a generation, see group.Generation.
type offsets interface {
	Commit(ctx context.Context, offsets map[group.Partition]int64) error
}

// generation works on the partitions that this member has in a generation,
// until they are revoked or the consumer stops. It returns when nothing of that
// holds up the group any more.
func (c *Consumer) generation(stopped, revoked context.Context, assigned []group.Assignment, offsets offsets) {
	lines := make([]*partition, len(assigned))
	for i, a := range assigned {
		lines[i] = newPartition(c, a, c.reader)
	}
	c.membership(lines, true, false)
	defer c.membership(nil, false, true)
	for _, p := range lines {
		c.lines.Go(func() { p.run(revoked.Done(), stopped.Done()) })
	}
	commits := commits{c: c, offsets: offsets, lines: lines, sent: map[group.Partition]int64{}}
	ending, end := context.WithCancel(c.working)
	var committer sync.WaitGroup
	committer.Go(func() { commits.run(ending) })
	select {
	case <-revoked.Done():
	case <-stopped.Done():
	}
	for _, p := range lines {
		<-p.released
	}
	end()
	committer.Wait()
	commits.send(c.working)
}

// commits are the offsets of a generation. They go through it alone, so a
// member that lost a partition cannot move its offset.
type commits struct {
	c       *Consumer
	offsets offsets
	lines   []*partition
	sent    map[group.Partition]int64
	bad     bool // the last commit was refused
}

func (k *commits) run(ctx context.Context) {
	tick := time.NewTicker(commitEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			k.send(ctx)
		}
	}
}

// send commits what has moved. A position can go back: a topic that was made
// anew is read from its start.
func (k *commits) send(ctx context.Context) {
	moved := map[group.Partition]int64{}
	for _, p := range k.lines {
		position := p.position.Load()
		last, ok := k.sent[p.at]
		if !ok {
			last = p.assigned
		}
		if position != last && position >= 0 {
			moved[p.at] = position
		}
	}
	if len(moved) == 0 {
		return
	}
	if err := k.offsets.Commit(ctx, moved); err != nil {
		if !k.bad {
			k.c.log.Warn("offsets could not be committed; their records will come again and be recognised", "err", err)
		}
		k.bad = true
		return
	}
	k.bad = false
	for p, position := range moved {
		k.sent[p] = position
	}
}
