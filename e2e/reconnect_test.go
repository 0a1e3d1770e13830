package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestWalsenderTerminatedTenTimes under load: a relay that lives goes on
// without publishing anything twice.
func TestWalsenderTerminatedTenTimes(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const cuts = 10
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		b.StartStreaming(nil)
		end := make(chan struct{})
		written := b.Background(func(ctx context.Context) error { return writeUntil(ctx, b, end, 500) })
		for range cuts {
			sent := b.CountStatus(check.Sent)
			b.Wait("progress", func() bool { return b.CountStatus(check.Sent) > sent })
			walsender := b.Walsender()
			b.Exec(`SELECT pg_terminate_backend($1)`, walsender)
			b.Wait("another walsender", func() bool {
				now := b.Walsender()
				return now != 0 && now != walsender
			})
		}
		close(end)
		written()
		b.Finish(harness.Allow{})
		if n := b.Count(`SELECT epoch FROM cdc_relay_slot WHERE slot = $1`, b.Slot); n <= cuts {
			t.Errorf("%d sessions, want one after each of %d cuts", n, cuts)
		}
	})
}

// TestPostgresStopsUnderLoad: nothing is lost, what was SENT before the stop
// is not published again, and the relay's process lives.
func TestPostgresStopsUnderLoad(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		version int
		mode    pgtest.StopMode
	}{
		{15, pgtest.Immediate}, {18, pgtest.Immediate}, {18, pgtest.Fast},
	} {
		t.Run(fmt.Sprintf("pg%d %s", tc.version, tc.mode), func(t *testing.T) {
			t.Parallel()
			const window = 1000
			cluster := pgtest.StartCluster(t, tc.version)
			b := harness.NewBed(t, cluster.New(t), harness.Options{
				Kafka: harness.Shared(t), Config: relayproc.Config{"limits.inflight_events": window},
			})
			b.StartStreaming(nil)
			written := b.Background(func(ctx context.Context) error {
				if err := b.Load(1_000_000, 100).Run(ctx, b.History); err == nil {
					return errors.New("the writers ended before the stop")
				}
				return nil
			})
			b.Wait("progress", func() bool { return b.CountStatus(check.Sent) > 3000 })
			b.Exec(`CREATE TABLE sent_before AS SELECT id FROM outbox WHERE send_status = 2`)
			cluster.Stop(t, tc.mode)
			written()
			cluster.Start(t)
			b.Pool.Reset()
			b.Write(500, 20)
			b.Finish(harness.Allow{Duplicates: window})
			if again := publishedTwice(t, b, "sent_before"); len(again) > 0 {
				t.Errorf("rows that were SENT before the stop were published again: %v", again)
			}
		})
	}
}

// TestNetworkCutToPostgres under load: the process lives, goes on when the
// network is back, and repeats nothing.
func TestNetworkCutToPostgres(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		wire, dsn := harness.StartWire(t, db.DSN)
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		b.StartStreaming(relayproc.Config{"postgres.dsn": dsn})
		end := make(chan struct{})
		written := b.Background(func(ctx context.Context) error { return writeUntil(ctx, b, end, 500) })
		for range 3 {
			sent := b.CountStatus(check.Sent)
			b.Wait("progress", func() bool { return b.CountStatus(check.Sent) > sent })
			before := b.Walsender()
			wire.Cut()
			b.Wait("the walsender gone", func() bool { return b.Walsender() == 0 })
			wire.Mend()
			b.Wait("another walsender", func() bool {
				now := b.Walsender()
				return now != 0 && now != before
			})
		}
		close(end)
		written()
		b.Finish(harness.Allow{})
	})
}

// publishedTwice are the rows of a table of ids that have several records.
func publishedTwice(t *testing.T, b *harness.Bed, table string) (ids []int64) {
	t.Helper()
	records, err := b.Admin.Read(t.Context(), b.Topics()...)
	if err != nil {
		t.Fatal(err)
	}
	copies := map[int64]int{}
	for _, r := range records {
		copies[r.RowID]++
	}
	rows, err := b.Pool.Query(t.Context(), `SELECT id FROM `+table)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil || len(all) == 0 {
		t.Fatalf("reading %s: %d ids, %v", table, len(all), err)
	}
	for _, id := range all {
		if copies[id] > 1 {
			ids = append(ids, id)
		}
	}
	return ids
}
