package e2e

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// planted is a password that must appear in no output.
const planted = "planted-7f3Qx-secret"

// TestUnusableConfiguration: what is wrong without any connection is said at
// once, a line for each, and the process ends. One version suffices: no server
// is asked.
func TestUnusableConfiguration(t *testing.T) {
	t.Parallel()
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: harness.Shared(t), OwnTable: true})
	for _, tc := range []struct {
		name   string
		config relayproc.Config
		want   []string // of each line
	}{
		{"a key that is unknown", relayproc.Config{"kafka.broker": "a:1"}, []string{"config: kafka.broker: ", "kafka.brokers"}},
		{"a required key missing", relayproc.Config{"kafka.brokers": nil}, []string{"config: kafka.brokers: ", "CDC_RELAY_KAFKA__BROKERS"}},
		{"no source of the events", relayproc.Config{"record.source": nil}, []string{"config: record.source: "}},
		{"a duration without unit", relayproc.Config{"kafka.request_timeout": "5"}, []string{"config: kafka.request_timeout: ", "5s"}},
		{"something for later", relayproc.Config{"http.token": "x"}, []string{"config: http.token: ", "not in this version"}},
		{"no such order on failure", relayproc.Config{"failure.on_failure": "wait"}, []string{"config: failure.on_failure: ", "block", "continue"}},
		{"a password twice", relayproc.Config{"postgres.password_file": "/dev/null"}, []string{"config: postgres.password", "password_file"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			for _, command := range [][]string{{"run"}, {"config", "validate"}} {
				output, code := b.Command(relayproc.Config{"postgres.password": planted}.With(tc.config), command...)
				if code != 78 {
					t.Errorf("%v: exit code %d, want 78", command, code)
				}
				lines := strings.Split(strings.TrimSpace(output), "\n")
				if len(lines) != 1 {
					t.Errorf("%v: %d lines, want 1:\n%s", command, len(lines), output)
				}
				for _, part := range tc.want {
					if !strings.Contains(output, part) {
						t.Errorf("%v: output lacks %q:\n%s", command, part, output)
					}
				}
				clean(t, output)
			}
		})
	}
	t.Run("all problems at once", func(t *testing.T) {
		t.Parallel()
		output, code := b.Command(relayproc.Config{"kafka.brokers": nil, "record.source": nil, "slot.name": "No Name"}, "run")
		if n := strings.Count(output, "config: "); code != 78 || n != 3 {
			t.Errorf("exit code %d and %d problems, want 78 and 3:\n%s", code, n, output)
		}
	})
}

// clean fails the test if an output shows the password or a trace.
func clean(t *testing.T, output string) {
	t.Helper()
	if strings.Contains(output, planted) {
		t.Errorf("the password is in the output:\n%s", output)
	}
	if trace := relayproc.Crash(output); trace != "" {
		t.Errorf("a trace in the output:\n%s", trace)
	}
}

// condition is something that only a person can mend.
type condition struct {
	name   string
	reason string // doctor id
	remedy string // a part of it
	// spoil makes the condition, with more configuration if need be. mend is
	// what a person does about it, nil where that needs a new start.
	spoil func(t *testing.T, b *harness.Bed) (config relayproc.Config, mend func())
}

// sql is a condition that statements make and mend. %s in them is the bed's
// name of slot and publication.
func sql(spoil string, mend ...string) func(*testing.T, *harness.Bed) (relayproc.Config, func()) {
	return func(_ *testing.T, b *harness.Bed) (relayproc.Config, func()) {
		b.Exec(strings.ReplaceAll(spoil, "%s", b.Slot))
		return nil, func() {
			for _, m := range mend {
				b.Exec(strings.ReplaceAll(m, "%s", b.Slot))
			}
		}
	}
}

// configured is a condition of the configuration.
func configured(config relayproc.Config) func(*testing.T, *harness.Bed) (relayproc.Config, func()) {
	return func(*testing.T, *harness.Bed) (relayproc.Config, func()) { return config, nil }
}

var conditions = []condition{
	{"wrong password", "pg.connect", "postgres.password", wrongPassword},
	{"unreachable broker", "kafka.connect", "kafka.brokers", configured(relayproc.Config{
		"kafka.brokers": []string{"127.0.0.1:1"}, "kafka.sasl.mechanism": "plain",
		"kafka.sasl.username": "relay", "kafka.sasl.password": planted,
	})},
	{"no publication", "pub.exists", "init --apply", noPublication},
	{"a publication of updates too", "pub.ops", "publish = 'insert'", sql(`ALTER PUBLICATION %s SET (publish = 'insert, update')`,
		`ALTER PUBLICATION %s SET (publish = 'insert')`)},
	{"a publication of another table", "pub.table", "ADD TABLE", sql(`ALTER PUBLICATION %s SET TABLE cdc_relay_topic`,
		`ALTER PUBLICATION %s SET TABLE outbox`)},
	{"an unknown table", "table.columns", "outbox.table", configured(relayproc.Config{"outbox.table": "public.nothing"})},
	{"a newer schema", "table.schema_version", "upgrade", sql(
		`INSERT INTO cdc_relay_schema_version (version_id, is_applied) VALUES (900, true)`,
		`DELETE FROM cdc_relay_schema_version WHERE version_id = 900`)},
	{"no requeue trigger", "table.trigger", "outbox_requeue", sql(`ALTER TABLE outbox DISABLE TRIGGER outbox_requeue`,
		`ALTER TABLE outbox ENABLE ALWAYS TRIGGER outbox_requeue`)},
}

// noPublication is a database for which nobody has run init.
func noPublication(_ *testing.T, b *harness.Bed) (relayproc.Config, func()) {
	b.Exec(`SELECT pg_drop_replication_slot($1)`, b.Slot)
	b.Exec(`DROP PUBLICATION ` + b.Slot)
	return nil, b.Init
}

// TestBlocked: what a person must mend is told once, with a remedy; the
// process lives, and goes on by itself when it is mended.
func TestBlocked(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			makePasswordUser(t, pgtest.New(t, version))
			for _, tc := range conditions {
				t.Run(tc.name, func(t *testing.T) {
					t.Parallel()
					b := harness.NewBed(t, pgtest.New(t, version), harness.Options{
						Kafka: harness.Shared(t), Config: relayproc.Config{"postgres.password": planted},
					})
					tc.run(t, b)
				})
			}
		})
	}
}

func (tc condition) run(t *testing.T, b *harness.Bed) {
	config, mend := tc.spoil(t, b)
	relay := b.Start(config)
	status := relay.WaitBlocked(tc.reason)
	if status.What == "" || !strings.Contains(status.Remedy, tc.remedy) {
		t.Errorf("what %q, remedy %q: want a sentence, and %q in the remedy", status.What, status.Remedy, tc.remedy)
	}
	clean(t, fmt.Sprint(*status))
	if n := strings.Count(relay.Output(), "reason="+tc.reason); n != 1 {
		t.Errorf("%d lines tell %s, want 1:\n%s", n, tc.reason, relay.Output())
	}
	if mend != nil {
		mend()
		relay.WaitState("streaming")
		b.Write(50, 8)
		b.Finish(harness.Allow{})
	}
	clean(t, relay.Output())
}

const passwordUser = "cdc_password_user" // the development servers ask this login for its password

func makePasswordUser(t *testing.T, db *pgtest.DB) {
	t.Helper()
	const drop = `DROP ROLE IF EXISTS ` + passwordUser
	db.Exec(t, drop+`; CREATE ROLE `+passwordUser+` LOGIN SUPERUSER REPLICATION PASSWORD 'right'`)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		conn, err := pgx.Connect(ctx, db.DSN)
		if err != nil {
			t.Errorf("dropping the test's login: %v", err)
			return
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, drop); err != nil {
			t.Errorf("dropping the test's login: %v", err)
		}
	})
}

// wrongPassword is mended in the file that holds it, without a restart.
func wrongPassword(t *testing.T, b *harness.Bed) (relayproc.Config, func()) {
	t.Helper()
	dsn, err := url.Parse(b.DB.DSN)
	if err != nil {
		t.Fatalf("parsing the test's DSN: %v", err)
	}
	dsn.User = url.User(passwordUser)
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(planted)
	config := relayproc.Config{"postgres.dsn": dsn.String(), "postgres.password": nil, "postgres.password_file": file}
	return config, func() { write("right") }
}

// TestCommandsKeepSecrets looks at what every command writes.
func TestCommandsKeepSecrets(t *testing.T) {
	t.Parallel()
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: harness.Shared(t), OwnTable: true})
	config := relayproc.Config{"postgres.password": planted, "kafka.sasl.mechanism": "plain", "kafka.sasl.username": "u", "kafka.sasl.password": planted}
	for _, command := range []string{
		"config show", "config show --json", "config validate", "init", "init --print-sql", "migrate up", "init --apply",
		"migrate status", "migrate print", "version", "init --json",
	} {
		output, code := b.Command(config, strings.Fields(command)...)
		if code != 0 {
			t.Errorf("cdc-relay %s: exit code %d\n%s", command, code, output)
		}
		clean(t, output)
	}
}
