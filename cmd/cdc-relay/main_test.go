package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// planted is a password that no output may hold.
const planted = "hunter2-planted"

const validConfig = `
postgres: {dsn: "postgres://relay:` + planted + `@db.invalid:5432/app"}
kafka: {brokers: ["k1:9092"]}
record: {source: /shop}
`

func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "cdc-relay.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// result is what a command line did.
type result struct {
	code   int
	stdout string
	stderr string
}

func runCommand(t *testing.T, environ []string, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), args, environ, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

func TestCommandLines(t *testing.T) {
	t.Parallel()
	valid := writeFile(t, validConfig)
	broken := writeFile(t, validConfig+"lease: {ttl: 5}\nslot: {nme: x}\n")
	aliased := writeFile(t, "postgres:\n  password: *"+planted+"\n")
	tests := []struct {
		name   string
		args   []string
		env    []string
		code   int
		stdout string // part of it
		stderr string // all of it
	}{
		{name: "valid", args: []string{"config", "validate", valid}, stdout: "the configuration is valid\n"},
		{name: "valid by flag", args: []string{"--config", valid, "config", "validate"}, stdout: "the configuration is valid\n"},
		{name: "all problems at once", args: []string{"config", "validate", broken}, code: 78,
			stderr: "config: slot.nme: is unknown; did you mean slot.name?\nconfig: lease.ttl: \"5\" has no unit; write 5s\n"},
		{name: "password that looks like an alias", args: []string{"config", "validate", aliased}, code: 78,
			stderr: "config: file: is not valid YAML; check indentation and colons, and quote values with special characters (* & ! % @ ` { [)\n"},
		{name: "file that is not there", args: []string{"config", "show", "--config", "absent.yaml"}, code: 78,
			stderr: "config: absent.yaml: cannot be read: no such file or directory; name a readable file with --config or CDC_RELAY_CONFIG\n"},
		{name: "show", args: []string{"config", "show", "--config", valid, "--set", "slot.name=other"},
			stdout: "slot.name                       other                          flag\n"},
		{name: "show the log level", args: []string{"config", "show", "--log-level", "debug"},
			stdout: "log.level                       debug                          flag\n"},
		{name: "show a secret", args: []string{"config", "show"}, env: []string{"CDC_RELAY_POSTGRES__PASSWORD=" + planted},
			stdout: "postgres.password               ***                            env CDC_RELAY_POSTGRES__PASSWORD\n"},
		{name: "show defaults in spite of a broken file", args: []string{"config", "show", "--defaults", "--config", broken},
			stdout: "lease.ttl                       10s                            a frozen leader loses the slot after this\n"},
		{name: "warning", args: []string{"config", "show"}, env: []string{"CDC_RELAY_SERVICE_HOST=x"},
			stdout: "KEY", stderr: "warning: config: CDC_RELAY_SERVICE_HOST: is no key and is ignored\n"},
		{name: "secret as argument", args: []string{"config", "show", "--set", "postgres.dsn=" + planted}, code: 78,
			stderr: "config: postgres.dsn: is a secret, and other users of this machine can read arguments; set it in the file, as CDC_RELAY_POSTGRES__DSN, or name a file with --set postgres.dsn_file=...\n"},
		{name: "DSN that only the driver refuses", args: []string{"config", "show"}, env: []string{"CDC_RELAY_POSTGRES__DSN=postgres://u:" + planted + "@db/app?sslmode=" + planted}, code: 78,
			stderr: "config: postgres.dsn: is not accepted by the PostgreSQL driver, or names a file or service that cannot be read; write postgres://user@host:5432/database, with special characters percent-encoded, or host=... user=... dbname=...\n"},
		{name: "certificate file without a certificate", args: []string{"config", "validate", valid, "--set", "kafka.tls.enabled=true", "--set", "kafka.tls.ca_file=" + valid}, code: 78,
			stderr: "config: kafka.tls: kafka.tls.ca_file holds no certificate in PEM form; name PEM files that this process may read\n"},
		{name: "header of the relay", args: []string{"run", "--config", valid, "--set", "record.headers=debezium", "--set", "record.event_type_header=id"}, code: 78,
			stderr: "config: record: header name \"id\" belongs to the relay: choose another one for the event type; cdc-relay config show --defaults tells what each key takes\n"},
		{name: "version", args: []string{"version"}, stdout: ", schema "},
		{name: "unknown command", args: []string{"rum"}, code: 2,
			stderr: "error: unknown command \"rum\" for \"cdc-relay\"; run cdc-relay help\n"},
		{name: "unknown subcommand", args: []string{"migrate", "down"}, code: 2,
			stderr: "error: unknown command \"down\" for \"cdc-relay migrate\"; run cdc-relay help\n"},
		{name: "no subcommand", args: []string{"migrate"}, code: 2,
			stderr: "error: cdc-relay migrate needs one of: up, status, print; run cdc-relay help\n"},
		{name: "no time at all", args: []string{"version", "--timeout", "0"}, code: 2,
			stderr: "error: --timeout must be more than 0, such as 30s; run cdc-relay help\n"},
		{name: "negative time", args: []string{"status", "--timeout=-5s"}, code: 2,
			stderr: "error: --timeout must be more than 0, such as 30s; run cdc-relay help\n"},
		{name: "unknown flag", args: []string{"version", "--loud"}, code: 2,
			stderr: "error: unknown flag: --loud; run cdc-relay help\n"},
		{name: "contradicting flags", args: []string{"init", "--apply", "--print-sql"}, code: 2,
			stderr: "error: --apply and --print-sql exclude each other; run cdc-relay help\n"},
		{name: "migrations without a database", args: []string{"migrate", "print", "--set", "outbox.table=events.outbox"},
			stdout: `CREATE SCHEMA IF NOT EXISTS "events";`},
		{name: "impossible range of migrations", args: []string{"migrate", "print", "--from", "9"}, code: 1,
			stderr: "error: printing migrations from 9 to 3: want 0 <= from <= to <= 3\n"},
		{name: "no database configured", args: []string{"migrate", "up"}, code: 78,
			stderr: "config: postgres.dsn: is required; write postgres.dsn in the file or set CDC_RELAY_POSTGRES__DSN (or postgres.dsn_file to read it from a file)\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := runCommand(t, tt.env, tt.args...)
			if got.code != tt.code {
				t.Errorf("exit code %d, want %d", got.code, tt.code)
			}
			if diff := cmp.Diff(tt.stderr, got.stderr); diff != "" {
				t.Errorf("stderr (-want +got):\n%s", diff)
			}
			if !strings.Contains(got.stdout, tt.stdout) {
				t.Errorf("stdout lacks %q:\n%s", tt.stdout, got.stdout)
			}
			if strings.Contains(got.stdout+got.stderr, planted) {
				t.Error("the planted password is shown")
			}
		})
	}
}

// TestDefaultFile is the only test that needs a working directory of its own.
func TestDefaultFile(t *testing.T) {
	t.Chdir(filepath.Dir(writeFile(t, validConfig+"pipeline: shop")))
	if got := runCommand(t, nil, "config", "show"); !strings.Contains(got.stdout, "shop") {
		t.Errorf("the default file is not read: %+v", got)
	}
}

func TestConfigShowJSON(t *testing.T) {
	t.Parallel()
	got := runCommand(t, nil, "config", "show", "--json", "--config", writeFile(t, validConfig))
	var shown struct {
		V        int
		Pipeline string
		Items    []config.Setting
	}
	if err := json.Unmarshal([]byte(got.stdout), &shown); err != nil {
		t.Fatalf("stdout is not JSON: %v\n%s", err, got.stdout)
	}
	if shown.V != 1 || shown.Pipeline != "cdc_relay" || len(shown.Items) < 50 {
		t.Errorf("envelope: %+v", shown)
	}
	if strings.Contains(got.stdout, planted) {
		t.Error("the planted password is shown")
	}
}

func TestVersionJSON(t *testing.T) {
	t.Parallel()
	got := runCommand(t, nil, "version", "--json")
	var b map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &b); err != nil {
		t.Fatalf("stdout is not JSON: %v\n%s", err, got.stdout)
	}
	for _, field := range []string{"version", "revision", "go", "schema_min", "schema_max"} {
		if _, ok := b[field]; !ok {
			t.Errorf("no field %s in %s", field, got.stdout)
		}
	}
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		err  error
		want int
	}{
		{"none", nil, 0},
		{"any", errors.New("x"), 1},
		{"blocked", &fault.Blocked{}, 1},
		{"usage", usageError(errors.New("x")), 2},
		{"configuration", fmt.Errorf("loading: %w", &config.Error{}), 78},
		{"chosen", fmt.Errorf("running: %w", &exitError{exitInternal, errors.New("x")}), 70},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := exitCode(tt.err); got != tt.want {
				t.Errorf("exitCode = %d, want %d", got, tt.want)
			}
		})
	}
}

// panicking is an output that a defect hides behind.
type panicking struct{}

func (panicking) Write([]byte) (int, error) { panic("broken\npart") }

func TestPanicIsOneLine(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	if code := execute(context.Background(), []string{"version"}, nil, panicking{}, &stderr); code != 70 {
		t.Errorf("exit code %d, want 70", code)
	}
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], `msg="internal fault"`) ||
		lines[1] != "error: an internal fault ended the program: broken; part; report it with the log entry before this line" {
		t.Errorf("stderr:\n%s", stderr.String())
	}
}

func TestSignals(t *testing.T) {
	t.Parallel()
	signals := make(chan os.Signal)
	done := make(chan struct{})
	did := make(chan string)
	go func() {
		defer close(did)
		watchSignals(signals, done, func() { did <- "cancel" }, func(code int) { did <- fmt.Sprint("exit ", code) })
	}()
	for _, want := range []string{"cancel", "exit 130"} {
		signals <- os.Interrupt
		if got := <-did; got != want {
			t.Errorf("a signal did %q, want %q", got, want)
		}
	}
	if got, open := <-did; open {
		t.Errorf("after the second signal: %q", got)
	}
}

func TestSignalsGivenBack(t *testing.T) {
	t.Parallel()
	ctx, stop := withSignals(t.Context())
	stop() // waits for the watcher; goleak would see one that is left
	if ctx.Err() == nil {
		t.Error("stop has not ended the context")
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	secret := config.NewSecret(planted)
	tests := []struct {
		name   string
		log    config.Log
		want   string
		absent string
	}{
		{"text", config.Log{Level: "info", Format: "text"}, "level=INFO msg=shown secret=***\n", "hidden"},
		{"json", config.Log{Level: "debug", Format: "json"}, `"level":"DEBUG","msg":"hidden"`, planted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			log := newLogger(&out, tt.log)
			log.Debug("hidden")
			log.Info("shown", "secret", secret)
			if !strings.Contains(out.String(), tt.want) || strings.Contains(out.String(), tt.absent) {
				t.Errorf("log:\n%s", out.String())
			}
			if !strings.Contains(out.String(), "Z") {
				t.Errorf("times are not UTC:\n%s", out.String())
			}
		})
	}
}
