package group

import (
	"context"
	"encoding/binary"
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
	// Code is the reason and Message a sentence about it, as in the quarantine
	// row.
	Code, Message string
	// At is when it was quarantined.
	At time.Time
	// Also are the names under which others look for the same.
	Also Names
}

// Names are those of the headers that tell where a copy came from and why.
type Names uint8

// Ours are always there.
const (
	Ours    Names = iota
	Spring        // kafka_dlt-*, as Spring for Apache Kafka writes them: numbers are big-endian
	Connect       // __connect.errors.*, as the dead letter queue of Kafka Connect has them: numbers are text
)

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
// the headers that tell where it came from and why. There is no exception: its
// class is the code.
func (cp Copy) record() kafka.Record {
	r := kafka.Record{Time: cp.At, Key: kafka.NewBytes(cp.Key), Value: kafka.NewBytes(cp.Value)}
	for _, h := range cp.Headers {
		r.Headers = append(r.Headers, kafka.Header{Key: h.Name, Value: h.Value})
	}
	add := func(name string, value []byte) { r.Headers = append(r.Headers, kafka.Header{Key: name, Value: value}) }
	text := func(name, value string) { add(name, []byte(value)) }
	number, offset, at := strconv.Itoa(cp.Number), strconv.FormatInt(cp.Offset, 10), cp.Time.UnixMilli()
	text("cdcr-orig-topic", cp.Topic)
	text("cdcr-orig-partition", number)
	text("cdcr-orig-offset", offset)
	text("cdcr-orig-timestamp", strconv.FormatInt(at, 10))
	text("cdcr-group", cp.Group)
	text("cdcr-error-code", cp.Code)
	text("cdcr-quarantined-at", cp.At.UTC().Format(copyTime))
	switch cp.Also {
	case Spring:
		text("kafka_dlt-original-topic", cp.Topic)
		add("kafka_dlt-original-partition", binary.BigEndian.AppendUint32(nil, uint32(cp.Number)))
		add("kafka_dlt-original-offset", binary.BigEndian.AppendUint64(nil, uint64(cp.Offset)))
		add("kafka_dlt-original-timestamp", binary.BigEndian.AppendUint64(nil, uint64(at)))
		text("kafka_dlt-original-consumer-group", cp.Group)
		text("kafka_dlt-exception-fqcn", cp.Code)
		text("kafka_dlt-exception-message", cp.Message)
	case Connect:
		text("__connect.errors.topic", cp.Topic)
		text("__connect.errors.partition", number)
		text("__connect.errors.offset", offset)
		text("__connect.errors.connector.name", cp.Group)
		text("__connect.errors.exception.class.name", cp.Code)
		text("__connect.errors.exception.message", cp.Message)
	}
	return r
}
