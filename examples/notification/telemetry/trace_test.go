package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/examples/notification/telemetry"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	traceID     = "0af7651916cd43dd8448eb211c80319c"
	spanID      = "b7ad6b7169203331"
	traceparent = "00-" + traceID + "-" + spanID + "-01"
)

// traced is a tracing whose spans are kept.
type traced struct {
	*telemetry.Tracing
	spans *tracetest.SpanRecorder
	reg   *prometheus.Registry
}

func newTraced(t *testing.T) traced {
	t.Helper()
	spans, reg := tracetest.NewSpanRecorder(), prometheus.NewRegistry()
	tracing, err := telemetry.NewTracing(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)), reg)
	if err != nil {
		t.Fatal(err)
	}
	return traced{tracing, spans, reg}
}

// only is the one span that has ended.
func (tr traced) only(t *testing.T) sdk.ReadOnlySpan {
	t.Helper()
	ended := tr.spans.Ended()
	if len(ended) != 1 {
		t.Fatalf("%d spans, want 1", len(ended))
	}
	return ended[0]
}

func TestConsumerSpansAreLinked(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, header string
		links        int
		malformed    float64
		fails        error
	}{
		{"linked", traceparent, 1, 0, nil},
		{"no context", "", 0, 0, nil},
		{"not a context", "hello", 0, 1, nil},
		{"all zero", "00-00000000000000000000000000000000-0000000000000000-01", 0, 1, nil},
		{"the handler fails", traceparent, 1, 0, errors.New("broken")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tr := newTraced(t)
			ev := &consumer.Event{ID: outbox.NewID(), Topic: "users", Attempt: 2}
			if tc.header != "" {
				ev.Headers = []consumer.Header{{Name: "traceparent", Value: []byte(tc.header)}}
			}
			around := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
				TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, // of something else that goes on
			}))
			var inside trace.SpanContext
			err := tr.Consume(func(ctx context.Context, _ *consumer.Event) error {
				inside = trace.SpanContextFromContext(ctx)
				return tc.fails
			})(around, ev)
			if !errors.Is(err, tc.fails) {
				t.Errorf("error %v", err)
			}
			span := tr.only(t)
			if span.SpanKind() != trace.SpanKindConsumer || span.Name() != "process users" || span.Parent().IsValid() {
				t.Errorf("%v span %q with parent %t", span.SpanKind(), span.Name(), span.Parent().IsValid())
			}
			if span.SpanContext().SpanID() != inside.SpanID() {
				t.Error("the handler runs outside the span")
			}
			if len(span.Links()) != tc.links {
				t.Fatalf("%d links, want %d", len(span.Links()), tc.links)
			}
			for _, link := range span.Links() {
				if got := link.SpanContext; got.TraceID().String() != traceID || got.SpanID().String() != spanID {
					t.Errorf("linked to %s/%s", got.TraceID(), got.SpanID())
				}
			}
			if failed := span.Status().Code == codes.Error; failed != (tc.fails != nil) {
				t.Errorf("status %v", span.Status())
			}
			if got := sum(t, tr.reg, "notification_traceparent_malformed_total"); got != tc.malformed {
				t.Errorf("%v malformed, want %v", got, tc.malformed)
			}
		})
	}
}

// What comes in by HTTP goes out in the headers of an event.
func TestTheContextOfARequestReachesTheEvent(t *testing.T) {
	t.Parallel()
	tr := newTraced(t)
	var headers map[string]string
	api := tr.Serve(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { headers = telemetry.Headers(r.Context()) }))
	r := httptest.NewRequest(http.MethodPost, "/users", nil)
	r.Header.Set("traceparent", traceparent)
	api.ServeHTTP(httptest.NewRecorder(), r)
	span := tr.only(t)
	if span.SpanKind() != trace.SpanKindServer || span.Parent().SpanID().String() != spanID {
		t.Errorf("%v span with parent %s", span.SpanKind(), span.Parent().SpanID())
	}
	if want := "00-" + traceID + "-" + span.SpanContext().SpanID().String() + "-01"; headers["traceparent"] != want {
		t.Errorf("headers %v, want traceparent %s", headers, want)
	}
	if got := telemetry.Headers(t.Context()); len(got) != 0 {
		t.Errorf("headers without a span: %v", got)
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestCallsCarryTheContext(t *testing.T) {
	t.Parallel()
	tr := newTraced(t)
	var got string
	call := telemetry.Call(transport(func(r *http.Request) (*http.Response, error) {
		got = r.Header.Get("traceparent")
		return httptest.NewRecorder().Result(), nil
	}))
	err := tr.Consume(func(ctx context.Context, _ *consumer.Event) error {
		req := httptest.NewRequest(http.MethodPost, "/v1/messages", nil).WithContext(ctx)
		_, err := call.RoundTrip(req)
		if req.Header.Get("traceparent") != "" {
			t.Error("the caller's request was changed")
		}
		return err
	})(t.Context(), &consumer.Event{})
	if err != nil {
		t.Fatal(err)
	}
	if want := tr.only(t).SpanContext().SpanID().String(); !strings.Contains(got, want) {
		t.Errorf("traceparent %q, want span %s", got, want)
	}
}

func TestLogSpans(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	provider := sdk.NewTracerProvider(sdk.WithSyncer(telemetry.LogSpans{Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	tracing, err := telemetry.NewTracing(provider, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	ev := &consumer.Event{Topic: "users", Headers: []consumer.Header{{Name: "traceparent", Value: []byte(traceparent)}}}
	if err := tracing.Consume(func(context.Context, *consumer.Event) error { return nil })(t.Context(), ev); err != nil {
		t.Fatal(err)
	}
	if err := provider.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`name="process users"`, "kind=consumer", "link=" + traceID + "/" + spanID} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in %s", want, log.String())
		}
	}
}
