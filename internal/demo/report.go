package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/load"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
)

// showProgress prints a line now and then until ctx ends.
func showProgress(ctx context.Context, w *world) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var ready, sent, consumed int
		relay, err := relayproc.ReadStatus(ctx, w.status)
		if err == nil {
			err = w.pool.QueryRow(ctx, `SELECT count(*) FILTER (WHERE send_status = 0), count(*) FILTER (WHERE sent_at IS NOT NULL),
				count(*) FILTER (WHERE send_status = 4) FROM `+table).Scan(&ready, &sent, &consumed)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("asking for the progress: %w", err)
		}
		fmt.Printf("  written %5d   published %5.0f   SENT %5d   CONSUMED %5d   READY %5d   requeued %3.0f\n",
			w.history.Len(), relay.Counters["events_acked_total"], sent, consumed, ready, relay.Counters[viaRequeue])
	}
}

// requeues are the relay's counts of rows that waited.
type requeues struct {
	delayed  float64 // were due for the first time
	retries  float64 // were due after a failure
	received float64 // came back through the WAL
}

// Counters of the relay.
const (
	viaRequeue   = `events_received_total{via="requeue"}`
	delayedAsked = `requeued_total{reason="delayed"}`
	retriesAsked = `requeued_total{reason="retry"}`
)

// report is what came of the events.
type report struct {
	check      *check.Report
	sent       int // rows that have been SENT
	outOfOrder int
	requeued   requeues
	mails      mails
	late       time.Duration   // from when the delayed event was due until it was published
	latency    []time.Duration // of the load, sorted
	lag        int64           // bytes of WAL that the slot is behind
	committed  int             // transactions
	rolledBack int
	took       time.Duration
}

func newReport(ctx context.Context, w *world, s *site, c *consumers, took time.Duration) (*report, error) {
	rows, err := load.ReadTable(ctx, w.pool, table, "payload")
	if err != nil {
		return nil, err
	}
	records, err := w.topics.Read(ctx, w.made...)
	if err != nil {
		return nil, err
	}
	relay, err := relayproc.ReadStatus(ctx, w.status)
	if err != nil {
		return nil, err
	}
	r := &report{took: took}
	r.requeued = requeues{relay.Counters[delayedAsked], relay.Counters[retriesAsked], relay.Counters[viaRequeue]}
	r.times(w, c.first())
	if r.mails, err = newMails(ctx, s); err != nil {
		return nil, err
	}
	r.check = check.Run{Events: w.history.Events(), Rows: rows, Records: records}.Check()
	for _, p := range r.check.Problems {
		if p.Kind == check.Disorder {
			r.outOfOrder++
		}
	}
	r.committed, r.rolledBack = w.history.Transactions()
	err = w.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM `+table+` WHERE sent_at IS NOT NULL),
		(SELECT greatest(0, pg_current_wal_lsn() - confirmed_flush_lsn)::bigint FROM pg_replication_slots WHERE slot_name = $1)`,
		w.name).Scan(&r.sent, &r.lag)
	if err != nil {
		return nil, fmt.Errorf("asking for the report: %w", err)
	}
	return r, nil
}

// times compares when records were published and handled with when their events
// were committed or due.
func (r *report) times(w *world, handled map[int64]handling) {
	for _, e := range w.history.Events() {
		h, ok := handled[e.ID]
		switch asked, known := w.history.Asked(e.ID); {
		case !ok || !known:
		case e.Aggregate.Type == delayedType:
			r.late = h.published.Sub(w.due)
		case slices.Contains(types, e.Aggregate.Type):
			r.latency = append(r.latency, h.began.Sub(asked))
		}
	}
	slices.Sort(r.latency)
}

// String is the report for people.
func (r *report) String() string {
	var b strings.Builder
	line := func(name string, value any, what string) { fmt.Fprintf(&b, "  %-13s %6v  %s\n", name, value, what) }
	line("written", r.check.Committed, fmt.Sprintf("events of %d aggregates, %d transactions, %d more rolled back", aggregates, r.committed, r.rolledBack))
	line("published", r.check.Records, "records in Kafka")
	line("SENT", r.sent, "rows, written back by the relay")
	line("CONSUMED", r.check.Statuses[check.Consumed], "rows, claimed and finished by the consumers")
	line("READY", r.check.Statuses[check.Ready], "rows left over")
	line("delayed", r.requeued.delayed, fmt.Sprintf("event, published %.1f s after it was due", r.late.Seconds()))
	line("retried", r.requeued.retries, fmt.Sprintf("times, as the topic of %d events was missing until each had failed %d times", lateEvents, lateAttempts))
	line("requeued", r.requeued.received, "times a row came back through the WAL")
	line("e-mails", r.mails.accepted, r.mails.line())
	line("verified", r.mails.verified, "users, by the token in their e-mail; none worked twice")
	line("duplicates", r.check.Duplicates, "")
	line("out of order", r.outOfOrder, "")
	fmt.Fprintf(&b, "  %-13s p50 %.1f ms, p99 %.1f ms from the start of a commit to the handler of its event, which is claimed by then\n",
		"latency", milliseconds(quantile(r.latency, 0.50)), milliseconds(quantile(r.latency, 0.99)))
	line("slot lag", r.lag, "bytes")
	fmt.Fprintf(&b, "  %-13s %.1f s\n", "time", r.took.Seconds())
	return b.String()
}

// verdict is nil if every event made the whole way, once, in order and not
// before its time, and what waited came back through the WAL.
func (r *report) verdict() error {
	if err := r.check.Err(); err != nil {
		return err
	}
	if n := r.check.Statuses[check.Consumed]; n != events || r.check.Committed != events || r.check.Records != events || r.sent != events {
		return fmt.Errorf("%d events were to be written, published, SENT and CONSUMED: not all were", events)
	}
	if r.late < 0 {
		return fmt.Errorf("the delayed event was published %v before it was due", -r.late)
	}
	q := r.requeued
	if q.delayed != delayedEvents || q.retries < lateEvents*lateAttempts || q.received != q.delayed+q.retries {
		return fmt.Errorf("%d delayed events and at least %d retries were to come back through the WAL: %v and %v were asked for, %v came back",
			delayedEvents, lateEvents*lateAttempts, q.delayed, q.retries, q.received)
	}
	return r.mails.verdict()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// quantile takes a sorted list.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
