package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// record notes committed rows, which a condition picks, as events. One
// transaction after the other wrote them, so that ids are in commit order.
func record(t *testing.T, b *harness.Bed, where string) {
	t.Helper()
	asked := time.Now()
	var text string
	if err := b.Pool.QueryRow(t.Context(), `SELECT pg_current_wal_insert_lsn()::text`).Scan(&text); err != nil {
		t.Fatalf("asking for the position: %v", err)
	}
	past, err := pglogrepl.ParseLSN(text)
	if err != nil {
		t.Fatalf("asking for the position: %v", err)
	}
	rows, err := b.Pool.Query(t.Context(), `SELECT id, event_id, aggregate_type, aggregate_id FROM outbox WHERE `+where+` ORDER BY id`)
	if err != nil {
		t.Fatalf("reading what was committed: %v", err)
	}
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e check.Event, err error) {
		err = row.Scan(&e.ID, &e.EventID, &e.Aggregate.Type, &e.Aggregate.ID)
		return e, err
	})
	if err != nil {
		t.Fatalf("reading what was committed: %v", err)
	}
	b.History.Add(events, past, asked)
}

// TestSavepoints: of a transaction only what no savepoint takes back is
// published, be it small, spilled to disk by the walsender, of more
// subtransactions than a snapshot lists, or open while the relay is killed.
func TestSavepoints(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const many, of3 = 300, 200 // subtransactions, and those of them that stay
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		b.Exec(`ALTER DATABASE ` + db.Name + ` SET logical_decoding_work_mem = '64kB'`)
		relay := b.StartStreaming(nil)
		conn := b.Conn()
		insert := func(what string) {
			exec(t, conn, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'nested', $1, '{}')`, what)
		}
		exec(t, conn, `BEGIN`)
		insert("kept")
		exec(t, conn, `SAVEPOINT a`)
		insert("taken back")
		exec(t, conn, `SAVEPOINT b`)
		insert("taken back")
		exec(t, conn, `RELEASE SAVEPOINT b`)
		exec(t, conn, `ROLLBACK TO SAVEPOINT a`)
		insert("kept")
		exec(t, conn, `SAVEPOINT c`)
		insert("kept")
		relay.Kill()
		relay = b.StartStreaming(nil)
		exec(t, conn, `SAVEPOINT d`)
		insert("taken back")
		exec(t, conn, `ROLLBACK TO SAVEPOINT d`)
		exec(t, conn, `RELEASE SAVEPOINT c`)
		insert("kept")
		exec(t, conn, `COMMIT`)
		exec(t, conn, fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
			BEGIN
				INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
					VALUES ('order', (i %% 7)::text, 'kept', convert_to(repeat('x', 1000), 'UTF8'));
				IF i %% 3 = 0 THEN RAISE no_data_found; END IF;
			EXCEPTION WHEN no_data_found THEN NULL;
			END;
		END LOOP; END $$`, many))
		record(t, b, `true`)
		report := b.Finish(harness.Allow{})
		if report.Committed != 4+of3 || report.Records != 4+of3 {
			t.Errorf("%d events committed and %d records, want %d", report.Committed, report.Records, 4+of3)
		}
		if n := b.Count(`SELECT count(*) FROM outbox WHERE event_type <> 'kept'`); n != 0 {
			t.Errorf("%d rows were not taken back: the test proves nothing", n)
		}
		if n := b.Count(`SELECT spill_txns FROM pg_stat_replication_slots WHERE slot_name = $1`, b.Slot); n == 0 {
			t.Error("no transaction was spilled: the test proves nothing")
		}
		if n := relay.Counter("rows_gone_total"); n != 0 {
			t.Errorf("%v rows taken for gone, want none", n)
		}
	})
}

// TestPreparedTransactions: what is prepared is published once it is committed,
// in the order of commits, also if relay and server have crashed in between.
// Nobody waits for it.
func TestPreparedTransactions(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			cluster := pgtest.StartCluster(t, version, "max_prepared_transactions = 5")
			b := harness.NewBed(t, cluster.New(t), harness.Options{Kafka: harness.Shared(t)})
			relay := b.StartStreaming(nil)
			prepare := func(name string) {
				b.Exec(`BEGIN; INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
					SELECT 'order', (i % 5)::text, '` + name + `', '{}' FROM generate_series(1, 20) i; PREPARE TRANSACTION '` + name + `'`)
			}
			prepare("committed")
			prepare("given up")
			for i := range 5 { // of the same aggregates, with higher ids, committed earlier
				b.Insert(harness.Row("order", fmt.Sprint(i), "{}"))
			}
			b.Wait("others to be SENT", func() bool { return b.CountStatus(check.Sent) == 5 })
			b.Settle()
			relay.Kill()
			b.Unwatch()
			cluster.Stop(t, pgtest.Immediate)
			cluster.Start(t)
			b.Pool.Reset()
			relay = b.StartStreaming(nil)
			b.Exec(`COMMIT PREPARED 'committed'`)
			b.Exec(`ROLLBACK PREPARED 'given up'`)
			record(t, b, `event_type = 'committed'`)
			report := b.Finish(harness.Allow{})
			if report.Records != 25 {
				t.Errorf("%d records, want 25", report.Records)
			}
			for _, counter := range []string{"rows_gone_total", "reconcile_missed_total"} {
				if n := relay.Counter(counter); n != 0 {
					t.Errorf("%s is %v, want 0", counter, n)
				}
			}
		})
	}
}

// copyEqual copies rows that differ in nothing but what the table gives them.
func copyEqual(t *testing.T, b *harness.Bed, aggregateType string, rows int) {
	t.Helper()
	text := strings.NewReader(strings.Repeat(aggregateType+"\tequal\tcopied\t{}\n", rows))
	_, err := b.Conn().PgConn().CopyFrom(t.Context(), text, `COPY outbox (aggregate_type, aggregate_id, event_type, payload) FROM STDIN`)
	if err != nil {
		t.Fatalf("copying rows: %v", err)
	}
	record(t, b, fmt.Sprintf(`aggregate_type = '%s'`, aggregateType))
}

// TestCopyOfEqualRows: rows of one COPY share a place in the WAL, and here also
// aggregate and payload. They are told apart in batches that end anywhere, in
// the lookups after a crash, and when they come back from their rows.
func TestCopyOfEqualRows(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const rows, requeued, window = 10_000, 300, 100
		b := newGhostBed(t, db, relayproc.Config{"limits.inflight_events": window, "failure.by_type": map[string]string{ghost: "continue"}})
		relay := b.StartStreaming(nil)
		copyEqual(t, b, "order", rows)
		b.Wait("a part to be SENT", func() bool { return b.CountStatus(check.Sent) > rows/10 })
		relay.Kill()
		if b.CountStatus(check.Sent) == rows {
			t.Error("all were SENT before the kill: the test proves nothing")
		}
		relay = b.StartStreaming(nil)
		b.Wait("the rest to be SENT", func() bool { return b.CountStatus(check.Sent) == rows })
		if n := relay.Counter("duplicates_skipped_total"); n == 0 {
			t.Error("no row was delivered again: the test proves nothing")
		}

		copyEqual(t, b, ghost, requeued)
		b.Wait("an attempt of each", func() bool {
			return b.Count(`SELECT count(*) FROM outbox WHERE aggregate_type = $1 AND attempts > 0`, ghost) == requeued
		})
		createGhost(t, b)
		b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == rows+requeued })
		b.Exec(`CREATE TABLE came_back AS SELECT id FROM outbox WHERE aggregate_type = 'ghost'`)
		if again := publishedTwice(t, b, "came_back"); len(again) > 0 {
			t.Errorf("%d rows that came back were published twice", len(again))
		}
		passed := map[int64]bool{}
		for _, e := range b.History.Events() {
			passed[e.ID] = e.Aggregate.Type == ghost
		}
		b.Finish(harness.Allow{Duplicates: window, Unordered: passed})
	})
}

// TestUpsert: an INSERT that becomes an UPDATE is no event, whether its row is
// yet to be published, parked or SENT. Writers that race for a row leave traces
// in the WAL of inserts that never were.
func TestUpsert(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const upsert = `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload)
			VALUES (md5('%[1]s')::uuid, '%[1]s', 'upsert', 'changed', '%[2]s')
			ON CONFLICT (event_id) DO UPDATE SET event_type = 'upserted', payload = EXCLUDED.payload`
		const writers, each = 4, 300
		b := newGhostBed(t, db, nil)
		relay := b.StartStreaming(nil)
		b.Exec(fmt.Sprintf(upsert, ghost, `{"n":1}`))
		b.Wait("an attempt", func() bool { return b.Count(`SELECT count(*) FROM outbox WHERE attempts > 0`) == 1 })
		b.Exec(fmt.Sprintf(upsert, ghost, `{"n":2}`)) // what the row then holds is sent
		relay.Terminate()
		b.Exec(fmt.Sprintf(upsert, "order", `{}`))
		b.Exec(fmt.Sprintf(upsert, "order", `{}`)) // before it is published
		relay = b.StartStreaming(nil)
		b.Wait("it to be SENT", func() bool { return b.CountStatus(check.Sent) == 1 })
		b.Exec(fmt.Sprintf(upsert, "order", `{}`)) // when it is SENT
		createGhost(t, b)
		b.Wait("both to be SENT", func() bool { return b.CountStatus(check.Sent) == 2 })

		var racing errgroup.Group
		for range writers {
			conn := b.Conn()
			racing.Go(func() error {
				_, err := conn.Exec(t.Context(), fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP
					INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload)
						VALUES (md5(i::text)::uuid, 'order', i::text, 'changed', '{}')
						ON CONFLICT (event_id) DO UPDATE SET event_type = 'upserted';
					COMMIT; END LOOP; END $$`, each))
				return err
			})
		}
		if err := racing.Wait(); err != nil {
			t.Fatalf("writing the same rows at once: %v", err)
		}
		record(t, b, `true`)
		b.Finish(harness.Allow{})
		if n := b.Count(`SELECT count(*) FROM outbox WHERE event_type = 'upserted'`); n != 2+each {
			t.Errorf("%d rows were upserted, want %d", n, 2+each)
		}
		if n := relay.Counter("rows_gone_total"); n != 0 {
			t.Errorf("%v rows taken for gone, want none", n)
		}
	})
}
