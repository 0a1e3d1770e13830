package e2e

import (
	"crypto/rand"
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// ghost is an aggregate type whose topic does not exist.
const ghost = "ghost"

// Counters of what came through the slot, and of what the scheduler asked for.
const (
	requeuesReceived = `events_received_total{via="requeue"}`
	retriesRequeued  = `requeued_total{reason="retry"}`
	delayedRequeued  = `requeued_total{reason="delayed"}`
	missedRequeued   = `requeued_total{reason="missed"}`
)

// soon makes failures and retries follow each other fast.
var soon = relayproc.Config{
	"kafka.unknown_topic_grace": "500ms", "kafka.metadata_ttl": "500ms",
	"retry.base": "200ms", "retry.jitter": "0", "retry.tick": "100ms",
}

// newGhostBed is a bed with a topic less than types.
func newGhostBed(t *testing.T, db *pgtest.DB, config relayproc.Config) *harness.Bed {
	t.Helper()
	b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Types: []string{"order", ghost}, Config: soon.With(config)})
	if err := b.Admin.Delete(t.Context(), b.Topic(ghost)); err != nil {
		t.Fatal(err)
	}
	return b
}

func createGhost(t *testing.T, b *harness.Bed) {
	t.Helper()
	if err := b.Admin.Create(t.Context(), harness.Partitions, nil, b.Topic(ghost)); err != nil {
		t.Fatal(err)
	}
}

// TestRetriedThroughTheWAL: rows of a missing topic wait on their rows, others
// are not delayed by them; once the topic is there they come back through the
// slot, a payload of a million bytes that a row keeps out of line too.
func TestRetriedThroughTheWAL(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const waiting = 5
		b := newGhostBed(t, db, nil)
		relay := b.StartStreaming(nil)
		noise := make([]byte, 1_000_000)
		rand.Read(noise)
		b.Insert(harness.Row(ghost, "large", string(noise)))
		for i := range waiting - 1 {
			b.Insert(harness.Row(ghost, fmt.Sprint(i), "{}"))
		}
		b.Wait("persisted attempts", func() bool {
			return b.Count(`SELECT count(*) FROM outbox WHERE attempts > 1 AND error_code = 'TOPIC_UNKNOWN' AND commit_lsn IS NOT NULL`) == waiting
		})
		for i := range 20 {
			b.Insert(harness.Row("order", fmt.Sprint(i), "{}"))
		}
		b.Wait("the others to be SENT", func() bool { return b.CountStatus(check.Sent) == 20 })
		if n := b.CountStatus(check.Ready); n != waiting {
			t.Errorf("%d rows READY while the others were sent, want %d", n, waiting)
		}
		createGhost(t, b)
		b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == 20+waiting })
		b.Finish(harness.Allow{})
		if got, asked := relay.Counter(requeuesReceived), relay.Counter(retriesRequeued); got < waiting || got != asked {
			t.Errorf("%v rows came back through the slot of %v that were requeued, want all and at least %d", got, asked, waiting)
		}
		if n := b.Count(`SELECT count(*) FROM outbox WHERE attempts > 0 OR commit_lsn IS NOT NULL`); n != 0 {
			t.Errorf("%d rows still carry attempts or a commit position after they were SENT", n)
		}
	})
}

// TestAttemptsEndInFAILED, from where an operator's UPDATE brings a row back.
func TestAttemptsEndInFAILED(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const rows = 3
		b := newGhostBed(t, db, relayproc.Config{"retry.topic_max_attempts": 3, "sampler.interval": "2s"})
		relay := b.StartStreaming(nil)
		for i := range rows {
			b.Insert(harness.Row(ghost, fmt.Sprint(i), "{}"))
		}
		b.Wait("FAILED", func() bool { return b.CountStatus(check.Failed) == rows })
		if n := b.Count(`SELECT count(*) FROM outbox WHERE attempts = 3 AND next_attempt_at = 'infinity'
			AND sent_at IS NULL AND finished_at IS NULL AND error_message <> ''`); n != rows {
			t.Errorf("%d rows are FAILED after three attempts and wait for a person, want %d", n, rows)
		}
		if n := relay.Counter(retriesRequeued); n != 2*rows {
			t.Errorf("%v requeues, want %d", n, 2*rows)
		}
		relay.WaitDegraded("relay.failed")
		createGhost(t, b)
		b.Wait("the relay to see the topic", func() bool {
			s := relay.Status()
			return s != nil && s.Counters[fmt.Sprintf("topic_partitions{kind=\"present\",topic=%q}", b.Topic(ghost))] > 0
		})
		b.Exec(`UPDATE outbox SET send_status = 0, next_attempt_at = now()`)
		b.Wait("SENT", func() bool { return b.CountStatus(check.Sent) == rows })
		b.Finish(harness.Allow{})
		if n := relay.Counter(requeuesReceived); n < 3*rows {
			t.Errorf("%v rows came back through the slot, want %d", n, 3*rows)
		}
	})
}

// TestAKilledRelayMakesNoEarlyAttempt: the schedule is on the row.
func TestAKilledRelayMakesNoEarlyAttempt(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newGhostBed(t, db, relayproc.Config{"retry.base": "2s"})
		relay := b.StartStreaming(nil)
		id := b.InsertOne(harness.Row(ghost, "1", "{}"))
		b.Wait("the first attempt", func() bool { return b.Count(`SELECT attempts FROM outbox`) == 1 })
		b.Exec(`CREATE TABLE first AS SELECT next_attempt_at AS due FROM outbox`)
		relay.Kill()
		b.StartStreaming(nil)
		b.Wait("the second attempt", func() bool { return b.Count(`SELECT attempts FROM outbox`) == 2 })
		// it ended 4 s before the third one is due
		if n := b.Count(`SELECT count(*) FROM outbox, first WHERE next_attempt_at - interval '4 s' >= due`); n != 1 {
			t.Error("the second attempt was made before it was due")
		}
		createGhost(t, b)
		b.Wait("SENT", func() bool { return b.Count(`SELECT send_status FROM outbox WHERE id = $1`, id) == int(check.Sent) })
		b.Finish(harness.Allow{})
	})
}

// TestDelayedInserts are published when they are due, and not before, also
// across a restart.
func TestDelayedInserts(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: soon})
		relay := b.StartStreaming(nil)
		insertDelayed(t, b, "early", 2)
		b.Wait("the first one to be SENT", func() bool { return b.CountStatus(check.Sent) == 1 })
		if got := relay.Counter(delayedRequeued); got != 1 {
			t.Errorf("%v delayed rows requeued, want 1", got)
		}
		if got := relay.Counter(`inserts_ignored_total{reason="delayed"}`); got != 1 {
			t.Errorf("%v delayed inserts, want 1", got)
		}
		insertDelayed(t, b, "across a restart", 4)
		relay.Terminate()
		b.StartStreaming(nil)
		b.Wait("the second one to be SENT", func() bool { return b.CountStatus(check.Sent) == 2 })
		b.Finish(harness.Allow{})
		if n := b.Count(`SELECT count(*) FROM outbox WHERE sent_at >= created_at + make_interval(secs => claim_generation)`); n != 2 {
			t.Errorf("%d of 2 rows were SENT when they were due", n)
		}
	})
}

// insertDelayed writes a row that is due in some seconds, which it notes in a
// column that nobody uses before a claim.
func insertDelayed(t *testing.T, b *harness.Bed, aggregate string, seconds int) {
	t.Helper()
	e := check.Event{Aggregate: check.Aggregate{Type: "order", ID: aggregate}}
	err := b.Pool.QueryRow(t.Context(), `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, created_at, next_attempt_at, claim_generation)
		VALUES ('order', $1, 'delayed', '{}', now(), now() + make_interval(secs => $2), $2) RETURNING id, event_id`, aggregate, seconds).Scan(&e.ID, &e.EventID)
	if err != nil {
		t.Fatalf("inserting a delayed row: %v", err)
	}
	b.History.Add([]check.Event{e}, 0, time.Now())
}

// TestWithoutTheTriggerNothingIsPublished by another way, and the state says
// why.
func TestWithoutTheTriggerNothingIsPublished(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newGhostBed(t, db, relayproc.Config{"retry.patience": "1s"})
		relay := b.StartStreaming(nil)
		b.Insert(harness.Row(ghost, "1", "{}"))
		b.Wait("the first attempt", func() bool { return b.Count(`SELECT attempts FROM outbox`) >= 1 })
		b.Exec(`CREATE OR REPLACE FUNCTION cdc_relay_requeue() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`)
		createGhost(t, b)
		status := relay.WaitBlocked("table.trigger")
		if status.What == "" || status.Remedy == "" {
			t.Errorf("what %q, remedy %q: want sentences", status.What, status.Remedy)
		}
		if n := b.CountStatus(check.Sent); n != 0 {
			t.Errorf("%d rows were published without the trigger", n)
		}
		b.Exec(`CREATE OR REPLACE FUNCTION cdc_relay_requeue() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN PERFORM pg_logical_emit_message(true, TG_ARGV[0], NEW.id::text); RETURN NULL; END'`)
		b.Wait("the row to be SENT", func() bool { return b.CountStatus(check.Sent) == 1 })
		b.Finish(harness.Allow{})
	})
}
