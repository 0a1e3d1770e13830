package migrations_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// migrated returns a connection to a fresh database with the tables in public.
func migrated(t *testing.T, db *pgtest.DB) *pgx.Conn {
	t.Helper()
	db.Migrate(t, "public")
	return db.Conn(t)
}

const insertOne = `INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('order', 'o-1', 'created')`

func TestRowsThatAreAccepted(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		conn := migrated(t, db)
		for _, set := range []string{
			"aggregate_type = 'Az09._-'", "aggregate_type = repeat('a', 200)",
			"aggregate_id = repeat('a', 1024)", "aggregate_id = E'\\n \\u00fc'", "event_type = repeat('a', 255)",
			"payload = NULL", "payload = ''", "payload = decode(repeat('00', 16777216), 'hex')",
			`headers = '{"a": [1]}'`, "topic = NULL", "topic = repeat('a', 249)", "topic = '...'",
			"priority = -5", "send_status = 5", "next_attempt_at = now()",
			"send_status = 3, next_attempt_at = 'infinity'", "next_attempt_at = 'infinity', commit_lsn = '0/0'",
		} {
			if err := try(t, conn, set); err != nil {
				t.Errorf("%s: %v", set, err)
			}
		}
	})
}

func TestRowsThatAreRefused(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		conn := migrated(t, db)
		for _, set := range []string{
			"aggregate_type = ''", "aggregate_type = repeat('a', 201)", "aggregate_type = 'a b'", "aggregate_type = 'a/b'",
			"aggregate_type = E'a\\n'", "aggregate_type = E'\\u00e4'", "aggregate_type = NULL",
			"aggregate_id = ''", "aggregate_id = repeat('a', 1025)", "aggregate_id = repeat(E'\\u00e4', 513)", "aggregate_id = NULL",
			"event_type = ''", "event_type = repeat('a', 256)", "content_type = ''", "content_type = repeat('a', 256)",
			"payload = decode(repeat('00', 16777217), 'hex')",
			"headers = '[]'", "headers = '1'", "headers = 'null'", "headers = NULL",
			"topic = ''", "topic = '.'", "topic = '..'", "topic = 'a b'", "topic = repeat('a', 250)", "topic = E'\\u00e4'",
			"send_status = -1", "send_status = 6", "attempts = -1", "claim_generation = -1",
			"next_attempt_at = 'infinity'", "send_status = 2, next_attempt_at = 'infinity'",
		} {
			var answer *pgconn.PgError
			if err := try(t, conn, set); !errors.As(err, &answer) || answer.Code != "23514" && answer.Code != "23502" {
				t.Errorf("%s: %v", set, err)
			}
		}
	})
}

// try updates a row of its own in a transaction that is rolled back.
func try(t *testing.T, conn *pgx.Conn, set string) error {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	if _, err := tx.Exec(t.Context(), insertOne); err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), "UPDATE outbox SET "+set)
	return err
}

func TestIdentityIsNotTheApplications(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		conn := migrated(t, db)
		if _, err := conn.Exec(t.Context(), "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type) VALUES (1, 'a', 'b', 'c')"); err == nil {
			t.Error("an application may choose the id")
		}
		const same = "INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type) VALUES ('00000000-0000-4000-8000-000000000001', 'a', 'b', 'c')"
		if _, err := conn.Exec(t.Context(), same); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(t.Context(), same); err == nil {
			t.Error("two rows have one event id")
		}
	})
}

// TestRequeueTrigger reads the messages from a slot, as the relay does.
func TestRequeueTrigger(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		sql  string // of one transaction; the row ID is READY
		want bool
	}{
		{"due now", "UPDATE outbox SET next_attempt_at = now() WHERE id = ID", true},
		{"due since long", "UPDATE outbox SET next_attempt_at = '2020-01-01' WHERE id = ID", true},
		{"set again, unchanged", "UPDATE outbox SET next_attempt_at = '2020-01-01' WHERE id = ID", true},
		{"replica role", "SET LOCAL session_replication_role = replica; UPDATE outbox SET next_attempt_at = now() WHERE id = ID", true},
		{"hostile search path", "SET LOCAL search_path = evil, pg_catalog, public; UPDATE outbox SET next_attempt_at = now() WHERE id = ID", true},
		{"replayed", "UPDATE outbox SET send_status = 0, next_attempt_at = now() WHERE id = ID AND send_status = 0", true},
		{"in the future", "UPDATE outbox SET next_attempt_at = now() + interval '1 hour' WHERE id = ID", false},
		{"held", "UPDATE outbox SET next_attempt_at = 'infinity', commit_lsn = '0/1' WHERE id = ID", false},
		{"not parked", "UPDATE outbox SET next_attempt_at = NULL WHERE id = ID", false},
		{"sent", "UPDATE outbox SET send_status = 2, next_attempt_at = now() WHERE id = ID", false},
		{"sent, as the relay says it", "UPDATE outbox SET send_status = 2, sent_at = now(), attempts = 0, next_attempt_at = NULL, commit_lsn = NULL WHERE id = ID", false},
		{"another column", "UPDATE outbox SET attempts = 1 WHERE id = ID", false},
		{"inserted", "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, next_attempt_at) VALUES ('a', 'b', 'c', now())", false},
		{"rolled back", "UPDATE outbox SET next_attempt_at = now() WHERE id = ID; ROLLBACK; BEGIN", false},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		conn := migrated(t, db)
		slot := "s_" + db.Name
		db.Exec(t, "SELECT pg_create_logical_replication_slot('"+slot+"', 'test_decoding')")
		db.Exec(t, `CREATE SCHEMA evil; CREATE FUNCTION evil.pg_logical_emit_message(boolean, text, text)
			RETURNS pg_lsn LANGUAGE sql AS 'SELECT NULL::pg_lsn'`)
		for _, test := range cases {
			t.Run(test.name, func(t *testing.T) {
				var id string
				if err := conn.QueryRow(t.Context(), insertOne+" RETURNING id::text").Scan(&id); err != nil {
					t.Fatal(err)
				}
				db.Exec(t, "BEGIN; "+strings.ReplaceAll(test.sql, "ID", id)+"; COMMIT")
				want := []string{}
				if test.want {
					want = append(want, fmt.Sprintf("message: transactional: 1 prefix: cdc-relay/public.outbox, sz: %d content:%s", len(id), id))
				}
				if diff := cmp.Diff(want, messages(t, conn, slot)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	})
}

func messages(t *testing.T, conn *pgx.Conn, slot string) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), "SELECT data FROM pg_logical_slot_get_changes($1, NULL, NULL) WHERE data LIKE 'message:%'", slot)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestUpdatesStayHOT: all three updates of an ordinary row's life, the first
// in large batches, the consumer's in small ones, make no new index entry. A
// server of its own: a snapshot held anywhere else, as the creation of a slot
// does, keeps dead versions on their pages.
func TestUpdatesStayHOT(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			cluster := pgtest.StartCluster(t, version, "autovacuum = off", "synchronous_commit = off")
			conn := migrated(t, cluster.New(t))
			const rows = 6000
			for _, step := range []struct {
				batch int
				sql   string // $1 last id, $2 batch
			}{
				{1000, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
					SELECT 'order', 'o-' || i, 'created', decode(repeat('ab', 200), 'hex') FROM generate_series($1::int - $2::int + 1, $1) i`},
				{1000, `UPDATE outbox SET send_status = 2, sent_at = now(), attempts = 0, next_attempt_at = NULL, commit_lsn = NULL
					WHERE id BETWEEN $1::int - $2::int + 1 AND $1 AND send_status = 0`},
				{5, `UPDATE outbox SET send_status = 5, claim_generation = claim_generation + 1, claimed_by = 'payments-7f6d9c5b4-x2x9z',
					lease_until = now() WHERE id BETWEEN $1::int - $2::int + 1 AND $1 AND send_status = 2`},
				{5, `UPDATE outbox SET send_status = 4, finished_at = now(), lease_until = NULL, next_attempt_at = NULL,
					error_code = NULL, error_message = NULL WHERE id BETWEEN $1::int - $2::int + 1 AND $1 AND send_status = 5`},
			} {
				for last := step.batch; last <= rows; last += step.batch {
					if tag, err := conn.Exec(t.Context(), step.sql, last, step.batch); err != nil || tag.RowsAffected() != int64(step.batch) {
						t.Fatalf("%s: %v, %v", step.sql, tag, err)
					}
				}
			}
			var updated, hot int
			pgtest.Eventually(t, "the statistics to arrive", func() bool {
				err := conn.QueryRow(t.Context(), "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'outbox'").
					Scan(&updated, &hot)
				return err == nil && updated >= 3*rows
			}, func() string { return fmt.Sprint(updated) })
			if hot != updated {
				t.Errorf("%d of %d updates were HOT", hot, updated)
			}
		})
	}
}

func TestReadableView(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		conn := migrated(t, db)
		for _, payload := range []string{`convert_to('{"a": "ü"}', 'UTF8')`, `'\xff00'`, `'\x6100'`, "NULL", "''"} {
			if _, err := conn.Exec(t.Context(), `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, send_status, payload)
				SELECT 'a', 'b', 'c', count(*), `+payload+` FROM outbox`); err != nil {
				t.Fatal(err)
			}
		}
		rows, err := conn.Query(t.Context(), "SELECT status || ' ' || coalesce(payload, 'NULL') FROM outbox_readable ORDER BY id")
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		want := []string{`READY {"a": "ü"}`, `INPROGRESS \377\000`, `SENT a\000`, "FAILED NULL", "CONSUMED "}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
