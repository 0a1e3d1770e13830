package group

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go"
)

// Copy is a quarantined record and why it is one.
type Copy struct {
	Record
	// Group could not process it.
	Group string
	// Code is the reason, as in the quarantine row.
	Code string
	// At is when it was quarantined.
	At time.Time
}

// Copier sends copies of quarantined records to a topic. Safe for concurrent
// use.
type Copier struct {
	topic string
	link  *link
}

// NewCopier checks cfg. It opens no connection.
func NewCopier(cfg Config, topic string) (*Copier, error) {
	err := cfg.validateBrokers()
	if err == nil && topic == "" {
		err = errors.New("no topic")
	}
	if err != nil {
		return nil, fmt.Errorf("configuring the copies of quarantined records: %w", err)
	}
	cfg.setDefaults()
	return &Copier{topic: topic, link: newLink(cfg, []string{topic}, metadataTTL)}, nil
}

// Close ends all connections; what is on its way may or may not arrive.
func (c *Copier) Close() { c.link.Close() }

// Send sends a copy and waits until all replicas have it, 10 s at most. Copies
// of one partition go to one partition. After an error the copy may be there
// nevertheless, and will be there twice if it is sent again.
func (c *Copier) Send(ctx context.Context, cp Copy) error {
	err := c.send(ctx, cp)
	c.link.heal(err)
	if err != nil {
		return fmt.Errorf("copying a quarantined record to topic %s: %w", c.topic, err)
	}
	return nil
}

func (c *Copier) send(ctx context.Context, cp Copy) error {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	res, err := c.link.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{c.topic}})
	if err != nil {
		return err
	}
	if len(res.Topics) != 1 || len(res.Topics[0].Partitions) == 0 {
		return errors.New("the topic does not exist or may not be seen: create it, or grant Describe and Write")
	}
	answer, err := c.link.Produce(ctx, &kafka.ProduceRequest{
		Topic:        c.topic,
		Partition:    cp.Number % len(res.Topics[0].Partitions),
		RequiredAcks: kafka.RequireAll,
		Records:      kafka.NewRecordReader(cp.record()),
	})
	if err != nil {
		return err
	}
	return answer.Error
}

// copyTime is how times are written in headers: UTC, six decimals.
const copyTime = "2006-01-02T15:04:05.000000Z"

// record is the copy as it is sent: key, value and headers byte for byte, then
// the headers that tell where it came from and why.
func (cp Copy) record() kafka.Record {
	r := kafka.Record{Time: cp.At, Key: kafka.NewBytes(cp.Key), Value: kafka.NewBytes(cp.Value)}
	for _, h := range cp.Headers {
		r.Headers = append(r.Headers, kafka.Header{Key: h.Name, Value: h.Value})
	}
	for _, h := range [][2]string{
		{"cdcr-orig-topic", cp.Topic},
		{"cdcr-orig-partition", strconv.Itoa(cp.Number)},
		{"cdcr-orig-offset", strconv.FormatInt(cp.Offset, 10)},
		{"cdcr-orig-timestamp", strconv.FormatInt(cp.Time.UnixMilli(), 10)},
		{"cdcr-group", cp.Group},
		{"cdcr-error-code", cp.Code},
		{"cdcr-quarantined-at", cp.At.UTC().Format(copyTime)},
	} {
		r.Headers = append(r.Headers, kafka.Header{Key: h[0], Value: []byte(h[1])})
	}
	return r
}
