package sink

import (
	"fmt"
	"sort"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// gather returns name{labels} -> value of all series but histogram buckets.
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			sort.Strings(labels)
			name := strings.TrimPrefix(f.GetName(), "cdc_relay_") + "{" + strings.Join(labels, ",") + "}"
			switch {
			case m.GetHistogram() != nil:
				series[name] = float64(m.GetHistogram().GetSampleCount())
			case m.GetCounter() != nil:
				series[name] = m.GetCounter().GetValue()
			default:
				series[name] = m.GetGauge().GetValue()
			}
		}
	}
	return series
}

// Series with a closed set of labels are there from the start.
func TestMetricsFromTheStart(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	NewMetrics(reg)
	want := map[string]float64{
		"events_acked_total{}": 0, "publish_requests_total{}": 0, "publish_duration_seconds{}": 0, "sink_connected{}": 0, "partitions_held{}": 0, "fenced_total{by=producer}": 0,
		"publish_errors_total{class=record}": 0, "publish_errors_total{class=topic}": 0,
		"publish_errors_total{class=broker}": 0, "publish_errors_total{class=fence}": 0,
	}
	if diff := cmp.Diff(want, gather(t, reg)); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 4)
		sim.poison[3] = true
		sim.script = scripted(response{err: kafka.NotEnoughReplicas}, response{err: kafka.TopicAuthorizationFailed})
		reg := prometheus.NewRegistry()
		out := newRecorder()
		p := startSimulated(t, sim, out, func(_ *Config, d *Deps) {
			d.Metrics = NewMetrics(reg)
			d.Pins = &scriptedPins{pinned: 1}
		})
		events := numbered("t", 9, 1)
		p.Publish(events[:2]) // tried again, then denied
		p.Flush()
		out.settled(t, 2)
		p.Publish(events[2:]) // one of seven refused: two requests
		p.Flush()
		out.settled(t, 9)
		synctest.Wait()
		want := map[string]float64{
			"events_acked_total{}": 6, "topic_events_acked_total{topic=t}": 6,
			"publish_requests_total{}": 4, "publish_duration_seconds{}": 4,
			"publish_errors_total{class=record}": 1, "publish_errors_total{class=topic}": 1,
			"publish_errors_total{class=broker}": 1, "publish_errors_total{class=fence}": 0,
			"producer_identity{identity=idempotent}": 1, "producer_identity{identity=fenced}": 0, "producer_identity{identity=none}": 0,
			"topic_partitions{kind=pinned,topic=t}": 1, "topic_partitions{kind=present,topic=t}": 4,
			"sink_connected{}": 1, "partitions_held{}": 0, "fenced_total{by=producer}": 0,
		}
		if diff := cmp.Diff(want, gather(t, reg)); diff != "" {
			t.Errorf("series (-want +got):\n%s", diff)
		}
		sim.set(func() { sim.down = kafka.BrokerNotAvailable })
		pass(t, time.Second)
		synctest.Wait()
		if got := gather(t, reg)["sink_connected{}"]; got != 0 {
			t.Errorf("sink_connected %v without a cluster", got)
		}
	})
}

// The hundred-and-first topic has no label of its own.
func TestTopicLabelsAreBounded(t *testing.T) {
	t.Parallel()
	m := testMetrics(t)
	for i := range maxTopicLabels {
		if got, want := m.label(fmt.Sprint("t", i)), fmt.Sprint("t", i); got != want {
			t.Fatalf("label %q, want %q", got, want)
		}
	}
	if got := m.label("one more"); got != otherTopics {
		t.Errorf("label %q, want %q", got, otherTopics)
	}
	if got := m.label("t0"); got != "t0" {
		t.Errorf("label %q, want t0", got)
	}
}

func TestNewValidates(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Config, *Deps)
		want   string
	}{
		"no brokers":          {func(c *Config, _ *Deps) { c.Brokers = nil }, "at least one broker"},
		"no batch size":       {func(c *Config, _ *Deps) { c.BatchBytes = 0 }, "BatchBytes must be positive"},
		"no batch records":    {func(c *Config, _ *Deps) { c.BatchRecords = 0 }, "BatchRecords must be positive"},
		"no requests":         {func(c *Config, _ *Deps) { c.MaxRequests = 0 }, "MaxRequests must be positive"},
		"no request timeout":  {func(c *Config, _ *Deps) { c.RequestTimeout = 0 }, "RequestTimeout must be positive"},
		"no dial timeout":     {func(c *Config, _ *Deps) { c.DialTimeout = 0 }, "DialTimeout must be positive"},
		"no idle timeout":     {func(c *Config, _ *Deps) { c.IdleTimeout = 0 }, "IdleTimeout must be positive"},
		"no metadata ttl":     {func(c *Config, _ *Deps) { c.MetadataTTL = 0 }, "MetadataTTL must be positive"},
		"no grace":            {func(c *Config, _ *Deps) { c.UnknownTopicGrace = 0 }, "UnknownTopicGrace must be positive"},
		"no backoff":          {func(c *Config, _ *Deps) { c.BackoffMin = 0 }, "BackoffMin must be positive"},
		"backoff upside down": {func(c *Config, _ *Deps) { c.BackoffMin = c.BackoffMax + 1 }, "BackoffMin above BackoffMax"},
		"negative linger":     {func(c *Config, _ *Deps) { c.Linger = -1 }, "negative Linger"},
		"unknown codec":       {func(c *Config, _ *Deps) { c.Compression = 9 }, "unknown compression"},
		"no identity":         {func(c *Config, _ *Deps) { c.Identity = 0 }, "identity is required"},
		"no template":         {func(c *Config, _ *Deps) { c.Record.TopicTemplate = "" }, "template is required"},
		"no outcomes":         {func(_ *Config, d *Deps) { d.Outcomes = nil }, "dependency is missing"},
		"no pins":             {func(_ *Config, d *Deps) { d.Pins = nil }, "dependency is missing"},
		"no permit":           {func(_ *Config, d *Deps) { d.Permit = nil }, "dependency is missing"},
		"no metrics":          {func(_ *Config, d *Deps) { d.Metrics = nil }, "dependency is missing"},
		"no log":              {func(_ *Config, d *Deps) { d.Log = nil }, "dependency is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg, deps := testConfig("x"), testDeps(t, newRecorder())
			tc.change(&cfg, &deps)
			if _, err := New(cfg, deps); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("New = %v, want an error with %q", err, tc.want)
			}
		})
	}
}

func TestParseIdentity(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Identity{"fenced": Fenced, "idempotent": Idempotent, "none": None} {
		if got, err := ParseIdentity(name); err != nil || got != want {
			t.Errorf("ParseIdentity(%q) = %v, %v", name, got, err)
		}
	}
	if _, err := ParseIdentity("exactly-once"); err == nil {
		t.Error("an identity that does not exist was accepted")
	}
}

// Sequence numbers wrap to 0 after 2^31-1.
func TestSequenceWraps(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ from, n, want int32 }{{0, 5, 5}, {2147483647, 1, 0}, {2147483645, 5, 2}} {
		w := &worker{producer: grant{Producer: record.Producer{ID: 1, Sequence: tc.from}}}
		w.advance(int(tc.n))
		if w.producer.Sequence != tc.want {
			t.Errorf("%d + %d = %d, want %d", tc.from, tc.n, w.producer.Sequence, tc.want)
		}
	}
	w := &worker{producer: nobody}
	w.advance(5)
	if w.producer != nobody {
		t.Errorf("without an id: %+v", w.producer)
	}
}
