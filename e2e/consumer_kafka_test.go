package e2e

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerbed"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
)

// TestBrokerAwayWhileHandlersRun: outcomes are recorded without Kafka. The
// offsets are not, so the records come again and are recognised.
func TestBrokerAwayWhileHandlersRun(t *testing.T) {
	t.Parallel()
	broker := harness.StartBroker(t)
	b := consumerbed.New(t, consumerbed.Options{Kafka: &broker.Kafka, Partitions: 2})
	events := b.Insert(inPartitions(2)...)
	var held []*consumerbed.Hold
	for _, ev := range events {
		held = append(held, b.Hold(consumerproc.Received, ev))
	}
	b.Publish(events)
	p := b.Start()
	for _, h := range held {
		h.Wait()
	}
	broker.Stop()
	for _, h := range held {
		h.Release(consumerproc.GoOn)
	}
	b.WaitStatus(check.Consumed, events...)
	broker.Start()
	p.WantRecords(consumerbed.Counts{consumer.Consumed: 2, consumer.Duplicate: 2})
	later := b.Put(inPartitions(2)...)
	b.Finish(consumerbed.Arranged{})
	for _, ev := range append(events, later...) {
		b.Want("event", ev, once)
	}
}

// TestTopicMissing: a consumer waits for its topic and says so, and finds
// partitions that are added.
func TestTopicMissing(t *testing.T) {
	t.Parallel()
	b := consumerbed.New(t, consumerbed.Options{Partitions: -1})
	p := b.Start()
	p.WaitStatus("the missing topic to be named", func(s *consumerproc.Status) bool {
		return len(s.Health.TopicsMissing) == 1 && s.Health.TopicsMissing[0] == b.Topics[0]
	})
	b.CreateTopic(1)
	events := b.Put(consumerbed.Spec{})
	b.WaitCommitted(events[0])
	p.WaitStatus("no topic to be missing", func(s *consumerproc.Status) bool { return len(s.Health.TopicsMissing) == 0 })
	if err := b.Admin.Grow(t.Context(), b.Topics[0], 3); err != nil {
		t.Fatal(err)
	}
	b.WaitPartitions(3)
	events = append(events, b.Put(inPartitions(3)...)...)
	b.Finish(consumerbed.Arranged{})
	for _, ev := range events {
		b.Want("event", ev, once)
	}
}

// TestTwoPurposes: each purpose of an event has an end of its own.
func TestTwoPurposes(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		mail := consumerbed.New(t, consumerbed.Options{Partitions: 2, Consumer: consumerproc.Config{Mode: mode}})
		audit := mail.Sibling(func(c *consumerproc.Config) { c.Mode, c.Purpose, c.Raw = consumerproc.Receipts, "audit", true })
		events := mail.Insert(inPartitions(2)...)
		failing := audit.Order(consumerproc.Started, events[0], -1, consumerproc.FailLater)
		audit.Order(consumerproc.Started, events[1], -1, consumerproc.FailData)
		mail.Publish(events)
		mail.Start()
		audit.Start()
		mail.Finish(consumerbed.Arranged{})
		for _, ev := range events {
			mail.Want("mail", ev, once)
		}
		audit.WaitCommitted(events[1])
		audit.Wait("several attempts of the other purpose", func() bool { return audit.Facts(events[0]).Attempts > 1 })
		audit.WantStays("the other purpose", events[0])
		failing.Lift()
		audit.Finish(consumerbed.Arranged{Failed: consumerbed.Codes{events[1].ID: "APP_TEST"}})
		n := audit.Facts(events[0]).Attempts
		audit.Want("audit", events[0], consumerbed.Facts{Status: check.Consumed, Generation: n + 1, Attempts: n, Accepted: 1, Received: 1})
		audit.Want("audit", events[1], consumerbed.Facts{Status: check.Failed, Generation: 1, Attempts: 1, Code: "APP_TEST"})
	})
}
