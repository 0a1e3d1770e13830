package e2e

import (
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestPriority: of rows that are picked from the table, those of higher
// priority go first.
func TestPriority(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const rows, batch = 30, 5
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: soon.With(relayproc.Config{"retry.batch": batch})})
		watchRequeues(b)
		delayed := map[int64]bool{}
		for i := range rows { // all are due at the same time, when the relay starts
			delayed[insertWith(t, b, "order", fmt.Sprint(i), "payload, priority, next_attempt_at", fmt.Sprintf("'{}', %d, now() - interval '1 h'", i*7%rows))] = true
		}
		b.StartStreaming(nil)
		b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == rows })
		if n := b.Count(`SELECT count(DISTINCT tx) FROM requeues`); n != rows/batch {
			t.Errorf("%d batches were requeued, want %d", n, rows/batch)
		}
		if n := b.Count(`SELECT count(*) FROM (SELECT min(priority) AS least, lead(max(priority)) OVER (ORDER BY min(seq)) AS next
			FROM requeues JOIN outbox USING (id) GROUP BY tx) s WHERE next > least`); n != 0 {
			t.Errorf("%d batches were followed by rows of higher priority", n)
		}
		b.Finish(harness.Allow{Unordered: delayed})
	})
}

// TestAttemptsSurvive: over kills of the relay and answers of the database
// that are lost no attempt is lost, counted twice, or made before its time.
func TestAttemptsSurvive(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const rows, most = 40, 12
		wire, through := harness.StartWire(t, db.DSN)
		b := newGhostBed(t, db, blocking.With(relayproc.Config{"postgres.dsn": through, "retry.topic_max_attempts": most}))
		watchAttempts(b)
		relay := b.StartStreaming(nil)
		for i := range rows {
			b.Insert(harness.Row(ghost, fmt.Sprint(i), "{}"))
		}
		made := func(n int) {
			t.Helper()
			b.Wait(fmt.Sprintf("%d attempts", n), func() bool { return b.Count(`SELECT count(*) FROM attempts_made`) >= n })
		}
		for round := range 4 {
			made((2*round + 1) * rows)
			wire.Cut()
			wire.Mend()
			made((2*round + 2) * rows)
			relay.Kill()
			relay = b.StartStreaming(nil)
		}
		b.Wait("all to be FAILED", func() bool { return b.CountStatus(check.Failed) == rows })
		if n := b.Count(`SELECT count(*) FROM outbox WHERE attempts = $1`, most); n != rows {
			t.Errorf("%d rows are FAILED after %d attempts, want %d", n, most, rows)
		}
		if n := b.Count(`SELECT count(*) FROM attempts_made`); n != rows*most {
			t.Errorf("%d attempts were counted, want %d", n, rows*most)
		}
		attemptsAreCounted(t, b)
		createGhost(t, b)
		b.Exec(`UPDATE outbox SET send_status = 0, attempts = 0, next_attempt_at = now()`)
		b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == rows })
		b.Finish(harness.Allow{})
	})
}

// TestReleasedButNotPublished: the broker is silent while held rows are to come
// out, and the relay ends in between, once by a kill and once in order.
func TestReleasedButNotPublished(t *testing.T) {
	t.Parallel()
	broker := harness.StartBroker(t)
	b := harness.NewBed(t, pgtest.New(t, 15), limited(broker.Kafka, relayproc.Config{"shutdown.drain_timeout": "1s"}))
	relay := b.StartStreaming(nil)
	skipped := map[int64]bool{}
	for round, end := range []func(){func() { relay.Kill() }, func() { relay.Terminate() }} {
		aggregate := fmt.Sprint("released-", round)
		head := obstruct(b, aggregate)
		before := relay.Counter("inflight_events")
		broker.Freeze()
		skip(b, head)
		skipped[head] = true
		b.Wait("the held rows to be released", func() bool { return relay.Counter("inflight_events") >= before+heldBehind })
		end()
		if n := heldRows(b, aggregate); n != heldBehind {
			t.Errorf("%d rows are held after the end of the relay, want %d", n, heldBehind)
		}
		broker.Thaw()
		relay = b.StartStreaming(nil)
		b.Wait("all to be SENT", func() bool { return unsent(b, aggregate) == 1 })
	}
	b.Finish(harness.Allow{Waived: skipped, Duplicates: 2 * heldBehind})
}
