package lease

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	leader        prometheus.Gauge
	fencedLease   prometheus.Counter // another instance took the lease
	fencedSession prometheus.Counter // another server or timeline answered
	pauses        prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "cdc_relay", Name: "leader", Help: "1 while this instance leads the slot."}),
		fencedLease:   newFenced("lease"),
		fencedSession: newFenced("session"),
		pauses: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "cdc_relay", Name: "publish_pauses_total",
			Help: "Times publishing paused because the last renewal of the lease was too old."}),
	}
	reg.MustRegister(m.leader, m.fencedLease, m.fencedSession, m.pauses)
	return m
}

// newFenced has its label as a constant: other parts of the relay count
// leadership lost for their own reasons under the same name.
func newFenced(by string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "cdc_relay", Name: "fenced_total", Help: "Times leadership was lost.",
		ConstLabels: prometheus.Labels{"by": by}})
}
