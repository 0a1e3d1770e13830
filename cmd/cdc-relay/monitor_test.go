package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/relay"
	"github.com/cdc-relay/cdc-relay/internal/sampler"
)

func TestBeatLimit(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*config.Config)
		want   time.Duration
	}{
		{"defaults", func(*config.Config) {}, 40 * time.Second},
		{"quick statements", func(c *config.Config) { c.Postgres.StatementTimeout = time.Second }, 30 * time.Second},
		{"slow statements", func(c *config.Config) { c.Postgres.StatementTimeout = time.Minute }, 70 * time.Second},
		{"slow connects", func(c *config.Config) { c.Postgres.ConnectTimeout = time.Minute }, 130 * time.Second},
		{"slow brokers", func(c *config.Config) { c.Kafka.RequestTimeout = time.Minute }, 73 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := loadTest(t)
			tt.change(c)
			if got := beatLimit(c); got != tt.want {
				t.Errorf("limit %v, want %v", got, tt.want)
			}
		})
	}
}

func TestMetricsWithoutAStream(t *testing.T) {
	t.Parallel()
	metrics, reg := newRegistry(loadTest(t, "CDC_RELAY_PIPELINE=shop"))
	new(vitals).watch(reg)
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "pipeline" && l.GetValue() == "shop" {
					got[f.GetName()] = m.GetGauge().GetValue()
				}
			}
		}
	}
	want := map[string]float64{"cdc_relay_build_info": 1, "cdc_relay_pipeline_info": 1, "cdc_relay_source_connected": 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics of the pipeline (-want +got):\n%s", diff)
	}
}

// After a takeover the new leader named the dead one beside its own epoch, until
// the next look at the tables: "vm/1, which answers, epoch 2".
func TestLeaderIsNamed(t *testing.T) {
	t.Parallel()
	o := observed{instance: "here/2"}
	sample := func(instance string, held bool) *sampler.Sample {
		return &sampler.Sample{Lease: sampler.Lease{Instance: instance, Epoch: 1, Held: held}}
	}
	for _, tt := range []struct {
		name  string
		leads bool
		last  *sampler.Sample
		want  string
		epoch int64
	}{
		{"just after a takeover", true, sample("dead/1", true), "here/2", 2},
		{"before the first look", true, nil, "here/2", 2},
		{"another one leads", false, sample("other/1", true), "other/1", 1},
		{"nobody leads", false, sample("other/1", false), "", 1},
		{"nobody has looked", false, nil, "", 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := o.tell("s", relay.Status{Leader: tt.leads, Epoch: 2}, tt.last)
			if got.LeaderInstance != tt.want || got.Epoch != tt.epoch {
				t.Errorf("leader %q, epoch %d; want %q, %d", got.LeaderInstance, got.Epoch, tt.want, tt.epoch)
			}
		})
	}
}
