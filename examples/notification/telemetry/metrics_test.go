package telemetry_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/examples/notification/telemetry"
)

var _ consumer.Observer = (*telemetry.Metrics)(nil)

func newMetrics(t *testing.T) (*telemetry.Metrics, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	m, err := telemetry.NewMetrics(reg, "users")
	if err != nil {
		t.Fatal(err)
	}
	return m, reg
}

// compare checks the metrics with these names, those of types without a sum.
func compare(t *testing.T, reg *prometheus.Registry, want string, names ...string) {
	t.Helper()
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
}

func TestCountersExistFromTheStart(t *testing.T) {
	t.Parallel()
	_, reg := newMetrics(t)
	compare(t, reg, `
# HELP cdc_consumer_lease_renewals_total Claims renewed, and found lost when they were to be renewed.
# TYPE cdc_consumer_lease_renewals_total counter
cdc_consumer_lease_renewals_total{result="lost"} 0
cdc_consumer_lease_renewals_total{result="ok"} 0
# HELP cdc_consumer_lost_claims_total Claims that somebody else took over.
# TYPE cdc_consumer_lost_claims_total counter
cdc_consumer_lost_claims_total 0
# HELP cdc_consumer_quarantined_total Records put into the quarantine, by the reason.
# TYPE cdc_consumer_quarantined_total counter
cdc_consumer_quarantined_total{reason="BAD_HEADERS",topic="users"} 0
cdc_consumer_quarantined_total{reason="BEYOND_HORIZON",topic="users"} 0
cdc_consumer_quarantined_total{reason="MISSING",topic="users"} 0
cdc_consumer_quarantined_total{reason="NO_EVENT_ID",topic="users"} 0
cdc_consumer_quarantined_total{reason="SKIPPED_RANGE",topic="users"} 0
cdc_consumer_quarantined_total{reason="STATE_CONFLICT",topic="users"} 0
# HELP cdc_consumer_records_total Records, by what became of them.
# TYPE cdc_consumer_records_total counter
cdc_consumer_records_total{outcome="consumed",topic="users"} 0
cdc_consumer_records_total{outcome="data_error",topic="users"} 0
cdc_consumer_records_total{outcome="deferred",topic="users"} 0
cdc_consumer_records_total{outcome="duplicate",topic="users"} 0
cdc_consumer_records_total{outcome="not_sent_yet",topic="users"} 0
cdc_consumer_records_total{outcome="quarantined",topic="users"} 0
cdc_consumer_records_total{outcome="system_error",topic="users"} 0
`, "cdc_consumer_lease_renewals_total", "cdc_consumer_lost_claims_total", "cdc_consumer_quarantined_total",
		"cdc_consumer_records_total", "cdc_consumer_partition_paused")
	for _, name := range []string{"cdc_consumer_process_duration_seconds", "cdc_consumer_claim_duration_seconds"} {
		if n, err := testutil.GatherAndCount(reg, name); err != nil || n != 1 {
			t.Errorf("%s: %d series, error %v", name, n, err)
		}
	}
}

func TestWhatTheKitTellsIsCounted(t *testing.T) {
	t.Parallel()
	m, reg := newMetrics(t)
	m.Records("users", consumer.Consumed, 3)
	m.Renewed(true, 5)
	m.Renewed(false, 2)
	m.ClaimLost()
	m.QuarantineRow("users", "MISSING")
	m.Paused("users", 0, consumer.WaitingDelay, true)
	m.Paused("users", 0, consumer.WaitingDelay, false)
	m.Paused("users", 1, consumer.BlockedFlood, true)
	m.Processed("users", 3*time.Second)
	m.Claimed(2 * time.Second)
	compare(t, reg, `
# HELP cdc_consumer_lease_renewals_total Claims renewed, and found lost when they were to be renewed.
# TYPE cdc_consumer_lease_renewals_total counter
cdc_consumer_lease_renewals_total{result="lost"} 2
cdc_consumer_lease_renewals_total{result="ok"} 5
# HELP cdc_consumer_lost_claims_total Claims that somebody else took over.
# TYPE cdc_consumer_lost_claims_total counter
cdc_consumer_lost_claims_total 1
# HELP cdc_consumer_partition_paused 1 while a partition waits, by the reason.
# TYPE cdc_consumer_partition_paused gauge
cdc_consumer_partition_paused{partition="0",reason="delay",topic="users"} 0
cdc_consumer_partition_paused{partition="1",reason="quarantine_flood",topic="users"} 1
`, "cdc_consumer_lease_renewals_total", "cdc_consumer_lost_claims_total", "cdc_consumer_partition_paused")
	for name, want := range map[string]float64{
		"cdc_consumer_records_total": 3, "cdc_consumer_quarantined_total": 1,
		"cdc_consumer_process_duration_seconds": 3, "cdc_consumer_claim_duration_seconds": 2,
	} {
		if got := sum(t, reg, name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// sum adds up the values of a counter, or what a histogram observed.
func sum(t *testing.T, reg *prometheus.Registry, name string) (total float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name {
				total += metric.GetCounter().GetValue() + metric.GetHistogram().GetSampleSum()
			}
		}
	}
	return total
}

func TestTwoConsumersNeedTwoRegistries(t *testing.T) {
	t.Parallel()
	_, reg := newMetrics(t)
	if _, err := telemetry.NewMetrics(reg, "users"); err == nil {
		t.Error("no error")
	}
}
