package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestKilledThreeTimesUnderLoad: what a dead relay had in flight is published
// again, nothing else and nothing less.
func TestKilledThreeTimesUnderLoad(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		config relayproc.Config
		window int // most events in flight
	}{
		{"default window", nil, 50_000},
		{"window of 1000", relayproc.Config{"limits.inflight_events": 1000}, 1000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				const events, kills = 12_000, 3
				b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: tc.config})
				relay := b.StartStreaming(nil)
				written := b.Background(func(ctx context.Context) error { return b.Load(events, 200).Run(ctx, b.History) })
				for i := range kills {
					b.Wait("progress before the next kill", func() bool {
						return b.CountStatus(check.Sent) > (i+1)*events/(kills+2)
					})
					relay.Kill()
					relay = b.Start(nil)
				}
				written()
				b.Finish(harness.Allow{Duplicates: kills * tc.window})
			})
		})
	}
}

// TestTerminatedRightAfterAcks: a relay that is asked to stop between the acks
// and the write-back still writes SENT for all that Kafka has acknowledged.
func TestTerminatedRightAfterAcks(t *testing.T) {
	t.Parallel()
	eachCluster(t, func(t *testing.T, db *pgtest.DB) {
		const events = 2000
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(nil)
		release := holdBackSENT(t, b)
		b.Write(events, 50)
		b.Wait("all acks", func() bool { return relay.Counter("events_acked_total") == events })
		relay.SendTerm()
		relay.WaitState("draining")
		release()
		if code := relay.WaitExit(); code != 0 {
			t.Errorf("exit code %d after SIGTERM, want 0", code)
		}
		if n := b.CountStatus(check.Sent); n != events {
			t.Errorf("%d rows are SENT after the relay's end, want %d", n, events)
		}
		b.Start(nil)
		b.Finish(harness.Allow{})
	})
}

// TestTerminatedUnderLoad stops a relay in the middle of its work.
func TestTerminatedUnderLoad(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const events = 6000
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(nil)
		written := b.Background(func(ctx context.Context) error { return b.Load(events, 50).Run(ctx, b.History) })
		b.Wait("acks", func() bool { return relay.Counter("events_acked_total") > events/4 })
		if code, _ := relay.Terminate(); code != 0 {
			t.Errorf("exit code %d after SIGTERM, want 0", code)
		}
		written()
		b.Start(nil)
		b.Finish(harness.Allow{})
	})
}

// TestTerminatedWhileTheBrokerIsDown: the drain ends at its budget, and what
// is not acknowledged stays with the slot.
func TestTerminatedWhileTheBrokerIsDown(t *testing.T) {
	t.Parallel()
	onBroker(t, func(t *testing.T, db *pgtest.DB, broker *harness.Broker) {
		const drain = 2 * time.Second
		const grace = 10 * time.Second // for a busy machine
		b := harness.NewBed(t, db, harness.Options{Kafka: broker.Kafka, Config: relayproc.Config{"shutdown.drain_timeout": drain.String()}})
		relay := b.StartStreaming(nil)
		b.Write(200, 20)
		b.Settle()
		broker.Stop()
		b.Write(1000, 20)
		b.Wait("all of it in flight", func() bool { return relay.Counter("inflight_events") == 1000 })
		code, took := relay.Terminate()
		if code != 0 || took > drain+grace {
			t.Errorf("exit code %d %v after SIGTERM, want 0 within %v", code, took, drain)
		}
		broker.Start()
		b.Start(nil)
		b.Finish(harness.Allow{})
	})
}
