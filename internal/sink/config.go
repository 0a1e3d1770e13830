package sink

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// Config says how to publish. All fields are required unless said otherwise.
type Config struct {
	Brokers  []string // host:port
	ClientID string
	TLS      *tls.Config    // nil: plain text
	SASL     sasl.Mechanism // nil: no login

	Compression  record.Compression
	Linger       time.Duration // wait for more after something is due; 0: none
	BatchBytes   int           // a batch is closed before it grows beyond, uncompressed
	BatchRecords int
	MaxRequests  int // produce requests at a time

	RequestTimeout time.Duration
	DialTimeout    time.Duration // of the TCP connection; half as much again for TLS and login
	IdleTimeout    time.Duration
	MetadataTTL    time.Duration
	BackoffMin     time.Duration
	BackoffMax     time.Duration

	// UnknownTopicGrace is how long events wait for a topic that the cluster
	// does not have, from the first time it said so.
	UnknownTopicGrace time.Duration
	// PartitionGrace is how long a partition may be without an answer while
	// others get theirs, before its events are held on their rows. 0: for ever.
	PartitionGrace time.Duration
	// WaitingEvents and WaitingBytes end the wait for unknown topics early,
	// once that much waits for all of them together. 0: no limit.
	// They put off a repin that lets as much wait.
	WaitingEvents int
	WaitingBytes  int

	Identity Identity
	// TransactionalID is required by Fenced and not used otherwise: the same
	// for all instances that relay the slot, and for nobody else in the cluster.
	TransactionalID string

	Record record.Config
}

func (c *Config) validate() error {
	positive := []struct {
		name  string
		value int64
	}{
		{"BatchBytes", int64(c.BatchBytes)}, {"BatchRecords", int64(c.BatchRecords)}, {"MaxRequests", int64(c.MaxRequests)},
		{"RequestTimeout", int64(c.RequestTimeout)}, {"DialTimeout", int64(c.DialTimeout)},
		{"IdleTimeout", int64(c.IdleTimeout)}, {"MetadataTTL", int64(c.MetadataTTL)},
		{"BackoffMin", int64(c.BackoffMin)}, {"BackoffMax", int64(c.BackoffMax)},
		{"UnknownTopicGrace", int64(c.UnknownTopicGrace)},
	}
	for _, p := range positive {
		if p.value <= 0 {
			return fmt.Errorf("%s must be positive", p.name)
		}
	}
	switch {
	case len(c.Brokers) == 0:
		return errors.New("at least one broker is required")
	case c.Linger < 0 || c.PartitionGrace < 0 || c.WaitingEvents < 0 || c.WaitingBytes < 0:
		return errors.New("a negative Linger, PartitionGrace, WaitingEvents or WaitingBytes")
	case c.BackoffMin > c.BackoffMax:
		return errors.New("a BackoffMin above BackoffMax")
	case c.Compression < record.None || c.Compression > record.Zstd:
		return fmt.Errorf("unknown compression %v", c.Compression)
	case c.Identity < Fenced || c.Identity > None:
		return errors.New("a producer identity is required")
	case c.Identity == Fenced && c.TransactionalID == "":
		return errors.New("a fenced producer identity without a TransactionalID")
	}
	return nil
}
