package e2e

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestFencedFrozenWithARequestInFlight: a leader freezes while its request is
// on its way, and the request comes to the broker when another leader has
// written to that partition. With a fenced identity the broker refuses it, so
// nothing is doubled, and the old leader learns from the broker what the
// database is kept from telling it.
func TestFencedFrozenWithARequestInFlight(t *testing.T) {
	t.Parallel()
	kafka, valve := harness.StartValvedBroker(t)
	db := pgtest.New(t, 18)
	wire, through := harness.StartWire(t, db.DSN)
	b := harness.NewBed(t, db, harness.Options{Kafka: kafka, Types: []string{"order"}, Config: quickTakeover.With(relayproc.Config{
		"kafka.identity": "fenced", "kafka.request_timeout": "60s", // the answer waits while the leader is frozen
	})})
	old := b.StartStreaming(relayproc.Config{"postgres.dsn": through})
	b.Write(50, 8)
	b.Settle()

	valve.Hold(harness.Requests)
	t.Cleanup(valve.Release)
	b.InsertOne(harness.Row("order", "order-0", "in flight"))
	b.Wait("the request to be held", func() bool { return valve.Held() == 1 })
	b.InsertOne(harness.Row("order", "order-0", "queued"))
	b.Wait("both in the relay", func() bool { return old.Counter("inflight_events") == 2 })
	freeze(t, old)
	next := b.Start(relayproc.Config{"kafka.brokers": []string{kafka.Test}}) // past the valve
	next.WaitState("streaming")
	b.Wait("the new leader to publish both", func() bool { return b.CountStatus(check.Sent) == 52 })

	wire.Cut() // else the lease may tell the old leader first
	produced := valve.Produced()
	valve.Release()
	thaw(t, old)
	b.Wait("the old leader to be refused", func() bool { return old.Counter(`fenced_total{by="producer"}`) == 1 })
	wire.Mend()
	old.WaitState("standby")
	b.Settle()
	if n := valve.Produced() - produced; n != 0 {
		t.Errorf("%d requests of the old leader after it was replaced, want none", n)
	}
	if late := check.Late(batches(t, b)); len(late) != 0 {
		t.Errorf("batches that came late: %+v, want none", late)
	}
	b.Finish(harness.Allow{})
}

// TestTransactionalIDShared: something else publishes under the relay's
// transactional id. While it leads, the relay says so and does not fight; then
// it goes on.
func TestTransactionalIDShared(t *testing.T) {
	t.Parallel()
	kafka := harness.Shared(t)
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: kafka, Config: relayproc.Config{"kafka.identity": "fenced"}})
	relay := b.StartStreaming(nil)
	b.Write(50, 8)
	b.Settle()
	if relay.Counter(`producer_identity{identity="fenced"}`) != 1 {
		t.Error("the metric does not show a fenced identity")
	}

	const elsewhere = "elsewhere" // in its topic, which the checker does not know, both write
	kafkatest.Create(t, kafka.Test, b.Topic(elsewhere), 1, nil)
	var id string
	if err := b.Pool.QueryRow(t.Context(), `SELECT format('cdc-relay/%s/%s/%s', system_identifier, current_database(), $1::text)
		FROM pg_control_system()`, b.Slot).Scan(&id); err != nil {
		t.Fatal(err)
	}
	intrude(t, kafka.Test, id, b.Topic(elsewhere))
	b.Exec(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ($1, 'a', 'changed', '{}')`, elsewhere)
	if s := relay.WaitBlocked("kafka.txid_shared"); !strings.Contains(s.What, id) || !strings.Contains(s.Remedy, "kafka.transactional_id") {
		t.Errorf("blocked: %s; %s; want the id and the key to be named", s.What, s.Remedy)
	}
	relay.WaitState("streaming")
	b.Wait("the row to be SENT", func() bool {
		return b.Count(`SELECT count(*) FROM outbox WHERE aggregate_type = $1 AND send_status = 2`, elsewhere) == 1
	})
	b.Exec(`DELETE FROM outbox WHERE aggregate_type = $1`, elsewhere)
	b.Write(50, 8)
	b.Finish(harness.Allow{})
}

// intrude writes a record to a topic's only partition under a transactional id.
func intrude(t *testing.T, addr, transactionalID, topic string) {
	t.Helper()
	c, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID(transactionalID))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("x")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := c.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
}
