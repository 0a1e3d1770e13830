package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/e2e/topics"
)

// consumer reads the topics and claims the rows, a worker for each partition.
type consumer struct {
	w      *world
	client *kgo.Client
	queues map[string][]chan arrival

	mu       sync.Mutex
	consumed map[int64]arrival // by row
}

// arrival is a record and when it was read.
type arrival struct {
	*kgo.Record
	read time.Time
}

func newConsumer(w *world) (*consumer, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(w.broker), kgo.ConsumeTopics(w.made...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("making the consumer's client: %w", err)
	}
	c := &consumer{w: w, client: client, queues: map[string][]chan arrival{}, consumed: map[int64]arrival{}}
	for _, topic := range slices.Concat(w.made, []string{w.topic(lateType)}) {
		for range partitions {
			c.queues[topic] = append(c.queues[topic], make(chan arrival, events))
		}
	}
	return c, nil
}

func (c *consumer) close() { c.client.Close() }

// run consumes until ctx ends.
func (c *consumer) run(ctx context.Context) error {
	g, working := errgroup.WithContext(ctx)
	for _, queues := range c.queues {
		for _, q := range queues {
			g.Go(func() error { return c.work(working, q) })
		}
	}
	g.Go(func() error { return c.read(working) })
	err := g.Wait()
	if ctx.Err() != nil {
		return nil // what was cut off by the end is no failure
	}
	return err
}

// read hands the records to the workers of their partitions.
func (c *consumer) read(ctx context.Context) error {
	for ctx.Err() == nil {
		fetches := c.client.PollFetches(ctx)
		if err := fetches.Err(); err != nil && ctx.Err() == nil {
			return fmt.Errorf("reading the topics: %w", err)
		}
		now := time.Now()
		fetches.EachRecord(func(r *kgo.Record) {
			c.queues[r.Topic][r.Partition] <- arrival{r, now}
		})
	}
	return nil
}

// work consumes the records of a partition one after the other.
func (c *consumer) work(ctx context.Context, records <-chan arrival) error {
	conn, err := c.w.connect(ctx)
	if err != nil {
		return fmt.Errorf("connecting the consumer: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-records:
			if err := c.consume(ctx, conn, r); err != nil {
				return err
			}
		}
	}
}

// consume claims a row and finishes it. The work of a real consumer would lie
// between the two statements.
func (c *consumer) consume(ctx context.Context, conn *pgx.Conn, r arrival) error {
	rec, err := topics.Parse(r.Record)
	if err != nil {
		return err
	}
	generation, ok, err := claim(ctx, conn, rec.RowID, rec.EventID)
	if err != nil || !ok {
		return err
	}
	tag, err := conn.Exec(ctx, `UPDATE `+table+` SET send_status = 4, finished_at = clock_timestamp(), lease_until = NULL
		WHERE id = $1 AND event_id = $2 AND send_status = 5 AND claim_generation = $3`, rec.RowID, rec.EventID, generation)
	if err != nil {
		return fmt.Errorf("finishing row %d: %w", rec.RowID, err)
	}
	if tag.RowsAffected() != 1 {
		return fmt.Errorf("finishing row %d: the claim is lost", rec.RowID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.consumed[rec.RowID] = r
	return nil
}

// claim waits for SENT: a record can arrive before the relay has written it,
// even before the row can be seen, as a commit is streamed once it is flushed
// and visible a moment later. ok is false for a copy of a record whose row is
// CONSUMED already.
func claim(ctx context.Context, conn *pgx.Conn, id int64, eventID [16]byte) (generation int, ok bool, err error) {
	err = until(ctx, fmt.Sprintf("row %d to be SENT", id), func() (bool, error) {
		err := conn.QueryRow(ctx, `UPDATE `+table+` SET send_status = 5, claim_generation = claim_generation + 1,
			claimed_by = 'demo', lease_until = clock_timestamp() + interval '30 seconds'
			WHERE id = $1 AND event_id = $2 AND send_status = 2 RETURNING claim_generation`, id, eventID).Scan(&generation)
		if !errors.Is(err, pgx.ErrNoRows) {
			ok = err == nil
			return ok, err
		}
		var status int16
		err = conn.QueryRow(ctx, `SELECT send_status FROM `+table+` WHERE id = $1 AND event_id = $2`, id, eventID).Scan(&status)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return status == 4, err
	})
	return generation, ok, err
}
