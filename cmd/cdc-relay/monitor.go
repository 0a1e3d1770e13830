package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/lease"
	"github.com/cdc-relay/cdc-relay/internal/monitor"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
	"github.com/cdc-relay/cdc-relay/internal/relay"
	"github.com/cdc-relay/cdc-relay/internal/sampler"
	"github.com/cdc-relay/cdc-relay/internal/sink"
	"github.com/cdc-relay/cdc-relay/internal/wal"
	"github.com/cdc-relay/cdc-relay/migrations"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// newRegistry returns the metrics of this process and the registerer for those
// of its parts.
func newRegistry(c *config.Config) (*prometheus.Registry, prometheus.Registerer) {
	b := thisBuild()
	return monitor.NewRegistry(c.Pipeline, monitor.Info{
		Version: b.Version, Revision: b.Revision, Go: b.Go,
		Slot: c.Slot.Name, Publication: c.Slot.Publication, Table: c.Outbox.Table.String(), Source: c.Source,
	})
}

// samplerConfig is how to look at the slot and the table, at most so long.
func samplerConfig(c *config.Config, timeout time.Duration) sampler.Config {
	return sampler.Config{
		Connect: func(ctx context.Context) (*pgx.Conn, pg.Server, error) {
			options, err := sqlOptions(c)
			if err != nil {
				return nil, pg.Server{}, err
			}
			options.StatementTimeout = timeout
			return pg.Connect(ctx, options, nil)
		},
		Accept: func(ctx context.Context, conn *pgx.Conn) error {
			version, err := migrations.Version(ctx, conn, c.Outbox.Table.Schema)
			if err != nil {
				return err
			}
			return migrations.Accepted(version)
		},
		Table:    pg.Table(c.Outbox.Table),
		Columns:  c.Outbox.Columns,
		Slot:     c.Slot.Name,
		Interval: c.Sampler.Interval,
		Timeout:  timeout,
		MaxRows:  c.Sampler.MaxRows,
	}
}

// vitals is where the parts of the process and of its present session are
// reached when somebody asks how they are.
type vitals struct {
	pulse     *pulse.Board
	lease     *lease.Lease
	stream    atomic.Pointer[wal.Stream] // nil between sessions
	publisher atomic.Pointer[sink.Publisher]
}

// watch exports what is known of the stream. Without one the time is absent: it
// would be that of an earlier session.
func (v *vitals) watch(reg prometheus.Registerer) {
	connected := prometheus.NewDesc("cdc_relay_source_connected", "1 while this instance streams from the slot.", nil, nil)
	last := prometheus.NewDesc("cdc_relay_source_last_message_timestamp_seconds",
		"When the server last sent anything, keepalives included.", nil, nil)
	reg.MustRegister(prometheus.CollectorFunc(func(out chan<- prometheus.Metric) {
		stream := v.stream.Load()
		if stream == nil {
			out <- prometheus.MustNewConstMetric(connected, prometheus.GaugeValue, 0)
			return
		}
		out <- prometheus.MustNewConstMetric(connected, prometheus.GaugeValue, 1)
		if at := stream.ReceivedAt(); !at.IsZero() {
			out <- prometheus.MustNewConstMetric(last, prometheus.GaugeValue, float64(at.UnixMilli())/1000)
		}
	}))
}

// observed is what the listener shows.
type observed struct {
	instance string // this process, as the lease names it
	relay    *relay.Relay
	vitals   *vitals
	sampler  *sampler.Sampler
	metrics  prometheus.Gatherer
}

func newMonitor(c *config.Config, o observed, log *slog.Logger) (*monitor.Server, error) {
	return monitor.New(monitor.Options{
		Listen:   c.HTTP.Listen,
		Pipeline: c.Pipeline,
		Status:   func() monitor.Status { return o.tell(c.Slot.Name, o.relay.Status(), o.sampler.Last()) },
		Health:   o.health,
		Limits:   monitor.Limits{StallAfter: c.HTTP.StallAfter, Lease: c.Lease.TakeoverAfter, Beat: beatLimit(c)},
		Metrics:  o.metrics,
		Hidden:   addresses(c),
		Log:      log,
	})
}

// tell puts together what the relay knows of itself and the last look at the
// tables, nil if there was none.
func (o observed) tell(slot string, s relay.Status, last *sampler.Sample) monitor.Status {
	status := monitor.Status{
		State: string(s.State), Since: s.Since,
		Reason: s.Reason, What: s.What, Remedy: s.Remedy,
		Leader: s.Leader, Slot: slot, Epoch: s.Epoch,
		Positions: monitor.Positions(s.Positions),
	}
	switch {
	case s.Leader: // the tables were looked at some seconds ago, under another one perhaps
		status.LeaderInstance = o.instance
	case last != nil:
		status.Epoch = last.Lease.Epoch
		if last.Lease.Held {
			status.LeaderInstance = last.Lease.Instance
		}
	}
	return status
}

func (o observed) health() monitor.Health {
	s := o.relay.Status()
	h := monitor.Health{
		State: string(s.State), Reason: s.Reason,
		Parts:   o.vitals.pulse.Parts(),
		LeaseAt: o.vitals.lease.SeenAt(),
		Stream:  monitor.Stream{HeldBack: s.HeldBack, EventAt: s.EventAt},

		InFlight: s.InFlight,
		MovedAt:  s.MovedAt,
	}
	switch o.sampler.Schema() {
	case sampler.SchemaAccepted:
		h.Schema = monitor.OK
	case sampler.SchemaRefused:
		h.Schema = monitor.Fail
	}
	if stream := o.vitals.stream.Load(); stream != nil {
		h.Stream.Connected, h.Stream.MessageAt, h.Stream.SenderTimeout = true, stream.ReceivedAt(), stream.SenderTimeout()
	}
	if publisher := o.vitals.publisher.Load(); publisher != nil {
		h.BrokerAt = publisher.HeardAt()
	}
	return h
}

// openFailures is what the rows of a sample want of a person, nil if nothing.
func openFailures(s *sampler.Sample) *fault.Blocked {
	var n int64
	for _, group := range s.Rows {
		if group.Status == outbox.Failed {
			n += group.Count
		}
	}
	if n == 0 {
		return nil
	}
	return &fault.Blocked{
		Reason: "relay.failed",
		What:   fmt.Sprintf("FAILED events wait for a person: %d", n),
		Remedy: "run: cdc-relay failed list; then replay or skip them",
	}
}

// beatLimit is how long a part may be at one thing: 30 s, or longer if a wait
// that is configured may take longer.
func beatLimit(c *config.Config) time.Duration {
	const margin = 10 * time.Second
	longest := max(c.Postgres.StatementTimeout, 2*c.Postgres.ConnectTimeout, c.Kafka.RequestTimeout+c.Kafka.DialTimeout)
	return max(30*time.Second, longest+margin)
}
