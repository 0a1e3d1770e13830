package main

import (
	"context"
	"log/slog"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/cdc-relay/cdc-relay/examples/notification/telemetry"
)

// spans is where spans go.
type spans struct {
	provider trace.TracerProvider
	close    func()
}

// newSpans sends spans to the log, or nowhere; contexts are passed on all the
// same.
func newSpans(destination string, logger *slog.Logger) spans {
	if destination == "off" {
		return spans{noop.NewTracerProvider(), func() {}}
	}
	p := sdk.NewTracerProvider(sdk.WithBatcher(telemetry.LogSpans{Logger: logger}))
	return spans{p, func() {
		if err := p.Shutdown(context.Background()); err != nil {
			logger.Warn("the last spans are lost", "err", err)
		}
	}}
}
