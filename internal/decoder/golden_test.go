package decoder_test

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/decoder"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// The golden files are what PostgreSQL sent for the scenarios below: the OID
// of the outbox table (4 bytes) and then the frames, without keepalives. With
// -update, and the test servers at hand, they are recorded anew.
var update = flag.Bool("update", false, "record the golden files from real servers")

// scenario is what happens to an outbox table, and what the decoder makes of
// what the server sends about it, as told by tell.
type scenario struct {
	name    string
	table   string            // SQL that makes the table outbox, and what else is needed
	columns map[string]string // decoder.Config.Columns
	sql     []string          // each is one or more statements, in one transaction unless they say otherwise
	want    []string
	large   bool // not stored
}

const designTable = `CREATE TABLE outbox (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-0000000000ff',
  aggregate_type text NOT NULL DEFAULT 'order', aggregate_id text NOT NULL DEFAULT 'a', event_type text NOT NULL DEFAULT 'created',
  payload bytea, headers jsonb NOT NULL DEFAULT '{}', content_type text NOT NULL DEFAULT 'application/json',
  topic text, priority smallint NOT NULL DEFAULT 0, created_at timestamptz NOT NULL DEFAULT '2026-01-02 03:04:05.6789+00',
  send_status smallint NOT NULL DEFAULT 0, attempts integer NOT NULL DEFAULT 0, next_attempt_at timestamptz, commit_lsn pg_lsn,
  claim_generation bigint NOT NULL DEFAULT 0, claimed_by uuid, error_message text);
CREATE PUBLICATION p FOR TABLE outbox WITH (publish = 'insert')`

// smallTable has what is required and nothing else.
func smallTable(payload string) string {
	return `CREATE TABLE outbox (id serial PRIMARY KEY, event_id uuid NOT NULL DEFAULT '00000000-0000-0000-0000-0000000000ff',
  aggregate_type varchar(20) NOT NULL DEFAULT 'order', aggregate_id char(3) NOT NULL DEFAULT 'a', event_type varchar NOT NULL DEFAULT 'created',
  payload ` + payload + `, send_status int NOT NULL DEFAULT 0, next_attempt_at timestamptz);
CREATE PUBLICATION p FOR TABLE outbox WITH (publish = 'insert')`
}

// row tells an inserted row of designTable with these payload and changes
// to the defaults.
func row(id int, payload string, changes ...string) string {
	fields := []string{"type=order", "aggregate=a", "event=created", "payload=" + payload, "headers={}", "content=application/json",
		"topic=", "priority=0", "created=2026-01-02T03:04:05.6789Z", "status=0", "attempts=0", "due=null"}
	for _, change := range changes {
		name, _, _ := strings.Cut(change, "=")
		for i, f := range fields {
			if strings.HasPrefix(f, name+"=") {
				fields[i] = change
			}
		}
	}
	return fmt.Sprintf("insert id=%d %s", id, strings.Join(fields, " "))
}

// smallRow tells an inserted row of smallTable.
func smallRow(id int, payload string) string {
	return row(id, payload, "aggregate=a  ", "headers=", "created=commit")
}

var scenarios = []scenario{
	{
		name:  "columns",
		table: designTable,
		sql: []string{
			`INSERT INTO outbox (payload) VALUES ('\x0001feff')`,
			`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload, headers, content_type, topic, priority, created_at, attempts)
			 VALUES ('01020304-0506-0708-090a-0b0c0d0e0f10', 'A', 'ü', 'é', '', '{"a": [1, null]}', 'text/plain', 'topic', -32768, '1999-12-31 23:59:59.999999+00', 2147483647)`,
			`INSERT INTO outbox (payload) VALUES (NULL)`,
			`INSERT INTO outbox (next_attempt_at) VALUES ('2026-02-03 04:05:06.000007+00'), ('infinity'), ('-infinity'), ('294276-12-31')`,
			`INSERT INTO outbox (send_status, created_at) VALUES (4, 'infinity')`,
		},
		want: []string{
			"begin", "ignored R", row(1, "\x00\x01\xfe\xff"), "commit",
			"begin", row(2, "", "type=A", "aggregate=ü", "event=é", `headers={"a": [1, null]}`, "content=text/plain", "topic=topic",
				"priority=-32768", "created=1999-12-31T23:59:59.999999Z", "attempts=2147483647"), "commit",
			"begin", row(3, "NULL"), "commit",
			"begin", row(4, "NULL", "due=2026-02-03T04:05:06.000007Z"), row(5, "NULL", "due=infinity"),
			row(6, "NULL", "due=-290308-12-21T19:59:05.224192Z"), row(7, "NULL", "due=294247-01-10T04:00:54.775807Z"), "commit",
			"begin", row(8, "NULL", "status=4", "created=294247-01-10T04:00:54.775807Z"), "commit",
		},
	},
	{
		name: "payload-json", table: smallTable("json"), sql: []string{`INSERT INTO outbox (payload) VALUES ('{"b": 1,  "a":2}'), (NULL)`},
		want: []string{"begin", "ignored R", smallRow(1, `{"b": 1,  "a":2}`), smallRow(2, "NULL"), "commit"},
	},
	{
		name: "payload-jsonb", table: smallTable("jsonb"), sql: []string{`INSERT INTO outbox (payload) VALUES ('{"b": 1,  "a":2}'), ('null')`},
		want: []string{"begin", "ignored R", smallRow(1, `{"a": 2, "b": 1}`), smallRow(2, "null"), "commit"},
	},
	{
		name: "payload-text", table: smallTable("text"), sql: []string{`INSERT INTO outbox (payload) VALUES ('tëxt'), ('')`},
		want: []string{"begin", "ignored R", smallRow(1, "tëxt"), smallRow(2, ""), "commit"},
	},
	{
		name: "mapped",
		table: `CREATE TABLE outbox (kind text, nr smallint, event_id uuid, aggregate_type text, aggregate_id text, payload text, state bigint, "Due" timestamptz,
			made timestamp); CREATE PUBLICATION p FOR TABLE outbox WITH (publish = 'insert')`,
		columns: map[string]string{"id": "nr", "event_type": "kind", "send_status": "state", "next_attempt_at": "Due", "created_at": "made"},
		sql: []string{`INSERT INTO outbox VALUES ('created', 5, '00000000-0000-0000-0000-0000000000ff', 'order', 'a', 'p', 0, NULL, '2026-01-02 03:04:05.6789'),
			('created', 6, '00000000-0000-0000-0000-0000000000ff', 'order', 'a', 'p', 0, NULL, NULL)`},
		want: []string{"begin", "ignored R", row(5, "p", "headers="), row(6, "p", "headers=", "created=commit"), "commit"},
	},
	{
		name:  "transactions",
		table: designTable,
		sql: []string{
			`INSERT INTO outbox (payload) VALUES ('1'), ('2'); INSERT INTO outbox (payload) VALUES ('3')`,
			`BEGIN; INSERT INTO outbox (payload) VALUES ('4'); ROLLBACK`,
			`BEGIN; INSERT INTO outbox (payload) VALUES ('5'); SAVEPOINT s; INSERT INTO outbox (payload) VALUES ('6'); ROLLBACK TO s;
			 INSERT INTO outbox (payload) VALUES ('7'); COMMIT`,
			`BEGIN; INSERT INTO outbox (payload) VALUES ('8'); UPDATE outbox SET send_status = 2; DELETE FROM outbox WHERE id = 8; COMMIT`,
		},
		want: []string{
			"begin", "ignored R", row(1, "1"), row(2, "2"), row(3, "3"), "commit",
			"begin", row(5, "5"), row(7, "7"), "commit",
			"begin", row(8, "8"), "commit",
		},
	},
	{
		name:  "messages",
		table: designTable,
		sql: []string{
			`BEGIN; INSERT INTO outbox (payload) VALUES ('1'); SELECT pg_logical_emit_message(true, 'cdc-relay/public.outbox', '42');
			 INSERT INTO outbox (payload) VALUES ('2'); COMMIT`,
			`SELECT pg_logical_emit_message(true, '', '')`,
			`BEGIN; SELECT pg_logical_emit_message(false, 'loose', '\x00ff'::bytea); SELECT pg_logical_emit_message(true, 'never', ''); ROLLBACK`,
		},
		want: []string{
			"begin", "ignored R", row(1, "1"), "message cdc-relay/public.outbox 42", row(2, "2"), "commit",
			"begin", "message  ", "commit",
			"loose message loose \x00\xff",
		},
	},
	{
		name:  "changes",
		table: designTable,
		sql: []string{
			`INSERT INTO outbox (payload) VALUES ('1')`,
			`ALTER TABLE outbox ADD COLUMN extra int; INSERT INTO outbox (payload, extra) VALUES ('2', 2)`,
			`ALTER TABLE outbox DROP COLUMN headers, DROP COLUMN topic; INSERT INTO outbox (payload) VALUES ('3')`,
			`ALTER TABLE outbox ALTER COLUMN payload TYPE text USING encode(payload, 'escape'), ALTER COLUMN send_status TYPE bigint`,
			`INSERT INTO outbox (payload) VALUES ('4')`,
			`BEGIN; ALTER TABLE outbox DROP COLUMN event_type; ALTER TABLE outbox ADD COLUMN event_type varchar DEFAULT 'created';
			 INSERT INTO outbox (payload) VALUES ('5'); ALTER TABLE outbox RENAME payload TO p; ALTER TABLE outbox RENAME error_message TO payload;
			 INSERT INTO outbox (payload) VALUES ('6'); COMMIT`,
			`ALTER TABLE outbox DROP COLUMN payload; ALTER TABLE outbox ADD COLUMN payload int[]; INSERT INTO outbox (payload) VALUES ('{7}')`,
		},
		want: []string{
			"begin", "ignored R", row(1, "1"), "commit",
			"begin", "ignored R", row(2, "2"), "commit",
			"begin", "ignored R", row(3, "3", "headers="), "commit",
			"begin", "ignored R", row(4, "4", "headers="), "commit",
			"begin", "ignored R", row(5, "5", "headers="), "ignored R", row(6, "6", "headers="), "commit",
			"begin", `error: reading the columns of the outbox table: column "payload" (payload) has the type with OID 1007; it must be bytea, json, jsonb, text, varchar`,
		},
	},
	{
		name: "others",
		table: designTable + `; CREATE TYPE mood AS ENUM ('sad', 'ok'); ALTER TABLE outbox ADD COLUMN mood mood;
			CREATE TABLE other (id int PRIMARY KEY); ALTER PUBLICATION p ADD TABLE other; ALTER PUBLICATION p SET (publish = 'insert, update, delete, truncate');
			SELECT pg_replication_origin_create(current_database())`,
		sql: []string{
			`INSERT INTO outbox (payload, mood) VALUES ('1', 'ok'), ('2', NULL); INSERT INTO other VALUES (1)`,
			`UPDATE outbox SET send_status = 2 WHERE id = 1; UPDATE other SET id = 2; DELETE FROM other; TRUNCATE other`,
			`SELECT pg_replication_origin_session_setup(current_database()); INSERT INTO outbox (payload) VALUES ('3')`,
		},
		want: []string{
			"begin", "ignored Y", "ignored R", row(1, "1"), row(2, "2"), "ignored R", "ignored I", "commit",
			"begin", "ignored U", "ignored U", "ignored D", "ignored R", "ignored T", "commit",
			"begin", "ignored O", row(3, "3"), "commit",
		},
	},
	{
		name:  "large",
		large: true,
		table: designTable,
		sql:   []string{`INSERT INTO outbox (payload) VALUES (convert_to(repeat('x', 5000000), 'UTF8')), ('y')`},
		want:  []string{"begin", "ignored R", row(1, strings.Repeat("x", 5000000)), row(2, "y"), "commit"},
	},
}

// tell describes a message, without what differs from run to run.
func tell(m *decoder.Message, commitTime int64) string {
	switch m.Kind {
	case decoder.Insert:
		return tellRow(&m.Event, commitTime)
	case decoder.Logical:
		if m.Transactional {
			return fmt.Sprintf("message %s %s", m.Prefix, m.Content)
		}
		return fmt.Sprintf("loose message %s %s", m.Prefix, m.Content)
	case decoder.Ignored:
		return "ignored " + string(m.Type)
	}
	return m.Kind.String()
}

func tellRow(e *event.Event, commitTime int64) string {
	payload, due, created := string(e.Payload), "null", "commit"
	if e.PayloadNull {
		payload = "NULL"
	}
	if t, ok := e.Due.Time(); ok {
		due = t.Format(time.RFC3339Nano)
	} else if e.Due.IsInfinity() {
		due = "infinity"
	}
	if e.CreatedAt != commitTime {
		created = time.UnixMicro(e.CreatedAt).UTC().Format(time.RFC3339Nano)
	}
	return fmt.Sprintf("insert id=%d type=%s aggregate=%s event=%s payload=%s headers=%s content=%s topic=%s priority=%d created=%s status=%d attempts=%d due=%s",
		e.ID, e.AggregateType, e.AggregateID, e.EventType, payload, e.Headers, e.ContentType, e.Topic, e.Priority, created, e.Status, e.Attempts, due)
}

// tellAll decodes a recording and describes its messages. It checks what does
// differ from run to run for being consistent.
func tellAll(t *testing.T, sc scenario, recording []byte) (told []string) {
	t.Helper()
	d := decoder.New(decoder.Config{Table: binary.BigEndian.Uint32(recording), Columns: sc.columns})
	var m decoder.Message
	var end pglogrepl.LSN
	for _, frame := range split(recording[4:]) {
		if err := d.Decode(payload(frame), &m); err != nil {
			_, text, _ := strings.Cut(err.Error(), ": ")
			return append(told, "error: "+text)
		}
		switch {
		case m.Kind == decoder.Begin && (m.CommitLSN <= end || m.XID == 0):
			t.Errorf("transaction %d at %s does not follow the one that ended at %s", m.XID, m.CommitLSN, end)
		case m.Kind == decoder.Commit && m.EndLSN <= m.CommitLSN:
			t.Errorf("the transaction at %s ends at %s", m.CommitLSN, m.EndLSN)
		case m.Kind == decoder.Insert && m.Event.CommitLSN != m.CommitLSN:
			t.Errorf("row %d has position %s, its transaction %s", m.Event.ID, m.Event.CommitLSN, m.CommitLSN)
		case m.Kind == decoder.Insert && m.Event.EventID[0] == 0 && m.Event.EventID[15] != 0xff:
			t.Errorf("row %d has event id %x", m.Event.ID, m.Event.EventID)
		}
		if m.Kind == decoder.Commit {
			end = m.EndLSN
		}
		told = append(told, tell(&m, m.CommitTime))
	}
	return told
}

// split cuts a recording into frames.
func split(frames []byte) (list [][]byte) {
	for len(frames) > 0 {
		size := 1 + int(binary.BigEndian.Uint32(frames[1:]))
		list = append(list, frames[:size])
		frames = frames[size:]
	}
	return list
}

func goldenFile(version int, sc scenario) string {
	return filepath.Join("testdata", fmt.Sprintf("pg%d", version), sc.name+".frames")
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		for _, sc := range scenarios {
			if sc.large {
				continue
			}
			t.Run(fmt.Sprintf("pg%d/%s", version, sc.name), func(t *testing.T) {
				t.Parallel()
				recording, err := os.ReadFile(goldenFile(version, sc))
				if err != nil {
					t.Fatal(err)
				}
				if d := cmp.Diff(sc.want, tellAll(t, sc, recording)); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			})
		}
	}
}

// TestReal plays the scenarios on real servers.
func TestReal(t *testing.T) {
	t.Parallel()
	for _, sc := range scenarios {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				recording := record(t, db, sc)
				if d := cmp.Diff(sc.want, tellAll(t, sc, recording)); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
				if *update && !sc.large {
					writeGolden(t, goldenFile(db.Version, sc), recording)
				}
			})
		})
	}
}

func writeGolden(t *testing.T, file string, recording []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, recording, 0o644); err != nil {
		t.Fatal(err)
	}
}

// endMark is the prefix of the message that ends a recording.
const endMark = "the end"

// record plays a scenario and returns the golden file's content.
func record(t *testing.T, db *pgtest.DB, sc scenario) []byte {
	t.Helper()
	db.Exec(t, sc.table)
	db.Exec(t, "SELECT pg_create_logical_replication_slot('"+db.Name+"', 'pgoutput')")
	for _, sql := range sc.sql {
		db.Exec(t, sql)
	}
	db.Exec(t, "SELECT pg_logical_emit_message(true, '"+endMark+"', '')")
	var oid uint32
	if err := db.Conn(t).QueryRow(t.Context(), "SELECT 'outbox'::regclass::oid").Scan(&oid); err != nil {
		t.Fatal(err)
	}
	frames := stream(t, db)
	// an origin belongs to the whole server
	db.Exec(t, "SELECT pg_replication_origin_drop(roname) FROM pg_replication_origin WHERE roname = current_database()")
	return append(binary.BigEndian.AppendUint32(nil, oid), frames...)
}

// stream reads the slot up to the transaction that ends the recording.
func stream(t *testing.T, db *pgtest.DB) (frames []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conf, err := pgconn.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	conf.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(ctx, conf)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	err = pglogrepl.StartReplication(ctx, conn, db.Name, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'p'", "messages 'true'", "binary 'true'"}})
	if err != nil {
		t.Fatal(err)
	}
	begin := 0
	for {
		msg, err := conn.ReceiveMessage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		data, ok := msg.(*pgproto3.CopyData)
		switch {
		case !ok:
			t.Fatalf("got %T within the stream", msg)
		case data.Data[0] != pglogrepl.XLogDataByteID:
			continue
		case data.Data[25] == 'B':
			begin = len(frames)
		case data.Data[25] == 'M' && strings.HasPrefix(string(data.Data[35:]), endMark):
			return frames[:begin]
		}
		if frames, err = data.Encode(frames); err != nil {
			t.Fatal(err)
		}
	}
}

// goldenFrames are the frames of all golden files, as seeds.
func goldenFrames(t testing.TB) (all [][]byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "pg*", "*.frames"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		recording, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, recording)
	}
	return all
}
