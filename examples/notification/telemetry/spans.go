package telemetry

import (
	"context"
	"log/slog"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// LogSpans is an exporter that writes each span as a line of a log: enough to
// see what belongs together. A real service would send them to a collector.
type LogSpans struct{ Logger *slog.Logger }

// ExportSpans writes the lines.
func (l LogSpans) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	for _, s := range spans {
		args := []any{"span", describe(s.SpanContext()), "name", s.Name(), "kind", s.SpanKind().String(),
			"duration", s.EndTime().Sub(s.StartTime()), "status", s.Status().Code.String()}
		if s.Parent().IsValid() {
			args = append(args, "parent", describe(s.Parent()))
		}
		for _, link := range s.Links() {
			args = append(args, "link", describe(link.SpanContext))
		}
		l.Logger.InfoContext(ctx, "span", args...)
	}
	return nil
}

// Shutdown has nothing to do.
func (LogSpans) Shutdown(context.Context) error { return nil }
