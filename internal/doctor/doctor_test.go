package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fit returns a database with nothing wrong about it, and what to check.
func fit(t *testing.T, db *pgtest.DB) (*pgx.Conn, Config) {
	t.Helper()
	db.Migrate(t, "public")
	cfg := Config{
		Table:           pg.Table{Schema: "public", Name: "outbox"},
		Publication:     "relay pub",
		Slot:            "slot_" + db.Name,
		ApplicationName: "cdc-relay/cdc_relay",
	}
	conn := connect(t, db.DSN)
	exec(t, conn, `CREATE PUBLICATION "relay pub" FOR TABLE outbox WITH (publish = 'insert')`)
	makeSlot(t, conn, cfg.Slot, "pgoutput")
	return conn, cfg
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, _, err := pg.Connect(t.Context(), pg.Options{DSN: dsn, Settings: map[string]string{"search_path": "public"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func makeSlot(t *testing.T, conn *pgx.Conn, name, plugin string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), "SELECT pg_create_logical_replication_slot($1, $2)", name, plugin); err != nil {
		t.Fatal(err)
	}
}

// exec runs one or more statements.
func exec(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func reasons(problems []*fault.Blocked) []string {
	ids := []string{}
	for _, b := range problems {
		ids = append(ids, b.Reason)
	}
	return ids
}

func look(t *testing.T, conn *pgx.Conn, cfg Config) Facts {
	t.Helper()
	facts, err := Look(t.Context(), conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

func TestFitDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		conn, cfg := fit(t, db)
		facts, err := Check(t.Context(), conn, cfg)
		if err != nil {
			t.Fatal(err)
		}
		var oid uint32
		if err := conn.QueryRow(t.Context(), "SELECT 'outbox'::regclass::oid").Scan(&oid); err != nil {
			t.Fatal(err)
		}
		if facts.Table.OID != oid || facts.Version/10000 != db.Version {
			t.Errorf("OID %d, version %d; want %d and %d", facts.Table.OID, facts.Version, oid, db.Version)
		}
	})
}

// Each case breaks a fit database in a transaction. Where the remedy is SQL,
// it is run as printed and must put the problem right.
var broken = map[string]struct {
	sql    string
	want   []string
	cured  bool          // the remedy's SQL is run
	config func(*Config) // nil: none
}{
	"no tables": {
		sql:  "DROP TABLE outbox CASCADE; DROP TABLE cdc_relay_schema_version",
		want: []string{"table.schema_version", "table.columns", "pub.table"},
	},
	"older schema": {
		sql:  "DELETE FROM cdc_relay_schema_version WHERE version_id > 1",
		want: []string{"table.schema_version"},
	},
	"newer schema": {
		sql:  "INSERT INTO cdc_relay_schema_version (version_id, is_applied) VALUES (99, true)",
		want: []string{"table.schema_version"},
	},
	"table dropped": {
		sql:  "DROP TABLE outbox CASCADE",
		want: []string{"table.columns", "pub.table"},
	},
	"a view instead": {
		sql:  "ALTER TABLE outbox RENAME TO o; CREATE VIEW outbox AS SELECT * FROM o",
		want: []string{"table.columns", "pub.table"},
	},
	"column dropped": {
		sql:  "ALTER TABLE outbox DROP COLUMN sent_at CASCADE",
		want: []string{"table.columns"},
	},
	"optional column dropped": {
		sql:  "ALTER TABLE outbox DROP COLUMN priority CASCADE",
		want: []string{},
	},
	"mapped column that is not there": {
		sql:    "SELECT",
		config: func(c *Config) { c.Columns = map[string]string{"topic": "nowhere"} },
		want:   []string{"table.columns"},
	},
	"column mapped": {
		sql:    "ALTER TABLE outbox RENAME COLUMN payload TO \"Body\"",
		config: func(c *Config) { c.Columns = map[string]string{"payload": "Body"} },
		want:   []string{},
	},
	"column of another type": {
		sql:  "DROP VIEW outbox_readable; ALTER TABLE outbox ALTER COLUMN event_id DROP DEFAULT, ALTER COLUMN event_id TYPE text",
		want: []string{"table.columns"},
	},
	"jsonb payload": {
		sql: `DROP VIEW outbox_readable; ALTER TABLE outbox DROP CONSTRAINT outbox_payload_check,
			ALTER COLUMN payload TYPE jsonb USING NULL`,
		want: []string{},
	},
	"unlogged": {
		sql:   "ALTER PUBLICATION \"relay pub\" DROP TABLE outbox; ALTER TABLE outbox SET UNLOGGED",
		want:  []string{"table.logged", "pub.table"},
		cured: true,
	},
	"trigger dropped": {
		sql:   "DROP TRIGGER outbox_requeue ON outbox",
		want:  []string{"table.trigger"},
		cured: true,
	},
	"trigger disabled": {
		sql:   "ALTER TABLE outbox DISABLE TRIGGER outbox_requeue",
		want:  []string{"table.trigger"},
		cured: true,
	},
	"trigger not ALWAYS": {
		sql:   "ALTER TABLE outbox ENABLE TRIGGER outbox_requeue",
		want:  []string{"table.trigger"},
		cured: true,
	},
	"trigger with the prefix of another table": {
		sql: `DROP TRIGGER outbox_requeue ON outbox;
			CREATE TRIGGER outbox_requeue AFTER UPDATE OF next_attempt_at ON outbox FOR EACH ROW EXECUTE FUNCTION cdc_relay_requeue('cdc-relay/public.other');
			ALTER TABLE outbox ENABLE ALWAYS TRIGGER outbox_requeue`,
		want: []string{"table.trigger"},
	},
	"trigger for statements": {
		sql: `DROP TRIGGER outbox_requeue ON outbox;
			CREATE TRIGGER outbox_requeue AFTER UPDATE OF next_attempt_at ON outbox EXECUTE FUNCTION cdc_relay_requeue('cdc-relay/public.outbox');
			ALTER TABLE outbox ENABLE ALWAYS TRIGGER outbox_requeue`,
		want: []string{"table.trigger"},
	},
	"a second trigger, right": {
		sql:  `CREATE TRIGGER a_copy AFTER UPDATE OF next_attempt_at ON outbox FOR EACH ROW EXECUTE FUNCTION cdc_relay_requeue('cdc-relay/public.other')`,
		want: []string{},
	},
	"no publication": {
		sql:  "DROP PUBLICATION \"relay pub\"",
		want: []string{"pub.exists"},
	},
	"publication of all tables": {
		sql:  "DROP PUBLICATION \"relay pub\"; CREATE PUBLICATION \"relay pub\" FOR ALL TABLES WITH (publish = 'insert')",
		want: []string{"pub.all_tables"},
	},
	"publication of updates": {
		sql:   "ALTER PUBLICATION \"relay pub\" SET (publish = 'insert, update')",
		want:  []string{"pub.ops"},
		cured: true,
	},
	"publication of truncates": {
		sql:   "ALTER PUBLICATION \"relay pub\" SET (publish = 'insert, truncate')",
		want:  []string{"pub.ops"},
		cured: true,
	},
	"publication without inserts": {
		sql:   "ALTER PUBLICATION \"relay pub\" SET (publish = '')",
		want:  []string{"pub.ops"},
		cured: true,
	},
	"publication without the table": {
		sql:   "ALTER PUBLICATION \"relay pub\" DROP TABLE outbox",
		want:  []string{"pub.table"},
		cured: true,
	},
	"publication of a table of the same name": {
		sql: `CREATE SCHEMA other; CREATE TABLE other.outbox (id int);
			ALTER PUBLICATION "relay pub" SET TABLE other.outbox`,
		want:  []string{"pub.table"},
		cured: true,
	},
	"publication of the schema": {
		sql:  "ALTER PUBLICATION \"relay pub\" DROP TABLE outbox; ALTER PUBLICATION \"relay pub\" ADD TABLES IN SCHEMA public",
		want: []string{},
	},
	"row filter": {
		sql:   "ALTER PUBLICATION \"relay pub\" SET TABLE outbox WHERE (aggregate_type = 'order')",
		want:  []string{"pub.filter"},
		cured: true,
	},
	"row filter on READY": {
		sql:  "ALTER PUBLICATION \"relay pub\" SET TABLE outbox WHERE (send_status = 0)",
		want: []string{},
	},
	"row filter on another status": {
		sql:   "ALTER PUBLICATION \"relay pub\" SET TABLE outbox WHERE (send_status = 1)",
		want:  []string{"pub.filter"},
		cured: true,
	},
	"column list": {
		sql:   "ALTER PUBLICATION \"relay pub\" SET TABLE outbox (id, event_id, payload)",
		want:  []string{"pub.columns"},
		cured: true,
	},
	"column list without what only the write-back needs": {
		sql: `ALTER PUBLICATION "relay pub" SET TABLE outbox (id, event_id, aggregate_type, aggregate_id, event_type, payload,
			headers, content_type, topic, priority, created_at, send_status, attempts, next_attempt_at)`,
		want: []string{},
	},
	"partitions published by their own names": {
		sql:   partitionedSQL + `ALTER PUBLICATION "relay pub" SET (publish_via_partition_root = false); ALTER PUBLICATION "relay pub" SET TABLE outbox`,
		want:  []string{"pub.root"},
		cured: true,
	},
	"partitions published through the table": {
		sql:  partitionedSQL + `ALTER PUBLICATION "relay pub" SET (publish_via_partition_root = true); ALTER PUBLICATION "relay pub" SET TABLE outbox`,
		want: []string{},
	},
}

const partitionedSQL = `ALTER TABLE outbox RENAME TO o;
	CREATE TABLE outbox (LIKE o INCLUDING DEFAULTS) PARTITION BY RANGE (id);
	CREATE TABLE outbox_1 PARTITION OF outbox DEFAULT;
	CREATE TRIGGER requeue AFTER UPDATE OF next_attempt_at ON outbox FOR EACH ROW
		WHEN (NEW.send_status = 0 AND NEW.next_attempt_at <= clock_timestamp())
		EXECUTE FUNCTION cdc_relay_requeue('cdc-relay/public.outbox');
	ALTER TABLE outbox ENABLE ALWAYS TRIGGER requeue;`

func TestBrokenDatabases(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		conn, cfg := fit(t, db)
		for name, tc := range broken {
			t.Run(name, func(t *testing.T) {
				cfg := cfg
				if tc.config != nil {
					tc.config(&cfg)
				}
				exec(t, conn, "BEGIN")
				defer exec(t, conn, "ROLLBACK")
				exec(t, conn, tc.sql)
				problems := look(t, conn, cfg).Problems(cfg)
				if diff := cmp.Diff(tc.want, reasons(problems)); diff != "" {
					t.Fatalf("problems (-want +got):\n%s", diff)
				}
				_, err := Check(t.Context(), conn, cfg)
				if b := fault.AsBlocked(err); len(problems) > 0 && (b == nil || b.Reason != problems[0].Reason) {
					t.Errorf("Check: %v, want the first problem", err)
				}
				if !tc.cured {
					return
				}
				for _, b := range problems {
					sql, found := strings.CutPrefix(b.Remedy, "run: ")
					if !found {
						t.Fatalf("the remedy is no SQL: %s", b.Remedy)
					}
					exec(t, conn, sql)
				}
				if left := look(t, conn, cfg).Problems(cfg); len(left) > 0 {
					t.Errorf("left after the remedies: %v", left)
				}
			})
		}
	})
}

func TestSlots(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		conn, cfg := fit(t, db)
		good := cfg.Slot
		for name, tc := range map[string]struct {
			make func(t *testing.T, slot string)
			want []string
		}{
			"missing":        {func(*testing.T, string) {}, []string{"slot.exists"}},
			"another plugin": {func(t *testing.T, slot string) { makeSlot(t, conn, slot, "test_decoding") }, []string{"slot.plugin"}},
			"physical": {func(t *testing.T, slot string) {
				exec(t, conn, "SELECT pg_create_physical_replication_slot('"+slot+"')")
			}, []string{"slot.plugin"}},
			"temporary": {func(t *testing.T, slot string) {
				exec(t, conn, "SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput', true)")
			}, []string{"slot.temporary"}},
			"of another database": {func(t *testing.T, slot string) {
				makeSlot(t, pgtest.New(t, db.Version).Conn(t), slot, "pgoutput")
			}, []string{"slot.database"}},
		} {
			t.Run(name, func(t *testing.T) {
				cfg := cfg
				cfg.Slot = good + "_" + strings.ReplaceAll(name, " ", "_")
				tc.make(t, cfg.Slot)
				if name == "physical" { // belongs to no database: the test kit does not see it
					defer exec(t, conn, "SELECT pg_drop_replication_slot('"+cfg.Slot+"')")
				}
				if diff := cmp.Diff(tc.want, reasons(look(t, conn, cfg).Problems(cfg))); diff != "" {
					t.Errorf("problems (-want +got):\n%s", diff)
				}
			})
		}
	})
}

// What a server shows after it has invalidated a slot is long to produce.
func TestLostSlots(t *testing.T) {
	t.Parallel()
	cfg := Config{Table: pg.Table{Schema: "public", Name: "outbox"}, Slot: "s"}
	for name, tc := range map[string]struct {
		slot Slot
		want []string
	}{
		"fine":                      {Slot{Plugin: "pgoutput", SameDatabase: true, WALStatus: "reserved"}, []string{}},
		"behind, but usable":        {Slot{Plugin: "pgoutput", SameDatabase: true, WALStatus: "unreserved"}, []string{}},
		"lost":                      {Slot{Plugin: "pgoutput", SameDatabase: true, WALStatus: "lost"}, []string{"slot.wal_status"}},
		"lost, and why":             {Slot{Plugin: "pgoutput", SameDatabase: true, WALStatus: "lost", Invalidated: "wal_removed"}, []string{"slot.invalidation"}},
		"invalidated, WAL still on": {Slot{Plugin: "pgoutput", SameDatabase: true, WALStatus: "reserved", Invalidated: "idle_timeout"}, []string{"slot.invalidation"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, reasons(checkSlot(Facts{Slot: &tc.slot}, cfg))); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// The grants that the remedy names are all that a login needs.
func TestGrants(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		owner, cfg := fit(t, db)
		login := db.Name
		exec(t, owner, "REVOKE ALL ON SCHEMA public FROM public; GRANT SELECT ON cdc_relay_schema_version TO public; CREATE ROLE "+login+" LOGIN")
		t.Cleanup(func() {
			conn, err := pgx.Connect(context.Background(), db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(context.Background())
			if _, err := conn.PgConn().Exec(context.Background(), fmt.Sprintf("DROP OWNED BY %s; DROP ROLE %[1]s", login)).ReadAll(); err != nil {
				t.Error(err)
			}
		})
		conn := connect(t, strings.Replace(db.DSN, "postgres@", login+"@", 1))

		exec(t, owner, "GRANT USAGE ON SCHEMA public TO "+login) // without it even the schema version cannot be read
		problems := look(t, conn, cfg).Problems(cfg)
		if diff := cmp.Diff([]string{"grants.status"}, reasons(problems)); diff != "" {
			t.Fatalf("problems (-want +got):\n%s", diff)
		}
		exec(t, owner, strings.TrimPrefix(problems[0].Remedy, "run: "))
		if left := look(t, conn, cfg).Problems(cfg); len(left) > 0 {
			t.Errorf("left after the grants: %v", left)
		}
		for _, sql := range []string{
			"UPDATE outbox SET send_status = 2, sent_at = now(), attempts = 0, next_attempt_at = NULL, commit_lsn = NULL WHERE send_status = 0",
			"SELECT FROM cdc_relay_slot FOR SHARE",
		} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Errorf("with the grants: %s: %v", sql, err)
			}
		}

		exec(t, owner, "ALTER TABLE outbox ENABLE ROW LEVEL SECURITY; CREATE POLICY r ON outbox FOR SELECT USING (true)")
		problems = look(t, conn, cfg).Problems(cfg)
		if diff := cmp.Diff([]string{"table.rls"}, reasons(problems)); diff != "" {
			t.Fatalf("problems with row security (-want +got):\n%s", diff)
		}
		exec(t, owner, strings.TrimPrefix(problems[0].Remedy, "run: "))
		if left := look(t, conn, cfg).Problems(cfg); len(left) > 0 {
			t.Errorf("left after the policy: %v", left)
		}
	})
}

// A login that may not read the version of the schema was no condition for a
// person: the relay took the lease and gave it up every five seconds, under a
// new epoch each time, with a state of "starting".
func TestHiddenSchema(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		owner, cfg := fit(t, db)
		login, dsn := db.Operator(t)
		conn := connect(t, dsn)
		for _, hide := range []string{
			"REVOKE ALL ON cdc_relay_schema_version FROM " + login,
			"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM " + login,
			"REVOKE ALL ON SCHEMA public FROM " + login,
		} {
			exec(t, owner, hide)
			problems := look(t, conn, cfg).Problems(cfg)
			if diff := cmp.Diff([]string{"grants.status"}, reasons(problems)); diff != "" {
				t.Fatalf("problems after %s (-want +got):\n%s", hide, diff)
			}
			exec(t, owner, strings.TrimPrefix(problems[0].Remedy, "run: "))
			if left := look(t, conn, cfg).Problems(cfg); len(left) > 0 {
				t.Errorf("left after %s and %s: %v", hide, problems[0].Remedy, left)
			}
		}
	})
}

// Both settings need a server of their own. Nothing is written there: a
// commit would wait for the standby that is not there.
func TestServerSettings(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			server := pgtest.StartCluster(t, version, "wal_level = replica",
				`synchronous_standby_names = 'ANY 1 (standby1, "cdc-relay/cdc_relay")'`)
			cfg := Config{Table: pg.Table{Schema: "public", Name: "outbox"}, Publication: "p", Slot: "s", ApplicationName: "cdc-relay/cdc_relay"}
			got := reasons(look(t, connect(t, server.DSN("postgres")), cfg).Problems(cfg))
			want := []string{"pg.wal_level", "pg.sync_standby", "table.schema_version", "table.columns", "pub.exists", "slot.exists"}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOldServers(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]bool{130014: true, 140000: false, 150018: false, 180004: false} {
		got := slices.Contains(reasons(checkServer(Facts{Version: version, WALLevel: "logical"}, Config{ApplicationName: "x"})), "pg.version")
		if got != want {
			t.Errorf("version %d refused: %v, want %v", version, got, want)
		}
	}
}
