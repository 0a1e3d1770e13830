package statusback

import "github.com/prometheus/client_golang/prometheus"

// Metrics are made once a process and shared by its sessions, one after the
// other.
type Metrics struct {
	writes   *prometheus.CounterVec
	duration prometheus.Histogram
	gone     prometheus.Counter
	fenced   prometheus.Counter
}

// Results of a write, as the label of status_writes_total.
const (
	resultOK        = "ok"
	resultStale     = "stale"
	resultGone      = "gone"
	resultLocked    = "locked"
	resultInvisible = "invisible"
	resultFenced    = "fenced"
	resultError     = "error"
)

// targets are the states meant for a row, as the label of
// status_writes_total. HELD is all that is parked without an attempt, until
// its release or until a time.
var targets = [forms]string{formSent: "SENT", formRequeued: "SENT", formRetry: "RETRY", formFail: "FAILED",
	formHeld: "HELD", formLater: "HELD", formKept: "HELD"}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_status_writes_total", Help: "Rows written, by the state meant for them and what became of it."},
			[]string{"to", "result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cdc_relay_status_write_duration_seconds", Help: "Duration of a statement that writes row states.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16)}),
		gone: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cdc_relay_rows_gone_total", Help: "Rows that were deleted before they were SENT."}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cdc_relay_fenced_total", Help: "Times leadership was lost.", ConstLabels: prometheus.Labels{"by": "epoch"}}),
	}
	for _, to := range targets {
		for _, result := range []string{resultOK, resultStale, resultGone, resultLocked, resultInvisible, resultFenced, resultError} {
			m.writes.WithLabelValues(to, result) // there from the start, with 0
		}
	}
	reg.MustRegister(m.writes, m.duration, m.gone, m.fenced)
	return m
}

// count counts n rows that were to be written in that form.
func (m *Metrics) count(f form, result string, n int) {
	m.writes.WithLabelValues(targets[f], result).Add(float64(n))
}
