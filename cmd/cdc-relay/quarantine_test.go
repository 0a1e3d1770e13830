package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestQuarantineAudit(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		k := newKitRows(t, db)
		got := runCommand(t, nil, "quarantine", "drop", "--event-id", eventOf(1), "--topic", "user.events", "--confirm", "1", "--reason", "not ours", "--dsn", k.dsn, "--schema", "mail")
		if got.code != 0 {
			t.Fatalf("%+v", got)
		}
		var audit, row string
		err := k.admin.QueryRow(t.Context(), `SELECT concat_ws('|', split_part(actor, ' ', 1), action, id, event_id, reason, filter) FROM mail.cdc_relay_audit`).Scan(&audit)
		want := k.login + "|quarantine_drop|" + eventOf(1) + "|not ours|record 1 of mailer: user.events, partition 1, offset 4711; --topic user.events --event-id " + eventOf(1) + " --status open --status retry"
		if err != nil || audit != want {
			t.Errorf("%v: audited as\n%s, want\n%s", err, audit, want)
		}
		err = k.admin.QueryRow(t.Context(), `SELECT concat_ws('|', resolution, split_part(resolved_by, ' ', 1), resolved_reason) FROM mail.outbox_quarantine WHERE id = 1`).Scan(&row)
		if want := "dropped|" + k.login + "|not ours"; err != nil || row != want {
			t.Errorf("%v: the record is %s, want %s", err, row, want)
		}
	})
}

func TestQuarantineList(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		k := newKitRows(t, db)
		list := func(args ...string) (ids []int64, after *int64) {
			t.Helper()
			got := runCommand(t, nil, append([]string{"quarantine", "list", "--json", "--dsn", k.dsn, "--schema", "mail"}, args...)...)
			var answer struct {
				Items []quarantineItem
				After *int64
			}
			if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil || got.code != 0 {
				t.Fatalf("%v: %+v", err, got)
			}
			for _, item := range answer.Items {
				ids = append(ids, item.ID)
			}
			return ids, answer.After
		}
		for _, tt := range []struct {
			name string
			args []string
			want []int64
		}{
			{"open ones", nil, []int64{1, 2, 3, 4}},
			{"of a status", []string{"--status", "retried,dropped"}, []int64{5, 6}},
			{"by id", []string{"--id", "2,6", "--event-id", eventOf(1)}, []int64{1, 2}},
			{"by reason and topic", []string{"--error-code", "MISSING", "--topic", "user.events", "--consumer", "mailer"}, []int64{1, 4}},
			{"of another consumer", []string{"--consumer", "other"}, nil},
			{"of a time", []string{"--until", "1h"}, nil},
			{"after one", []string{"--after", "2"}, []int64{3, 4}},
		} {
			ids, after := list(tt.args...)
			if diff := cmp.Diff(tt.want, ids); diff != "" || after != nil {
				t.Errorf("%s: after %v, (-want +got):\n%s", tt.name, after, diff)
			}
		}
		ids, after := list("--limit", "2")
		if diff := cmp.Diff([]int64{1, 2}, ids); diff != "" || after == nil || *after != 2 {
			t.Errorf("a page: after %v, (-want +got):\n%s", after, diff)
		}
		got := runCommand(t, nil, "quarantine", "list", "--limit", "1", "--dsn", k.dsn, "--schema", "mail")
		want := "ID AGE CONSUMER TOPIC PARTITION OFFSET EVENT_ID ERROR_CODE STATUS SEEN " +
			"1 - mailer user.events 1 4711 00000000-0000-4000-8000-000000000001 MISSING open 1 there are more: --after 1"
		shown := regexp.MustCompile(`[0-9.]+ s `).ReplaceAllString(got.stdout, "- ")
		if diff := cmp.Diff(want, strings.Join(strings.Fields(shown), " ")); diff != "" {
			t.Errorf("the table (-want +got):\n%s", diff)
		}
	})
}

func TestQuarantineShow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		k := newKitRows(t, db)
		show := func(args ...string) result {
			return runCommand(t, nil, append([]string{"quarantine", "show", "--dsn", k.dsn, "--schema", "mail"}, args...)...)
		}
		got := show("1")
		for _, want := range []string{
			"record       1, of consumer mailer\n", "status       open: it waits for a person\n", "error        MISSING: no outbox row has the ids",
			"message      a sentence\n", "from         topic user.events, partition 1, offset 4711\n", "next step    cdc-relay quarantine retry 1\n",
			"next step    cdc-relay quarantine drop 1 --reason '...'\n", "event        " + eventOf(1) + "\n", "row          7\n", "value        15 B\n",
			"ce_id    15     -\n", "x-none   null   -\n", "x-bytes  2      -\n",
		} {
			if !strings.Contains(got.stdout, want) {
				t.Errorf("%q is missing in\n%s%s", want, got.stdout, got.stderr)
			}
		}
		if strings.Contains(got.stdout, planted) {
			t.Errorf("bytes of the record are shown:\n%s", got.stdout)
		}
		if got := show("1", "--json"); strings.Contains(got.stdout, planted) || !strings.Contains(got.stdout, `"headers":[{"name":"ce_id","bytes":15},{"name":"x-none","bytes":null},{"name":"x-bytes","bytes":2}]`) {
			t.Errorf("as JSON: %s", got.stdout)
		}
		got = show("1", "--payload")
		for _, want := range []string{"\nkey:\n" + planted + "\n", "\nvalue:\n" + planted + "\n", "ce_id    15     " + planted + "\n", "x-bytes  2      AP8=\n"} {
			if !strings.Contains(got.stdout, want) {
				t.Errorf("%q is missing with --payload in\n%s%s", want, got.stdout, got.stderr)
			}
		}
		if got := show("3"); strings.Contains(got.stdout, "quarantine retry") {
			t.Errorf("a retry is proposed where nothing is stored:\n%s", got.stdout)
		}
		if got := show("5"); strings.Contains(got.stdout, "next step") || !strings.Contains(got.stdout, "resolved") {
			t.Errorf("of a resolved one: %s", got.stdout)
		}
		k.exec(t, `UPDATE mail.outbox_quarantine SET record_headers = '\x00', record_key = NULL, record_value = '' WHERE id = 1`)
		if got := show("1", "--payload"); got.code != 0 || !strings.Contains(got.stdout, "cannot be read") || !strings.Contains(got.stdout, "key: null") {
			t.Errorf("with headers that cannot be read: %+v", got)
		}
		want := result{4, "", "error: record 99: there is no such record in the quarantine; cdc-relay quarantine list shows those that are open\n"}
		if diff := cmp.Diff(want, show("99"), cmp.AllowUnexported(result{})); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
