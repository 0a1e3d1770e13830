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
		b, events, held, first := heldInTwoPartitions(t, consumerproc.Config{Mode: mode, RevokeGrace: 25 * time.Second})
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
		b := consumerbed.New(t, consumerbed.Options{Partitions: 2, Consumer: consumerproc.Config{Mode: mode}})
		events := b.Insert(inPartitions(2)...)
		ev, other := &events[0], &events[1]
		held, next := b.Hold(consumerproc.Received, *ev), b.Hold(consumerproc.Received, *ev)
		b.Publish(events)
		first := b.Start()
		held.Wait()
		b.WaitStatus(check.Consumed, *other)
		first.Freeze()
		second := b.Start()
		next.Wait()
		more := b.Put(consumerbed.Spec{Partition: 1, Key: "a"}, consumerbed.Spec{Partition: 1, Key: "b"})
		b.WaitCommitted(more[1])
		held.Release(consumerproc.GoOn)
		first.Thaw()
		first.WaitStatus("the old owner to see that its claim is lost", func(s *consumerproc.Status) bool { return s.Lost > 0 })
		b.Want("while the new owner works", *ev, consumerbed.Facts{
			Status: check.Consuming, Generation: 2, Attempts: 1, Code: "CONSUMER_ABANDONED", Accepted: 2, Received: 2})
		b.WantStays("while the new owner works", *ev)
		next.Release(consumerproc.GoOn)
		b.WaitMembers(2)
		b.Finish(consumerbed.Arranged{})
		b.Want("taken over", *ev, consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1, Accepted: 2, Received: 2})
		for _, ev := range append(more, *other) {
			b.Want("beside it", ev, once)
		}
		first.WantRecords(consumerbed.Counts{consumer.Consumed: 1})
		second.WantRecords(consumerbed.Counts{consumer.Consumed: 3})
	})
}

// TestConsumerStops: what finishes within the drain is recorded and committed;
// what does not is given back, in doubt.
func TestConsumerStops(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name     string
		deaf     bool
		left     consumerbed.Facts // of the handler that takes longer, when the process has ended
		attempts int
	}{
		{"ends with its context", false, consumerbed.Facts{Status: check.Sent, Generation: 1, Attempts: 1, Code: "CONSUMER_AMBIGUOUS"}, 1},
		{"ignores its context", true, consumerbed.Facts{Status: check.Consuming, Generation: 1}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b, events, held, first := heldInTwoPartitions(t, consumerproc.Config{
				Drain: 3 * time.Second, RevokeGrace: time.Second, RetryBase: 100 * time.Millisecond, Deaf: tc.deaf})
			first.SendTerm()
			held[0].Release(consumerproc.GoOn)
			first.WaitEnd()
			b.WaitMembers(0)
			b.Want("within the drain", events[0], once)
			b.Want("beyond it", events[1], tc.left)
			if at := b.Committed(b.Partition(0)); at != 1 {
				t.Errorf("offset %d is committed for what was drained, want 1", at)
			}
			b.WantStays("beyond the drain", events[1])
			b.Start()
			b.Finish(consumerbed.Arranged{})
			b.Want("beyond it, later", events[1], consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: tc.attempts, Accepted: 1, Received: 1})
		})
	}
}
