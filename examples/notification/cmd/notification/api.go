package main

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
	"github.com/cdc-relay/cdc-relay/examples/notification/telemetry"
	"github.com/cdc-relay/cdc-relay/examples/notification/users"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// api serves the API.
func api(ctx context.Context, e *env, logger *slog.Logger) error {
	address, ring, addr := e.required(dsn), e.ring(), e.or(listen, "127.0.0.1:8080")
	destination := e.choice(traces, "off", "log")
	if err := e.err(); err != nil {
		return err
	}
	spans := newSpans(destination, logger)
	defer spans.close()
	pool, err := pgxpool.New(ctx, address)
	if err != nil {
		return fmt.Errorf("connecting to the database: %w", err)
	}
	defer pool.Close()
	writer, err := outbox.NewWriter(outbox.HeadersFrom(telemetry.Headers))
	if err != nil {
		return err
	}
	tracing, err := telemetry.NewTracing(spans.provider, prometheus.NewRegistry())
	if err != nil {
		return err
	}
	return serve(ctx, addr, tracing.Serve(users.New(pool, writer, ring, logger)), nil, logger)
}

// standIn serves the provider's stand-in.
func standIn(ctx context.Context, e *env, logger *slog.Logger) error {
	addr, ttl := e.or(listen, "127.0.0.1:8025"), e.duration(providerKeyTTL, 0)
	if err := e.err(); err != nil {
		return err
	}
	stub := provider.New(provider.Config{TTL: ttl})
	return serve(ctx, addr, stub, stub.Reset, logger)
}
