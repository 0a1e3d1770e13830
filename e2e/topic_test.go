package e2e

import (
	"context"
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/load"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// heads is how many rows have had attempts: with block, the first of each
// aggregate only.
func heads(b *harness.Bed, least int) int {
	return b.Count(`SELECT count(*) FROM outbox WHERE send_status = 0 AND attempts >= $1`, least)
}

// TestTopicMissingForRounds: while a topic is missing the first event of each
// aggregate takes the attempts and the others are held; another topic is not
// delayed. Once the topic is there everything comes in order, in batches.
func TestTopicMissingForRounds(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const aggregates, each, batch, others = 200, 5, 40, 1000
		b := newGhostBed(t, db, blocking.With(relayproc.Config{"retry.batch": batch}))
		watchRequeues(b)
		watchAttempts(b)
		relay := b.StartStreaming(nil)
		for range each {
			rows := make([]load.Row, aggregates)
			for i := range rows {
				rows[i] = harness.Row(ghost, fmt.Sprint(i), "{}")
			}
			b.Insert(rows...)
		}
		b.Wait("three rounds of attempts", func() bool { return heads(b, 3) == aggregates })
		b.Background(func(ctx context.Context) error {
			return load.Bulk{Table: b.Table, Type: "order", Aggregates: 20, Rows: others}.Run(ctx, b.Conn(), b.History)
		})()
		b.Wait("the other topic's events to be SENT", func() bool { return b.CountStatus(check.Sent) == others })
		if got := b.Count(`SELECT count(*) FROM outbox WHERE send_status = 0 AND attempts = 0 AND next_attempt_at = 'infinity' AND commit_lsn IS NOT NULL`); got != aggregates*(each-1) {
			t.Errorf("%d events are held behind the first ones, want %d", got, aggregates*(each-1))
		}
		createGhost(t, b)
		b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == others+aggregates*each })
		if n := largestRequeue(b); n == 0 || n > batch {
			t.Errorf("%d rows were requeued at once, want 1 to %d", n, batch)
		}
		attemptsAreCounted(t, b)
		if n := relay.Counter(`reconcile_missed_total`); n != 0 {
			t.Errorf("%v rows were found missing, want 0", n)
		}
		b.Finish(harness.Allow{})
	})
}

// TestTopicDeletedAndMadeAnew with fewer partitions: keys would move, so its
// events wait for a person.
func TestTopicDeletedAndMadeAnew(t *testing.T) {
	t.Parallel()
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: harness.Shared(t), Config: blocking})
	relay := b.StartStreaming(nil)
	b.Write(200, 20)
	b.Settle()
	b.DeleteTopic("order")
	for i := range 40 {
		b.Insert(harness.Row("order", fmt.Sprint("late-", i%20), "{}"))
	}
	b.Wait("attempts", func() bool { return heads(b, 1) == 20 })
	if err := b.Admin.Create(t.Context(), 2, nil, b.Topic("order")); err != nil {
		t.Fatal(err)
	}
	trouble := func() bool { // the relay goes on, and says what is wrong
		s := relay.Status()
		return s != nil && s.Reason == "kafka.partitions" && s.Remedy != ""
	}
	b.Wait("the topic's partitions to be too few", trouble)
	b.Insert(harness.Row("user", "another", "{}"))
	b.Wait("the other topic's event to be SENT", func() bool {
		return b.Count(`SELECT count(*) FROM outbox WHERE aggregate_id = 'another' AND send_status = 2`) == 1
	})
	if n := b.Count(`SELECT count(*) FROM outbox WHERE aggregate_id LIKE 'late-%' AND send_status = 2`); n != 0 {
		t.Errorf("%d events were published to fewer partitions than their keys were spread over", n)
	}
	repin(t, b, "order", 2)
	b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == 241 })
	b.Finish(harness.Allow{})
}

// TestPartitionsAdded: keys stay where they are until somebody says otherwise.
func TestPartitionsAdded(t *testing.T) {
	t.Parallel()
	b := harness.NewBed(t, pgtest.New(t, 15), harness.Options{Kafka: harness.Shared(t), Config: blocking})
	relay := b.StartStreaming(nil)
	b.Write(200, 20)
	if err := b.Admin.Grow(t.Context(), b.Topic("order"), 3*harness.Partitions); err != nil {
		t.Fatal(err)
	}
	present := fmt.Sprintf("topic_partitions{kind=\"present\",topic=%q}", b.Topic("order"))
	b.Wait("the relay to see them", func() bool { return relay.Counter(present) == 3*harness.Partitions })
	b.Write(200, 20)
	b.Settle()
	inAdded := func() (n int) {
		t.Helper()
		records, err := b.Admin.Read(t.Context(), b.Topic("order"))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records {
			if r.Partition >= harness.Partitions {
				n++
			}
		}
		return n
	}
	if n := inAdded(); n != 0 {
		t.Errorf("%d records are in added partitions before these were to be used", n)
	}
	repin(t, b, "order", 3*harness.Partitions)
	for i := range 60 {
		b.Insert(harness.Row("order", fmt.Sprint("new-", i%30), "{}"))
	}
	b.Settle()
	if inAdded() == 0 {
		t.Error("added partitions are not used")
	}
	b.Finish(harness.Allow{})
}

// repin lets a topic's events be spread over that many partitions, as a person
// does, and waits until the relay does.
func repin(t *testing.T, b *harness.Bed, typ string, partitions int) {
	t.Helper()
	topic := b.Topic(typ)
	if output, code := b.Command(nil, "topics", "repin", topic); code != 5 {
		t.Errorf("repin without confirmation: exit code %d, want 5\n%s", code, output)
	}
	if output, code := b.Command(nil, "topics", "repin", topic, "--confirm", fmt.Sprint(partitions)); code != 0 {
		t.Fatalf("repin: exit code %d\n%s", code, output)
	}
	b.Wait("the partitions to be pinned anew", func() bool {
		return b.Count(`SELECT count(*) FROM cdc_relay_topic WHERE topic = $1 AND partitions = $2 AND wanted IS NULL`, topic, partitions) == 1
	})
}

// TestRightsRevoked on a broker that asks for a login: that costs attempts and
// order is kept, until they are given back.
func TestRightsRevoked(t *testing.T) {
	t.Parallel()
	broker := harness.StartSecureBroker(t)
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: broker.Kafka, Config: blocking})
	allow := func(typ string) {
		t.Helper()
		if err := b.Admin.Allow(t.Context(), broker.User, b.Topic(typ)); err != nil {
			t.Fatal(err)
		}
	}
	allow("order")
	allow("user")
	b.StartStreaming(nil)
	b.Write(200, 20)
	b.Settle()
	if err := b.Admin.Revoke(t.Context(), broker.User, b.Topic("order")); err != nil {
		t.Fatal(err)
	}
	for i := range 60 {
		b.Insert(harness.Row("order", fmt.Sprint("late-", i%20), "{}"))
	}
	b.Wait("attempts", func() bool { return heads(b, 3) == 20 })
	b.Insert(harness.Row("user", "another", "{}"))
	b.Wait("another topic's event to be SENT", func() bool { return b.CountStatus(check.Sent) == 201 })
	if n := b.Count(`SELECT count(DISTINCT error_code) FROM outbox WHERE attempts > 0 AND error_code IN ('TOPIC_DENIED', 'TOPIC_UNKNOWN')`); n == 0 {
		t.Error("the attempts do not say that the topic is denied")
	}
	allow("order")
	b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == 261 })
	b.Finish(harness.Allow{})
}
