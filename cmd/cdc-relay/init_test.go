package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// database is a test's database and how a command reaches it.
type database struct {
	*pgtest.DB
	slot    string
	environ []string
}

func newDatabase(db *pgtest.DB) database {
	slot := "slot_" + db.Name // slots are named per cluster
	return database{db, slot, []string{"CDC_RELAY_POSTGRES__DSN=" + db.DSN, "CDC_RELAY_SLOT__NAME=" + slot}}
}

// plan runs init and returns step:state of each step.
func (d database) plan(t *testing.T, args ...string) ([]string, result) {
	t.Helper()
	got := runCommand(t, d.environ, append([]string{"init", "--json"}, args...)...)
	var shown struct{ Items []planItem }
	if err := json.Unmarshal([]byte(got.stdout), &shown); err != nil {
		t.Fatalf("init: %v: %+v", err, got)
	}
	var states []string
	for _, item := range shown.Items {
		states = append(states, item.Step+": "+item.State)
	}
	return states, got
}

func TestInit(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d := newDatabase(db)
		for _, step := range []struct {
			name string
			args []string
			want []string
		}{
			{"plan of an empty database", nil, []string{"tables: to do", "publication: to do", "slot: to do"}},
			{"a plan changes nothing", nil, []string{"tables: to do", "publication: to do", "slot: to do"}},
			{"apply", []string{"--apply"}, []string{"tables: done", "publication: done", "slot: done"}},
			{"apply again", []string{"--apply"}, []string{"tables: exists", "publication: exists", "slot: exists"}},
			{"plan of a complete database", nil, []string{"tables: exists", "publication: exists", "slot: exists"}},
		} {
			states, got := d.plan(t, step.args...)
			if diff := cmp.Diff(step.want, states); diff != "" || got.code != 0 {
				t.Fatalf("%s: code %d, %s, states (-want +got):\n%s", step.name, got.code, got.stderr, diff)
			}
		}
		got := runCommand(t, d.environ, "init", "--print-sql")
		if got.code != 0 || got.stdout != "" {
			t.Errorf("SQL of a complete database: %+v", got)
		}
	})
}

// TestPrintedSQLDoesTheSame runs what --print-sql prints instead of --apply.
func TestPrintedSQLDoesTheSame(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d := newDatabase(db)
		printed := runCommand(t, d.environ, "init", "--print-sql")
		if printed.code != 0 {
			t.Fatalf("init --print-sql: %+v", printed)
		}
		// A slot must be created in a transaction of its own.
		tables, rest, _ := strings.Cut(printed.stdout, "-- publication")
		publication, slot, _ := strings.Cut(rest, "-- slot")
		for _, sql := range []string{tables, "-- publication" + publication, "-- slot" + slot} {
			db.Exec(t, sql)
		}
		states, got := d.plan(t)
		want := []string{"tables: exists", "publication: exists", "slot: exists"}
		if diff := cmp.Diff(want, states); diff != "" {
			t.Errorf("%s: states (-want +got):\n%s", got.stderr, diff)
		}
	})
}

func TestInitRefuses(t *testing.T) {
	t.Parallel()
	const publication = "CREATE PUBLICATION cdc_relay FOR TABLE "
	tests := []struct {
		name string
		sql  string // after the migration; %s is the slot
		set  string
		want string // how it begins; %s is the slot
	}{
		{name: "publication of all tables", sql: "CREATE PUBLICATION cdc_relay FOR ALL TABLES WITH (publish = 'insert')",
			want: `pub.all_tables: the publication "cdc_relay" publishes all tables; `},
		{name: "publication of another table", sql: "CREATE TABLE other (id int); " + publication + "other WITH (publish = 'insert')",
			want: `pub.table: the publication "cdc_relay" does not contain public.outbox: its inserts are lost to the slot; run: ALTER PUBLICATION "cdc_relay" ADD TABLE "public"."outbox"`},
		{name: "publication of no table", sql: "CREATE PUBLICATION cdc_relay WITH (publish = 'insert')",
			want: `pub.table: the publication "cdc_relay" does not contain public.outbox`},
		{name: "publication of updates", sql: publication + "outbox",
			want: `pub.ops: the publication "cdc_relay" must publish inserts and nothing else; run: ALTER PUBLICATION "cdc_relay" SET (publish = 'insert')`},
		{name: "publication with a filter", sql: publication + "outbox WHERE (priority > 0) WITH (publish = 'insert')",
			want: `pub.filter: the publication "cdc_relay" has a row filter on public.outbox; run: ALTER PUBLICATION "cdc_relay" SET TABLE "public"."outbox"`},
		{name: "publication with a column list", sql: publication + "outbox (id) WITH (publish = 'insert')",
			want: `pub.columns: the publication "cdc_relay" leaves out columns that the relay reads`},
		{name: "partitions under their own names", sql: "CREATE TABLE parts (id int) PARTITION BY RANGE (id); " + publication + "parts WITH (publish = 'insert')", set: "outbox.table=public.parts",
			want: `pub.root: the publication "cdc_relay" names partitions instead of the table; run: ALTER PUBLICATION "cdc_relay" SET (publish_via_partition_root = true)`},
		{name: "slot of another plugin", sql: publication + "outbox WITH (publish = 'insert'); SELECT pg_create_logical_replication_slot('%s', 'test_decoding')",
			want: "slot.plugin: the slot %s does not use the plugin pgoutput; name another one in slot.name"},
		{name: "newer tables", sql: "INSERT INTO cdc_relay_schema_version (version_id, is_applied) VALUES (999, true)",
			want: "table.schema_version: the database schema has version 999, this program knows up to 3; upgrade cdc-relay to the release that migrated the database, or a later one"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				d := newDatabase(db)
				db.Migrate(t, "public")
				for sql := range strings.SplitSeq(withSlot(tt.sql, d.slot), "; ") {
					db.Exec(t, sql)
				}
				args := []string{"init", "--apply"}
				if tt.set != "" {
					args = append(args, "--set", tt.set)
				}
				got := runCommand(t, d.environ, args...)
				want := "error: " + withSlot(tt.want, d.slot)
				if got.code != 1 || !strings.HasPrefix(got.stderr, want) || strings.Count(got.stderr, "\n") != 1 {
					t.Errorf("code %d, want 1 and %q:\n%s", got.code, want, got.stderr)
				}
			})
		})
	}
}

func withSlot(text, slot string) string { return strings.ReplaceAll(text, "%s", slot) }

// TestInitFailover: a failover slot where the server knows them.
func TestInitFailover(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d := newDatabase(db)
		d.environ = append(d.environ, "CDC_RELAY_SLOT__FAILOVER=true")
		got := runCommand(t, d.environ, "init", "--apply")
		if db.Version < 17 {
			if !strings.Contains(got.stderr, "slot.failover: slot.failover is set, and this server is older than PostgreSQL 17") {
				t.Errorf("an old server: %+v", got)
			}
			return
		}
		var failover bool
		err := db.Conn(t).QueryRow(t.Context(), "SELECT failover FROM pg_replication_slots WHERE slot_name = $1", d.slot).Scan(&failover)
		if err != nil || !failover {
			t.Errorf("failover %v, %v: %+v", failover, err, got)
		}
		if states, got := d.plan(t); len(states) != 3 || states[2] != "slot: exists" {
			t.Errorf("a failover slot that is there: %v, %+v", states, got)
		}
		db.Exec(t, "SELECT pg_drop_replication_slot('"+d.slot+"'), pg_create_logical_replication_slot('"+d.slot+"', 'pgoutput')")
		if got := runCommand(t, d.environ, "init"); got.code != 1 || !strings.Contains(got.stderr, "is no failover slot") {
			t.Errorf("an ordinary slot: %+v", got)
		}
	})
}

// TestInitPartitioned: the publication names the root.
func TestInitPartitioned(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d := newDatabase(db)
		db.Exec(t, "CREATE TABLE parts (id int) PARTITION BY RANGE (id)")
		for _, want := range []string{"publication: done", "publication: exists"} {
			states, got := d.plan(t, "--apply", "--set", "outbox.table=public.parts")
			if len(states) != 3 || states[1] != want {
				t.Fatalf("states %v, want %s: %s", states, want, got.stderr)
			}
		}
	})
}

// TestInitTellsWhoIsInTheWay: a slot's creation waits for every transaction
// that writes. It needs a cluster of its own, whose other tests it would stop.
func TestInitTellsWhoIsInTheWay(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			d := newDatabase(pgtest.StartCluster(t, version).New(t))
			if got := runCommand(t, d.environ, "init", "--apply"); got.code != 0 {
				t.Fatalf("init: %+v", got)
			}
			writer := d.Conn(t)
			var pid int
			for _, sql := range []string{"SELECT pg_drop_replication_slot('" + d.slot + "')", "BEGIN", "CREATE TABLE t (i int)"} {
				if _, err := writer.Exec(t.Context(), sql); err != nil {
					t.Fatal(err)
				}
			}
			if err := writer.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
				t.Fatal(err)
			}
			got := runCommand(t, d.environ, "init", "--apply", "--timeout", "1s")
			if got.code != 1 || !strings.Contains(got.stderr, fmt.Sprintf("the oldest is pid %d, open for", pid)) ||
				strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d := newDatabase(db)
		applied := func(args ...string) (n, at int) {
			got := runCommand(t, d.environ, append(args, "--json", "--set", "outbox.table=events.outbox")...)
			var shown struct{ Items []migrationItem }
			if err := json.Unmarshal([]byte(got.stdout), &shown); err != nil {
				t.Fatalf("%v: %+v", err, got)
			}
			for _, item := range shown.Items {
				if item.AppliedAt != nil {
					at++
				}
			}
			return len(shown.Items), at
		}
		if n, at := applied("migrate", "status"); n == 0 || at != 0 {
			t.Errorf("status before: %d migrations, %d applied", n, at)
		}
		total, at := applied("migrate", "up")
		if total == 0 || at != total {
			t.Errorf("up: %d migrations, %d applied", total, at)
		}
		if n, _ := applied("migrate", "up"); n != 0 {
			t.Errorf("up again applied %d", n)
		}
		if n, at := applied("migrate", "status"); n != total || at != total {
			t.Errorf("status after: %d migrations, %d applied, want %d", n, at, total)
		}
	})
}

// TestUnreachable: what a person reads when the database cannot be used.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		withDSN := func(change func(u *url.URL)) []string {
			u, err := url.Parse(db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			change(u)
			return []string{"CDC_RELAY_POSTGRES__DSN=" + u.String()}
		}
		tests := []struct {
			name   string
			change func(u *url.URL)
			want   string
		}{
			{"no such database", func(u *url.URL) { u.Path = "/absent" }, `has no database "absent"`},
			{"nobody listens", func(u *url.URL) { u.Host = "127.0.0.1:1" }, "connection refused; check the address in the DSN, and whether the server runs and can be reached from here\n"},
			{"no such user", func(u *url.URL) { u.User = url.UserPassword("nobody", planted) }, `"nobody"`},
		}
		for _, tt := range tests {
			for _, command := range [][]string{{"migrate", "up"}, {"migrate", "status"}, {"init"}} {
				got := runCommand(t, withDSN(tt.change), command...)
				if got.code != 1 || !strings.Contains(got.stderr, tt.want) || strings.Count(got.stderr, "\n") != 1 {
					t.Errorf("%s, %v: %+v", tt.name, command, got)
				}
				if strings.Contains(got.stdout+got.stderr, planted) {
					t.Errorf("%s, %v: the planted password is shown", tt.name, command)
				}
			}
		}
	})
}

func TestEndedContext(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var out strings.Builder
		if code := execute(ctx, []string{"init"}, newDatabase(db).environ, &out, &out); code != 1 {
			t.Errorf("code %d: %s", code, out.String())
		}
	})
}

// TestInitAtOnce: instances that start together do each other no harm.
func TestInitAtOnce(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d := newDatabase(db)
		const instances = 4
		results := make(chan result, instances)
		for range instances {
			go func() { results <- runCommand(t, d.environ, "init", "--apply") }()
		}
		for range instances {
			if got := <-results; got.code != 0 {
				t.Errorf("%+v", got)
			}
		}
		if states, _ := d.plan(t); !slices.Equal(states, []string{"tables: exists", "publication: exists", "slot: exists"}) {
			t.Errorf("afterwards: %v", states)
		}
	})
}

// Whoever may not see the tables is told who may, by whatever command asks.
func TestWithoutAnyRights(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		login, dsn := db.Operator(t)
		db.Exec(t, "REVOKE ALL ON ALL TABLES IN SCHEMA public FROM "+login)
		environ := []string{"CDC_RELAY_POSTGRES__DSN=" + dsn, "CDC_RELAY_HTTP__LISTEN=127.0.0.1:1"}
		const owner = "; run it as the owner of the schema, who may create in the database"
		for _, tt := range []struct{ line, want string }{
			{"init", owner},
			{"init --apply", owner},
			{"migrate up", owner},
			{"migrate status", owner},
			{"status", "; give the login SELECT on the outbox and on the cdc_relay tables"},
		} {
			got := runCommand(t, environ, strings.Fields(tt.line)...)
			if got.code != 1 || !strings.Contains(got.stderr, "permission denied for table cdc_relay_schema_version") || !strings.HasSuffix(got.stderr, tt.want+"\n") ||
				strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("%s: %+v, want %q", tt.line, got, tt.want)
			}
		}
	})
}
