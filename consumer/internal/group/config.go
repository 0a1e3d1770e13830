package group

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/segmentio/kafka-go/sasl"
)

// Config is what all parts of this package need of a cluster, and a [Member] of
// its group.
type Config struct {
	// Brokers are host:port of some of the cluster's brokers.
	Brokers []string
	// Group is the consumer group.
	Group string
	// Topics are what all members of the group read.
	Topics []string
	// TLS and SASL are used for all connections; nil is without.
	TLS  *tls.Config
	SASL sasl.Mechanism
	// ClientID names this program to the brokers, cdc-consumer by default.
	ClientID string
	// Logger gets a line for each change of state; required by [NewMember].
	Logger *slog.Logger
	// TopicsMissing is told which topics do not exist, and with an empty list
	// that all are there again. It is called on changes only, from one goroutine
	// at a time, and must not block. May be nil.
	TopicsMissing func(names []string)

	// timing has defaults; tests set it.
	timing timing
}

// timing are the settings in time. Zero stands for the default.
type timing struct {
	heartbeat time.Duration // between heartbeats
	session   time.Duration // without a heartbeat until the broker evicts a member
	rebalance time.Duration // that the broker waits for members to join
	backoff   time.Duration // before joining again after an error
	watch     time.Duration // between looks at the topics
	leave     time.Duration // for each of the two stages of leaving
	request   time.Duration // for an answer of the coordinator
	wait      time.Duration // that a broker waits for records
	read      time.Duration // for a fetch, the wait included
}

func (c *Config) setDefaults() {
	c.ClientID = cmp.Or(c.ClientID, "cdc-consumer")
	t := &c.timing
	for field, value := range map[*time.Duration]time.Duration{
		&t.heartbeat: time.Second,
		&t.session:   10 * time.Second,
		&t.rebalance: 30 * time.Second,
		&t.backoff:   time.Second,
		&t.watch:     time.Second,
		&t.leave:     5 * time.Second,
		&t.request:   5 * time.Second,
		&t.wait:      2 * time.Second,
		&t.read:      7 * time.Second,
	} {
		if *field == 0 {
			*field = value
		}
	}
}

// validateBrokers checks what all parts need.
func (c Config) validateBrokers() error {
	if len(c.Brokers) == 0 {
		return errors.New("no brokers: name at least one as host:port")
	}
	for _, b := range c.Brokers {
		if _, _, err := net.SplitHostPort(b); err != nil {
			return fmt.Errorf("broker %q is not host:port", b)
		}
	}
	return nil
}

// validate checks what a member needs.
func (c Config) validate() error {
	if err := c.validateBrokers(); err != nil {
		return err
	}
	switch {
	case c.Group == "":
		return errors.New("no group: name the consumer group")
	case len(c.Topics) == 0:
		return errors.New("no topics: name at least one")
	case c.Logger == nil:
		return errors.New("no logger")
	}
	seen := map[string]bool{}
	for _, topic := range c.Topics {
		if topic == "" || seen[topic] {
			return fmt.Errorf("topic %q is empty or named twice", topic)
		}
		seen[topic] = true
	}
	return nil
}
