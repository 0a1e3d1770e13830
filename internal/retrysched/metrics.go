package retrysched

import "github.com/prometheus/client_golang/prometheus"

// Metrics of requeueing; names are a contract. They live as long as the
// process.
type Metrics struct {
	retry, delayed, missed, claimExpired prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cdc_relay_requeued_total",
		Help: "Rows that the leader lets come through the slot: after a failure, delayed ones, those the slot never showed, and those of claims that nobody ended.",
	}, []string{"reason"})
	reg.MustRegister(vec)
	return &Metrics{
		retry: vec.WithLabelValues("retry"), delayed: vec.WithLabelValues("delayed"),
		missed: vec.WithLabelValues("missed"), claimExpired: vec.WithLabelValues("claim_expired"),
	}
}

// Missed counts the rows that a reconcile requeues.
func (m *Metrics) Missed() prometheus.Counter { return m.missed }

// ClaimExpired counts the rows of consumers' claims that the sweep requeues.
func (m *Metrics) ClaimExpired() prometheus.Counter { return m.claimExpired }

// requeued counts a row.
func (m *Metrics) requeued(retry bool) {
	if retry {
		m.retry.Inc()
		return
	}
	m.delayed.Inc()
}
