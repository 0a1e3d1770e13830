package migrations_test

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/migrations"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config(t *testing.T, db *pgtest.DB) *pgx.ConnConfig {
	t.Helper()
	conf, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	return conf
}

func names(list []migrations.Migration) []string {
	out := []string{}
	for _, m := range list {
		out = append(out, m.Name)
	}
	return out
}

var allNames = []string{"00001_outbox.sql", "00002_relay.sql", "00003_consumer.sql"}

func TestUpTwice(t *testing.T) {
	t.Parallel()
	// a reserved word as a schema needs quotes everywhere
	for _, schema := range []string{"public", "events_2", "order"} {
		t.Run(schema, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				conn := db.Conn(t)
				before, err := migrations.Status(t.Context(), conn, schema)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(allNames, names(before)); diff != "" || !before[0].AppliedAt.IsZero() {
					t.Errorf("status before: %v", before)
				}
				first, err := migrations.Up(t.Context(), config(t, db), schema)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(allNames, names(first)); diff != "" {
					t.Errorf("first time (-want +got):\n%s", diff)
				}
				second, err := migrations.Up(t.Context(), config(t, db), schema)
				if err != nil || len(second) != 0 {
					t.Errorf("second time: %v, %v", second, err)
				}
				checkStatus(t, conn, schema)
			})
		})
	}
}

func checkStatus(t *testing.T, conn *pgx.Conn, schema string) {
	t.Helper()
	status, err := migrations.Status(t.Context(), conn, schema)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range status {
		if age := time.Since(m.AppliedAt); age < -time.Hour || age > time.Hour {
			t.Errorf("%s was applied %v ago: wrong zone?", m.Name, age)
		}
	}
	version, err := migrations.Version(t.Context(), conn, schema)
	if err != nil || version != migrations.MaxVersion {
		t.Errorf("version: %d, %v; want %d", version, err, migrations.MaxVersion)
	}
	if err := migrations.Accepted(version); err != nil {
		t.Error(err)
	}
}

// TestUpgrade: a database of an earlier release is accepted as it is, and gets
// what is new.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		psql(t, db, printed(t, "relay", 0, migrations.MinVersion))
		conn := db.Conn(t)
		version, err := migrations.Version(t.Context(), conn, "relay")
		if version != migrations.MinVersion || err != nil || migrations.Accepted(version) != nil {
			t.Errorf("version %d, %v; accepted: %v", version, err, migrations.Accepted(version))
		}
		applied, err := migrations.Up(t.Context(), config(t, db), "relay")
		if diff := cmp.Diff(allNames[migrations.MinVersion:], names(applied)); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		checkStatus(t, conn, "relay")
	})
}

func TestThreeAtOnce(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		conf := config(t, db)
		var wg sync.WaitGroup
		applied := make([][]migrations.Migration, 3)
		errs := make([]error, 3)
		for i := range applied {
			wg.Go(func() { applied[i], errs[i] = migrations.Up(t.Context(), conf, "relay") })
		}
		wg.Wait()
		total := 0
		for i := range applied {
			if errs[i] != nil {
				t.Errorf("process %d: %v", i, errs[i])
			}
			total += len(applied[i])
		}
		if total != len(allNames) {
			t.Errorf("%d migrations were applied, want %d", total, len(allNames))
		}
		checkStatus(t, db.Conn(t), "relay")
	})
}

func TestUpWaitsForTheLock(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		holder := db.Conn(t)
		if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_lock(x'63646372656c6179'::bigint)"); err != nil {
			t.Fatal(err)
		}
		conf := config(t, db)
		done := make(chan error, 1)
		go func() {
			_, err := migrations.Up(t.Context(), conf, "relay")
			done <- err
		}()
		pgtest.Eventually(t, "the migration to ask for the lock", func() bool {
			var asked bool
			err := holder.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
				AND pid <> pg_backend_pid() AND state = 'idle' AND query LIKE '%pg_try_advisory_lock%')`).Scan(&asked)
			return err == nil && asked
		}, func() string { return "it does not" })
		if v, err := migrations.Version(t.Context(), holder, "relay"); v != 0 || err != nil {
			t.Errorf("version %d, %v while another process holds the lock", v, err)
		}
		if _, err := holder.Exec(t.Context(), "SELECT pg_advisory_unlock_all()"); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		checkStatus(t, holder, "relay")
	})
}

func TestNewerDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		db.Exec(t, "INSERT INTO cdc_relay_schema_version (version_id, is_applied) VALUES (999, true)")
		_, err := migrations.Up(t.Context(), config(t, db), "public")
		if b := fault.AsBlocked(err); b == nil || b.Reason != "table.schema_version" {
			t.Errorf("migrating a newer database: %v", err)
		}
	})
}

func TestAccepted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		version int64
		remedy  string // "" for accepted
	}{
		{"no tables", 0, "migrate up"},
		{"older", migrations.MinVersion - 1, "migrate up"},
		{"oldest accepted", migrations.MinVersion, ""},
		{"newest", migrations.MaxVersion, ""},
		{"newer", migrations.MaxVersion + 1, "upgrade cdc-relay"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := fault.AsBlocked(migrations.Accepted(test.version))
			switch {
			case test.remedy == "" && b != nil:
				t.Errorf("refused: %v", b)
			case test.remedy != "" && (b == nil || !strings.Contains(b.Remedy, test.remedy)):
				t.Errorf("got %v, want the remedy to say %q", b, test.remedy)
			}
		})
	}
}

func TestCheckSchema(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"public": true, "_a": true, "a1_": true, strings.Repeat("a", 63): true,
		"": false, "1a": false, "A": false, "a-b": false, "a.b": false, `a"b`: false, "a'b": false, "a\n": false,
		strings.Repeat("a", 64): false,
	} {
		if err := migrations.CheckSchema(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestPrintIsWhatUpDoes runs the printed script through psql and compares
// what is there with what Up makes.
func TestPrintIsWhatUpDoes(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		psql(t, db, printed(t, "printed", 0, 1)+printed(t, "printed", 1, 0))
		db.Migrate(t, "migrated")
		conn := db.Conn(t)
		checkStatus(t, conn, "printed")
		got, want := describe(t, conn, "printed"), describe(t, conn, "migrated")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-up +print):\n%s", diff)
		}
		if more, err := migrations.Up(t.Context(), config(t, db), "printed"); err != nil || len(more) != 0 {
			t.Errorf("up after the script: %v, %v", more, err)
		}
	})
}

func TestPrintRange(t *testing.T) {
	t.Parallel()
	for _, r := range [][2]int64{{-1, 0}, {0, migrations.MaxVersion + 1}, {2, 1}} {
		if err := migrations.Print(&bytes.Buffer{}, "public", r[0], r[1]); err == nil {
			t.Errorf("from %d to %d: no error", r[0], r[1])
		}
	}
	if got := printed(t, "public", migrations.MaxVersion, 0); got != "" {
		t.Errorf("nothing left to print, but: %s", got)
	}
}

func printed(t *testing.T, schema string, from, to int64) string {
	t.Helper()
	var b bytes.Buffer
	if err := migrations.Print(&b, schema, from, to); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func psql(t *testing.T, db *pgtest.DB, script string) {
	t.Helper()
	cmd := exec.Command(pgtest.Env(t, "CDC_TEST_PSQL"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", db.DSN)
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("psql: %v\n%s", err, out)
	}
}

// describe lists what a schema holds, with the schema's name left out.
func describe(t *testing.T, conn *pgx.Conn, schema string) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		SELECT 'column ' || table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' ||
		       coalesce(column_default, '') FROM information_schema.columns WHERE table_schema = $1
		UNION ALL SELECT 'relation ' || relname || ' ' || coalesce(array_to_string(reloptions, ','), '')
		  FROM pg_class WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'i', 'v')
		UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = $1
		UNION ALL SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid)
		  FROM pg_constraint WHERE connamespace = $1::text::regnamespace
		UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) || tgenabled::text
		  FROM pg_trigger WHERE tgrelid = ($1 || '.outbox')::regclass
		UNION ALL SELECT 'function ' || pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = $1::text::regnamespace
		UNION ALL SELECT 'view ' || definition FROM pg_views WHERE schemaname = $1
		ORDER BY 1`, schema)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], schema, "SCHEMA")
	}
	return lines
}
