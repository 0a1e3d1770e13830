package telemetry

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/cdc-relay/cdc-relay/consumer"
)

// scope names who makes the spans.
const scope = "github.com/cdc-relay/cdc-relay/examples/notification"

// wire is how a trace context travels: headers traceparent and tracestate.
var wire = propagation.TraceContext{}

// Tracing makes the spans of the example. The names of attributes follow the
// conventions for messaging, which still change: this file is the place.
type Tracing struct {
	tracer    trace.Tracer
	malformed prometheus.Counter
}

// NewTracing makes spans with a provider and counts trace contexts that cannot
// be read.
func NewTracing(provider trace.TracerProvider, reg prometheus.Registerer) (*Tracing, error) {
	t := &Tracing{
		tracer: provider.Tracer(scope),
		malformed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "notification_traceparent_malformed_total", Help: "Records whose trace context could not be read and was ignored."}),
	}
	if err := reg.Register(t.malformed); err != nil {
		return nil, fmt.Errorf("registering the metrics of tracing: %w", err)
	}
	return t, nil
}

// Consume is a consumer.Middleware: a CONSUMER span for each attempt, linked to
// the context in the record's headers. It is a link and not a parent, as an
// event may be handled long after its trace has ended, and more than once.
func (t *Tracing) Consume(next consumer.Handler) consumer.Handler {
	return func(ctx context.Context, ev *consumer.Event) error {
		options := []trace.SpanStartOption{
			trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(
				attribute.String("messaging.system", "kafka"), attribute.String("messaging.operation.type", "process"),
				attribute.String("messaging.destination.name", ev.Topic), attribute.Int("messaging.destination.partition.id", ev.Partition),
				attribute.Int64("messaging.kafka.offset", ev.Offset), attribute.String("messaging.message.id", ev.ID.String()),
				attribute.Int("cdc_relay.attempt", ev.Attempt),
			),
		}
		if origin, ok := t.origin(ev); ok {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: origin}))
		}
		ctx, span := t.tracer.Start(ctx, "process "+ev.Topic, options...)
		defer span.End()
		err := next(ctx, ev)
		if err != nil {
			span.SetStatus(codes.Error, "") // the reason is in the log
		}
		return err
	}
}

// origin is the trace context that a record came with.
func (t *Tracing) origin(ev *consumer.Event) (trace.SpanContext, bool) {
	headers := recordHeaders{ev}
	if headers.Get("traceparent") == "" {
		return trace.SpanContext{}, false
	}
	origin := trace.SpanContextFromContext(wire.Extract(context.Background(), headers))
	if !origin.IsValid() {
		t.malformed.Inc()
	}
	return origin, origin.IsValid()
}

// recordHeaders lets a propagator read headers of a record.
type recordHeaders struct{ ev *consumer.Event }

func (h recordHeaders) Get(name string) string { return h.ev.Header(name) }
func (recordHeaders) Set(string, string)       {}
func (h recordHeaders) Keys() (names []string) {
	for _, header := range h.ev.Headers {
		names = append(names, header.Name)
	}
	return names
}

// Serve puts a SERVER span around the requests of next.
func (t *Tracing) Serve(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := wire.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := t.tracer.Start(ctx, r.Method, trace.WithSpanKind(trace.SpanKindServer))
		defer span.End()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Headers is for outbox.HeadersFrom: the trace context of the transaction that
// writes an event travels with it.
func Headers(ctx context.Context) map[string]string {
	headers := propagation.MapCarrier{}
	wire.Inject(ctx, headers)
	return headers
}

// Call adds the trace context to requests.
func Call(next http.RoundTripper) http.RoundTripper { return caller{next} }

type caller struct{ next http.RoundTripper }

func (c caller) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context()) // a RoundTripper does not change the caller's
	wire.Inject(req.Context(), propagation.HeaderCarrier(req.Header))
	return c.next.RoundTrip(req)
}

// describe is a span in one line, for people.
func describe(s trace.SpanContext) string {
	return strings.Join([]string{s.TraceID().String(), s.SpanID().String()}, "/")
}
