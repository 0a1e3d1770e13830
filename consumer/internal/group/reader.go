package group

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

const (
	// metadataTTL is how old the knowledge of leaders gets at most.
	metadataTTL = time.Second
	// readBytes is how much one read asks for; a larger batch comes alone.
	readBytes = 1 << 20
	// undecodableAfter is how often a batch is tried before a person is called:
	// it may have been damaged on its way.
	undecodableAfter = 3
)

// Reader reads partitions. It may be used concurrently, for one partition by one
// goroutine at a time.
type Reader struct {
	cfg  Config
	link *link

	mu sync.Mutex
	// damaged counts failures to decode the batch at an offset.
	damaged map[Partition]damage
}

type damage struct {
	offset int64
	times  int
}

// NewReader checks cfg. It opens no connection.
func NewReader(cfg Config) (*Reader, error) {
	if err := cfg.validateBrokers(); err != nil {
		return nil, fmt.Errorf("configuring the reader: %w", err)
	}
	cfg.setDefaults()
	return &Reader{cfg: cfg, link: newLink(cfg, cfg.Topics, metadataTTL), damaged: map[Partition]damage{}}, nil
}

// Close ends all connections; reads under way fail.
func (r *Reader) Close() { r.link.Close() }

// Read returns what a partition holds from an offset on, negative for the start
// of the log. It waits up to 2 s for the first record, then returns an empty
// batch. It may return no record and yet a higher Next.
//
// An [*OffsetError] says that the log does not have that offset, an
// [*UndecodableError] that the batch there cannot be read, three times in a row.
// Both stay until a person acts. After any other error the caller tries again in
// a while.
func (r *Reader) Read(ctx context.Context, p Partition, from int64) (Batch, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.timing.read)
	defer cancel()
	b, err := r.read(ctx, p, from)
	r.link.heal(err)
	if err != nil {
		return Batch{}, fmt.Errorf("reading partition %s: %w", p, err)
	}
	return b, nil
}

func (r *Reader) read(ctx context.Context, p Partition, from int64) (Batch, error) {
	if from < 0 {
		start, err := r.offset(ctx, p, kafka.FirstOffset)
		if err != nil {
			return Batch{}, err
		}
		from = start
	}
	ans, err := r.fetch(ctx, p, from)
	if errors.Is(err, kafka.OffsetOutOfRange) {
		return Batch{}, r.outOfRange(ctx, p, from, err)
	}
	if err != nil {
		return Batch{}, err
	}
	b, err := decode(p, from, ans.highWatermark, ans.records)
	return b, r.judge(p, from, err)
}

// judge makes an error final when it has come often enough.
func (r *Reader) judge(p Partition, from int64, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var bad *UndecodableError
	if !errors.As(err, &bad) {
		delete(r.damaged, p)
		return err
	}
	d := r.damaged[p]
	if d.offset != from {
		d = damage{offset: from}
	}
	d.times = min(d.times+1, undecodableAfter)
	r.damaged[p] = d
	if d.times < undecodableAfter {
		return fmt.Errorf("decoding the batch at offset %d: %w", from, bad.Err)
	}
	return bad
}

// outOfRange tells which offsets there are. If it is among them by now, the
// answer was that of a broker that lagged behind, and is returned as it is.
func (r *Reader) outOfRange(ctx context.Context, p Partition, from int64, answer error) error {
	start, err := r.offset(ctx, p, kafka.FirstOffset)
	if err != nil {
		return err
	}
	end, err := r.offset(ctx, p, kafka.LastOffset)
	if err != nil {
		return err
	}
	if from >= start && from <= end {
		return answer
	}
	return &OffsetError{Partition: p, Offset: from, Start: start, End: end}
}

// offset asks for the start or the end of the log.
func (r *Reader) offset(ctx context.Context, p Partition, which int64) (int64, error) {
	res, err := r.link.ListOffsets(ctx, &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{p.Topic: {{Partition: p.Number, Timestamp: which}}},
	})
	if err != nil {
		return 0, fmt.Errorf("asking for the log's bounds: %w", err)
	}
	for _, o := range res.Topics[p.Topic] {
		switch {
		case o.Partition != p.Number:
		case o.Error != nil:
			return 0, fmt.Errorf("asking for the log's bounds: %w", o.Error)
		case which == kafka.FirstOffset:
			return o.FirstOffset, nil
		default:
			return o.LastOffset, nil
		}
	}
	return 0, errors.New("asking for the log's bounds: the answer has none")
}

func (r *Reader) fetch(ctx context.Context, p Partition, from int64) (*answer, error) {
	req := &exchange{clientID: r.cfg.ClientID, Request: fetch.Request{
		ReplicaID:    -1,
		MaxWaitTime:  int32(r.cfg.timing.wait.Milliseconds()),
		MinBytes:     1, // 0 would be answered at once
		MaxBytes:     readBytes,
		SessionEpoch: -1, // no session
		Topics: []fetch.RequestTopic{{
			Topic: p.Topic,
			Partitions: []fetch.RequestPartition{{
				Partition:          int32(p.Number),
				CurrentLeaderEpoch: -1,
				FetchOffset:        from,
				LogStartOffset:     -1,
				PartitionMaxBytes:  readBytes,
			}},
		}},
	}}
	res, err := r.link.Transport.RoundTrip(ctx, r.link.Addr, req)
	if err != nil {
		return nil, err
	}
	ans := res.(*answer)
	if ans.code != 0 {
		return nil, kafka.Error(ans.code)
	}
	return ans, nil
}
