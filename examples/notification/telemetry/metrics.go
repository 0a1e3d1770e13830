// Package telemetry connects the consumer kit to Prometheus and OpenTelemetry.
// The kit itself depends on neither: it tells an Observer and calls middleware.
package telemetry

import (
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/consumer"
)

// Metrics is a consumer.Observer.
type Metrics struct {
	records    *prometheus.CounterVec
	process    *prometheus.HistogramVec
	claim      prometheus.Histogram
	renewals   *prometheus.CounterVec
	paused     *prometheus.GaugeVec
	quarantine *prometheus.CounterVec
	lost       prometheus.Counter
}

// Values of labels that are known beforehand.
var (
	outcomes = []consumer.Outcome{
		consumer.Consumed, consumer.Duplicate, consumer.Deferred, consumer.NotSentYet, consumer.FailedData,
		consumer.FailedSystem, consumer.Quarantined,
	}
	quarantineReasons = []string{
		"NO_EVENT_ID", "BAD_HEADERS", "MISSING", "STATE_CONFLICT", "BEYOND_HORIZON", "SKIPPED_RANGE",
	}
)

// Results of a renewal, as the label of lease_renewals_total.
const (
	renewed = "ok"
	lost    = "lost"
)

// NewMetrics registers the metrics of a consumer of these topics. All counters
// exist with 0 from the start; without that the first failure would not be an
// increase.
func NewMetrics(reg prometheus.Registerer, topics ...string) (*Metrics, error) {
	const prefix = "cdc_consumer_"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, labels)
	}
	m := &Metrics{
		records: counter("records_total", "Records, by what became of them.", "topic", "outcome"),
		process: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "process_duration_seconds", Help: "Duration of a handler.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}, []string{"topic"}),
		claim: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "claim_duration_seconds", Help: "Duration of a statement that claims events.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		renewals: counter("lease_renewals_total", "Claims renewed, and found lost when they were to be renewed.", "result"),
		paused: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: prefix + "partition_paused", Help: "1 while a partition waits, by the reason."}, []string{"topic", "partition", "reason"}),
		quarantine: counter("quarantined_total", "Records put into the quarantine, by the reason.", "topic", "reason"),
		lost:       prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "lost_claims_total", Help: "Claims that somebody else took over."}),
	}
	for _, topic := range topics {
		for _, outcome := range outcomes {
			m.records.WithLabelValues(topic, string(outcome))
		}
		for _, reason := range quarantineReasons {
			m.quarantine.WithLabelValues(topic, reason)
		}
		m.process.WithLabelValues(topic)
	}
	for _, result := range []string{renewed, lost} {
		m.renewals.WithLabelValues(result)
	}
	for _, c := range []prometheus.Collector{m.records, m.process, m.claim, m.renewals, m.paused, m.quarantine, m.lost} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering the consumer's metrics: %w", err)
		}
	}
	return m, nil
}

// Records counts what became of n records.
func (m *Metrics) Records(topic string, outcome consumer.Outcome, n int) {
	m.records.WithLabelValues(topic, string(outcome)).Add(float64(n))
}

// Processed observes how long a handler took.
func (m *Metrics) Processed(topic string, d time.Duration) {
	m.process.WithLabelValues(topic).Observe(d.Seconds())
}

// Claimed observes how long a statement took.
func (m *Metrics) Claimed(d time.Duration) { m.claim.Observe(d.Seconds()) }

// Renewed counts n claims.
func (m *Metrics) Renewed(ok bool, n int) {
	result := lost
	if ok {
		result = renewed
	}
	m.renewals.WithLabelValues(result).Add(float64(n))
}

// Paused shows whether a partition waits for a reason. A missing topic has
// partition -1.
func (m *Metrics) Paused(topic string, partition int, reason consumer.Reason, paused bool) {
	value := 0.0
	if paused {
		value = 1
	}
	m.paused.WithLabelValues(topic, strconv.Itoa(partition), string(reason)).Set(value)
}

// QuarantineRow counts a quarantined record.
func (m *Metrics) QuarantineRow(topic, reason string) {
	m.quarantine.WithLabelValues(topic, reason).Inc()
}

// ClaimLost counts a claim.
func (m *Metrics) ClaimLost() { m.lost.Inc() }
