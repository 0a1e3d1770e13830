package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

const sweptRequeued = `requeued_total{reason="claim_expired"}`

// TestStrandedClaimIsSwept: a consumer claimed an event and was never heard of
// again, and the offset of its group is past the record. The leader publishes
// the event once more, and whoever claims it then knows that it may have had
// its effect. Other claims, live or only just over, are left alone.
func TestStrandedClaimIsSwept(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Types: []string{"order"},
			Config: relayproc.Config{"reconcile.interval": "300ms", "reconcile.sweep_after": "1s"}})
		relay := b.StartStreaming(nil)
		ids := map[string]int64{}
		for _, name := range []string{"stranded", "live", "consumed", "backlog"} {
			ids[name] = b.InsertOne(harness.Row("order", "same", fmt.Sprintf(`{"is": %q}`, name)))
		}
		b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == len(ids) })
		claim := func(name, lease string) {
			b.Exec(`UPDATE outbox SET send_status = 5, claim_generation = claim_generation + 1, claimed_by = 'worker-1',
				lease_until = clock_timestamp() + $2::text::interval WHERE id = $1 AND send_status = 2`, ids[name], lease)
		}
		claim("stranded", "1 second")
		claim("live", "1 hour")
		b.Exec(`UPDATE outbox SET send_status = 4, finished_at = clock_timestamp(), claim_generation = 1 WHERE id = $1`, ids["consumed"])

		b.Wait("the stranded event to be SENT again", func() bool {
			return b.Count(`SELECT count(*) FROM outbox WHERE id = $1 AND send_status = 2 AND error_code = 'CONSUMER_ABANDONED'
				AND claim_generation = 1 AND attempts = 0 AND claimed_by IS NULL AND lease_until IS NULL
				AND next_attempt_at IS NULL AND commit_lsn IS NULL`, ids["stranded"]) == 1
		})
		later := b.InsertOne(harness.Row("order", "same", `{"is": "later"}`))
		b.Wait("a later event of the aggregate to be SENT", func() bool {
			return b.Count(`SELECT count(*) FROM outbox WHERE id = $1 AND send_status = 2`, later) == 1
		})
		if n := relay.Counter(sweptRequeued); n != 1 {
			t.Errorf("%v rows were swept, want 1", n)
		}
		if n := b.Count(`SELECT count(*) FROM cdc_relay_audit WHERE action = 'sweep' AND id = $1`, ids["stranded"]); n != 1 || b.Count(`SELECT count(*) FROM cdc_relay_audit`) != n {
			t.Errorf("%d entries about the stranded event in the audit trail, want 1 and no other", n)
		}
		if n := b.Count(`SELECT count(*) FROM outbox WHERE id = ANY ($1) AND (send_status, claim_generation) IN ((5, 1), (4, 1), (2, 0))`,
			[]int64{ids["live"], ids["consumed"], ids["backlog"]}); n != 3 {
			t.Errorf("%d of the other events are as they were, want 3", n)
		}
		if !strings.Contains(relay.Output(), "published again") {
			t.Error("the relay did not say that it swept")
		}
		report := b.Finish(harness.Allow{Repeated: map[int64]bool{ids["stranded"]: true}})
		if report.Records != len(ids)+2 {
			t.Errorf("%d records, want each event once and the stranded one twice", report.Records)
		}
	})
}
