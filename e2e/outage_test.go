package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/load"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestKafkaAwayForLongerThanTheSenderTimeout: PostgreSQL ends a walsender that
// hears nothing for wal_sender_timeout. A relay that cannot publish, and so
// does not even read what the server asks, must not fall silent.
func TestKafkaAwayForLongerThanTheSenderTimeout(t *testing.T) {
	// not parallel: 3 s are little while a machine with two cores runs many tests
	onBroker(t, func(t *testing.T, db *pgtest.DB, broker *harness.Broker) {
		b := harness.NewBed(t, db, harness.Options{Kafka: broker.Kafka, Config: relayproc.Config{"limits.inflight_events": 100}})
		b.Exec(`ALTER DATABASE ` + db.Name + ` SET wal_sender_timeout = '3s'`)
		relay := b.StartStreaming(nil)
		b.Write(500, 20)
		b.Settle()
		walsender := b.Walsender()
		silence := b.WatchSilence()
		broker.Stop()
		b.Write(3000, 20)
		for range 20 { // more than all buffers on the way hold
			b.Insert(harness.Row("order", "order-0", strings.Repeat("x", 1_000_000)))
		}
		b.WaitSeconds(5)
		if got := b.Count(`SELECT count(*) FROM outbox WHERE attempts > 0`); got != 0 {
			t.Errorf("%d rows with an attempt during the outage, want none", got)
		}
		broker.Start()
		b.Finish(harness.Allow{})
		t.Logf("as PostgreSQL saw it, the relay was silent for %v at most", silence())
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

// The load of TestMemoryIsBounded.
const (
	waitingRows  = 200_000
	hugePayloads = 100
	hugeBytes    = 5 << 20

	oneByOne  = "order" // aggregate types, a topic each
	inOneGo   = "import"
	tooLarge  = "scan"  // the broker's default limit is 1 MiB
	justRight = "video" // has a limit of its own
)

// TestMemoryIsBounded lets far more than fits into memory wait while Kafka is
// away: many transactions, one huge transaction, and huge payloads of which
// half are over what their topic takes.
func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	onBroker(t, func(t *testing.T, db *pgtest.DB, broker *harness.Broker) {
		const (
			maxEvents  = 50_000             // limits.inflight_events
			maxBytes   = 24<<20 + hugeBytes // limits.inflight_bytes and one event
			maxWaiting = 96 << 20           // bytes resident while small rows wait
			maxEver    = 256 << 20          // bytes resident with huge ones in flight
		)
		b := harness.NewBed(t, db, harness.Options{
			Kafka: broker.Kafka, Build: harness.Plain, Types: []string{oneByOne, inOneGo, tooLarge, justRight}, Config: passing,
			TopicSettings: map[string]map[string]string{justRight: {"max.message.bytes": fmt.Sprint(hugeBytes + 1<<16)}},
		})
		b.Exec(`ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL`) // compressing noise only takes time
		relay := b.StartStreaming(nil)
		gauges := b.Watch(relay, "inflight_events", "inflight_bytes")
		broker.Stop()
		bulks := []func(){bulk(b, oneByOne, false), bulk(b, inOneGo, true)}
		for _, wait := range bulks {
			wait()
		}
		b.Wait("the window to be full", func() bool { return relay.Counter("inflight_events") == maxEvents })
		if n := relay.PeakMemory(); n > maxWaiting {
			t.Errorf("%d MiB resident while rows wait, want at most %d", n>>20, maxWaiting>>20)
		}
		refused := writeHuge(b)
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
		if n := relay.PeakMemory(); n > maxEver {
			t.Errorf("%d MiB resident, want at most %d", n>>20, maxEver>>20)
		}
	})
}

// bulk starts to load small rows and returns a function that waits for the end.
func bulk(b *harness.Bed, typ string, oneTx bool) (wait func()) {
	conn := b.Conn()
	load := load.Bulk{Table: b.Table, Type: typ, Aggregates: 200, Rows: waitingRows, OneTx: oneTx}
	return b.Background(func(ctx context.Context) error { return load.Run(ctx, conn, b.History) })
}

// writeHuge writes payloads of random bytes, one a transaction, and returns
// the rows that are too large for their topic.
func writeHuge(b *harness.Bed) map[int64]bool {
	refused := map[int64]bool{}
	payload := make([]byte, hugeBytes)
	for i := range hugePayloads {
		rand.Read(payload)
		row := load.Row{Aggregate: check.Aggregate{Type: justRight, ID: fmt.Sprint(i % 7)}, EventType: "written", Payload: payload}
		if i%2 == 0 {
			row.Aggregate.Type = tooLarge
			refused[b.InsertOne(row)] = true
		} else {
			b.Insert(row)
		}
	}
	return refused
}
