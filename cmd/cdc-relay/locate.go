package main

import (
	"context"
	"fmt"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// locate looks for an event's record in Kafka.
func locate(ctx context.Context, c *config.Config, d *operate.Detail) (*operate.Location, error) {
	publishing, err := sinkConfig(c)
	if err != nil {
		return nil, err
	}
	format, err := record.NewFormat(publishing.Record)
	if err != nil {
		return nil, err
	}
	transport := &kafka.Transport{
		DialTimeout: publishing.DialTimeout,
		ClientID:    publishing.ClientID,
		TLS:         publishing.TLS,
		SASL:        publishing.SASL,
	}
	defer transport.CloseIdleConnections()
	where, err := operate.NewLocator(&kafka.Client{Addr: kafka.TCP(publishing.Brokers...), Transport: transport}, format).Locate(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("locating event %d: %w; check kafka.brokers, kafka.tls and kafka.sasl, and whether the brokers run", d.ID, err)
	}
	return where, nil
}
