package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/sink"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// sinkConfig is how to publish.
func sinkConfig(c *config.Config) (sink.Config, error) {
	format, err := recordConfig(c)
	if err != nil {
		return sink.Config{}, err
	}
	compression, err := record.ParseCompression(c.Kafka.Compression)
	if err != nil {
		return sink.Config{}, err
	}
	identity, err := sink.ParseIdentity(c.Kafka.Identity)
	if err != nil {
		return sink.Config{}, err
	}
	encryption, err := kafkaTLS(c.Kafka.TLS)
	if err != nil {
		return sink.Config{}, err
	}
	return sink.Config{
		Brokers:           c.Kafka.Brokers,
		ClientID:          c.Kafka.ClientID,
		TLS:               encryption,
		SASL:              kafkaLogin(c.Kafka.SASL),
		Compression:       compression,
		Linger:            c.Kafka.Linger,
		BatchBytes:        int(c.Kafka.BatchBytes),
		BatchRecords:      c.Kafka.BatchRecords,
		MaxRequests:       c.Kafka.MaxRequests,
		RequestTimeout:    c.Kafka.RequestTimeout,
		DialTimeout:       c.Kafka.DialTimeout,
		IdleTimeout:       c.Kafka.IdleTimeout,
		MetadataTTL:       c.Kafka.MetadataTTL,
		BackoffMin:        c.Retry.BrokerBackoff.Min,
		BackoffMax:        c.Retry.BrokerBackoff.Max,
		UnknownTopicGrace: c.Kafka.UnknownTopicGrace,
		PartitionGrace:    c.Kafka.PartitionGrace,
		// A missing topic must not fill the line for the others.
		WaitingEvents: c.Limits.InflightEvents / 4,
		WaitingBytes:  int(c.Limits.InflightBytes) / 4,
		Identity:      identity,
		Record:        format,
	}, nil
}

// kafkaClient returns a client for what a command asks Kafka, and a function that
// ends its connections. It does not connect.
func kafkaClient(c *config.Config) (client *kafka.Client, end func(), err error) {
	if len(c.Kafka.Brokers) == 0 {
		return nil, nil, errors.New("kafka.brokers is not configured")
	}
	encryption, err := kafkaTLS(c.Kafka.TLS)
	if err != nil {
		return nil, nil, err
	}
	transport := &kafka.Transport{
		DialTimeout: c.Kafka.DialTimeout, MetadataTTL: c.Kafka.MetadataTTL, ClientID: c.Kafka.ClientID,
		TLS: encryption, SASL: kafkaLogin(c.Kafka.SASL),
	}
	return &kafka.Client{Addr: kafka.TCP(c.Kafka.Brokers...), Transport: transport}, transport.CloseIdleConnections, nil
}

func recordConfig(c *config.Config) (record.Config, error) {
	preset, err := record.ParsePreset(c.Record.Headers)
	if err != nil {
		return record.Config{}, err
	}
	partitioner, err := record.ParsePartitioner(c.Record.Partitioner)
	if err != nil {
		return record.Config{}, err
	}
	return record.Config{
		TopicTemplate:   c.Record.Topic,
		Schema:          c.Outbox.Table.Schema,
		TopicAllow:      c.Record.TopicAllow,
		KeyJSON:         c.Record.KeyEncoding == "json_string",
		Partitioner:     partitioner,
		Headers:         preset,
		Source:          c.Record.Source,
		EventTypeHeader: c.Record.EventTypeHeader,
		TraceExtension:  c.Record.TraceExtension,
		EventTime:       c.Record.Timestamp == "event",
		Tombstones:      c.Outbox.Tombstones,
	}, nil
}

func kafkaTLS(c config.TLS) (*tls.Config, error) {
	if !c.Enabled {
		return nil, nil
	}
	conf := &tls.Config{ServerName: c.ServerName, InsecureSkipVerify: c.InsecureSkipVerify}
	if c.CAFile != "" {
		pem, err := os.ReadFile(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading kafka.tls.ca_file: %w", err)
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("kafka.tls.ca_file holds no certificate in PEM form")
		}
	}
	if c.CertFile != "" {
		// Read anew for each handshake, so that a rotated one needs no restart.
		load := func() (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("reading kafka.tls.cert_file and key_file: %w", err)
			}
			return &pair, nil
		}
		if _, err := load(); err != nil {
			return nil, err
		}
		conf.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	}
	return conf, nil
}

// kafkaLogin is nil without a login.
func kafkaLogin(c config.SASL) sasl.Mechanism {
	if c.Mechanism == "none" {
		return nil
	}
	return login{c}
}

// login reads the password anew for each connection.
type login struct{ c config.SASL }

func (l login) Name() string {
	return map[string]string{
		"plain":         plain.Mechanism{}.Name(),
		"scram-sha-256": scram.SHA256.Name(),
		"scram-sha-512": scram.SHA512.Name(),
	}[l.c.Mechanism]
}

func (l login) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	password, err := l.c.Password.Read()
	if err != nil {
		return nil, nil, fmt.Errorf("reading kafka.sasl.password: %w", err)
	}
	mechanism, err := l.mechanism(password)
	if err != nil {
		// The library's own text holds the password.
		return nil, nil, errors.New("preparing the Kafka login: SCRAM does not allow a character of kafka.sasl.username or kafka.sasl.password")
	}
	return mechanism.Start(ctx)
}

func (l login) mechanism(password string) (sasl.Mechanism, error) {
	switch l.c.Mechanism {
	case "scram-sha-256":
		return scram.Mechanism(scram.SHA256, l.c.Username, password)
	case "scram-sha-512":
		return scram.Mechanism(scram.SHA512, l.c.Username, password)
	default:
		return plain.Mechanism{Username: l.c.Username, Password: password}, nil
	}
}
