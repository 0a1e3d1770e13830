package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// lesser may well be right.
var lesser = operate.Finding{Name: operate.FoundOutOfOrder, Count: 1, IDs: []int64{8}, Next: "ask"}

// reported is a report with something of everything.
func reported() *operate.Report {
	return &operate.Report{
		At: listedAt,
		Findings: []operate.Finding{
			{Name: operate.FoundSlotInactive, Count: 1, Detail: "last led by relay-1", Next: "cdc-relay status"},
			{Name: operate.FoundMissing, Count: 12, IDs: []int64{3, 5}, Next: "wait"},
			lesser,
		},
		Rows: operate.RowsSeen{Walked: 100, From: 2, To: 120, After: 2, Parked: 7, OnTheWay: 4},
		Topics: []operate.TopicSeen{
			{Topic: "a", Partitions: 3, Rows: 5, Records: 6, Since: listedAt.Add(-time.Hour), Removed: true, NotRead: true, NotJudged: 2, Doubled: 1, Repetitions: 2, Close: 3, Purged: 4},
			{Topic: "b\x1b", Partitions: 1, Compacted: true},
		},
		Notes: []string{"relay-1 leads and does not stream"},
	}
}

func TestVerifyText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		report *operate.Report
		want   string
	}{
		{"everything", reported(), `FINDING                  COUNT  IDS     CHECK
slot_inactive            1      -       relay.leader
missing                  12     3 5 ..  relay.missed
delayed_or_out_of_order  1      8       -

slot_inactive: nobody streams from the slot: nothing is published, tried again or released, and WAL piles up (last led by relay-1)
  next: cdc-relay status
missing: READY, not parked, and the slot is past them: the WAL will not bring them any more
  next: wait
delayed_or_out_of_order: ` + lesser.Name.Meaning() + `
  next: ask
topic  a: 5 rows, 6 records in 3 partitions since 2026-01-02T02:04:05Z; older records were removed (retention); older records were not read, they are too many: give a later --since; 2 rows not judged for that; 1 events doubled, which is allowed (2 records too many); 3 events in another order than their ids, created within a minute of each other; 4 events whose rows were purged
topic  b : 0 rows, 0 records in 1 partitions; compacted
note   relay-1 leads and does not stream
rows   100, ids 2 to 120; older ones were not looked at, go on with --after 2 or a larger --limit; 7 parked and more, which were not looked at; 4 on their way
NOT FINE: slot_inactive 1, missing 12; begin with slot_inactive
`},
		{"fine", &operate.Report{Rows: operate.RowsSeen{Walked: 5, From: 1, To: 9, ParkedComplete: true}},
			"rows  5, ids 1 to 9; 0 parked; 0 on their way\nFINE: nothing is missing or stuck\n"},
		{"fine, topics too", &operate.Report{Rows: operate.RowsSeen{Walked: 5, From: 1, To: 9, ParkedComplete: true}, Topics: []operate.TopicSeen{{Topic: "a", Partitions: 1, Rows: 5, Records: 5}}},
			"topic  a: 5 rows, 5 records in 1 partitions\nrows   5, ids 1 to 9; 0 parked; 0 on their way\nFINE: nothing is missing or stuck, and the topics hold what was sent\n"},
		{"fine as far as was looked", &operate.Report{Rows: operate.RowsSeen{Walked: 5, From: 4, To: 9, After: 4, ParkedComplete: true}},
			"rows  5, ids 4 to 9; older ones were not looked at, go on with --after 4 or a larger --limit; 0 parked; 0 on their way\nFINE: nothing is missing or stuck, as far as was looked\n"},
		{"fine, and something to look at", &operate.Report{Findings: []operate.Finding{lesser}, Rows: operate.RowsSeen{Walked: 5, From: 1, To: 9, ParkedComplete: true}},
			"FINDING                  COUNT  IDS  CHECK\ndelayed_or_out_of_order  1      8    -\n\ndelayed_or_out_of_order: " + lesser.Name.Meaning() + "\n  next: ask\n" +
				"rows  5, ids 1 to 9; 0 parked; 0 on their way\nFINE: nothing is missing or stuck; worth a look: delayed_or_out_of_order 1\n"},
		{"an empty table", &operate.Report{Rows: operate.RowsSeen{ParkedComplete: true}}, "rows  none; 0 parked; 0 on their way\nFINE: nothing is missing or stuck\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var b strings.Builder
			newVerifyAnswer(&config.Config{}, tt.report).write(&b)
			if diff := cmp.Diff(tt.want, b.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestVerifyJSON(t *testing.T) {
	t.Parallel()
	c := &config.Config{Pipeline: "shop"}
	for name, tt := range map[string]struct {
		report *operate.Report
		want   string
	}{
		"everything": {reported(), `{"v":1,"at":"2026-01-02T03:04:05Z","pipeline":"shop","fine":false,"findings":[` +
			`{"finding":"slot_inactive","count":1,"ids":[],"lesser":false,"check":"relay.leader","meaning":"nobody streams from the slot: nothing is published, tried again or released, and WAL piles up","detail":"last led by relay-1","next":"cdc-relay status"},` +
			`{"finding":"missing","count":12,"ids":[3,5],"lesser":false,"check":"relay.missed","meaning":"READY, not parked, and the slot is past them: the WAL will not bring them any more","detail":"","next":"wait"},` +
			`{"finding":"delayed_or_out_of_order","count":1,"ids":[8],"lesser":true,"check":"","meaning":"` + lesser.Name.Meaning() + `","detail":"","next":"ask"}],` +
			`"rows":{"walked":100,"from_id":2,"to_id":120,"after":2,"parked":7,"parked_complete":false,"on_the_way":4},` +
			`"topics":[{"topic":"a","partitions":3,"rows":5,"records":6,"since":"2026-01-02T02:04:05Z","older_removed":true,"older_not_read":true,"compacted":false,"rows_not_judged":2,"doubled":1,"repetitions":2,"close_together":3,"rows_purged":4},` +
			`{"topic":"b\u001b","partitions":1,"rows":0,"records":0,"since":null,"older_removed":false,"older_not_read":false,"compacted":true,"rows_not_judged":0,"doubled":0,"repetitions":0,"close_together":0,"rows_purged":0}],` +
			`"notes":["relay-1 leads and does not stream"]}`},
		"fine": {&operate.Report{At: listedAt, Rows: operate.RowsSeen{ParkedComplete: true}}, `{"v":1,"at":"2026-01-02T03:04:05Z","pipeline":"shop","fine":true,"findings":[],` +
			`"rows":{"walked":0,"from_id":0,"to_id":0,"after":null,"parked":0,"parked_complete":true,"on_the_way":0},"topics":[],"notes":[]}`},
	} {
		got, err := json.Marshal(newVerifyAnswer(c, tt.report))
		if diff := cmp.Diff(tt.want, string(got)); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestVerifyUsage(t *testing.T) {
	t.Parallel()
	environ := []string{"CDC_RELAY_POSTGRES__DSN=postgres://u:" + planted + "@127.0.0.1:1/app"}
	tests := []struct {
		name string
		args []string
		code int
		want string
	}{
		{"a negative wait", []string{"--wait", "-1s"}, 2, "error: --wait must not be negative; run cdc-relay help\n"},
		{"a large limit", []string{"--limit", "10000001"}, 2, "error: --limit must be at most 10000000; run cdc-relay help\n"},
		{"no time", []string{"--since", "x"}, 2, "error: \"x\" is no time; "},
		{"an argument", []string{"5"}, 2, "error: unknown command \"5\""},
		{"topics need all of the configuration", []string{"--topic-scan"}, 78, "config: kafka.brokers: "},
		{"no database", nil, 1, "error: connecting to PostgreSQL at 127.0.0.1:1: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := runCommand(t, environ, append([]string{"verify"}, tt.args...)...)
			if got.code != tt.code || got.stdout != "" || !strings.Contains(got.stderr, tt.want) || strings.Contains(got.stderr, planted) {
				t.Errorf("%+v, want code %d and %q", got, tt.code, tt.want)
			}
		})
	}
}

// TestVerifyCommand with an operator's rights: what is wrong, then what is fine.
func TestVerifyCommand(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newSlotBed(t, db)
		_, dsn := db.Operator(t)
		broker, prefix := kafkatest.Broker(t), kafkatest.Name(t)
		topic := prefix + ".order"
		kafkatest.Create(t, broker, topic, 2, nil)
		environ := append(b.environ, "CDC_RELAY_POSTGRES__DSN="+dsn, "CDC_RELAY_KAFKA__BROKERS="+broker, "CDC_RELAY_RECORD__SOURCE=/shop", "CDC_RELAY_RECORD__TOPIC="+prefix+".{aggregate_type}")
		b.exec(t, "INSERT INTO outbox (aggregate_type, aggregate_id, event_type, send_status, next_attempt_at, commit_lsn) VALUES ('order', 'a', 'x', 3, 'infinity', '0/1')")
		got := runCommand(t, environ, "verify", "--wait", "0s")
		if want := "NOT FINE: slot_missing 1, failed 1; begin with slot_missing\n"; got.code != 3 || !strings.HasSuffix(got.stdout, want) ||
			got.stderr != "error: verify found slot_missing 1, failed 1\n" {
			t.Errorf("no slot: %+v, want code 3 and %q", got, want)
		}

		b.exec(t, makeSlotSQL)
		b.stream(t, "cdc-relay/"+b.slot) // as a relay does
		b.exec(t, "UPDATE outbox SET send_status = 2, sent_at = now(), next_attempt_at = NULL, commit_lsn = NULL")
		b.exec(t, "INSERT INTO cdc_relay_lease (slot, lease_until, saved_lsn) VALUES ('%s', now() + interval '1 hour', 'FFFFFFFF/0')")
		got = runCommand(t, environ, "verify", "--wait", "10s")
		if want := "rows  1, ids 1 to 1; 0 parked; 0 on their way\nFINE: nothing is missing or stuck\n"; got.code != 0 || got.stdout != want || got.stderr != "" {
			t.Errorf("fine: %+v, want code 0 and %q", got, want)
		}
		got = runCommand(t, environ, "verify", "--topic-scan", "--wait", "0s", "--json")
		var answer verifyAnswer
		if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil || got.code != 3 || len(answer.Findings) != 1 || answer.Findings[0].Finding != "no_record" ||
			len(answer.Topics) != 1 || answer.Topics[0].Topic != topic {
			t.Errorf("no record: %v: %+v", err, got)
		}
		got = runCommand(t, append(environ, "CDC_RELAY_KAFKA__BROKERS=127.0.0.1:1"), "verify", "--topic-scan", "--wait", "0s")
		if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "check kafka.brokers") {
			t.Errorf("no broker: %+v", got)
		}
	})
}
