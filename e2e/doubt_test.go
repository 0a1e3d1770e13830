package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/load"
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
// limit. Whoever gives its sequence numbers to the next batch gets that one
// acknowledged as a duplicate although it is stored nowhere.
func TestRefusedAfterAnAnswerWasCut(t *testing.T) {
	t.Parallel()
	onBroker(t, func(t *testing.T, db *pgtest.DB, broker *harness.Broker) {
		const inDoubt = 8
		b := harness.NewBed(t, db, harness.Options{Kafka: broker.Kafka, Types: []string{"order"}})
		relay := b.StartStreaming(nil)
		b.Write(100, 8)
		b.Settle()

		before := broker.Proxy.Cut()
		broker.Proxy.CutAnswerAndHold()
		refused := writeOversize(b, inDoubt)
		b.Wait("an answer to be cut", func() bool { return broker.Proxy.Cut() > before })
		if err := b.Admin.Set(t.Context(), b.Topic("order"), "max.message.bytes", "10000"); err != nil {
			t.Fatal(err)
		}
		broker.Proxy.Resume()
		b.Wait("the refused rows to be FAILED", func() bool { return b.CountStatus(check.Failed) == inDoubt })
		if n := relay.Counter(`status_writes_total{result="ok",to="FAILED"}`); n != inDoubt {
			t.Errorf("%v rows were written as FAILED, want %d", n, inDoubt)
		}

		b.Write(500, 8) // small ones, to the same partition among others
		b.Finish(harness.Allow{Refused: refused, Duplicates: inDoubt})
	})
}

// writeOversize writes rows of one aggregate, so of one partition, in one
// transaction; each is over the limit that the topic will have.
func writeOversize(b *harness.Bed, n int) map[int64]bool {
	rows := make([]load.Row, n)
	for i := range rows {
		rows[i] = harness.Row("order", "order-0", fmt.Sprintf("%d %s", i, strings.Repeat("x", 20_000)))
	}
	known := b.History.Len()
	b.Insert(rows...)
	refused := map[int64]bool{}
	for _, e := range b.History.Since(known) {
		refused[e.ID] = true
	}
	return refused
}
