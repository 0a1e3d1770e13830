package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// minimal is the least that a relay needs.
const minimal = `
postgres: {dsn: "postgres://relay@db:5432/app"}
kafka: {brokers: ["k1:9092"]}
record: {source: /shop}
`

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func load(t *testing.T, yaml string, env, flags []string) (*Loaded, error) {
	t.Helper()
	return Load(Input{File: write(t, yaml), Environ: env, Flags: flags})
}

// problems returns the lines of a configuration's error.
func problems(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Fatalf("error is a %T, want *Error", err)
	}
	return strings.Split(e.Error(), "\n")
}

func TestLoadMinimal(t *testing.T) {
	t.Parallel()
	l, err := load(t, minimal, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := l.Config
	if diff := cmp.Diff([]string{"k1:9092"}, c.Kafka.Brokers); diff != "" {
		t.Errorf("brokers (-want +got):\n%s", diff)
	}
	if c.Pipeline != "cdc_relay" || c.Lease.PublishWithin != 1500*time.Millisecond || c.Limits.InflightBytes != 24<<20 {
		t.Errorf("defaults are not applied: %+v", c)
	}
	if dsn, err := c.Postgres.DSN.Read(); err != nil || dsn != "postgres://relay@db:5432/app" {
		t.Errorf("DSN = %q, %v", dsn, err)
	}
	if len(l.Warnings) != 0 {
		t.Errorf("warnings: %q", l.Warnings)
	}
}

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	l := &Loaded{settings: map[string]setting{}}
	for path, s := range defaultSettings() {
		l.settings[path] = s.(setting)
	}
	for _, p := range append(l.parse(), l.crossCheck()...) {
		t.Error(p)
	}
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	yaml := minimal + "slot: {name: from_file, publication: from_file}\nlog: {level: warn, format: json}\n"
	l, err := load(t, yaml,
		[]string{"CDC_RELAY_SLOT__NAME=from_env", "CDC_RELAY_LOG__LEVEL=error"},
		[]string{"log.level=debug"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Setting{
		"slot.confirm_interval": {Value: "1s", Origin: "default"},
		"slot.publication":      {Value: "from_file", Origin: "file"},
		"slot.name":             {Value: "from_env", Origin: "env CDC_RELAY_SLOT__NAME"},
		"log.level":             {Value: "debug", Origin: "flag"},
		"log.format":            {Value: "json", Origin: "file"},
		"postgres.dsn":          {Value: "***", Origin: "file"},
		"pipeline":              {Value: "from_env", Origin: "default"},
	}
	for _, s := range l.Show() {
		w, ok := want[s.Key]
		if !ok {
			continue
		}
		delete(want, s.Key)
		if s.Value != w.Value || s.Origin != w.Origin {
			t.Errorf("%s = %q from %q, want %q from %q", s.Key, s.Value, s.Origin, w.Value, w.Origin)
		}
	}
	if len(want) != 0 {
		t.Errorf("not shown: %v", want)
	}
}

// TestProblems has a case for each hint.
func TestProblems(t *testing.T) {
	t.Parallel()
	absent := filepath.Join(t.TempDir(), "absent")
	tests := []struct {
		name  string
		yaml  string // below minimal
		env   []string
		flags []string
		want  []string
	}{
		{name: "unknown key", yaml: "slot: {nme: x}",
			want: []string{"config: slot.nme: is unknown; did you mean slot.name?"}},
		{name: "source that no header can hold", env: []string{"CDC_RELAY_RECORD__SOURCE=\xff"},
			want: []string{"config: record.source: is not UTF-8 text, or has control characters (env CDC_RELAY_RECORD__SOURCE); write a URI that names your service, such as /shop"}},
		{name: "source of two lines", flags: []string{"record.source=/a\nb"},
			want: []string{"config: record.source: is not UTF-8 text, or has control characters (flag); write a URI that names your service, such as /shop"}},
		{name: "unknown section", yaml: "kafkaa: {brokers: []}",
			want: []string{"config: kafkaa: is unknown; did you mean kafka?"}},
		{name: "key in the wrong section", yaml: "postgresql: {x: 1}\nlimits: {drain_timeout: 3s}",
			want: []string{
				"config: postgresql: is unknown; did you mean postgres?",
				"config: limits.drain_timeout: is unknown; did you mean shutdown.drain_timeout?",
			}},
		{name: "later version", yaml: "retention: {consumed: 14d}\nhttp: {token: x}\nfailure: {include_detail: true}",
			want: []string{
				"config: retention: is not in this version; remove it",
				"config: http.token: is not in this version; remove it",
				"config: failure.include_detail: is not in this version; remove it",
			}},
		{name: "what happens on failure", yaml: "failure: {on_failure: stop, by_type: {order: wait}}",
			want: []string{
				`config: failure.on_failure: "stop" is unknown; write one of: block, continue`,
				`config: failure.by_type: of "order": "wait" is unknown; write one of: block, continue`,
			}},
		{name: "not an aggregate type", yaml: `failure: {by_type: {"a b": block}}`, env: []string{`CDC_RELAY_RETRY__BY_TYPE={"": {}}`},
			want: []string{
				`config: failure.by_type: "a b" is not an aggregate type; write 1 to 200 of A-Z, a-z, 0-9, '.', '_' and '-'`,
				`config: retry.by_type: "" is not an aggregate type (env CDC_RELAY_RETRY__BY_TYPE); write 1 to 200 of A-Z, a-z, 0-9, '.', '_' and '-'`,
			}},
		{name: "unknown part of a type's policy", yaml: "retry: {by_type: {order: {bases: 5s}}}",
			want: []string{`config: retry.by_type: of "order": "bases" is unknown; write base, jitter, max_attempts or topic_max_attempts`}},
		{name: "part of a type's policy without unit", yaml: "retry: {by_type: {order: {base: 5}}}",
			want: []string{`config: retry.by_type: of "order": base "5" has no unit; write 5s`}},
		{name: "part of a type's policy out of range", env: []string{`CDC_RELAY_RETRY__BY_TYPE={"order": {"max_attempts": 0}}`},
			want: []string{`config: retry.by_type: of "order": max_attempts 0 is out of range (env CDC_RELAY_RETRY__BY_TYPE); write a value from 1 to 1000000`}},
		{name: "type's policy that is no mapping", yaml: "retry: {by_type: {order: 5s}}",
			want: []string{"config: retry.by_type.order: is not a mapping of keys; write keys below it, as key: value"}},
		{name: "type's policy twice", yaml: "retry: {by_type: {order: {base: 5s}, order: {base: 6s}}}",
			want: []string{"config: retry.by_type.order: is given twice, on lines 5 and 5; keep one"}},
		{name: "policies as a list", yaml: "retry: {by_type: [order]}",
			want: []string{"config: retry.by_type: is a list; write a mapping"}},
		{name: "policies that are no JSON", env: []string{`CDC_RELAY_RETRY__BY_TYPE={"order": 5}`},
			want: []string{`config: retry.by_type: is not a JSON object of objects (env CDC_RELAY_RETRY__BY_TYPE); write it as {"order": {"base": "5s", "max_attempts": 3}}`}},
		{name: "more types with a policy than fit", env: []string{"CDC_RELAY_FAILURE__BY_TYPE=" + types("f", 200, `"block"`), "CDC_RELAY_RETRY__BY_TYPE=" + types("r", 56, "{}")},
			want: []string{"config: retry.by_type: and failure.by_type name 256 aggregate types in all; name at most 255, and let the general values suit the others"}},
		{name: "partition without grace", yaml: "kafka: {partition_grace: 0s}", flags: []string{"kafka.partition_grace=0s"},
			want: []string{"config: kafka: is given twice, on lines 3 and 5; keep one", "config: kafka.partition_grace: is not more than 0 (flag); write a positive duration, such as 5s"}},
		{name: "no such identity", flags: []string{"kafka.identity=exactly-once"},
			want: []string{`config: kafka.identity: "exactly-once" is unknown (flag); write one of: fenced, idempotent, none`}},
		{name: "transactional id that is too long", flags: []string{"kafka.transactional_id=" + strings.Repeat("x", 256)},
			want: []string{"config: kafka.transactional_id: is longer than 255 bytes or has control characters (flag); write a name of at most 255 bytes, or nothing"}},
		{name: "poll", yaml: "source: poll",
			want: []string{"config: source: poll is not in this version; write wal, or remove the key"}},
		{name: "duplicate key", yaml: "log:\n  level: info\n  level: warn",
			want: []string{"config: log.level: is given twice, on lines 6 and 7; keep one"}},
		{name: "duplicate section", yaml: "log: {level: info}\nlog: {format: json}",
			want: []string{"config: log: is given twice, on lines 5 and 6; keep one"}},
		{name: "second document", yaml: "---\nlog: {level: info}",
			want: []string{"config: file: holds more than one YAML document; keep one, without a second ---"}},
		{name: "section as a value", yaml: "log: info",
			want: []string{"config: log: is not a mapping of keys; write keys below it, as key: value"}},
		{name: "value as a section", yaml: "log: {level: {a: b}}",
			want: []string{"config: log.level: is a mapping; write a single value"}},
		{name: "alias", yaml: "log: {level: &l info, format: *l}",
			want: []string{"config: log.format: is an alias; write the value itself"}},
		{name: "duration without unit", yaml: "lease: {ttl: 5}",
			want: []string{`config: lease.ttl: "5" has no unit; write 5s`}},
		{name: "not a duration", env: []string{"CDC_RELAY_LEASE__TTL=soon"},
			want: []string{`config: lease.ttl: "soon" is not a duration (env CDC_RELAY_LEASE__TTL); write a number with a unit of ms, s, m, h or d, such as 5s`}},
		{name: "not a size", yaml: "limits: {inflight_bytes: 24MB}",
			want: []string{`config: limits.inflight_bytes: "24MB" is not a size; write bytes, or a whole number of KiB, MiB or GiB, such as 24MiB`}},
		{name: "section of minimal again", yaml: "kafka: {max_requests: many}",
			want: []string{`config: kafka: is given twice, on lines 3 and 5; keep one`}},
		{name: "not a whole number", flags: []string{"kafka.max_requests=many"},
			want: []string{`config: kafka.max_requests: "many" is not a whole number (flag); write digits, such as 500`}},
		{name: "not a switch", yaml: "outbox: {tombstones: 1}",
			want: []string{`config: outbox.tombstones: "1" is not a switch; write true or false`}},
		{name: "out of range", yaml: "writeback: {batch: 10, interval: 1s}\nretry: {jitter: 0.9}",
			want: []string{
				"config: retry.jitter: 0.9 is out of range; write a value from 0 to 0.5",
				"config: writeback.batch: 10 is out of range; write a value from 500 to 2000",
				"config: writeback.interval: 1s is out of range; write a value from 1ms to 20ms",
			}},
		{name: "no such choice", yaml: "log: {level: loud}",
			want: []string{`config: log.level: "loud" is unknown; write one of: debug, info, warn, error`}},
		{name: "slot name", yaml: "slot: {name: My-Slot}",
			want: []string{`config: slot.name: "My-Slot" is not a slot name; write 1 to 63 of a-z, 0-9 and _`}},
		{name: "table without schema", yaml: "outbox: {table: outbox}",
			want: []string{`config: outbox.table: "outbox" is not a qualified name; write schema.table, such as public.outbox`}},
		{name: "schema to be quoted", yaml: "outbox: {table: Public.outbox}",
			want: []string{`config: outbox.table: the schema "Public" is not of the form [a-z_][a-z0-9_]*, at most 63 long; write schema.table, such as public.outbox`}},
		{name: "unknown column", yaml: "outbox: {columns: {aggregate: x}}",
			want: []string{`config: outbox.columns: "aggregate" is no column of the outbox; did you mean aggregate_id?`}},
		{name: "column of the relay", yaml: "outbox: {columns: {id: pk}}",
			want: []string{"config: outbox.columns: another name for id is not in this version; call the table's column id"}},
		{name: "broker without port", flags: []string{"kafka.brokers=k1:9092,k2"},
			want: []string{"config: kafka.brokers: entry 2 is not host:port (flag); write them as kafka-1:9092,kafka-2:9092"}},
		{name: "template variable", flags: []string{"record.topic=x.{aggregate_typ}"},
			want: []string{"config: record.topic: the variable {aggregate_typ} is unknown (flag); use {aggregate_type}, {event_type}, {schema}"}},
		{name: "template characters", flags: []string{"record.topic=a b"},
			want: []string{"config: record.topic: is not a topic name (flag); use letters, digits, '.', '_', '-' and the variables {aggregate_type}, {event_type}, {schema}"}},
		{name: "map that is no JSON", env: []string{"CDC_RELAY_OUTBOX__COLUMNS=id=pk"},
			want: []string{`config: outbox.columns: is not a JSON object of strings (env CDC_RELAY_OUTBOX__COLUMNS); write it as {"name": "value"}`}},
		{name: "map in a map", yaml: "outbox: {columns: {payload: {a: b}}}",
			want: []string{"config: outbox.columns.payload: is not a single value; write name: value"}},
		{name: "list as a map", yaml: "outbox: {columns: [payload]}",
			want: []string{"config: outbox.columns: is a list; write a mapping"}},
		{name: "broker with a login", flags: []string{"kafka.brokers=hunter2@k1:9092"},
			want: []string{"config: kafka.brokers: entry 1 is not host:port (flag); write them as kafka-1:9092,kafka-2:9092"}},
		{name: "lease order", yaml: "lease: {renew_interval: 600ms, publish_within: 1600ms, takeover_after: 3s, ttl: 2s}",
			want: []string{
				"config: lease.renew_interval: is more than a third of lease.publish_within, so one slow renewal would stop publishing; write at most 533.333333ms, or raise lease.publish_within",
				"config: lease.publish_within: is more than half of lease.takeover_after, so two instances could publish at once; write at most 1.5s, or raise lease.takeover_after",
				"config: lease.takeover_after: is more than lease.ttl; write at most 2s, or raise lease.ttl",
			}},
		{name: "in flight below two batches", yaml: "limits: {inflight_bytes: 1MiB}",
			want: []string{"config: limits.inflight_bytes: is less than twice kafka.batch_bytes, so a full batch could never be followed by another; write at least 2040KiB, or lower kafka.batch_bytes"}},
		{name: "stall before two probes", yaml: "http: {stall_after: 30s}",
			want: []string{"config: http.stall_after: is less than twice slot.probe_interval, so one late probe would look like a stall; write at least 1m, or lower slot.probe_interval"}},
		{name: "sampler order", yaml: "sampler: {interval: 1s, timeout: 1500ms}",
			want: []string{"config: sampler.timeout: is more than sampler.interval, so a slow look would hold up the next one; write at most 1s, or raise sampler.interval"}},
		{name: "backoff order", yaml: "retry: {broker_backoff: {min: 10s}}",
			want: []string{"config: retry.broker_backoff.min: is more than retry.broker_backoff.max; write a smaller value"}},
		{name: "mechanism without login", flags: []string{"kafka.sasl.mechanism=plain"},
			want: []string{"config: kafka.sasl: has a mechanism but not both a username and a password; write kafka.sasl.username and kafka.sasl.password (or kafka.sasl.password_file)"}},
		{name: "key without certificate", flags: []string{"kafka.tls.key_file=" + os.DevNull},
			want: []string{"config: kafka.tls: has only one of cert_file and key_file; write both, or neither"}},
		{name: "certificate that is not there", flags: []string{"kafka.tls.ca_file=" + absent},
			want: []string{"config: kafka.tls.ca_file: cannot be read: no such file or directory (flag); name a file that this process may read"}},
		{name: "password twice", env: []string{"CDC_RELAY_POSTGRES__DSN=postgres://u:hunter2@db/app", "CDC_RELAY_POSTGRES__PASSWORD=hunter2"},
			want: []string{"config: postgres.dsn: holds a password, and postgres.password is set too; keep one of the two"}},
		{name: "both forms of a secret", env: []string{"CDC_RELAY_POSTGRES__PASSWORD=hunter2", "CDC_RELAY_POSTGRES__PASSWORD_FILE=" + os.DevNull},
			want: []string{"config: postgres.password_file: is set as well as postgres.password; keep one of the two"}},
		{name: "secret file that is not there", env: []string{"CDC_RELAY_POSTGRES__PASSWORD_FILE=" + absent},
			want: []string{"config: postgres.password_file: cannot be read: no such file or directory (env CDC_RELAY_POSTGRES__PASSWORD_FILE); name a file that this process may read"}},
		{name: "empty secret file", env: []string{"CDC_RELAY_POSTGRES__PASSWORD_FILE=" + os.DevNull},
			want: []string{"config: postgres.password_file: names an empty file (env CDC_RELAY_POSTGRES__PASSWORD_FILE); write the secret into it"}},
		{name: "bad DSN", env: []string{"CDC_RELAY_POSTGRES__DSN=hunter2"},
			want: []string{"config: postgres.dsn: is not a connection string; write postgres://user@host:5432/database, or host=... user=... dbname=..."}},
		{name: "secret as a flag", flags: []string{"postgres.password=hunter2"},
			want: []string{"config: postgres.password: is a secret, and other users of this machine can read arguments; set it in the file, as CDC_RELAY_POSTGRES__PASSWORD, or name a file with --set postgres.password_file=..."}},
		{name: "flag without =", flags: []string{"hunter2"},
			want: []string{"config: --set: an argument has no =; write --set key=value"}},
		{name: "unknown flag", flags: []string{"slot.nam=x"},
			want: []string{"config: slot.nam: is unknown (flag); did you mean slot.name?"}},
		{name: "unknown variable", env: []string{"CDC_RELAY_KAFKA__BROKER=x"},
			want: []string{"config: CDC_RELAY_KAFKA__BROKER: is unknown; did you mean CDC_RELAY_KAFKA__BROKERS?"}},
		{name: "variable of a later version", env: []string{"CDC_RELAY_PAGE__LISTEN=x"},
			want: []string{"config: CDC_RELAY_PAGE__LISTEN: is not in this version; remove it"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(t, minimal+tt.yaml, tt.env, tt.flags)
			got := problems(t, err)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			if strings.Contains(strings.Join(got, "\n"), "hunter2") {
				t.Error("a secret is shown")
			}
		})
	}
}

// types is a JSON object with n aggregate types of one value.
func types(prefix string, n int, value string) string {
	entries := make([]string, n)
	for i := range entries {
		entries[i] = fmt.Sprintf("%q: %s", fmt.Sprint(prefix, i), value)
	}
	return "{" + strings.Join(entries, ", ") + "}"
}

func TestMissing(t *testing.T) {
	t.Parallel()
	const (
		dsnLine     = "config: postgres.dsn: is required; write postgres.dsn in the file or set CDC_RELAY_POSTGRES__DSN (or postgres.dsn_file to read it from a file)"
		brokersLine = "config: kafka.brokers: is required; write kafka.brokers in the file or set CDC_RELAY_KAFKA__BROKERS"
		sourceLine  = "config: record.source: is required with record.headers cloudevents; write a URI that names your service in the file or set CDC_RELAY_RECORD__SOURCE, or choose record.headers plain"
	)
	tests := []struct {
		name string
		use  Use
		want []string
	}{
		{"the relay", UseAll, []string{dsnLine, brokersLine, sourceLine}},
		{"a command on the database", UseDatabase, []string{dsnLine}},
		{"a command that needs nothing", UseNone, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := Load(Input{File: write(t, ""), Use: tt.use})
			if diff := cmp.Diff(tt.want, problems(t, err)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		env  []string
		want []string
	}{
		{"name that an orchestrator injects", []string{"CDC_RELAY_SERVICE_HOST=10.0.0.1"},
			[]string{"config: CDC_RELAY_SERVICE_HOST: is no key and is ignored"}},
		{"template without variable", []string{"CDC_RELAY_RECORD__TOPIC=all"},
			[]string{"config: record.topic: has no variable; every event goes to one topic"}},
		{"login in the clear", []string{"CDC_RELAY_KAFKA__SASL__MECHANISM=plain", "CDC_RELAY_KAFKA__SASL__USERNAME=u", "CDC_RELAY_KAFKA__SASL__PASSWORD=hunter2"},
			[]string{"config: kafka.sasl: is used without kafka.tls.enabled; the login can be overheard"}},
		{"pooler by port", []string{"CDC_RELAY_POSTGRES__DSN=host=db port=6543 user=u"},
			[]string{"config: postgres.dsn: looks like a connection pooler; replication needs the server's direct address in postgres.replication_dsn"}},
		{"pooler by name", []string{"CDC_RELAY_POSTGRES__REPLICATION_DSN=postgres://ep-1-pooler.example/app"},
			[]string{"config: postgres.replication_dsn: looks like a connection pooler; replication needs the server's direct address in postgres.replication_dsn"}},
		{"direct address for replication", []string{"CDC_RELAY_POSTGRES__DSN=postgres://db:6543/app", "CDC_RELAY_POSTGRES__REPLICATION_DSN=postgres://db:5432/app"}, nil},
		{"any certificate", []string{"CDC_RELAY_KAFKA__TLS__ENABLED=true", "CDC_RELAY_KAFKA__TLS__INSECURE_SKIP_VERIFY=true"},
			[]string{"config: kafka.tls.insecure_skip_verify: accepts any certificate; anybody on the way can pose as a broker"}},
		{"without effect", []string{"CDC_RELAY_RECORD__HEADERS=plain", "CDC_RELAY_RECORD__EVENT_TYPE_HEADER=type", "CDC_RELAY_KAFKA__TLS__SERVER_NAME=x",
			"CDC_RELAY_KAFKA__TRANSACTIONAL_ID=x"},
			[]string{
				"config: record.source: has no effect with record.headers plain",
				"config: record.event_type_header: has no effect with record.headers plain",
				"config: kafka.transactional_id: has no effect with kafka.identity idempotent",
				"config: kafka.tls: has no effect without kafka.tls.enabled",
			}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l, err := load(t, minimal, tt.env, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, l.Warnings); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFileLookup(t *testing.T) {
	t.Parallel()
	name := write(t, minimal+"pipeline: by-variable")
	l, err := Load(Input{Environ: []string{"CDC_RELAY_CONFIG=" + name}})
	if err != nil || l.Config.Pipeline != "by-variable" {
		t.Errorf("file of CDC_RELAY_CONFIG: %v", err)
	}
	absent := filepath.Join(t.TempDir(), "absent.yaml")
	_, err = Load(Input{File: absent, Use: UseNone})
	want := []string{"config: " + absent + ": cannot be read: no such file or directory; name a readable file with --config or CDC_RELAY_CONFIG"}
	if diff := cmp.Diff(want, problems(t, err)); diff != "" {
		t.Errorf("named file that is not there (-want +got):\n%s", diff)
	}
	if _, err := Load(Input{Use: UseNone}); err != nil {
		t.Errorf("default file that is not there: %v", err)
	}
}

func TestMapsAndLists(t *testing.T) {
	t.Parallel()
	want := map[string]string{"event_id": "uid", "payload": "body"}
	for name, source := range map[string]struct {
		yaml string
		env  []string
	}{
		"file":        {yaml: "outbox: {columns: {event_id: uid, payload: body}}"},
		"environment": {env: []string{`CDC_RELAY_OUTBOX__COLUMNS={"event_id":"uid","payload":"body"}`}},
		"replaced as a whole": {yaml: "outbox: {columns: {topic: t}}",
			env: []string{`CDC_RELAY_OUTBOX__COLUMNS={"event_id":"uid","payload":"body"}`}},
	} {
		l, err := load(t, minimal+source.yaml, append(source.env, "CDC_RELAY_KAFKA__BROKERS=a:9092, b:9092"), nil)
		if err != nil {
			t.Fatal(name, err)
		}
		if diff := cmp.Diff(want, l.Config.Outbox.Columns); diff != "" {
			t.Errorf("%s: columns (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff([]string{"a:9092", "b:9092"}, l.Config.Kafka.Brokers); diff != "" {
			t.Errorf("%s: brokers (-want +got):\n%s", name, diff)
		}
	}
}
