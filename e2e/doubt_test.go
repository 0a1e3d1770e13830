package e2e

import (
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestAnswerCut: a batch whose answer was lost is sent again under the same
// sequence numbers, and the broker keeps one copy.
func TestAnswerCut(t *testing.T) {
	t.Parallel()
	onBroker(t, func(t *testing.T, db *pgtest.DB, broker *harness.Broker) {
		b := harness.NewBed(t, db, harness.Options{Kafka: broker.Kafka})
		b.StartStreaming(nil)
		before := broker.Proxy.Cut()
		broker.Proxy.CutAnswers(3)
		b.Write(2000, 20)
		b.Finish(harness.Allow{})
		if cut := broker.Proxy.Cut() - before; cut != 3 {
			t.Errorf("%d answers were cut, want 3", cut)
		}
	})
}

// TestRefusedAfterAnAnswerWasCut: the broker has stored a batch, the answer is
// lost, and when the batch comes again it is refused, now over the topic's
// limit. Whoever gives its sequence numbers to the next batch gets that one,
// if it has as many records, acknowledged as a duplicate although it is stored
// nowhere. So both batches have one record.
func TestRefusedAfterAnAnswerWasCut(t *testing.T) {
	t.Parallel()
	onBroker(t, func(t *testing.T, db *pgtest.DB, broker *harness.Broker) {
		b := harness.NewBed(t, db, harness.Options{Kafka: broker.Kafka, Types: []string{"order"}, Config: passing})
		relay := b.StartStreaming(nil)
		b.Write(100, 8)
		b.Settle()

		before := broker.Proxy.Cut()
		broker.Proxy.CutAnswerAndHold()
		refused := b.InsertOne(harness.Row("order", "order-0", strings.Repeat("x", 20_000)))
		b.Wait("an answer to be cut", func() bool { return broker.Proxy.Cut() > before })
		if err := b.Admin.Set(t.Context(), b.Topic("order"), "max.message.bytes", "10000"); err != nil {
			t.Fatal(err)
		}
		broker.Proxy.Resume()
		b.Wait("the refused row to be FAILED", func() bool { return b.CountStatus(check.Failed) == 1 })
		if n := relay.Counter(`status_writes_total{result="ok",to="FAILED"}`); n != 1 {
			t.Errorf("%v rows were written as FAILED, want 1", n)
		}

		b.Insert(harness.Row("order", "order-0", "small"))
		b.Settle()
		b.Write(500, 8)
		b.Finish(harness.Allow{Refused: map[int64]bool{refused: true}})
	})
}
