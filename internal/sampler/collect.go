package sampler

import (
	"github.com/prometheus/client_golang/prometheus"
)

// collector offers the last sample as metrics. What the last sample does not
// tell is absent.
type collector struct {
	get func() latest

	walStatus, active, retained, confirmedLag, safe, timeToLoss, xminAge *prometheus.Desc
	rows, oldest, expired, complete, success                             *prometheus.Desc
}

func newCollector(get func() latest) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cdc_relay_"+name, help, labels, nil)
	}
	return &collector{
		get:          get,
		walStatus:    desc("slot_wal_status", "1 for what the server says of the slot's WAL.", "wal_status"),
		active:       desc("slot_active", "1 while somebody streams from the slot."),
		retained:     desc("slot_retained_wal_bytes", "WAL that the server keeps for the slot."),
		confirmedLag: desc("slot_confirmed_lag_bytes", "WAL behind the slot's confirmed position."),
		safe:         desc("slot_safe_wal_bytes", "WAL that may still be written before the slot is in danger; absent without a limit."),
		timeToLoss:   desc("slot_time_to_loss_seconds", "slot_safe_wal_bytes at the WAL rate of five minutes; absent without a limit."),
		xminAge:      desc("slot_catalog_xmin_age", "Age of the slot's catalog_xmin in transactions."),
		rows:         desc("outbox_rows", "Rows that are not done, by status and kind.", "status", "kind"),
		oldest:       desc("outbox_oldest_age_seconds", "Age of the oldest such row since it was created; 0 if there is none.", "status", "kind"),
		expired:      desc("outbox_leases_expired", "Rows INPROGRESS or CONSUMING whose lease has run out."),
		complete:     desc("outbox_sample_complete", "0: figures of this part of the table are lower bounds.", "part"),
		success:      desc("stats_last_success_timestamp_seconds", "Time of the last sample that succeeded; 0 if none has."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.walStatus, c.active, c.retained, c.confirmedLag, c.safe, c.timeToLoss, c.xminAge,
		c.rows, c.oldest, c.expired, c.complete, c.success} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	last := c.get()
	seconds := 0.0
	if !last.success.IsZero() {
		seconds = float64(last.success.UnixMilli()) / 1000
	}
	send(c.success, seconds)
	if last.sample != nil {
		c.collectSlot(last.sample, send)
		c.collectRows(last.sample, send)
	}
}

func (c *collector) collectSlot(s *Sample, send func(*prometheus.Desc, float64, ...string)) {
	for _, status := range WALStatuses {
		send(c.walStatus, oneIf(s.Slot.WALStatus == status), status)
	}
	send(c.active, oneIf(s.Slot.Active))
	for d, value := range map[*prometheus.Desc]*int64{
		c.retained: s.Slot.RetainedBytes, c.confirmedLag: s.Slot.ConfirmedLagBytes,
		c.safe: s.Slot.SafeBytes, c.xminAge: s.Slot.CatalogXminAge,
	} {
		if value != nil {
			send(d, float64(*value))
		}
	}
	if seconds, ok := s.TimeToLoss(); ok {
		send(c.timeToLoss, seconds)
	}
}

func (c *collector) collectRows(s *Sample, send func(*prometheus.Desc, float64, ...string)) {
	for _, r := range s.Rows {
		send(c.rows, float64(r.Count), r.Status.String(), r.Kind)
		if r.OldestAge != nil {
			send(c.oldest, *r.OldestAge, r.Status.String(), r.Kind)
		}
	}
	if s.LeasesExpired != nil {
		send(c.expired, float64(*s.LeasesExpired))
	}
	send(c.complete, oneIf(s.Complete.Attention), "attention")
	send(c.complete, oneIf(s.Complete.New), "new")
	send(c.complete, oneIf(s.Complete.Consume), "consume")
}

func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}
