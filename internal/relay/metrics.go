package relay

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// metrics of the line; names are a contract.
type metrics struct {
	receivedTotal  *prometheus.CounterVec
	ignoredTotal   *prometheus.CounterVec
	insertsIgnored *prometheus.CounterVec
	skippedTotal   prometheus.Counter
	missedTotal    prometheus.Counter
	failedTotal    *prometheus.CounterVec
	inflightEvents prometheus.Gauge
	inflightBytes  prometheus.Gauge
	blocked        prometheus.Gauge
	probeRoundtrip prometheus.Histogram
	endToEnd       prometheus.Histogram
	states         *prometheus.GaugeVec
	blockedReason  *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		receivedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_events_received_total", Help: "Events taken in, by the way they came."}, []string{"via"}),
		ignoredTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_messages_ignored_total", Help: "Logical messages that were none of ours, by reason."}, []string{"reason"}),
		insertsIgnored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_inserts_ignored_total", Help: "Inserted rows that are no event now: delayed, or not READY."}, []string{"reason"}),
		skippedTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cdc_relay_duplicates_skipped_total", Help: "Redelivered events whose row is SENT or further, parked or gone."}),
		missedTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cdc_relay_reconcile_missed_total", Help: "READY rows that the slot never showed: an anomaly."}),
		failedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_events_failed_total", Help: "Events whose attempts have come to an end: FAILED."}, []string{"class"}),
		inflightEvents: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cdc_relay_inflight_events", Help: "Events that are not resolved yet."}),
		inflightBytes: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cdc_relay_inflight_bytes", Help: "Bytes of events that are not acknowledged yet."}),
		blocked: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cdc_relay_aggregates_blocked", Help: "Aggregates whose new events wait for a parked one."}),
		probeRoundtrip: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cdc_relay_probe_roundtrip_seconds", Help: "From a probe's emission to its coming back through the slot.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 17)}),
		endToEnd: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cdc_relay_end_to_end_seconds", Help: "From commit to ack of the oldest event of each batch, first attempts only.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 20)}),
		states: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cdc_relay_state", Help: "1 for the state the relay is in."}, []string{"state"}),
		blockedReason: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cdc_relay_blocked_reason", Help: "1 for the doctor id of what a person should look at."}, []string{"reason"}),
	}
	reg.MustRegister(m.receivedTotal, m.ignoredTotal, m.insertsIgnored, m.skippedTotal, m.missedTotal, m.failedTotal,
		m.inflightEvents, m.inflightBytes, m.blocked, m.probeRoundtrip, m.endToEnd, m.states, m.blockedReason)
	for _, via := range []string{"insert", "requeue", "pass", "release"} {
		m.receivedTotal.WithLabelValues(via)
	}
	for _, r := range []string{"not_transactional", "unknown_probe", "malformed", "unknown_id", "foreign"} {
		m.ignoredTotal.WithLabelValues(r)
	}
	for _, class := range []event.Class{event.ClassRecord, event.ClassTopic} {
		m.failedTotal.WithLabelValues(class.String())
	}
	for _, r := range []string{"delayed", "status"} {
		m.insertsIgnored.WithLabelValues(r)
	}
	return m
}

// watch exports the positions as they are when somebody looks.
func (m *metrics) watch(reg prometheus.Registerer, b *board) {
	point := func(name string, get func(Positions) uint64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name:        "cdc_relay_position_bytes",
			Help:        "Positions in the WAL as numbers; subtract them.",
			ConstLabels: prometheus.Labels{"point": name},
		}, func() float64 { return float64(get(b.snapshot().Positions)) })
	}
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "cdc_relay_replication_lag_seconds", Help: "Age of the oldest unresolved commit; 0 if there is none."},
			func() float64 {
				oldest := b.snapshot().Oldest
				if oldest.IsZero() {
					return 0
				}
				return max(0, time.Since(oldest).Seconds())
			}),
		point("received", func(p Positions) uint64 { return uint64(p.Received) }),
		point("watermark", func(p Positions) uint64 { return uint64(p.Watermark) }),
		point("confirmed", func(p Positions) uint64 { return uint64(p.Confirmed) }),
		point("server", func(p Positions) uint64 { return uint64(p.Server) }),
	)
}

func (m *metrics) received(c counts) {
	m.receivedVia("insert", c.events)
	m.insertsIgnored.WithLabelValues("delayed").Add(float64(c.delayed))
	m.insertsIgnored.WithLabelValues("status").Add(float64(c.foreign))
}

func (m *metrics) receivedVia(via string, n int) {
	m.receivedTotal.WithLabelValues(via).Add(float64(n))
}

func (m *metrics) failed(c event.Class) { m.failedTotal.WithLabelValues(c.String()).Inc() }

func (m *metrics) missed(n int) { m.missedTotal.Add(float64(n)) }

func (m *metrics) ignored(reason string) { m.ignoredTotal.WithLabelValues(reason).Inc() }

func (m *metrics) skipped(n int) { m.skippedTotal.Add(float64(n)) }

func (m *metrics) inflight(events int, bytes int64) {
	m.inflightEvents.Set(float64(events))
	m.inflightBytes.Set(float64(bytes))
}

func (m *metrics) state(s State, reason string) {
	for _, each := range states {
		v := 0.0
		if each == s {
			v = 1
		}
		m.states.WithLabelValues(string(each)).Set(v)
	}
	m.blockedReason.Reset()
	if reason != "" {
		m.blockedReason.WithLabelValues(reason).Set(1)
	}
}
