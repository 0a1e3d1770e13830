package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/load"
)

// Besides the load there are events that have to wait on their rows and come
// back through the WAL: one that is delayed, and some whose topic is missing
// until they have been retried once. Each kind has an aggregate type, and so a
// topic, of its own.
const (
	delayedType   = "reminder"
	delayedEvents = 1
	delay         = 3 * time.Second

	lateType     = "invoice"
	lateEvents   = 5
	lateAttempts = 2 // of each, before the topic is made: the first one and a retry
)

// insertWaiting commits the events that have to wait.
func (w *world) insertWaiting(ctx context.Context, conn *pgx.Conn) error {
	if err := w.insertDelayed(ctx, conn); err != nil {
		return fmt.Errorf("writing the delayed event: %w", err)
	}
	rows := make([]load.Row, lateEvents)
	for i := range rows {
		rows[i] = load.Row{Aggregate: check.Aggregate{Type: lateType, ID: fmt.Sprint(i)}, EventType: "issued", Payload: []byte("{}")}
	}
	if err := load.Insert(ctx, conn, table, w.history, rows...); err != nil {
		return fmt.Errorf("writing the events without a topic: %w", err)
	}
	return nil
}

// insertDelayed commits the event that must not be published before w.due.
func (w *world) insertDelayed(ctx context.Context, conn *pgx.Conn) error {
	asked := time.Now()
	e := check.Event{Aggregate: check.Aggregate{Type: delayedType, ID: "a delayed one"}}
	// whole milliseconds, as in the record's timestamp
	err := conn.QueryRow(ctx, `INSERT INTO `+table+` (aggregate_type, aggregate_id, event_type, payload, next_attempt_at)
		VALUES ($1, $2, 'due', '{}', date_trunc('milliseconds', clock_timestamp()) + $3) RETURNING id, event_id, next_attempt_at`,
		e.Aggregate.Type, e.Aggregate.ID, delay).Scan(&e.ID, &e.EventID, &w.due)
	if err != nil {
		return err
	}
	w.history.Add([]check.Event{e}, 0, asked)
	return nil
}

// makeLateTopic makes the missing topic once each of its events has been
// retried in vain. The consumers find it by themselves.
func (w *world) makeLateTopic(ctx context.Context) error {
	if err := until(ctx, "the events without a topic to be retried", func() (bool, error) {
		var retried int
		err := w.pool.QueryRow(ctx, `SELECT count(*) FROM `+table+` WHERE aggregate_type = $1 AND attempts >= $2`,
			lateType, lateAttempts).Scan(&retried)
		return retried == lateEvents, err
	}); err != nil {
		return err
	}
	if err := w.makeTopics(ctx, lateType); err != nil {
		return err
	}
	fmt.Printf("  the topic of %d events that failed %d times each is made now\n", lateEvents, lateAttempts)
	return nil
}
