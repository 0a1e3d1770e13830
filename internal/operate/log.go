package operate

import (
	"context"
	"errors"
	"io"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
)

// logReader reads partitions of topics, outside any consumer group.
type logReader struct{ client *kafka.Client }

// Offsets are from the first to before the second.
type Offsets struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// endOfLog stands for an end that is not known: what is written meanwhile is not
// waited for.
const endOfLog = 1<<63 - 1

// offsetAt is the first offset whose record is of that time or later. Not found:
// there is none.
func (l logReader) offsetAt(ctx context.Context, topic string, partition int32, at time.Time) (offset int64, found bool, err error) {
	p, err := l.offsets(ctx, topic, kafka.TimeOffsetOf(int(partition), at))
	if err != nil {
		return 0, false, err
	}
	for offset := range p.Offsets {
		if offset >= 0 {
			return offset, true, nil
		}
	}
	return 0, false, nil
}

// bounds are the offsets that a partition holds.
func (l logReader) bounds(ctx context.Context, topic string, partition int32) (Offsets, error) {
	p, err := l.offsets(ctx, topic, kafka.FirstOffsetOf(int(partition)), kafka.LastOffsetOf(int(partition)))
	return Offsets{p.FirstOffset, p.LastOffset}, err
}

// offsets asks about one partition.
func (l logReader) offsets(ctx context.Context, topic string, questions ...kafka.OffsetRequest) (kafka.PartitionOffsets, error) {
	answer, err := l.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: questions}})
	if err != nil {
		return kafka.PartitionOffsets{}, err
	}
	for _, p := range answer.Topics[topic] {
		return p, p.Error
	}
	return kafka.PartitionOffsets{}, errors.New("the broker has not answered what it was asked")
}

// How much one request fetches, and how long the broker may wait with its
// answer when there is nothing.
const (
	fetchBytes = 4 << 20
	fetchWait  = time.Second
)

// read calls each with the records of a run, until it has read most of them, by
// whole answers of the broker. The record's headers are of the call only. It
// returns the offset that it came to and how many records it has read.
func (l logReader) read(ctx context.Context, topic string, partition int32, run Offsets, most int64, each func(*kafka.Record)) (at, read int64, err error) {
	at = run.From
	for at < run.To && read < most {
		answer, err := l.client.Fetch(ctx, &kafka.FetchRequest{
			Topic: topic, Partition: int(partition), Offset: at,
			MinBytes: 1, MaxBytes: fetchBytes, MaxWait: fetchWait,
		})
		if err == nil {
			err = answer.Error
		}
		if err != nil {
			return at, read, err
		}
		if run.To = min(run.To, answer.HighWatermark); at >= run.To {
			return at, read, nil
		}
		next, n, err := readAnswer(answer.Records, Offsets{at, run.To}, each)
		read += n
		if err != nil {
			return at, read, err
		}
		at = max(next, at+1) // also over a batch without a record
	}
	return min(at, run.To), read, nil
}

// readAnswer reads one answer, and returns the offset after its last record and
// how many records of the run it had.
func readAnswer(records kafka.RecordReader, run Offsets, each func(*kafka.Record)) (next, read int64, err error) {
	next = run.From
	for {
		r, err := records.ReadRecord()
		if errors.Is(err, io.EOF) {
			return next, read, nil
		}
		if err != nil {
			return next, read, err
		}
		next = r.Offset + 1
		if r.Offset >= run.From && r.Offset < run.To { // batches come whole
			read++
			each(r)
		}
		for _, b := range []kafka.Bytes{r.Key, r.Value} {
			if b != nil {
				b.Close()
			}
		}
	}
}

// compacted reports whether a topic keeps the last record of each key only. A
// login that may not read that is told no.
func (l logReader) compacted(ctx context.Context, topic string) (bool, error) {
	answer, err := l.client.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{Resources: []kafka.DescribeConfigRequestResource{
		{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ConfigNames: []string{"cleanup.policy"}}}})
	if err != nil {
		return false, err
	}
	for _, r := range answer.Resources {
		for _, entry := range r.ConfigEntries {
			if r.Error == nil && strings.Contains(entry.ConfigValue, "compact") {
				return true, nil
			}
		}
	}
	return false, nil
}
