package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// What a retry leaves of a receipt's doubt decides whether its effect is
// repeated.
func TestReceiptRetryKeepsDoubt(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		k := newKitRows(t, db)
		for _, tt := range []struct {
			name, key string
			args      []string
			want      string // code, whether effect and digest are kept
		}{
			{"none", eventOf(1) + ":mail", nil, "-, f, f"},
			{"kept", eventOf(2) + ":mail", nil, "CONSUMER_AMBIGUOUS, t, t"},
			{"kept, without counting as abandoned", eventOf(4) + ":stats", nil, "CONSUMER_AMBIGUOUS, f, f"},
			{"cleared", eventOf(2) + ":mail", []string{"--clear-doubt"}, "-, f, f"},
			{"cleared of an abandoned one", eventOf(4) + ":stats", []string{"--clear-doubt"}, "-, f, f"},
		} {
			t.Run(tt.name, func(t *testing.T) {
				k.reset(t)
				args := append([]string{"receipts", "retry", tt.key, "--reason", "checked", "--dsn", k.dsn, "--schema", "mail"}, tt.args...)
				if got := runCommand(t, nil, args...); got.code != 0 {
					t.Fatalf("%+v", got)
				}
				var got, audit string
				err := k.admin.QueryRow(t.Context(), `SELECT concat_ws(', ', coalesce(error_code, '-'), effect_at IS NOT NULL, request_digest IS NOT NULL)
					FROM mail.outbox_receipt WHERE event_id || ':' || purpose = $1 AND status = 2 AND attempts = 3 AND next_attempt_at <= clock_timestamp()
						AND error_message IS NULL AND finished_at IS NULL`, tt.key).Scan(&got)
				if err != nil || got != tt.want {
					t.Errorf("%v: code, effect and digest are %s, want %s", err, got, tt.want)
				}
				err = k.admin.QueryRow(t.Context(), `SELECT concat_ws('|', split_part(actor, ' ', 1), action, id, event_id, reason, filter) FROM mail.cdc_relay_audit`).Scan(&audit)
				event, purpose, _ := strings.Cut(tt.key, ":")
				want := k.login + "|receipt_retry|" + event + "|checked|purpose " + purpose
				if len(tt.args) > 0 {
					want += "; --clear-doubt"
				}
				if err != nil || audit != want {
					t.Errorf("%v: audited as %s, want %s", err, audit, want)
				}
			})
		}
	})
}

func TestReceiptsListAndShow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		k := newKitRows(t, db)
		run := func(args ...string) result {
			return runCommand(t, nil, append(args, "--dsn", k.dsn, "--schema", "mail")...)
		}
		for _, tt := range []struct {
			name string
			args []string
			want string // number of the event and purpose
		}{
			{"FAILED ones", nil, "1:mail 2:mail 4:stats"},
			{"with waived ones", []string{"--include-waived"}, "1:mail 2:mail 3:mail 4:stats"},
			{"of a status", []string{"--status", "sent,consumed"}, "1:stats 4:mail"},
			{"of statuses that an index does not know", []string{"--status", "failed,consumed"}, "1:mail 1:stats 2:mail 4:stats"},
			{"that wait", []string{"--status", "sent"}, "4:mail"},
			{"of an event", []string{"--event-id", eventOf(1), "--status", "failed,consumed"}, "1:mail 1:stats"},
			{"for a purpose", []string{"--purpose", "stats"}, "4:stats"},
			{"with an error code", []string{"--error-code", "CONSUMER_AMBIGUOUS"}, "2:mail"},
			{"of a time", []string{"--since", "2026-01-02T00:00:03Z", "--until", "2026-01-02T00:00:06Z"}, "2:mail"},
			{"limited", []string{"--limit", "1"}, "1:mail more"},
		} {
			got := run(append([]string{"receipts", "list", "--json"}, tt.args...)...)
			var answer receiptAnswer
			if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil || got.code != 0 {
				t.Fatalf("%s: %v: %+v", tt.name, err, got)
			}
			var list []string
			for _, item := range answer.Items {
				list = append(list, item.EventID[len(item.EventID)-1:]+":"+item.Purpose)
			}
			if answer.More {
				list = append(list, "more")
			}
			if diff := cmp.Diff(tt.want, strings.Join(list, " ")); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
		}
		got := run("receipts", "show", eventOf(2)+":mail")
		for _, want := range []string{
			"receipt       " + eventOf(2) + ":mail\n", "status        FAILED: the consumer failed, and it waits for a person\n",
			"doubt         the call of the effect may have left the process", "error         CONSUMER_AMBIGUOUS: the consumer cannot tell",
			"next step     cdc-relay receipts retry " + eventOf(2) + ":mail; a consumer tries again when", "next step     cdc-relay receipts drop " + eventOf(2) + ":mail --reason '...'\n",
			"effect begun  2026-01-02T00:00:00Z", "request       abcd\n", "attempts      3\n",
		} {
			if !strings.Contains(got.stdout, want) {
				t.Errorf("%q is missing in\n%s%s", want, got.stdout, got.stderr)
			}
		}
		if got := run("receipts", "show", eventOf(1)); strings.Count(got.stdout, "receipt ") != 2 || !strings.Contains(got.stdout, "CONSUMED: the consumer is done with it") {
			t.Errorf("of an event: %+v", got)
		}
		if got := run("receipts", "list", "--limit", "1"); !strings.Contains(got.stdout, "there are more: raise --limit") || !strings.Contains(got.stdout, "APP_PAYLOAD") {
			t.Errorf("as a table: %+v", got)
		}
		if got := run("receipts", "show", eventOf(9)); got.code != 4 || !strings.Contains(got.stderr, "there is no such receipt in this database") {
			t.Errorf("of none: %+v", got)
		}
	})
}
