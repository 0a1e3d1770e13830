package consumerproc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/consumer"
)

// Asked reports whether this process is to be a consumer.
func Asked() bool { return os.Getenv(EnvConfig) != "" }

// Main runs the consumer until SIGTERM and returns the exit code.
func Main() int {
	if err := run(); err != nil {
		slog.Error("the consumer ends", "err", err)
		return 1
	}
	return 0
}

func run() error {
	cfg, err := read(os.Getenv(EnvConfig))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, cfg.DSN)
	if err != nil {
		return fmt.Errorf("making a pool: %w", err)
	}
	defer pool.Close()
	svc, err := newService(cfg)
	if err != nil {
		return err
	}
	w := newWatcher()
	c, err := build(cfg, pool, svc, w)
	if err != nil {
		return err
	}
	g, running := errgroup.WithContext(ctx)
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	g.Go(func() error { return w.serve(serving, cfg.Listen, c.Health) })
	g.Go(func() error {
		defer end()
		return c.Run(running)
	})
	return g.Wait()
}

// build makes the consumer that the configuration tells of.
func build(cfg Config, pool *pgxpool.Pool, svc *service, w *watcher) (*consumer.Consumer, error) {
	base := consumer.Config{Brokers: cfg.Brokers, Group: cfg.Group, Topics: cfg.Topics, DB: pool}
	opts, err := options(cfg, svc)
	if err != nil {
		return nil, err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	opts = append(opts, consumer.Metrics(w), consumer.Logger(log), consumer.Use(svc.started))
	if cfg.Mode == Transaction {
		return consumer.NewTx(base, svc.record, opts...)
	}
	return consumer.New(base, svc.handler(), opts...)
}

// options are those that the configuration sets.
func options(cfg Config, svc *service) (opts []consumer.Option, err error) {
	add := func(set bool, o consumer.Option) {
		if set {
			opts = append(opts, o)
		}
	}
	retry := consumer.RetryPolicy{Base: cfg.RetryBase, Max: max(cfg.RetryBase, cfg.RetryMax)}
	add(cfg.Mode != Shared, consumer.Receipts(cfg.Purpose))
	add(cfg.Lease > 0, consumer.Lease(cfg.Lease))
	add(cfg.Mode != Shared, consumer.Horizon(cfg.Horizon))
	add(cfg.KeyTTL > 0, consumer.KeyTTL(cfg.KeyTTL))
	add(cfg.NotSentWait > 0, consumer.NotSentWait(cfg.NotSentWait))
	add(cfg.RetryBase > 0, consumer.RetryDelay(retry))
	add(cfg.RevokeGrace > 0, consumer.RevokeGrace(cfg.RevokeGrace))
	add(cfg.Drain > 0, consumer.Drain(cfg.Drain))
	add(cfg.HandlerTimeout > 0, consumer.HandlerTimeout(cfg.HandlerTimeout))
	add(cfg.Concurrency > 0, consumer.Concurrency(cfg.Concurrency))
	add(cfg.AbandonLimit > 0, consumer.AbandonLimit(cfg.AbandonLimit))
	add(cfg.QuarantineLimit > 0, consumer.QuarantineLimit(cfg.QuarantineLimit, time.Minute))
	add(cfg.ResumeAtStart, consumer.ResumeAtStart())
	switch cfg.Policy {
	case "", "repeat":
	case "hold":
		opts = append(opts, consumer.Ambiguity(consumer.Hold))
	case "query":
		opts = append(opts, consumer.Ambiguity(consumer.Query(svc.mailer.Found)))
	default:
		return nil, errors.New("unknown policy " + cfg.Policy)
	}
	return opts, nil
}
