package monitor

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Info is what never changes in the life of a process.
type Info struct {
	Version, Revision, Go            string
	Slot, Publication, Table, Source string
}

// NewRegistry returns a registry that holds build_info, pipeline_info and the
// metrics of the Go runtime and of the process, and a registerer for metrics
// of this pipeline, which get its name as a label.
func NewRegistry(pipeline string, info Info) (*prometheus.Registry, prometheus.Registerer) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	ours := prometheus.WrapRegistererWith(prometheus.Labels{pipelineLabel: pipeline}, registry)
	constant := func(name, help string, labels prometheus.Labels) {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: metricPrefix + name, Help: help, ConstLabels: labels})
		g.Set(1)
		ours.MustRegister(g)
	}
	constant("build_info", "1; what this program is.", prometheus.Labels{
		"version": info.Version, "revision": info.Revision, "goversion": info.Go})
	constant("pipeline_info", "1; what this process relays.", prometheus.Labels{
		"slot": info.Slot, "publication": info.Publication, "table": info.Table, "source": info.Source})
	return registry, ours
}
