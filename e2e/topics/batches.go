package topics

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/e2e/check"
)

// Batches returns the record batches that the topics hold when it is called,
// those of a partition in the order of the log.
func (a *Admin) Batches(ctx context.Context, names ...string) ([]check.Batch, error) {
	from, to, _, err := a.bounds(ctx, names)
	if err != nil {
		return nil, err
	}
	details, err := a.adm.ListTopics(ctx, names...)
	if err == nil {
		err = details.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("asking for the partitions of topics %v: %w", names, err)
	}
	var all []check.Batch
	for topic, partitions := range from {
		for partition, start := range partitions {
			l := reading{admin: a, topic: topic, id: details[topic].ID, partition: partition,
				leader: details[topic].Partitions[partition].Leader}
			batches, err := l.read(ctx, start.EpochOffset().Offset, to[topic][partition])
			if err != nil {
				return nil, fmt.Errorf("reading the batches of %s/%d: %w", topic, partition, err)
			}
			all = append(all, batches...)
		}
	}
	return all, nil
}

// reading is the log of one partition as it is fetched.
type reading struct {
	admin     *Admin
	topic     string
	id        [16]byte
	partition int32
	leader    int32
}

func (l reading) read(ctx context.Context, from, end int64) (batches []check.Batch, err error) {
	for from < end {
		raw, err := l.fetch(ctx, from)
		if err != nil {
			return nil, err
		}
		got, err := l.parse(raw)
		if err != nil || len(got) == 0 {
			return nil, fmt.Errorf("%d whole batches from offset %d on: %w", len(got), from, err)
		}
		batches = append(batches, got...)
		last := got[len(got)-1]
		from = last.Offset + int64(last.Records)
	}
	return batches, nil
}

// fetch asks for the log from an offset on.
func (l reading) fetch(ctx context.Context, from int64) ([]byte, error) {
	const most = 32 << 20 // bytes
	partition := kmsg.NewFetchRequestTopicPartition()
	partition.Partition, partition.FetchOffset, partition.PartitionMaxBytes = l.partition, from, most
	topic := kmsg.NewFetchRequestTopic()
	topic.Topic, topic.TopicID, topic.Partitions = l.topic, l.id, []kmsg.FetchRequestTopicPartition{partition}
	request := kmsg.NewPtrFetchRequest()
	request.MaxBytes, request.Topics = most, []kmsg.FetchRequestTopic{topic}
	answer, err := request.RequestWith(ctx, l.admin.client.Broker(int(l.leader)))
	if err == nil {
		err = kerr.ErrorForCode(answer.ErrorCode)
	}
	if err != nil {
		return nil, err
	}
	if len(answer.Topics) != 1 || len(answer.Topics[0].Partitions) != 1 {
		return nil, fmt.Errorf("the answer has %d topics", len(answer.Topics))
	}
	got := answer.Topics[0].Partitions[0]
	return got.RecordBatches, kerr.ErrorForCode(got.ErrorCode)
}

// parse takes the whole batches from the front of what was fetched; the last
// one may be cut off.
func (l reading) parse(raw []byte) (batches []check.Batch, err error) {
	const head = 12 // bytes before the length starts to count
	for len(raw) > head {
		length := head + int(uint32(raw[8])<<24|uint32(raw[9])<<16|uint32(raw[10])<<8|uint32(raw[11]))
		if length > len(raw) {
			break
		}
		var b kmsg.RecordBatch
		if err := b.ReadFrom(raw[:length]); err != nil {
			return nil, err
		}
		batches = append(batches, check.Batch{
			Topic: l.topic, Partition: l.partition, Offset: b.FirstOffset, Records: int(b.LastOffsetDelta) + 1,
			ProducerID: b.ProducerID, Appended: time.UnixMilli(b.MaxTimestamp),
		})
		raw = raw[length:]
	}
	return batches, nil
}
