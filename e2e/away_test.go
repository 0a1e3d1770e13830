package e2e

import (
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestBrokerAwayWhileRowsAreDue: rows that come due while the broker is away
// are not requeued again and again, and that their topic was missing before
// does not count against them now.
func TestBrokerAwayWhileRowsAreDue(t *testing.T) {
	t.Parallel()
	const rows = 20
	broker := harness.StartBroker(t)
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: broker.Kafka, Types: []string{"order", ghost}, Config: blocking})
	b.DeleteTopic(ghost)
	watchRequeues(b)
	relay := b.StartStreaming(nil)
	for i := range rows {
		b.Insert(harness.Row(ghost, fmt.Sprint(i), "{}"))
	}
	b.Wait("attempts", func() bool { return heads(b, 1) == rows })
	broker.Stop()
	b.Insert(harness.Row("order", "waits for the broker", "{}"))
	b.Wait("the relay to see that the broker is away", func() bool { return relay.Counter("sink_connected") == 0 })
	b.Exec(`TRUNCATE requeues`)
	b.Exec(`CREATE TABLE attempts_then AS SELECT id, attempts FROM outbox`)
	b.WaitSeconds(4)
	if n := b.Count(`SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM requeues GROUP BY id) s`); n > 1 {
		t.Errorf("a row was requeued %d times while the broker was away", n)
	}
	// what was on its way when the broker went may still be counted
	if n := b.Count(`SELECT count(*) FROM outbox JOIN attempts_then a USING (id) WHERE outbox.attempts NOT BETWEEN a.attempts AND a.attempts + 1`); n != 0 {
		t.Errorf("%d rows lost or got attempts while the broker was away", n)
	}
	broker.Start()
	createGhost(t, b)
	b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == rows+1 })
	b.Finish(harness.Allow{})
}
