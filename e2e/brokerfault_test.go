package e2e

import (
	"context"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestBrokerKilledBetweenAppendAndAck: the broker has stored a batch, dies
// before it says so, and gets the batch again when it is back. It keeps one
// copy.
func TestBrokerKilledBetweenAppendAndAck(t *testing.T) {
	t.Parallel()
	broker := harness.StartBroker(t)
	b := harness.NewBed(t, pgtest.New(t, 15), harness.Options{Kafka: broker.Kafka, Types: []string{"order"}})
	b.StartStreaming(nil)
	b.Write(100, 8)
	b.Settle()
	before := broker.Proxy.Cut()
	broker.Proxy.CutAnswerAndHold()
	b.Insert(harness.Row("order", "order-0", "stored"))
	b.Wait("an answer to be cut", func() bool { return broker.Proxy.Cut() > before })
	broker.Kill()
	b.Write(100, 8)
	broker.Start()
	stored, err := b.Admin.Ends(t.Context(), b.Topic("order"))
	if err != nil || stored != 101 {
		t.Errorf("the broker came back with %d records, %v; want 101", stored, err)
	}
	broker.Proxy.Resume()
	b.Finish(harness.Allow{})
}

// TestBrokerSilent for longer than a request may take: connections stay open,
// and nothing comes over them. The stream lives, no attempt is counted, and what
// was on its way is stored once.
func TestBrokerSilent(t *testing.T) {
	t.Parallel()
	const window = 200
	broker := harness.StartBroker(t)
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{
		Kafka: broker.Kafka, Config: relayproc.Config{"kafka.request_timeout": "2s", "limits.inflight_events": window},
	})
	watchAttempts(b)
	relay := b.StartStreaming(nil)
	b.Write(500, 20)
	b.Settle()
	walsender := b.Walsender()
	written := b.Background(func(ctx context.Context) error { return b.Load(2000, 20).Run(ctx, b.History) })
	b.Wait("events on their way", func() bool { return relay.Counter("events_acked_total") > 600 })
	broker.Freeze()
	written()
	b.Write(2*window, 20)
	// Full, it takes more only below three quarters: the last acknowledgements can come after it was full.
	b.Wait("the window to be full", func() bool { return relay.Counter("inflight_events") > window*3/4 })
	b.WaitSeconds(7)
	broker.Thaw()
	b.Finish(harness.Allow{})
	if now := b.Walsender(); now != walsender {
		t.Errorf("walsender %d now, %d before: the stream did not survive", now, walsender)
	}
	if n := b.Count(`SELECT count(*) FROM attempts_made`); n != 0 {
		t.Errorf("%d attempts were counted, want none", n)
	}
}
