package e2e

import (
	"context"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestTableIsRewritten between the transactions of a running load. A rewrite
// writes all rows to the WAL again, which are no events; one by ALTER TABLE
// makes a table that older snapshots see empty, and its rows are not gone.
func TestTableIsRewritten(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const events = 6000
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(nil)
		b.Exec(`DROP VIEW outbox_readable`) // it names the columns
		written := b.Background(func(ctx context.Context) error { return b.Load(events, 40).Run(ctx, b.History) })
		changes := []string{
			`VACUUM (FULL) outbox`,
			`ALTER TABLE outbox ALTER priority TYPE integer, ALTER attempts TYPE bigint`,
			`CLUSTER outbox USING outbox_pkey`,
			`ALTER TABLE outbox ALTER event_type TYPE varchar(300), ALTER headers TYPE json, DROP CONSTRAINT outbox_headers_check`,
			`ALTER TABLE outbox ALTER content_type TYPE char(40)`,
			`REINDEX TABLE outbox`,
			`ALTER TABLE outbox ADD COLUMN random uuid DEFAULT gen_random_uuid()`,
			`VACUUM (FULL) outbox`,
		}
		for i, change := range changes {
			b.Wait("progress before the next change", func() bool { return b.History.Len() > (i+1)*events/(len(changes)+2) })
			file := b.Count(`SELECT pg_relation_filenode('outbox_pkey')::int`)
			b.Exec(change)
			if b.Count(`SELECT pg_relation_filenode('outbox_pkey')::int`) == file {
				t.Errorf("%s rewrote nothing", change)
			}
		}
		written()
		b.Finish(harness.Allow{})
		for _, counter := range []string{"rows_gone_total", "reconcile_missed_total"} {
			if n := relay.Counter(counter); n != 0 {
				t.Errorf("%s is %v, want 0", counter, n)
			}
		}
	})
}
