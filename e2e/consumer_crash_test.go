package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerbed"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// eachClaim runs a test in both modes in which events are claimed.
func eachClaim(t *testing.T, test func(t *testing.T, mode consumerproc.Mode)) {
	t.Helper()
	for _, mode := range []consumerproc.Mode{consumerproc.Shared, consumerproc.Receipts} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			test(t, mode)
		})
	}
}

// untouched is what is known of an event that nobody has claimed.
func untouched(mode consumerproc.Mode) consumerbed.Facts {
	if mode == consumerproc.Shared {
		return consumerbed.Facts{Status: check.Sent}
	}
	return consumerbed.Facts{Status: consumerbed.NoReceipt}
}

// inPartitions are n events, each in a partition of its own.
func inPartitions(n int) []consumerbed.Spec {
	specs := make([]consumerbed.Spec, n)
	for i := range specs {
		specs[i].Partition = i
	}
	return specs
}

// TestConsumerKilledAtEachStep kills a consumer that is at five different steps
// with the events of five partitions.
func TestConsumerKilledAtEachStep(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		pgtest.Each(t, func(t *testing.T, db *pgtest.DB) { killedAtEachStep(t, mode, db) })
	})
}

func killedAtEachStep(t *testing.T, mode consumerproc.Mode, db *pgtest.DB) {
	b := consumerbed.New(t, consumerbed.Options{DB: db, Partitions: 5, Consumer: consumerproc.Config{Mode: mode}})
	events := b.Insert(inPartitions(5)...)
	unclaimed, claimed, called, answered, finished := &events[0], &events[1], &events[2], &events[3], &events[4]
	end, lock := b.LockEnd(*finished), b.Lock(*unclaimed)
	atCall, atAnswer, atEnd := b.Hold(consumerproc.Call, *claimed), b.Hold(consumerproc.Received, *answered), b.Hold(consumerproc.Received, *finished)
	b.Faults(provider.Fault{Match: called.ID.String(), Times: 1, Do: provider.AcceptHang})
	b.Publish(events)

	first := b.Start()
	if mode == consumerproc.Shared {
		first.WaitReason(unclaimed.PartitionName, consumer.WaitingClaim) // it does not wait for locks of rows
	} else {
		lock.Wait("claim_generation")
	}
	atCall.Wait()
	atAnswer.Wait()
	b.WaitAccepted(*called, 1)
	atEnd.Wait()
	atEnd.Release(consumerproc.GoOn)
	end.Wait("finished_at")
	first.Freeze()
	end.Release() // so the outcome is recorded, and nobody gets to know
	b.WaitStatus(check.Consumed, *finished)
	lock.Refuse()
	first.Kill()
	lock.Release()

	b.Want("killed before the claim", *unclaimed, untouched(mode))
	b.Want("killed after the claim", *claimed, consumerbed.Facts{Status: check.Consuming, Generation: 1})
	b.Want("killed while the provider has the request", *called, consumerbed.Facts{Status: check.Consuming, Generation: 1, Accepted: 1})
	b.Want("killed after the response", *answered, consumerbed.Facts{Status: check.Consuming, Generation: 1, Accepted: 1, Received: 1})
	b.Want("killed after the outcome", *finished, consumerbed.Facts{Status: check.Consumed, Generation: 1, Accepted: 1, Received: 1})
	for _, ev := range events {
		b.WantStays("after the kill", ev)
	}

	second := b.Start()
	b.Finish(consumerbed.Arranged{})
	again := consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1}
	b.Want("killed before the claim", *unclaimed, consumerbed.Facts{Status: check.Consumed, Generation: 1, Accepted: 1, Received: 1})
	b.Want("killed after the claim", *claimed, again.With(1, 1))
	b.Want("killed while the provider has the request", *called, again.With(2, 1))
	b.Want("killed after the response", *answered, again.With(2, 2))
	b.Want("killed after the outcome", *finished, consumerbed.Facts{Status: check.Consumed, Generation: 1, Accepted: 1, Received: 1})
	second.WantRecords(consumerbed.Counts{"consumed": 4, "duplicate": 1})
}

// TestKilledInDoubt: where keys are not enough, the next attempt asks the
// provider first, or leaves it to a person.
func TestKilledInDoubt(t *testing.T) {
	t.Parallel()
	held := consumerbed.Facts{Status: check.Failed, Generation: 2, Attempts: 2, Code: "CONSUMER_AMBIGUOUS"}
	again := consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1}
	for _, tc := range []struct {
		policy           string
		claimed, called  consumerbed.Facts
		askedForEachOnce bool
	}{
		{"query", again.With(1, 1), again.With(1, 0), true},
		{"hold", held.With(0, 0), held.With(1, 0), false},
	} {
		t.Run(tc.policy, func(t *testing.T) {
			t.Parallel()
			eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
				b := consumerbed.New(t, consumerbed.Options{Partitions: 2, Consumer: consumerproc.Config{
					Mode: mode, Policy: tc.policy, BeginEffect: mode == consumerproc.Receipts}})
				events := b.Insert(inPartitions(2)...)
				claimed, called := &events[0], &events[1]
				atCall := b.Hold(consumerproc.Call, *claimed)
				b.Faults(provider.Fault{Match: called.ID.String(), Times: 1, Do: provider.AcceptHang})
				b.Publish(events)
				first := b.Start()
				atCall.Wait()
				b.WaitAccepted(*called, 1)
				first.Kill()
				b.Start()
				failed := consumerbed.Codes{}
				if tc.policy == "hold" {
					failed = consumerbed.Codes{claimed.ID: held.Code, called.ID: held.Code}
				}
				b.Finish(consumerbed.Arranged{Failed: failed})
				b.Want("killed before the call", *claimed, tc.claimed)
				b.Want("killed while the provider has the request", *called, tc.called)
				for _, ev := range events {
					if n := b.Asked(ev); (n == 1) != tc.askedForEachOnce {
						t.Errorf("the provider was asked %d times for event %s", n, ev.Key)
					}
				}
			})
		})
	}
}

// TestDelayOutlivesItsConsumer: the delay of a failed attempt is on the row, or
// the receipt, and honoured by the next process.
func TestDelayOutlivesItsConsumer(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		b := consumerbed.New(t, consumerbed.Options{Consumer: consumerproc.Config{Mode: mode, RetryBase: 4 * time.Second}})
		events := b.Insert(consumerbed.Spec{})
		ev := &events[0]
		b.Order(consumerproc.Started, *ev, 1, consumerproc.FailLater)
		next := b.Hold(consumerproc.Started, *ev)
		b.Publish(events)
		first := b.Start()
		b.WaitStatus(check.Sent, *ev)
		b.Wait("the failure", func() bool { return b.Facts(*ev).Attempts == 1 })
		first.Kill()
		b.Want("killed while the delay runs", *ev, consumerbed.Facts{Status: check.Sent, Generation: 1, Attempts: 1, Code: "CONSUMER_SYSTEM"})

		b.Start()
		next.Wait()
		if !b.DelayOver(*ev) {
			t.Error("the next attempt began before next_attempt_at")
		}
		b.WantStays("before the next attempt", *ev)
		next.Release(consumerproc.GoOn)
		b.Finish(consumerbed.Arranged{})
		b.Want("after the delay", *ev, consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1, Accepted: 1, Received: 1})
	})
}

// TestEventThatKillsItsConsumer: a handler that panics is tried again; an event
// whose process dies each time is FAILED at the fifth time, or when it is said.
// The panics end before the deaths begin: an event that is being handled in a
// process that dies counts the death too, whichever event has killed it.
func TestEventThatKillsItsConsumer(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		cfg, limit := consumerproc.Config{Mode: mode, RetryBase: 100 * time.Millisecond}, 5
		if mode == consumerproc.Receipts { // each time costs a lease
			cfg.AbandonLimit, limit = 2, 2
		}
		b := consumerbed.New(t, consumerbed.Options{Partitions: 2, Consumer: cfg})
		events := b.Insert(inPartitions(2)...)
		panics, kills := &events[0], &events[1]
		panicking := b.Order(consumerproc.Started, *panics, -1, consumerproc.Panic)
		waits := b.Hold(consumerproc.Started, *kills)
		b.Order(consumerproc.Started, *kills, -1, consumerproc.Die)
		b.Publish(events)

		p := b.Start()
		waits.Wait()
		b.Wait("several panics", func() bool { return b.Facts(*panics).Attempts > 2 })
		if got := b.Facts(*panics).Code; got != "CONSUMER_PANIC" {
			t.Errorf("after panics the code is %q", got)
		}
		b.WantStays("after panics", *panics)
		panicking.Lift()
		b.WaitStatus(check.Consumed, *panics)
		waits.Release(consumerproc.Die)
		for n := 1; n < limit; n++ {
			p.WaitDeath()
			b.WantStays("after a death", *kills)
			p = b.Start()
		}
		p.WaitDeath()
		b.Start()
		b.Finish(consumerbed.Arranged{Failed: consumerbed.Codes{kills.ID: "CONSUMER_ABANDONED"}})
		b.Want("killed each time", *kills, consumerbed.Facts{Status: check.Failed, Generation: limit + 1, Attempts: limit, Code: "CONSUMER_ABANDONED"})
		if n := len(b.Steps(consumerproc.Started, *kills)); n != limit {
			t.Errorf("%d attempts, want %d", n, limit)
		}
	})
}

// TestSlowEventAmongFinishedOnes: an offset stays before the first record
// without an outcome; what was finished beyond it is not done again.
func TestSlowEventAmongFinishedOnes(t *testing.T) {
	t.Parallel()
	const slow, all = 5, 10
	b := consumerbed.New(t, consumerbed.Options{Consumer: consumerproc.Config{Concurrency: 5}})
	events := b.Insert(make([]consumerbed.Spec, all)...)
	held := b.Hold(consumerproc.Call, events[slow])
	b.Publish(events)
	p := b.Start()
	held.Wait()
	for i, ev := range events {
		if i != slow {
			b.WaitStatus(check.Consumed, ev)
		}
	}
	b.Wait("the offset of the slow event", func() bool { return b.Committed(b.Partition(0)) == slow })
	p.Kill()

	p = b.Start()
	b.Finish(consumerbed.Arranged{})
	for i, ev := range events {
		want := consumerbed.Facts{Status: check.Consumed, Generation: 1, Accepted: 1, Received: 1}
		if i == slow {
			want.Generation, want.Attempts = 2, 1
		}
		b.Want("event "+ev.Key, ev, want)
	}
	p.WantRecords(consumerbed.Counts{"consumed": 1, "duplicate": all - slow - 1})
}
