package tables_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/consumer/tables"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func script(t *testing.T, schema string) string {
	t.Helper()
	sql, err := tables.SQL(schema)
	if err != nil {
		t.Fatal(err)
	}
	return sql
}

func TestSchemaNames(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"public": true, "_a": true, "a1_": true, strings.Repeat("a", 63): true,
		"": false, "1a": false, "A": false, "a-b": false, "a.b": false, `a"b`: false, "a'b": false, "a\n": false,
		strings.Repeat("a", 64): false,
	} {
		sql, err := tables.SQL(name)
		if (err == nil) != ok || (sql != "") != ok || strings.Contains(sql, tables.Placeholder) {
			t.Errorf("%q: %d bytes, %v", name, len(sql), err)
		}
	}
}

// TestOwnDatabase: a consumer's own database gets the tables that the
// migrations make, in any schema, and the script can be run again; nor is it in
// the way of migrations that come later.
func TestOwnDatabase(t *testing.T) {
	t.Parallel()
	for _, schema := range []string{"public", "order"} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				if schema != "public" {
					db.Exec(t, `CREATE SCHEMA "`+schema+`"`)
				}
				db.Exec(t, script(t, schema))
				db.Exec(t, `INSERT INTO "`+schema+`".outbox_receipt (event_id, purpose) VALUES (gen_random_uuid(), 'mail')`)
				db.Exec(t, script(t, schema))
				db.Migrate(t, "migrated")
				conn := db.Conn(t)
				got := describe(t, conn, schema)
				if diff := cmp.Diff(describe(t, conn, "migrated"), got); diff != "" || len(got) < 40 {
					t.Errorf("%d lines (-migrated +own):\n%s", len(got), diff)
				}
				db.Migrate(t, schema)
				if diff := cmp.Diff(got, describe(t, conn, schema)); diff != "" {
					t.Errorf("the migrations changed (-before +after):\n%s", diff)
				}
			})
		})
	}
}

// describe lists what the tables of a schema are, without the schema's name.
func describe(t *testing.T, conn *pgx.Conn, schema string) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		WITH mine AS (SELECT oid, relname, reloptions FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = $1)
		                 AND relname = ANY($2))
		SELECT format('%s %s', relname, reloptions) FROM mine
		UNION ALL SELECT format('%s.%s %s %s %s %s %s', relname, attname, format_type(atttypid, atttypmod), attnotnull, attidentity,
		                        pg_get_expr(adbin, adrelid), col_description(mine.oid, attnum))
		  FROM mine JOIN pg_attribute a ON a.attrelid = mine.oid AND attnum > 0 LEFT JOIN pg_attrdef ON adrelid = mine.oid AND adnum = attnum
		UNION ALL SELECT format('%s: %s', relname, obj_description(mine.oid)) FROM mine
		UNION ALL SELECT format('%s %s', conname, pg_get_constraintdef(c.oid)) FROM mine JOIN pg_constraint c ON conrelid = mine.oid
		UNION ALL SELECT replace(pg_get_indexdef(indexrelid), quote_ident($1) || '.', '') FROM mine JOIN pg_index ON indrelid = mine.oid
		ORDER BY 1`, schema, []string{tables.Receipt, tables.Quarantine, tables.Audit})
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestChecks: what the columns refuse, and what they do not.
func TestChecks(t *testing.T) {
	t.Parallel()
	cases := []struct {
		set string
		ok  bool
	}{
		{"purpose = 'a'", true},
		{"purpose = repeat('a', 64)", true},
		{"purpose = 'welcome-mail_2.x'", true},
		{"purpose = ''", false},
		{"purpose = repeat('a', 65)", false},
		{"purpose = 'Mail'", false},
		{"purpose = 'a:b'", false},
		{"purpose = E'a\\n'", false},
		{"purpose = 'ä'", false},
		{"status = 2, next_attempt_at = now()", true},
		{"status = 3, next_attempt_at = 'infinity'", true},
		{"status = 2, next_attempt_at = 'infinity'", false}, // nothing waits for nobody
		{"status = 0", false},
		{"status = 1", false},
		{"status = 6", false},
		{"attempts = -1", false},
		{"claim_generation = -1", false},
	}
	quarantine := []struct {
		set string
		ok  bool
	}{
		{"resolution = NULL", true},
		{"resolution = 'retry'", true},
		{"resolution = 'retried', resolved_at = now()", true},
		{"resolution = 'dropped', resolved_at = now()", true},
		{"resolution = 'dropped'", false},
		{"resolution = 'retried'", false},
		{"resolution = 'retry', resolved_at = now()", false},
		{"resolved_at = now()", false},
		{"resolution = 'other', resolved_at = now()", false},
		{"seen = 0", false},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Exec(t, script(t, "public"))
		conn := db.Conn(t)
		db.Exec(t, `INSERT INTO outbox_receipt (event_id, purpose) VALUES (gen_random_uuid(), 'mail');
			INSERT INTO outbox_quarantine (consumer, topic, partition, "offset", digest, reason, message, record_headers)
			VALUES ('g', 't', 0, 0, '', 'MISSING', '', '\x00000000')`)
		for table, list := range map[string][]struct {
			set string
			ok  bool
		}{tables.Receipt: cases, tables.Quarantine: quarantine} {
			for _, test := range list {
				tx, err := conn.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				_, err = tx.Exec(t.Context(), "UPDATE "+table+" SET "+test.set)
				if answer := (*pgconn.PgError)(nil); (err == nil) != test.ok || err != nil && (!errors.As(err, &answer) || answer.Code != "23514") {
					t.Errorf("%s: %s: %v", table, test.set, err)
				}
				if err := tx.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
