package sink

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// maxTopicLabels bounds the label values of topics; further ones share one.
const maxTopicLabels = 100

const otherTopics = "other"

// Metrics are the sink's own. They outlive a Publisher: make them once and
// hand them to each. Safe for concurrent use.
type Metrics struct {
	acked      prometheus.Counter
	topicAcked *prometheus.CounterVec
	requests   prometheus.Counter
	errors     *prometheus.CounterVec
	duration   prometheus.Histogram
	identity   *prometheus.GaugeVec
	partitions *prometheus.GaugeVec
	connected  prometheus.Gauge
	held       prometheus.Gauge
	fenced     prometheus.Counter

	mu     sync.Mutex
	labels map[string]bool // topics that have a label of their own
}

// NewMetrics registers the sink's metrics. It panics if that was done before
// on the same registerer.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		acked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cdc_relay_events_acked_total", Help: "Events acknowledged by Kafka (acks=all).",
		}),
		topicAcked: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_topic_events_acked_total", Help: "Events acknowledged by Kafka, by topic; topics beyond 100 as other.",
		}, []string{"topic"}),
		requests: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cdc_relay_publish_requests_total", Help: "Produce requests sent.",
		}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "cdc_relay_publish_errors_total", Help: "Attempts to publish a batch that failed, by whose fault it is.",
		}, []string{"class"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "cdc_relay_publish_duration_seconds", Help: "Time from a produce request to its answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		identity: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cdc_relay_producer_identity", Help: "1 for how the broker recognises repeated batches.",
		}, []string{"identity"}),
		partitions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "cdc_relay_topic_partitions", Help: "Partitions of a topic, as pinned and as present.",
		}, []string{"topic", "kind"}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cdc_relay_sink_connected", Help: "1 while Kafka brokers answer.",
		}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "cdc_relay_partitions_held", Help: "Partitions whose events are held on their rows because they do not answer while others do.",
		}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "cdc_relay_fenced_total", Help: "Times leadership was lost.", ConstLabels: prometheus.Labels{"by": "producer"},
		}),
		labels: map[string]bool{},
	}
	for _, c := range []class{classRecord, classTopic, classBroker, classFence} {
		m.errors.WithLabelValues(c.String())
	}
	reg.MustRegister(m.acked, m.topicAcked, m.requests, m.errors, m.duration, m.identity, m.partitions, m.connected, m.held, m.fenced)
	return m
}

// label returns the label value for a topic.
func (m *Metrics) label(topic string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.labels[topic] {
		if len(m.labels) >= maxTopicLabels {
			return otherTopics
		}
		m.labels[topic] = true
	}
	return topic
}

// topicCounter returns the counter of a topic's acknowledged events.
func (m *Metrics) topicCounter(topic string) prometheus.Counter {
	return m.topicAcked.WithLabelValues(m.label(topic))
}

// setPartitions tells the partition counts of a topic that has a label.
func (m *Metrics) setPartitions(topic string, pinned, present int) {
	if m.label(topic) == otherTopics {
		return // a count of several topics would mean nothing
	}
	m.partitions.WithLabelValues(topic, "pinned").Set(float64(pinned))
	m.partitions.WithLabelValues(topic, "present").Set(float64(present))
}

func (m *Metrics) setIdentity(identity Identity) {
	for name, id := range map[string]Identity{"idempotent": Idempotent, "fenced": Fenced, "none": None} {
		value := 0.0
		if id == identity {
			value = 1
		}
		m.identity.WithLabelValues(name).Set(value)
	}
}

func (m *Metrics) setConnected(connected bool) {
	value := 0.0
	if connected {
		value = 1
	}
	m.connected.Set(value)
}

// attempted counts one request and, if it was answered, its duration.
func (m *Metrics) attempted(took time.Duration, answered bool) {
	m.requests.Inc()
	if answered {
		m.duration.Observe(took.Seconds())
	}
}
