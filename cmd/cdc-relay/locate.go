package main

import (
	"context"
	"fmt"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// locate looks for an event's record in Kafka.
func locate(ctx context.Context, c *config.Config, d *operate.Detail) (*operate.Location, error) {
	locator, end, err := newLocator(c)
	if err != nil {
		return nil, err
	}
	defer end()
	where, err := locator.Locate(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("locating event %d: %w; check kafka.brokers, kafka.tls and kafka.sasl, and whether the brokers run", d.ID, err)
	}
	return where, nil
}

// newLocator returns what reads Kafka, and a function that ends its connections.
func newLocator(c *config.Config) (locator *operate.Locator, end func(), err error) {
	records, err := recordConfig(c)
	if err != nil {
		return nil, nil, err
	}
	format, err := record.NewFormat(records)
	if err != nil {
		return nil, nil, err
	}
	client, end, err := kafkaClient(c)
	if err != nil {
		return nil, nil, err
	}
	return operate.NewLocator(client, format), end, nil
}
