package main

import (
	"bytes"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

var listedAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func ago(d time.Duration) operate.Moment {
	return operate.Moment{Timestamptz: pgtype.Timestamptz{Time: listedAt.Add(-d), Valid: true}}
}

var never = operate.Moment{Timestamptz: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}}

// listed is a FAILED row and one that is held behind it.
func listed() []operate.Listed {
	return []operate.Listed{
		{Row: operate.Row{ID: 7, EventID: outbox.ID{15: 7}, AggregateType: "order", AggregateID: "o-1\x1b[31m\t" + strings.Repeat("x", 80), EventType: "created",
			CreatedAt: ago(3 * time.Hour), Status: outbox.Failed, Attempts: 10, NextAttemptAt: never, ErrorCode: "TOPIC_DENIED",
			ErrorMessage: "not authorised for topic t"}, Blocking: operate.MaxBlocking},
		{Row: operate.Row{ID: 123, EventID: outbox.ID{15: 123}, AggregateType: "order", AggregateID: "o-1", EventType: "paid", CreatedAt: ago(-time.Second),
			NextAttemptAt: ago(-10 * time.Minute), SentAt: ago(time.Hour), FinishedAt: ago(0)},
			First: operate.Head{ID: 7, Status: outbox.Failed, ErrorCode: "TOPIC_DENIED", NextAttemptAt: never}},
	}
}

func TestPrintList(t *testing.T) {
	t.Parallel()
	c := &config.Config{Pipeline: "shop"}
	long := "o-1 [31m " + strings.Repeat("x", 54) + "…"
	tests := []struct {
		name  string
		print func(*app, *operate.List) error
		page  operate.Page
		want  string
	}{
		{"events", func(a *app, l *operate.List) error { return printList(a, c, l, eventHeader, newEventItem) }, operate.Page{After: 123},
			`ID   EVENT_ID                              CREATED_AT                        AGGREGATE_TYPE  AGGREGATE_ID                                                      EVENT_TYPE  STATUS  ATTEMPTS  NEXT_ATTEMPT_AT                     ERROR_CODE
7    00000000-0000-0000-0000-000000000007  2026-01-02T00:04:05Z (3.0 h ago)  order           ` + long + `  created     FAILED  10        never by itself                     TOPIC_DENIED
123  00000000-0000-0000-0000-00000000007b  2026-01-02T03:04:06Z (in 1.0 s)   order           o-1                                                               paid        READY   0         2026-01-02T03:14:05Z (in 10.0 min)  -
there are more: --after 123
`},
		{"failed", func(a *app, l *operate.List) error { return printList(a, c, l, failedHeader, newFailedItem) },
			operate.Page{After: 123, Walked: 100000},
			`ID   PHASE    AGE    AGGREGATE_TYPE  AGGREGATE_ID                                                      ATTEMPTS  ERROR_CODE    ERROR_MESSAGE               BLOCKING
7    publish  3.0 h  order           ` + long + `  10        TOPIC_DENIED  not authorised for topic t  1000+
123  consume  0.0 s  order           o-1                                                               0         -             -                           0
only 100000 rows were looked at, the newest ones; go on with --after 123
`},
		{"held", func(a *app, l *operate.List) error { return printList(a, c, l, heldHeader, newHeldItem) }, operate.Page{},
			`ID   AGE    AGGREGATE_TYPE  AGGREGATE_ID                                                      HELD_BY  ITS_STATUS  ITS_ERROR_CODE
7    3.0 h  order           ` + long + `  -        -           -
123  0.0 s  order           o-1                                                               7        FAILED      TOPIC_DENIED
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := tt.print(&app{stdout: &out}, &operate.List{At: listedAt, Rows: listed(), Page: tt.page}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPrintListJSON(t *testing.T) {
	t.Parallel()
	c := &config.Config{Pipeline: "shop"}
	rows := listed()
	rows[0].AggregateID = "o-1"
	list := &operate.List{At: listedAt, Rows: rows, Page: operate.Page{After: 123, Walked: 100000}}
	tests := []struct {
		name  string
		print func(*app) error
		want  string
	}{
		{"events", func(a *app) error { return printList(a, c, list, eventHeader, newEventItem) },
			`{"v":1,"at":"2026-01-02T03:04:05Z","pipeline":"shop","items":[` +
				`{"id":7,"event_id":"00000000-0000-0000-0000-000000000007","created_at":"2026-01-02T00:04:05Z","aggregate_type":"order","aggregate_id":"o-1","event_type":"created","status":"FAILED","status_code":3,"attempts":10,"next_attempt_at":"infinity","error_code":"TOPIC_DENIED"},` +
				`{"id":123,"event_id":"00000000-0000-0000-0000-00000000007b","created_at":"2026-01-02T03:04:06Z","aggregate_type":"order","aggregate_id":"o-1","event_type":"paid","status":"READY","status_code":0,"attempts":0,"next_attempt_at":"2026-01-02T03:14:05Z","error_code":""}` +
				`],"after":123,"walked":100000}` + "\n"},
		{"failed", func(a *app) error { return printList(a, c, list, failedHeader, newFailedItem) },
			`{"v":1,"at":"2026-01-02T03:04:05Z","pipeline":"shop","items":[` +
				`{"id":7,"event_id":"00000000-0000-0000-0000-000000000007","status":"FAILED","status_code":3,"phase":"publish","waived":false,"age_seconds":10800,"aggregate_type":"order","aggregate_id":"o-1","attempts":10,"error_code":"TOPIC_DENIED","error_message":"not authorised for topic t","blocking":1000,"blocking_complete":false},` +
				`{"id":123,"event_id":"00000000-0000-0000-0000-00000000007b","status":"READY","status_code":0,"phase":"consume","waived":false,"age_seconds":0,"aggregate_type":"order","aggregate_id":"o-1","attempts":0,"error_code":"","error_message":"","blocking":0,"blocking_complete":true}` +
				`],"after":123,"walked":100000}` + "\n"},
		{"held", func(a *app) error { return printList(a, c, list, heldHeader, newHeldItem) },
			`{"v":1,"at":"2026-01-02T03:04:05Z","pipeline":"shop","items":[` +
				`{"id":7,"event_id":"00000000-0000-0000-0000-000000000007","status":"FAILED","status_code":3,"age_seconds":10800,"aggregate_type":"order","aggregate_id":"o-1","held_by":null},` +
				`{"id":123,"event_id":"00000000-0000-0000-0000-00000000007b","status":"READY","status_code":0,"age_seconds":0,"aggregate_type":"order","aggregate_id":"o-1","held_by":{"id":7,"status":"FAILED","status_code":3,"error_code":"TOPIC_DENIED","next_attempt_at":"infinity"}}` +
				`],"after":123,"walked":100000}` + "\n"},
		{"nothing", func(a *app) error { return printList(a, c, &operate.List{At: listedAt}, eventHeader, newEventItem) },
			`{"v":1,"at":"2026-01-02T03:04:05Z","pipeline":"shop","items":[],"after":null,"walked":null}` + "\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			if err := tt.print(&app{stdout: &out, json: true}); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, out.String()); diff != "" {
				t.Errorf("JSON (-want +got):\n%s", diff)
			}
		})
	}
}

// failedDetail is a FAILED event about which everything is known.
func failedDetail() *operate.Detail {
	return &operate.Detail{
		At: listedAt,
		Row: operate.Row{ID: 7, EventID: outbox.ID{15: 7}, AggregateType: "order", AggregateID: "o-1", EventType: "created", ContentType: "application/json",
			Topic: "t", CreatedAt: ago(time.Hour), Status: outbox.Failed, Attempts: 1, NextAttemptAt: never, CommitLSN: "0/10",
			ErrorCode: "RECORD_TOO_LARGE", ErrorMessage: "2000000 bytes, 1048588 are allowed"},
		PayloadBytes: 2000000, Blocking: 2, Leader: operate.Leader{Leads: true}, Pinned: operate.Pinned{Partitions: 12},
		Lockers: []operate.Locker{{PID: 5, Application: "psql"}},
		Audit:   []operate.AuditEntry{{At: listedAt.Add(-time.Minute), Actor: "anna", Action: "replay", Reason: "topic raised"}},
	}
}

func TestWriteEvent(t *testing.T) {
	t.Parallel()
	failed := func() *eventAnswer {
		answer := newEventAnswer("shop", failedDetail())
		if err := answer.addEffects(failedDetail()); err != nil {
			t.Error(err)
		}
		answer.addPayload([]byte("{\"a\":\x1b1,\n\t\"b\":2}"))
		answer.addHeaders(`{"k": "v"}`)
		return answer
	}
	located := func(where operate.Location) *eventAnswer {
		d := &operate.Detail{At: listedAt, PayloadBytes: -1, Row: operate.Row{ID: 8, EventID: outbox.ID{15: 8}, AggregateType: "order", AggregateID: "o-2",
			EventType: "paid", Topic: "t", CreatedAt: ago(time.Hour), Status: outbox.Consuming, SentAt: ago(time.Minute),
			ClaimGeneration: 2, ClaimedBy: "worker", LeaseUntil: ago(-time.Minute)}}
		answer := newEventAnswer("shop", d)
		answer.addLocation(&where)
		return answer
	}
	const rest = `aggregate    order o-2
event type   paid
topic        t, not pinned yet
payload      none: a tombstone
priority     0
created      2026-01-02T02:04:05Z (60.0 min ago)
attempts     0
sent         2026-01-02T03:03:05Z (60.0 s ago)
claim        generation 2, worker
lease until  2026-01-02T03:05:05Z (in 60.0 s)
`
	const head = `event        8, 00000000-0000-0000-0000-000000000008
status       CONSUMING: its consumer is working on it
holds        it is claimed by worker
`
	tests := []struct {
		name   string
		answer *eventAnswer
		want   string
	}{
		{"failed", failed(), `event         7, 00000000-0000-0000-0000-000000000007
status        FAILED: it could not be published and waits for a person
error         RECORD_TOO_LARGE (record, permanent): the record is larger than its topic or the broker allows
message       2000000 bytes, 1048588 are allowed
holds         pid 5 (psql) has locked the row or changed it, and not ended its transaction
blocking      2 held events of its aggregate
replay        sets it READY and due with no attempts; the relay publishes it, and then the 2 held events behind it, in order
skip          gives it up: it is never published and no longer alerts, and the 2 held events behind it follow within a tick
next step     raise max.message.bytes of the topic (and kafka.batch_bytes), or skip it and write a smaller event
next step     cdc-relay replay 7 --wait 30s --reason '...'
next step     cdc-relay skip 7 --reason '...'
aggregate     order o-1
event type    created
topic         t, pinned to 12 partitions
payload       1.9 MiB, application/json
priority      0
created       2026-01-02T02:04:05Z (60.0 min ago)
attempts      1
next attempt  never by itself
commit LSN    0/10

headers:
{"k": "v"}

payload:
{"a": 1,
	"b":2}

AT                    ACTOR  ACTION  REASON        FILTER
2026-01-02T03:03:05Z  anna   replay  topic raised  -
`},
		{"located twice", located(operate.Location{Topic: "t", Partition: 3, Note: "a note",
			Records: []operate.Located{{Offset: 5, Timestamp: listedAt.Add(-time.Minute)}, {Offset: 9, Timestamp: listedAt}}}),
			head + `Kafka        topic t, partition 3, offset 5, 2026-01-02T03:03:05Z
Kafka        topic t, partition 3, offset 9, 2026-01-02T03:04:05Z
note         a note
` + rest},
		{"not located", located(operate.Location{Topic: "t", Partition: 3, Read: 30, Searched: []operate.Offsets{{From: 5, To: 15}, {From: 0, To: 5}}}),
			head + "Kafka        not found in topic t, partition 3: searched 30 records, offsets 5 to 15 and 0 to 5\n" + rest},
		{"nothing of that time", located(operate.Location{Topic: "t", Partition: 3}),
			head + "Kafka        not found in topic t, partition 3: it has no records of that time\n" + rest},
		{"no topic", located(operate.Location{Topic: "t", Partition: -1, Note: "Kafka has no such topic, or this login may not see it"}),
			head + "Kafka        topic t: Kafka has no such topic, or this login may not see it\n" + rest},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var b strings.Builder
			tt.answer.write(&b)
			if diff := cmp.Diff(tt.want, b.String()); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
		})
	}
}

// eventRows are read by an operator who has the documented rights only.
type eventRows struct {
	environ []string
}

func newEventRows(t *testing.T, db *pgtest.DB) *eventRows {
	t.Helper()
	db.Migrate(t, "public")
	_, dsn := db.Operator(t)
	db.Exec(t, `INSERT INTO outbox (id, event_id, aggregate_type, aggregate_id, event_type, payload, headers, created_at, send_status, attempts,
			next_attempt_at, commit_lsn, finished_at, error_code, error_message) OVERRIDING SYSTEM VALUE VALUES
		(1, '00000000-0000-0000-0000-000000000001', 'order', 'o-1', 'created', 'secret-payload', '{"h": "secret-header"}', now() - interval '3 h', 3, 10,
			'infinity', '0/10', NULL, 'TOPIC_DENIED', 'not authorised for topic outbox.event.order'),
		(2, '00000000-0000-0000-0000-000000000002', 'order', 'o-1', 'paid', '\xff00', '{}', now() - interval '3 h', 0, 0, 'infinity', '0/20', NULL, NULL, NULL),
		(3, '00000000-0000-0000-0000-000000000003', 'order', 'o-3', 'created', NULL, '{}', now() - interval '3 h', 3, 10, NULL, NULL, now(), 'TOPIC_DENIED', 'x')`)
	return &eventRows{environ: []string{"CDC_RELAY_POSTGRES__DSN=" + dsn, "CDC_RELAY_PIPELINE=shop"}}
}

// columnsOf are the texts of a table with one space between, without what
// depends on the time.
func columnsOf(text string) []string {
	moment := regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|\d+\.\d (s|min|h|d)\b`)
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, moment.ReplaceAllString(strings.Join(strings.Fields(line), " "), "TIME"))
	}
	return lines
}

func TestEventCommands(t *testing.T) {
	t.Parallel()
	const (
		failed    = "1 publish TIME order o-1 10 TOPIC_DENIED not authorised for topic outbox.event.order 1"
		heading   = "ID PHASE AGE AGGREGATE_TYPE AGGREGATE_ID ATTEMPTS ERROR_CODE ERROR_MESSAGE BLOCKING"
		events    = "ID EVENT_ID CREATED_AT AGGREGATE_TYPE AGGREGATE_ID EVENT_TYPE STATUS ATTEMPTS NEXT_ATTEMPT_AT ERROR_CODE"
		eventHeld = "2 00000000-0000-0000-0000-000000000002 TIME (TIME ago) order o-1 paid READY 0 never by itself -"
	)
	tests := []struct {
		name   string
		args   string
		code   int
		stdout []string // the first lines
		stderr string
	}{
		{"open failures", "failed list", 0, []string{heading, failed}, ""},
		{"waived ones too", "failed list --include-waived", 0, []string{heading, "3 publish, waived TIME order o-3 10 TOPIC_DENIED x 0", failed}, ""},
		{"those that are held", "failed list --held", 0, []string{"ID AGE AGGREGATE_TYPE AGGREGATE_ID HELD_BY ITS_STATUS ITS_ERROR_CODE",
			"2 TIME order o-1 1 FAILED TOPIC_DENIED"}, ""},
		{"no failures", "failed list --error-code NONE", 0, []string{heading}, ""},
		{"parked ones", "events list --parked --status ready", 0, []string{events, eventHeld}, ""},
		{"one of more", "events list --limit 1 --after 3", 0, []string{events, eventHeld, "there are more: --after 2"}, ""},
		{"where an event is", "events show 00000000-0000-0000-0000-000000000002", 0, []string{
			"event 2, 00000000-0000-0000-0000-000000000002",
			"status READY: it waits for an earlier event of its aggregate, so that their order is kept",
			"holds row 1 (FAILED, TOPIC_DENIED) comes before it in its aggregate",
			"holds no relay has ever led this slot",
			"next step cdc-relay failed show 1",
		}, ""},
		{"a failure", "failed show 1", 0, []string{
			"event 1, 00000000-0000-0000-0000-000000000001",
			"status FAILED: it could not be published and waits for a person",
			"error TOPIC_DENIED (topic): the relay's Kafka login may not write to the topic",
			"message not authorised for topic outbox.event.order",
			"blocking 1 held event of its aggregate",
		}, ""},
		{"no such event", "events show 99", 4, nil, "error: event 99: there is no such event; it may have been purged, or its transaction may not be committed yet\n"},
		{"no such failure", "failed show 2", 4, nil, "error: event 2 is not FAILED but READY; run cdc-relay events show 2\n"},
		{"no id", "events show x", 2, nil, `error: "x" is no id; write the number of a row, or an event id such as 0190163d-8694-739b-aea5-966c26f8ad91; run cdc-relay help` + "\n"},
		{"an argument too many", "failed list 1", 2, nil, `error: unknown command "1" for "cdc-relay failed list"; run cdc-relay help` + "\n"},
		{"failures that are none", "failed list --status sent,failed", 2, nil, "error: --status makes no sense here: FAILED events are listed, or held ones; use cdc-relay events list --status; run cdc-relay help\n"},
		{"held ones that are none", "failed list --held --status failed", 2, nil, "error: --status makes no sense here: FAILED events are listed, or held ones; use cdc-relay events list --status; run cdc-relay help\n"},
		{"failed ones by status", "failed list --status failed", 0, []string{heading, failed}, ""},
		{"an unknown phase", "failed list --phase x", 2, nil, `error: --phase "x" is unknown; use publish or consume; run cdc-relay help` + "\n"},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows := newEventRows(t, db)
		for _, tt := range tests {
			got := runCommand(t, rows.environ, strings.Fields(tt.args)...)
			lines := columnsOf(got.stdout)
			if strings.Contains(tt.args, "list") && len(lines) != len(tt.stdout) {
				t.Errorf("%s: %d lines:\n%s", tt.name, len(lines), got.stdout)
			}
			if diff := cmp.Diff(tt.stdout, lines[:min(len(lines), len(tt.stdout))]); diff != "" || got.code != tt.code || got.stderr != tt.stderr {
				t.Errorf("%s: code %d, stderr %q, stdout (-want +got):\n%s", tt.name, got.code, got.stderr, diff)
			}
			if strings.Contains(got.stdout+got.stderr, "secret") || strings.Contains(got.stdout, "\x1b") {
				t.Errorf("%s: what nobody asked for:\n%s", tt.name, got.stdout)
			}
		}
	})
}

func TestShowEventJSON(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows := newEventRows(t, db)
		show := func(args ...string) map[string]any {
			got := runCommand(t, rows.environ, append(args, "--json")...)
			var document map[string]any
			if err := json.Unmarshal([]byte(got.stdout), &document); err != nil || got.code != 0 {
				t.Fatalf("%v: %v: %+v", args, err, got)
			}
			return document
		}
		document := show("failed", "show", "1")
		for field, want := range map[string]any{
			"v": 1.0, "pipeline": "shop", "id": 1.0, "event_id": "00000000-0000-0000-0000-000000000001", "status": "FAILED", "status_code": 3.0,
			"kind": "failed_publish", "topic": "outbox.event.order", "pinned": nil, "next_attempt_at": "infinity", "commit_lsn": "0/10",
			"error_code": "TOPIC_DENIED", "blocking": 1.0, "blocking_complete": true, "held_by": nil, "sent_at": nil, "payload_bytes": 14.0,
			"holds": []any{}, "audit": []any{}, "phase": "publish",
		} {
			if diff := cmp.Diff(want, document[field]); diff != "" {
				t.Errorf("%s (-want +got):\n%s", field, diff)
			}
		}
		if effects, _ := document["effects"].(map[string]any); effects["error_class"] != "topic" || effects["permanent"] != false {
			t.Errorf("effects: %v", document["effects"])
		}
		for _, field := range []string{"payload", "headers", "location"} {
			if value, told := document[field]; told {
				t.Errorf("%s is told: %v", field, value)
			}
		}
		for id, want := range map[string][2]any{
			"1": {map[string]any{"null": false, "encoding": "utf8", "data": "secret-payload"}, map[string]any{"h": "secret-header"}},
			"2": {map[string]any{"null": false, "encoding": "base64", "data": "/wA="}, map[string]any{}},
			"3": {map[string]any{"null": true, "encoding": "utf8", "data": ""}, map[string]any{}},
		} {
			document := show("events", "show", id, "--payload", "--headers")
			if diff := cmp.Diff(want, [2]any{document["payload"], document["headers"]}); diff != "" {
				t.Errorf("%s: payload and headers (-want +got):\n%s", id, diff)
			}
		}
		if bytes, told := show("events", "show", "3")["payload_bytes"]; !told || bytes != nil {
			t.Errorf("payload_bytes of a tombstone: %v", bytes)
		}
	})
}

// TestLocateCommand asks a real broker, and one that is not there: then the rest
// is shown all the same.
func TestLocateCommand(t *testing.T) {
	t.Parallel()
	addr, topic := kafkatest.Broker(t), kafkatest.Name(t)
	kafkatest.Create(t, addr, topic, 1, nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	record := &kgo.Record{Headers: []kgo.RecordHeader{{Key: "ce_id", Value: []byte("00000000-0000-0000-0000-000000000001")}, {Key: "cdcr-id", Value: []byte("1")}}}
	if err := client.ProduceSync(t.Context(), record).FirstErr(); err != nil {
		t.Fatal(err)
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows := newEventRows(t, db)
		environ := append(rows.environ, "CDC_RELAY_RECORD__SOURCE=/s")
		got := runCommand(t, append(environ, "CDC_RELAY_KAFKA__BROKERS="+addr, "CDC_RELAY_RECORD__TOPIC="+topic), "events", "show", "1", "--locate", "--json")
		var shown struct{ Location location }
		if err := json.Unmarshal([]byte(got.stdout), &shown); err != nil || got.code != 0 {
			t.Fatalf("%v: %+v", err, got)
		}
		if where := shown.Location; where.Topic != topic || where.Partition == nil || len(where.Records) != 1 || where.Records[0].Offset != 0 {
			t.Errorf("location %+v", where)
		}
		got = runCommand(t, append(environ, "CDC_RELAY_KAFKA__BROKERS=127.0.0.1:1"), "events", "show", "1", "--locate", "--timeout", "15s")
		if got.code != 1 || !strings.HasPrefix(got.stdout, "event         1, ") || strings.Count(got.stderr, "\n") != 1 ||
			!strings.Contains(got.stderr, "check kafka.brokers, kafka.tls and kafka.sasl, and whether the brokers run") {
			t.Errorf("no broker: %+v", got)
		}
		if got = runCommand(t, rows.environ, "events", "show", "1", "--locate"); got.code != 78 || !strings.Contains(got.stderr, "config: kafka.brokers: is required") {
			t.Errorf("no configuration: %+v", got)
		}
	})
}

// TestListsWithoutRights say what is missing.
func TestListsWithoutRights(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows := newEventRows(t, db)
		db.Exec(t, "REVOKE SELECT ON outbox FROM "+operatorOf(t, rows.environ[0]))
		for _, args := range []string{"events list", "failed list", "events show 1"} {
			got := runCommand(t, rows.environ, strings.Fields(args)...)
			if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "permission denied for table outbox") ||
				!strings.Contains(got.stderr, "give the login the rights of an operator") || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("%s: %+v", args, got)
			}
		}
	})
}

// operatorOf is the login in a DSN.
func operatorOf(t *testing.T, setting string) string {
	t.Helper()
	_, dsn, _ := strings.Cut(setting, "=")
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return u.User.Username()
}
