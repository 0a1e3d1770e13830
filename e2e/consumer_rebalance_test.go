package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerbed"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
)

// heldInTwoPartitions starts a consumer that is held in a handler of each of
// two partitions.
func heldInTwoPartitions(t *testing.T, cfg consumerproc.Config) (b *consumerbed.Bed, events []consumerbed.Event, held [2]*consumerbed.Hold, first *consumerbed.Process) {
	t.Helper()
	b = consumerbed.New(t, consumerbed.Options{Partitions: 2, Consumer: cfg})
	events = b.Insert(inPartitions(2)...)
	at := consumerproc.Call
	if cfg.Mode == consumerproc.Transaction {
		at = consumerproc.Recorded
	}
	for i := range held {
		held[i] = b.Hold(at, events[i])
	}
	b.Publish(events)
	first = b.Start()
	for _, h := range held {
		h.Wait()
	}
	return b, events, held, first
}

// TestRebalanceWithinGrace: a second consumer joins. The handlers of the first
// one are waited for, their offsets are committed before the partition moves.
func TestRebalanceWithinGrace(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		b, events, held, first := heldInTwoPartitions(t, consumerproc.Config{Mode: mode, RevokeGrace: 8 * time.Second})
		second := b.Start()
		b.WaitGroup("PreparingRebalance")
		b.Wait("the first one to hear of it, with its next heartbeat", b.Passed(2))
		for _, h := range held {
			h.Release(consumerproc.GoOn)
		}
		b.WaitGroup("Stable")
		b.WaitMoved(first, second)
		later := b.Put(inPartitions(2)...)
		b.Finish(consumerbed.Arranged{})
		for _, ev := range append(events, later...) {
			b.Want("event", ev, once)
		}
		first.WantRecords(consumerbed.Counts{consumer.Duplicate: 0})
		second.WantRecords(consumerbed.Counts{consumer.Duplicate: 0})
	})
}

// TestRebalanceOverGrace: handlers that take longer run on under their claims.
// Whoever has their partition now waits for them.
func TestRebalanceOverGrace(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		b, events, held, first := heldInTwoPartitions(t, consumerproc.Config{Mode: mode, RevokeGrace: time.Second})
		second := b.Start()
		moved := b.WaitMoved(first, second)
		second.WaitReason(moved, consumer.WaitingClaim)
		b.Wait("the leases to be over, were they not renewed", b.Passed(4))
		for _, ev := range events {
			b.Want("while it runs", ev, consumerbed.Facts{Status: check.Consuming, Generation: 1})
			b.WantStays("while it runs", ev)
		}
		for _, h := range held {
			h.Release(consumerproc.GoOn)
		}
		b.Finish(consumerbed.Arranged{})
		for _, ev := range events {
			b.Want("at the end", ev, once)
		}
		first.WantRecords(consumerbed.Counts{consumer.Consumed: 2, consumer.Duplicate: 1})
		second.WantRecords(consumerbed.Counts{consumer.Consumed: 0, consumer.Duplicate: 1})
	})
}

// TestFrozenConsumer: one that sleeps past its lease and its session has lost
// both. When it wakes up it can neither end the event, which somebody else works
// on, nor set an offset back.
func TestFrozenConsumer(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		b := consumerbed.New(t, consumerbed.Options{Partitions: 3, Consumer: consumerproc.Config{Mode: mode}})
		events := b.Insert(inPartitions(3)...)
		other, taken := &events[2], events[:2]
		var held, next [2]*consumerbed.Hold
		for i := range held {
			held[i], next[i] = b.Hold(consumerproc.Received, taken[i]), b.Hold(consumerproc.Received, taken[i])
		}
		b.Publish(events)
		first := b.Start(deafFor(taken[0])) // so one handler returns that it is done, the other that it was ended
		for _, h := range held {
			h.Wait()
		}
		b.WaitStatus(check.Consumed, *other)
		first.Freeze()
		second := b.Start()
		for _, h := range next {
			h.Wait()
		}
		more := b.Put(consumerbed.Spec{Partition: 2, Key: "a"}, consumerbed.Spec{Partition: 2, Key: "b"})
		b.WaitCommitted(more[1])
		for _, h := range held {
			h.Release(consumerproc.GoOn)
		}
		first.Thaw()
		first.WaitRefused(taken...)
		for _, ev := range taken {
			b.Want("while the new owner works", ev, consumerbed.Facts{
				Status: check.Consuming, Generation: 2, Attempts: 1, Code: "CONSUMER_ABANDONED", Accepted: 2, Received: 2})
			b.WantStays("while the new owner works", ev)
		}
		for _, h := range next {
			h.Release(consumerproc.GoOn)
		}
		b.WaitMembers(2)
		b.Finish(consumerbed.Arranged{})
		for _, ev := range taken {
			b.Want("taken over", ev, consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1, Accepted: 2, Received: 2})
		}
		for _, ev := range append(more, *other) {
			b.Want("beside it", ev, once)
		}
		first.WantRecords(consumerbed.Counts{consumer.Consumed: 1})
		second.WantRecords(consumerbed.Counts{consumer.Consumed: 4})
	})
}

// deafFor makes the handlers of an event ignore that their context has ended.
func deafFor(ev consumerbed.Event) func(*consumerproc.Config) {
	return func(c *consumerproc.Config) { c.Deaf = []string{ev.ID.String()} }
}

// TestConsumerStops: what finishes within the drain is recorded and committed;
// what does not is given back, in doubt, or keeps its claim until the lease is
// over if its handler ignores the stop.
func TestConsumerStops(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		b := consumerbed.New(t, consumerbed.Options{Partitions: 3, Consumer: consumerproc.Config{
			Mode: mode, Drain: 3 * time.Second, RevokeGrace: time.Second, RetryBase: 100 * time.Millisecond}})
		events := b.Insert(inPartitions(3)...)
		drained, ended, deaf := &events[0], &events[1], &events[2]
		held := map[*consumerbed.Event]*consumerbed.Hold{}
		for i := range events {
			held[&events[i]] = b.Hold(consumerproc.Call, events[i])
		}
		b.Publish(events)
		first := b.Start(deafFor(*deaf))
		for _, h := range held {
			h.Wait()
		}
		first.SendTerm()
		held[drained].Release(consumerproc.GoOn)
		first.WaitEnd()
		b.WaitMembers(0)
		b.Want("within the drain", *drained, once)
		b.Want("ended", *ended, consumerbed.Facts{Status: check.Sent, Generation: 1, Attempts: 1, Code: "CONSUMER_AMBIGUOUS"})
		b.Want("ignores the stop", *deaf, consumerbed.Facts{Status: check.Consuming, Generation: 1})
		if at := b.Committed(drained.PartitionName); at != drained.Offset+1 {
			t.Errorf("offset %d is committed for what was drained, want %d", at, drained.Offset+1)
		}
		b.WantStays("beyond the drain", *ended)
		b.WantStays("beyond the drain", *deaf)

		b.Start()
		b.Finish(consumerbed.Arranged{})
		for _, ev := range []*consumerbed.Event{ended, deaf} {
			b.Want("later", *ev, consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1, Accepted: 1, Received: 1})
		}
	})
}
