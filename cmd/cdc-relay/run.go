package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/lease"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
	"github.com/cdc-relay/cdc-relay/internal/recovery"
	"github.com/cdc-relay/cdc-relay/internal/relay"
	"github.com/cdc-relay/cdc-relay/internal/sampler"
)

func (a *app) runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Publish until told to stop",
		Long: "Lead the slot, or wait while another instance does, and publish until SIGTERM or\n" +
			"SIGINT: then stop in order, at most shutdown.drain_timeout. A second signal ends at\n" +
			"once. Both lose nothing. What it does is told by /statusz on http.listen.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			loaded, err := a.loadConfig(config.UseAll)
			if err != nil {
				return err
			}
			log := newLogger(a.stderr, loaded.Config.Log)
			for _, w := range loaded.Warnings {
				log.Warn(w)
			}
			if _, set := os.LookupEnv("GOGC"); !set {
				// What is live is bounded by limits.*, and little is garbage: half
				// the usual head room costs about one percent of the CPU.
				debug.SetGCPercent(50)
			}
			return run(cmd.Context(), &loaded.Config, log)
		},
	}
}

// run builds what lives as long as the process and runs it: the first part to
// end ends the others.
func run(ctx context.Context, c *config.Config, log *slog.Logger) error {
	metrics, reg := newRegistry(c)
	v := &vitals{pulse: pulse.NewBoard()}
	v.watch(reg)
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("asking for the host name: %w", err)
	}
	instance := fmt.Sprintf("%s/%d", host, os.Getpid())
	r, err := newRelay(c, v, instance, log, reg)
	if err != nil {
		return err
	}
	look := samplerConfig(c, c.Sampler.Timeout)
	look.Pulse = v.pulse
	look.Observe = func(s *sampler.Sample) { r.Waiting(openFailures(s)) }
	samples, err := sampler.New(look, log, reg)
	if err != nil {
		return err
	}
	server, err := newMonitor(c, observed{instance: instance, relay: r, vitals: v, sampler: samples, metrics: metrics}, log)
	if err != nil {
		return err
	}
	// The listener answers as long as the relay drains.
	group, gctx := errgroup.WithContext(context.WithoutCancel(ctx))
	serving, stopServing := context.WithCancel(gctx)
	defer stopServing()
	relaying, stopRelaying := context.WithCancel(gctx)
	defer context.AfterFunc(ctx, stopRelaying)()
	defer stopRelaying()
	group.Go(func() error { return server.Run(serving) })
	group.Go(func() error { return samples.Run(serving) })
	group.Go(func() error {
		defer stopServing()
		return r.Run(relaying)
	})
	err = group.Wait()
	if errors.Is(err, relay.ErrInvariant) {
		return &exitError{exitInternal, err}
	}
	return err
}

// checkEvery lets what makes a server unfit be seen within a minute.
const checkEvery = 30 * time.Second

func newRelay(c *config.Config, v *vitals, instance string, log *slog.Logger, reg prometheus.Registerer) (*relay.Relay, error) {
	o, err := newOpener(c, v, log, reg)
	if err != nil {
		return nil, err
	}
	leader, err := lease.New(lease.Config{
		Connect:       o.connectLease,
		Schema:        c.Outbox.Table.Schema,
		Slot:          c.Slot.Name,
		Instance:      instance,
		TTL:           c.Lease.TTL,
		RenewInterval: c.Lease.RenewInterval,
		PublishWithin: c.Lease.PublishWithin,
		TakeoverAfter: c.Lease.TakeoverAfter,
		Pulse:         v.pulse,
	}, log, reg)
	if err != nil {
		return nil, err
	}
	v.lease = leader
	policies, err := newPolicies(c)
	if err != nil {
		return nil, err
	}
	return relay.New(relay.Config{
		RequeuePrefix:  "cdc-relay/" + c.Outbox.Table.String(),
		ProbePrefix:    recovery.ProbePrefix(c.Slot.Name),
		InflightEvents: c.Limits.InflightEvents,
		InflightBytes:  int64(c.Limits.InflightBytes),
		DrainTimeout:   c.Shutdown.DrainTimeout,
		ReconcileEvery: c.Reconcile.Interval,
		CheckEvery:     checkEvery,
		Tick:           c.Retry.Tick,
		SweepEvery:     c.Reconcile.Interval,
		HeldRetry:      c.Kafka.PartitionGrace,
		ProbeEvery:     c.Slot.ProbeInterval,
		Beats:          v.pulse,
	}, leadership{leader}, o.open, policies, log, reg), nil
}

// leadership fits the lease to what the relay expects of it.
type leadership struct{ *lease.Lease }

func (l leadership) Acquire(ctx context.Context, standby func()) (relay.Tenure, error) {
	t, err := l.Lease.Acquire(ctx, standby)
	if err != nil {
		return nil, err // not a Tenure that holds nil
	}
	return t, nil
}
