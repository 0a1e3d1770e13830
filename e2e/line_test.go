package e2e

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestEveryEventOnceAndInCommitOrder is the whole line without any fault.
func TestEveryEventOnceAndInCommitOrder(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const events = 20_000
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(nil)
		b.Write(events, 200)
		report := b.Finish(harness.Allow{})
		if sent := report.Statuses[check.Sent]; sent != events || report.Records != events {
			t.Errorf("%d rows SENT and %d records, want %d each", sent, report.Records, events)
		}
		if code, _ := relay.Terminate(); code != 0 {
			t.Errorf("exit code %d after SIGTERM, want 0", code)
		}
	})
}
