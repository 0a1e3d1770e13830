package e2e

import (
	"crypto/rand"
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/load"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestKafkaAwayForLongerThanTheSenderTimeout: PostgreSQL ends a walsender that
// hears nothing for wal_sender_timeout. A relay that cannot publish must not
// fall silent.
func TestKafkaAwayForLongerThanTheSenderTimeout(t *testing.T) {
	t.Parallel()
	onBroker(t, func(t *testing.T, db *pgtest.DB, broker *harness.Broker) {
		b := harness.NewBed(t, db, harness.Options{Kafka: broker.Kafka})
		b.Exec(`ALTER DATABASE ` + db.Name + ` SET wal_sender_timeout = '3s'`)
		relay := b.StartStreaming(nil)
		b.Write(500, 20)
		b.Settle()
		walsender := b.Walsender()
		broker.Stop()
		b.Write(3000, 20)
		b.WaitSeconds(5)
		if got := b.Count(`SELECT count(*) FROM outbox WHERE attempts > 0`); got != 0 {
			t.Errorf("%d rows with an attempt during the outage, want none", got)
		}
		broker.Start()
		b.Finish(harness.Allow{})
		if now := b.Walsender(); now != walsender {
			t.Errorf("walsender %d now, %d before the outage: the connection did not survive", now, walsender)
		}
		for _, counter := range []string{
			`status_writes_total{result="ok",to="RETRY"}`, `status_writes_total{result="ok",to="FAILED"}`,
		} {
			if got := relay.Counter(counter); got != 0 {
				t.Errorf("%s is %v, want 0", counter, got)
			}
		}
	})
}

// TestMemoryIsBounded lets far more than fits into memory wait while Kafka is
// away: many transactions, one huge transaction, huge payloads of which half
// are over what their topic takes.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	onBroker(t, func(t *testing.T, db *pgtest.DB, broker *harness.Broker) {
		const (
			rows, payloads  = 200_000, 100
			payloadBytes    = 5 << 20
			maxEvents       = 50_000                // limits.inflight_events
			maxBytes        = 24<<20 + payloadBytes // limits.inflight_bytes and one event
			maxResident     = 192 << 20             // bytes
			largerThanTopic = "large"               // the broker's default limit is 1 MiB
			withinTopic     = "huge"                // a limit of its own
			ordinary        = "order"
		)
		b := harness.NewBed(t, db, harness.Options{
			Kafka: broker.Kafka, Build: harness.Plain, Types: []string{ordinary, largerThanTopic, withinTopic},
			TopicSettings: map[string]map[string]string{withinTopic: {"max.message.bytes": fmt.Sprint(payloadBytes + 1<<16)}},
		})
		relay := b.StartStreaming(nil)
		gauges := b.Watch(relay, "inflight_events", "inflight_bytes")
		broker.Stop()
		conn := b.Conn()
		for _, bulk := range []load.Bulk{{Rows: rows}, {Rows: rows, OneTx: true}} {
			bulk.Table, bulk.Type, bulk.Aggregates = b.Table, ordinary, 200
			if err := bulk.Run(t.Context(), conn, b.History); err != nil {
				t.Fatal(err)
			}
		}
		refused := writeHuge(b, payloads, payloadBytes, withinTopic, largerThanTopic)
		b.Wait("the window to be full", func() bool { return gauges.Max("inflight_events") >= maxEvents })
		broker.Start()
		b.Finish(harness.Allow{Refused: refused})
		if n := b.Count(`SELECT count(*) FROM outbox WHERE send_status = $1 AND error_code = 'RECORD_TOO_LARGE'`, check.Failed); n != len(refused) {
			t.Errorf("%d rows are FAILED as too large, want %d", n, len(refused))
		}
		t.Logf("most at a time: %.0f events and %.0f bytes in flight, %d MiB resident",
			gauges.Max("inflight_events"), gauges.Max("inflight_bytes"), relay.PeakMemory()>>20)
		if n := gauges.Max("inflight_events"); n > maxEvents {
			t.Errorf("%.0f events in flight, the limit is %d", n, maxEvents)
		}
		if n := gauges.Max("inflight_bytes"); n > maxBytes {
			t.Errorf("%.0f bytes in flight, the limit is %d", n, maxBytes)
		}
		if n := relay.PeakMemory(); n > maxResident {
			t.Errorf("%d MiB resident, want at most %d", n>>20, maxResident>>20)
		}
	})
}

// writeHuge writes payloads of random bytes in transactions of one row,
// alternating between the types, and returns the rows of the last type.
func writeHuge(b *harness.Bed, n, bytes int, types ...string) map[int64]bool {
	last := map[int64]bool{}
	payload := make([]byte, bytes)
	for i := range n {
		typ := types[i%len(types)]
		rand.Read(payload)
		b.Insert(load.Row{Aggregate: check.Aggregate{Type: typ, ID: fmt.Sprint(i % 7)}, EventType: "written", Payload: payload})
		if typ == types[len(types)-1] {
			events := b.History.Events()
			last[events[len(events)-1].ID] = true
		}
	}
	return last
}
