package monitor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options() Options {
	return Options{
		Listen:   "127.0.0.1:0",
		Pipeline: "shop",
		Status:   func() Status { return Status{State: "starting"} },
		Health:   func() Health { return Health{State: "starting"} },
		Limits:   limits,
		Metrics:  prometheus.NewRegistry(),
		Log:      slog.New(slog.DiscardHandler),
	}
}

// start runs a server until the test ends and returns its base URL.
func start(t *testing.T, o Options) string {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	addr := s.Addr()
	if addr == nil {
		t.Fatal("the server does not listen")
	}
	return "http://" + addr.String()
}

// request makes one request on a connection of its own.
func request(t *testing.T, method, url string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

func TestStatusz(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	labelled := prometheus.WrapRegistererWith(prometheus.Labels{"pipeline": "shop"}, registry)
	received := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cdc_relay_events_received_total", Help: "x"}, []string{"via"})
	writes := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "cdc_relay_status_writes_total", Help: "x"}, []string{"to", "result"})
	inflight := prometheus.NewGauge(prometheus.GaugeOpts{Name: "cdc_relay_inflight_events", Help: "x"})
	duration := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "cdc_relay_publish_duration_seconds", Help: "x"})
	absent := prometheus.NewGauge(prometheus.GaugeOpts{Name: "cdc_relay_no_number", Help: "x"})
	foreign := prometheus.NewGauge(prometheus.GaugeOpts{Name: "go_goroutines", Help: "x"})
	labelled.MustRegister(received, writes, inflight, duration, absent, foreign)
	received.WithLabelValues("insert").Add(123)
	received.WithLabelValues("requeue").Add(0)
	writes.WithLabelValues("SENT", "ok").Add(2e9)
	inflight.Set(7)
	duration.Observe(0.25)
	duration.Observe(0.5)
	absent.Set(math.Inf(1))

	o := options()
	o.Metrics = registry
	o.Hidden = []string{"", "db.internal:5432", "db.internal:54321"}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	o.Status = func() Status {
		return Status{
			State: "blocked", Since: since, Reason: "pg.connect",
			What: "PostgreSQL at db.internal:5432, db.internal:54321 refuses", Remedy: "ask at db.internal:5432",
			Leader: true, Slot: "cdc_relay", Epoch: 3, LeaderInstance: "host/1",
			Positions: Positions{Received: 0x16B3748, Watermark: 0x16B3740, Saved: 0x1, Server: pglogrepl.LSN(0x1_00000000)},
		}
	}
	response, body := request(t, http.MethodGet, start(t, o)+"/statusz")

	if response.StatusCode != http.StatusOK || response.Header.Get("Content-Type") != "application/json" {
		t.Errorf("answer: %s, %v", response.Status, response.Header)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("body is not JSON: %v\n%s", err, body)
	}
	if _, err := time.Parse(time.RFC3339, got["at"].(string)); err != nil {
		t.Error(err)
	}
	delete(got, "at")
	want := map[string]any{
		"v": 1.0, "pipeline": "shop", "state": "blocked", "since": "2026-01-02T02:04:05Z",
		"reason": "pg.connect", "what": "PostgreSQL at ***, *** refuses", "remedy": "ask at ***",
		"leader": true, "slot": "cdc_relay", "epoch": 3.0, "leader_instance": "host/1",
		"positions": map[string]any{"received": "0/16B3748", "watermark": "0/16B3740", "saved": "0/1", "confirmed": "0/0", "server": "1/0"},
		"counters": map[string]any{
			`events_received_total{via="insert"}`:        123.0,
			`events_received_total{via="requeue"}`:       0.0,
			`status_writes_total{result="ok",to="SENT"}`: 2e9,
			"inflight_events":                            7.0,
			"publish_duration_seconds_count":             2.0,
			"publish_duration_seconds_sum":               0.75,
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}
}

func TestRequests(t *testing.T) {
	t.Parallel()
	base := start(t, options())
	tests := []struct {
		name   string
		method string
		path   string
		code   int
	}{
		{"get", "GET", "/statusz", 200},
		{"head", "HEAD", "/statusz", 200},
		{"post", "POST", "/statusz", 405},
		{"delete", "DELETE", "/", 405},
		{"unknown path", "GET", "/", 404},
		{"metrics", "GET", "/metrics", 200},
		{"metrics head", "HEAD", "/metrics", 200},
		{"live", "GET", "/livez", 503},
		{"ready", "GET", "/readyz", 503},
		{"ready head", "HEAD", "/readyz", 503},
		{"started", "GET", "/startupz", 503},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			response, body := request(t, tt.method, base+tt.path)
			if response.StatusCode != tt.code {
				t.Errorf("status %d, want %d: %s", response.StatusCode, tt.code, body)
			}
			for name, want := range map[string]string{
				"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			} {
				if got := response.Header.Get(name); got != want {
					t.Errorf("%s: %q, want %q", name, got, want)
				}
			}
			if !strings.Contains(response.Header.Get("Content-Security-Policy"), "default-src 'none'") {
				t.Error("no content security policy")
			}
		})
	}
}

func TestHeadersAreLimited(t *testing.T) {
	t.Parallel()
	conn, err := net.Dial("tcp", strings.TrimPrefix(start(t, options()), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The server may close before all is written, so a write error is no failure.
	_, _ = io.WriteString(conn, "GET /statusz HTTP/1.1\r\nHost: x\r\nX-Long: "+strings.Repeat("x", maxHeaderBytes+8<<10)+"\r\n\r\n")
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %s, want 431", response.Status)
	}
}

// brokenMetrics yields one metric and an error.
type brokenMetrics struct{ prometheus.Gatherer }

func (b brokenMetrics) Gather() ([]*dto.MetricFamily, error) {
	families, _ := b.Gatherer.Gather()
	return families, errors.New("collecting")
}

func TestBrokenMetricHidesNoOther(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	leader := prometheus.NewGauge(prometheus.GaugeOpts{Name: "cdc_relay_leader", Help: "x"})
	registry.MustRegister(leader)
	leader.Set(1)
	o := options()
	o.Metrics = brokenMetrics{registry}
	response, body := request(t, http.MethodGet, start(t, o)+"/statusz")
	if response.StatusCode != http.StatusOK || !strings.Contains(body, `"counters":{"leader":1}`) {
		t.Errorf("%s: %s", response.Status, body)
	}
	response, body = request(t, http.MethodGet, start(t, o)+"/metrics")
	if response.StatusCode != http.StatusOK || !strings.Contains(body, "\ncdc_relay_leader 1\n") {
		t.Errorf("%s: %s", response.Status, body)
	}
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	o := options()
	o.Listen = taken.Addr().String()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	err = s.Run(t.Context())
	want := "listening on " + o.Listen + ": the address is in use; stop the process that uses it, or set http.listen to a free port"
	if err == nil || err.Error() != want {
		t.Errorf("Run = %v, want %s", err, want)
	}
	if s.Addr() != nil {
		t.Error("an address although it does not listen")
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(*Options)
	}{
		{"address without port", func(o *Options) { o.Listen = "localhost" }},
		{"no status", func(o *Options) { o.Status = nil }},
		{"no health", func(o *Options) { o.Health = nil }},
		{"no limits", func(o *Options) { o.Limits = Limits{} }},
		{"no metrics", func(o *Options) { o.Metrics = nil }},
		{"no logger", func(o *Options) { o.Log = nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := options()
			tt.spoil(&o)
			if _, err := New(o); err == nil {
				t.Error("no error")
			}
		})
	}
}

func newTestGauge(name string, value float64) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "x"})
	g.Set(value)
	return g
}
