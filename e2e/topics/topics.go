// Package topics creates, changes and reads the Kafka topics of a run, with
// another client than the relay's.
package topics

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e/check"
)

// Admin talks to one broker. It is safe for concurrent use.
type Admin struct {
	brokers []string
	client  *kgo.Client
	adm     *kadm.Client
}

// NewAdmin makes a client; it connects when it is used. Close it.
func NewAdmin(brokers ...string) (*Admin, error) {
	// Without the age it looks for a new topic once, and then not for 5 s.
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("making a Kafka client: %w", err)
	}
	return &Admin{brokers: brokers, client: client, adm: kadm.NewClient(client)}, nil
}

// Close ends the client's connections.
func (a *Admin) Close() { a.client.Close() }

// Create makes topics with that many partitions and one replica. settings are
// topic configurations, such as max.message.bytes.
func (a *Admin) Create(ctx context.Context, partitions int32, settings map[string]string, names ...string) error {
	configs := map[string]*string{}
	for k, v := range settings {
		configs[k] = &v
	}
	answers, err := a.adm.CreateTopics(ctx, partitions, 1, configs, names...)
	if err == nil {
		err = answers.Error()
	}
	if err != nil {
		return fmt.Errorf("creating topics %v: %w", names, err)
	}
	return nil
}

// Delete removes topics and returns when the broker knows them no more: until
// then it takes records for them, and acknowledges what is about to be gone.
// One that is not there is no error.
func (a *Admin) Delete(ctx context.Context, names ...string) error {
	answers, err := a.adm.DeleteTopics(ctx, names...)
	for _, answer := range answers {
		if err == nil && !errors.Is(answer.Err, kerr.UnknownTopicOrPartition) {
			err = answer.Err
		}
	}
	if err != nil {
		return fmt.Errorf("deleting topics %v: %w", names, err)
	}
	return poll(ctx, func() (bool, error) {
		known, err := a.adm.ListTopics(ctx, names...)
		if err != nil {
			return false, fmt.Errorf("looking whether topics %v are gone: %w", names, err)
		}
		for _, topic := range known {
			if !errors.Is(topic.Err, kerr.UnknownTopicOrPartition) {
				return false, nil
			}
		}
		return true, nil
	})
}

// poll calls done until it reports true, or fails.
func poll(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if yes, err := done(); yes || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Set changes one configuration of a topic and returns when the broker acts
// on it. A broker shows a change just before it acts on it, and takes changes
// one after the other: once a second one, made later, is shown, the first one
// has been carried out.
func (a *Admin) Set(ctx context.Context, topic, name, value string) error {
	marker := strconv.FormatInt(time.Now().UnixMilli(), 10)
	for _, change := range [][2]string{{name, value}, {"delete.retention.ms", marker}} {
		if err := a.set(ctx, topic, change[0], change[1]); err != nil {
			return fmt.Errorf("setting %s of topic %s: %w", name, topic, err)
		}
	}
	return nil
}

// set returns when the broker shows the change.
func (a *Admin) set(ctx context.Context, topic, name, value string) error {
	answers, err := a.adm.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}, topic)
	if err == nil && len(answers) > 0 {
		err = answers[0].Err
	}
	if err != nil {
		return err
	}
	return poll(ctx, func() (bool, error) {
		shown, err := a.adm.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return false, err
		}
		for _, c := range shown[0].Configs {
			if c.Key == name && c.MaybeValue() == value {
				return true, nil
			}
		}
		return false, nil
	})
}

// Read returns all records that the topics hold when it is called, those of a
// partition in the order of the log.
func (a *Admin) Read(ctx context.Context, names ...string) ([]check.Record, error) {
	var records []check.Record
	err := a.each(ctx, names, func(r *kgo.Record) error {
		rec, err := Parse(r)
		records = append(records, rec)
		return err
	})
	if err != nil {
		return nil, err
	}
	return records, nil
}

// each calls f for all records that the topics hold when it is called, those of
// a partition in the order of the log, until f fails.
func (a *Admin) each(ctx context.Context, names []string, f func(*kgo.Record) error) error {
	from, to, todo, err := a.bounds(ctx, names)
	if err != nil || todo == 0 {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(a.brokers...), kgo.ConsumePartitions(from), kgo.FetchMaxBytes(64<<20))
	if err != nil {
		return fmt.Errorf("making a Kafka client: %w", err)
	}
	defer client.Close()
	for todo > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("reading topics %v: %w", names, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			end := to[r.Topic][r.Partition]
			if err != nil || r.Offset >= end {
				return
			}
			if r.Offset == end-1 {
				todo--
			}
			err = f(r)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// bounds lists the partitions that hold something: where they begin and end.
func (a *Admin) bounds(ctx context.Context, names []string) (from map[string]map[int32]kgo.Offset, to map[string]map[int32]int64, todo int, err error) {
	starts, err := a.adm.ListStartOffsets(ctx, names...)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return nil, nil, 0, fmt.Errorf("asking where topics %v start: %w", names, err)
	}
	ends, err := a.adm.ListEndOffsets(ctx, names...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, nil, 0, fmt.Errorf("asking where topics %v end: %w", names, err)
	}
	from, to = map[string]map[int32]kgo.Offset{}, map[string]map[int32]int64{}
	ends.Each(func(end kadm.ListedOffset) {
		start, ok := starts.Lookup(end.Topic, end.Partition)
		if !ok || start.Offset >= end.Offset {
			return
		}
		if from[end.Topic] == nil {
			from[end.Topic], to[end.Topic] = map[int32]kgo.Offset{}, map[int32]int64{}
		}
		from[end.Topic][end.Partition] = kgo.NewOffset().At(start.Offset)
		to[end.Topic][end.Partition] = end.Offset
		todo++
	})
	return from, to, todo, nil
}

// Parse takes from a record in the cloudevents form what the checker needs. A
// record without the identity that every one must carry is an error.
func Parse(r *kgo.Record) (check.Record, error) {
	rec := check.Record{
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset,
		Key: string(r.Key), Payload: sha256.Sum256(r.Value),
	}
	where := fmt.Sprintf("record %s/%d@%d", r.Topic, r.Partition, r.Offset)
	var eventID, rowID bool
	for _, h := range r.Headers {
		switch h.Key {
		case "ce_id":
			raw, err := hex.DecodeString(strings.ReplaceAll(string(h.Value), "-", ""))
			if err != nil || len(raw) != len(rec.EventID) {
				return rec, fmt.Errorf("%s: ce_id %q is no UUID", where, h.Value)
			}
			rec.EventID, eventID = [16]byte(raw), true
		case "cdcr-id":
			id, err := strconv.ParseInt(string(h.Value), 10, 64)
			if err != nil {
				return rec, fmt.Errorf("%s: cdcr-id %q is no number", where, h.Value)
			}
			rec.RowID, rowID = id, true
		}
	}
	if !eventID || !rowID {
		return rec, fmt.Errorf("%s has not both headers ce_id and cdcr-id", where)
	}
	return rec, nil
}

// Ends is how many records the topics have ever held, by their end offsets.
func (a *Admin) Ends(ctx context.Context, names ...string) (int64, error) {
	ends, err := a.adm.ListEndOffsets(ctx, names...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("asking where topics %v end: %w", names, err)
	}
	var sum int64
	ends.Each(func(o kadm.ListedOffset) { sum += o.Offset })
	return sum, nil
}
