// Package kafkatest lets tests create topics and read what is in them, with a
// client that is not the relay's own. Real brokers and fake ones serve alike.
package kafkatest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// patience bounds what these helpers wait for a broker.
const patience = 60 * time.Second

// Broker returns host:port of the broker for tests, from CDC_TEST_KAFKA.
// Without it the test is skipped, or fails if CDC_TEST_REQUIRE is 1.
func Broker(t testing.TB) string {
	t.Helper()
	addr := os.Getenv("CDC_TEST_KAFKA")
	if addr == "" {
		const missing = "CDC_TEST_KAFKA is not set: start the servers with make dev-up and eval \"$(make dev-env)\""
		if os.Getenv("CDC_TEST_REQUIRE") == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	return addr
}

// Admin returns an admin client for addr that is closed with the test.
func Admin(t testing.TB, addr string) *kadm.Client {
	t.Helper()
	// Without the age it looks for a new topic once, and then not for 5 s.
	c, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		t.Fatalf("making a Kafka client: %v", err)
	}
	t.Cleanup(c.Close)
	return kadm.NewClient(c)
}

// Name returns a topic name that no other test uses.
func Name(t testing.TB) string {
	t.Helper()
	var id [6]byte
	if _, err := rand.Read(id[:]); err != nil {
		t.Fatal(err)
	}
	return "test-" + hex.EncodeToString(id[:])
}

// Create creates a topic, with configs such as max.message.bytes, and deletes
// it with the test.
func Create(t testing.TB, addr, topic string, partitions int, configs map[string]string) {
	t.Helper()
	adm := Admin(t, addr)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	values := map[string]*string{}
	for k, v := range configs {
		values[k] = &v
	}
	if _, err := adm.CreateTopic(ctx, int32(partitions), 1, values, topic); err != nil {
		t.Fatalf("creating topic %s: %v", topic, err)
	}
	t.Cleanup(func() { Delete(t, addr, topic) })
	awaitTopic(ctx, t, adm, topic, partitions)
}

// awaitTopic waits until the broker tells of a topic that was created: it
// answers before it does.
func awaitTopic(ctx context.Context, t testing.TB, adm *kadm.Client, topic string, partitions int) {
	t.Helper()
	for tick := time.NewTicker(10 * time.Millisecond); ; {
		topics, err := adm.ListTopics(ctx, topic)
		if err != nil {
			t.Fatalf("asking for topic %s: %v", topic, err)
		}
		if d, ok := topics[topic]; ok && d.Err == nil && len(d.Partitions) == partitions {
			tick.Stop()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("topic %s was created, and is not there after %v", topic, patience)
		}
	}
}

// Delete deletes a topic. One that is gone already is no error.
func Delete(t testing.TB, addr, topic string) {
	c, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Errorf("making a Kafka client: %v", err)
		return
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := kadm.NewClient(c).DeleteTopics(ctx, topic); err != nil {
		t.Errorf("deleting topic %s: %v", topic, err)
	}
}

// ReadAll returns all records that are in a topic at the time of the call,
// those of a partition in the order of the log.
func ReadAll(t testing.TB, addr, topic string) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ends := endOffsets(ctx, t, addr, topic)
	starts := map[int32]kgo.Offset{}
	for p, end := range ends {
		if end > 0 {
			starts[p] = kgo.NewOffset().AtStart()
		} else {
			delete(ends, p)
		}
	}
	if len(starts) == 0 {
		return nil
	}
	c, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts}))
	if err != nil {
		t.Fatalf("making a Kafka client: %v", err)
	}
	defer c.Close()
	var records []*kgo.Record
	for len(ends) > 0 {
		fetches := c.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("reading topic %s with %d records read: %v", topic, len(records), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end, open := ends[r.Partition]
			if !open || r.Offset >= end {
				return
			}
			records = append(records, r)
			if r.Offset == end-1 {
				delete(ends, r.Partition)
			}
		})
	}
	return records
}

// endOffsets returns the next offset of each partition.
func endOffsets(ctx context.Context, t testing.TB, addr, topic string) map[int32]int64 {
	t.Helper()
	listed, err := Admin(t, addr).ListEndOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		t.Fatalf("asking for the end of topic %s: %v", topic, err)
	}
	ends := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	return ends
}
