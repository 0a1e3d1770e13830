package monitor

import (
	"math"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

const (
	metricPrefix = "cdc_relay_"
	// pipelineLabel is constant over a process and stands beside the metrics.
	pipelineLabel = "pipeline"
)

// flatten returns the relay's own metrics by name, without prefix, such as
// events_received_total{via="insert"}; labels are in alphabetical order. A
// histogram yields its _count and _sum. What is no number is left out.
func flatten(families []*dto.MetricFamily) map[string]float64 {
	flat := map[string]float64{}
	set := func(name, labels string, value float64) {
		if !math.IsNaN(value) && !math.IsInf(value, 0) {
			flat[name+labels] = value
		}
	}
	for _, family := range families {
		name, ours := strings.CutPrefix(family.GetName(), metricPrefix)
		if !ours {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := labelText(m.GetLabel())
			switch {
			case m.Counter != nil:
				set(name, labels, m.GetCounter().GetValue())
			case m.Gauge != nil:
				set(name, labels, m.GetGauge().GetValue())
			case m.Histogram != nil:
				set(name+"_count", labels, float64(m.GetHistogram().GetSampleCount()))
				set(name+"_sum", labels, m.GetHistogram().GetSampleSum())
			}
		}
	}
	return flat
}

// labelText writes labels, which a gatherer yields sorted, as Prometheus does.
func labelText(labels []*dto.LabelPair) string {
	var b strings.Builder
	for _, l := range labels {
		if l.GetName() == pipelineLabel {
			continue
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(l.GetName() + "=" + strconv.Quote(l.GetValue()))
	}
	if b.Len() == 0 {
		return ""
	}
	return "{" + b.String() + "}"
}
