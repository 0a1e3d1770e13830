package main

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer"
)

// consume measures the consumer kit on the rows that the relay has SENT, with a
// handler that does nothing: one event at a time, then a chunk of them in a
// statement, as the kit does by default. Both are of one group, so each goes on
// where the other has stopped.
func (d *drain) consume(ctx context.Context) error {
	const single, chunk = 1, 100
	slow, err := d.consumeSome(ctx, single, d.rows/100)
	if err != nil {
		return err
	}
	fast, err := d.consumeSome(ctx, chunk, d.rows/5)
	if err != nil {
		return err
	}
	fmt.Printf("claim, no-op handler, CONSUMED; %d partitions, one process\n", d.partitions)
	fmt.Printf("  one event in a statement      %8.0f events/s\n", slow)
	fmt.Printf("  up to %d in a statement      %8.0f events/s   %.1f times\n", chunk, fast, fast/slow)
	return nil
}

// consumeSome returns the rate of n events, from the first one to the last.
func (d *drain) consumeSome(ctx context.Context, chunk, n int) (float64, error) {
	pool, err := pgxpool.New(ctx, d.dsn)
	if err != nil {
		return 0, fmt.Errorf("making the consumer's pool: %w", err)
	}
	defer pool.Close()
	running, stop := context.WithCancel(ctx)
	defer stop()
	var (
		seen        atomic.Int64
		first, last time.Time
	)
	c, err := consumer.New(consumer.Config{
		Brokers: []string{os.Getenv("CDC_TEST_KAFKA")}, Group: d.topic, Topics: []string{d.topic}, DB: pool,
	}, func(context.Context, *consumer.Event) error {
		switch seen.Add(1) {
		case 1:
			first = time.Now()
		case int64(n):
			last = time.Now()
			stop()
		}
		return nil
	}, consumer.ClaimBatch(chunk))
	if err != nil {
		return 0, err
	}
	if err := c.Run(running); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return float64(n) / last.Sub(first).Seconds(), nil
}
