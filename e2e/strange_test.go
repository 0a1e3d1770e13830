package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestRowsThatAreGone or were never events: the slot moves on, and each is
// counted.
func TestRowsThatAreGone(t *testing.T) {
	t.Parallel()
	onBroker(t, func(t *testing.T, db *pgtest.DB, broker *harness.Broker) {
		const each = 5
		const row = `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, send_status) SELECT 'order', 'gone', 'changed', '{}', `
		b := harness.NewBed(t, db, harness.Options{Kafka: broker.Kafka})
		relay := b.StartStreaming(nil)
		b.Settle()
		broker.Stop()
		b.Exec(row + `0 FROM generate_series(1, 5)`)
		b.Exec(`DELETE FROM outbox`)
		b.Exec(`WITH i AS (` + row + `0 FROM generate_series(1, 5) RETURNING id) SELECT count(*) FROM i`)
		b.Exec(`TRUNCATE outbox`)
		b.Exec(`DO $$ BEGIN ` + row + `0 FROM generate_series(1, 5); DELETE FROM outbox; END $$`)
		b.Exec(row + `2 FROM generate_series(1, 5)`)
		b.Wait("all of it in flight", func() bool { return relay.Counter("inflight_events") == 3*each })
		broker.Start()
		b.Wait("the rows to be known as gone", func() bool { return relay.Counter("rows_gone_total") == 3*each })
		b.Settle()
		if n := relay.Counter(`inserts_ignored_total{reason="status"}`); n != each {
			t.Errorf("%v inserts of other statuses ignored, want %d", n, each)
		}
		if n := relay.Counter("reconcile_missed_total"); n != 0 {
			t.Errorf("%v rows counted as missed, want none", n)
		}
	})
}

// TestForgedMessages: anybody may emit messages under the relay's prefixes. The
// stream lives, and nothing happens that the table does not say.
func TestForgedMessages(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(nil)
		walsender := b.Walsender()
		sent := b.InsertOne(harness.Row("order", "sent", "{}"))
		b.Settle()
		requeue, probe := "cdc-relay/public.outbox", "cdc-relay-probe/"+b.Slot
		forge := func(transactional bool, prefix, content string) {
			b.Exec(fmt.Sprintf(`SELECT pg_logical_emit_message(%t, $1::text, $2::text)`, transactional), prefix, content)
		}
		role := "nobody_" + db.Name // who has no privilege at all
		b.Exec(`CREATE ROLE ` + role)
		b.Exec(fmt.Sprintf(`SET ROLE %s; SELECT pg_logical_emit_message(true, '%s', '%d'); RESET ROLE`, role, requeue, sent))
		b.Exec(`DROP ROLE ` + role)
		forge(true, requeue, fmt.Sprint(sent))
		for _, content := range []string{"", "x", "-1", "0", "007", "9223372036854775808", "99999999999999999999", "1\n"} {
			forge(true, requeue, content)
		}
		forge(true, requeue, "9223372036854775807")
		forge(true, requeue, "424242")
		for _, prefix := range []string{requeue, probe, "any"} {
			forge(false, prefix, fmt.Sprint(sent))
		}
		forge(true, probe, "00000000-0000-0000-0000-000000000000")
		forge(true, probe, "")
		forge(true, "any", "thing")
		forge(true, requeue+"x", fmt.Sprint(sent))
		b.Insert(harness.Row("order", "after", "{}"))
		b.Wait("the row after", func() bool { return b.CountStatus(check.Sent) == 2 })
		unknown := `messages_ignored_total{reason="unknown_id"}` // known once the table has been asked
		b.Wait("the unknown ids to be counted", func() bool { return relay.Counter(unknown) >= 2 })
		for reason, want := range map[string]float64{
			"malformed": 8, "unknown_id": 2, "not_transactional": 3, "unknown_probe": 2, "foreign": 2,
		} {
			if got := relay.Counter(fmt.Sprintf("messages_ignored_total{reason=%q}", reason)); got != want {
				t.Errorf("%v messages ignored as %s, want %v", got, reason, want)
			}
		}
		if n := relay.Counter(requeuesReceived); n != 0 {
			t.Errorf("%v rows requeued by forged messages, want none", n)
		}
		b.Finish(harness.Allow{})
		if now := b.Walsender(); now != walsender {
			t.Error("the stream did not survive")
		}
	})
}

// TestAMillionRequeueMessages in one transaction: memory stays bounded, and the
// line goes on.
func TestAMillionRequeueMessages(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const maxResident = 96 << 20 // bytes
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Build: harness.Plain})
		relay := b.StartStreaming(nil)
		b.Insert(harness.Row("order", "before", "{}"))
		b.Settle()
		b.Exec(`SELECT pg_logical_emit_message(true, 'cdc-relay/public.outbox', i::text) FROM generate_series(1001, 1001000) i`)
		b.Insert(harness.Row("order", "after", "{}"))
		b.Finish(harness.Allow{})
		if n := relay.Counter(`messages_ignored_total{reason="unknown_id"}`); n != 1_000_000 {
			t.Errorf("%v messages of unknown rows ignored, want a million", n)
		}
		if n := relay.PeakMemory(); n > maxResident {
			t.Errorf("%d MiB resident, want at most %d", n>>20, maxResident>>20)
		}
	})
}

// TestHostileSettings of the database change nothing.
func TestHostileSettings(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newGhostBed(t, db, relayproc.Config{"reconcile.interval": "100ms"})
		var all strings.Builder // at once: they hold for the next session already
		for _, setting := range []string{
			"client_min_messages = error", "synchronous_commit = off", "default_transaction_isolation = 'repeatable read'",
			"default_transaction_read_only = on", "statement_timeout = '1ms'", "lock_timeout = '1ms'",
			"idle_in_transaction_session_timeout = '1ms'", "idle_session_timeout = '1ms'", "search_path = nowhere",
			"TimeZone = 'Asia/Tokyo'", "DateStyle = 'SQL, DMY'", "IntervalStyle = 'sql_standard'", "bytea_output = escape",
			"enable_indexscan = off",
		} {
			fmt.Fprintf(&all, "ALTER DATABASE %s SET %s;", db.Name, setting)
		}
		b.Exec(all.String())
		// the test itself is spared
		db.DSN += "&default_transaction_read_only=off&statement_timeout=0&lock_timeout=0&idle_in_transaction_session_timeout=0" +
			"&idle_session_timeout=0&search_path=public&bytea_output=hex"
		pool, err := pgxpool.New(t.Context(), db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(pool.Close)
		b.Pool = pool
		b.StartStreaming(nil)
		b.Insert(harness.Row("order", "1", "{}"))
		b.Insert(harness.Row(ghost, "1", "\x00\xff"))
		b.Wait("an attempt", func() bool { return b.Count(`SELECT count(*) FROM outbox WHERE attempts > 0`) == 1 })
		createGhost(t, b)
		b.Wait("both to be SENT", func() bool { return b.CountStatus(check.Sent) == 2 })
		b.Finish(harness.Allow{})
	})
}
