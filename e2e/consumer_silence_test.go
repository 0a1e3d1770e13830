package e2e

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerbed"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
)

// TestConnectionsToTheBrokerDie without a word, while a handler runs: those that
// records come over, that of the group, or all. The consumer makes new ones by
// itself, and no event is handled twice.
func TestConnectionsToTheBrokerDie(t *testing.T) {
	t.Parallel()
	kafka, network := harness.StartDistantBroker(t)
	for _, tc := range []struct {
		name string
		keys []int16 // of the requests that they carry
	}{
		{"records", []int16{int16(kmsg.Fetch)}},
		{"group", []int16{int16(kmsg.Heartbeat)}},
		{"all", nil},
	} {
		t.Run(tc.name, func(t *testing.T) { // one after the other, as all connections are in one network
			b := consumerbed.New(t, consumerbed.Options{Kafka: &kafka, Partitions: 2})
			events := b.Insert(inPartitions(2)...)
			held := b.Hold(consumerproc.Received, events[0])
			b.Publish(events)
			b.Start()
			held.Wait()
			b.WaitCommitted(events[1])
			if network.Silence(tc.keys...) == 0 {
				t.Fatal("there are no such connections")
			}
			later := b.Put(inPartitions(2)...)
			b.WaitCommitted(later[1])
			b.Want("held", events[0], consumerbed.Facts{Status: check.Consuming, Generation: 1, Accepted: 1, Received: 1})
			held.Release(consumerproc.GoOn)
			b.Finish(consumerbed.Arranged{})
			for _, ev := range events {
				b.Want("event", ev, once)
			}
			for _, ev := range later {
				want := once
				want.Generation = b.Facts(ev).Generation // claims of those that had not started are handed back
				b.Want("later event", ev, want)
			}
		})
	}
	t.Run("cluster's layout", func(t *testing.T) {
		b := consumerbed.New(t, consumerbed.Options{Kafka: &kafka, Partitions: 1})
		b.Start()
		b.WaitPartitions(1)
		if network.Silence(int16(kmsg.Metadata)) == 0 {
			t.Fatal("there are no such connections")
		}
		if err := b.Admin.Grow(t.Context(), b.Topics[0], 2); err != nil {
			t.Fatal(err)
		}
		b.WaitPartitions(2)
		events := b.Put(inPartitions(2)...)
		b.Finish(consumerbed.Arranged{})
		for _, ev := range events {
			b.Want("event", ev, once)
		}
	})
}
