package operate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Tables that were never analysed are not read as a whole for the few rows that
// a person asks about.
func TestKitPlans(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		conn := db.Conn(t)
		k, err := OpenKit(t.Context(), conn, "public", "")
		if err != nil {
			t.Fatal(err)
		}
		const done, waiting = 20_000, 7
		event := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }
		db.Exec(t, fmt.Sprintf(`
			INSERT INTO outbox_receipt (event_id, purpose, status, finished_at, next_attempt_at)
			SELECT ('00000000-0000-4000-8000-' || to_char(i, 'FM000000000000'))::uuid, 'mail', CASE WHEN i > %[1]d THEN 3 ELSE 4 END,
			       CASE WHEN i <= %[1]d THEN now() END, CASE WHEN i > %[1]d THEN 'infinity'::timestamptz END FROM generate_series(1, %[1]d + %[2]d) i;
			INSERT INTO outbox_quarantine (consumer, topic, partition, "offset", digest, reason, message, record_headers, resolution, resolved_at)
			SELECT 'c', 't', 0, i, '', 'MISSING', 'm', '', CASE WHEN i <= %[1]d THEN 'dropped' END, CASE WHEN i <= %[1]d THEN now() END
			  FROM generate_series(1, %[1]d + %[2]d) i`, done, waiting))
		id, err := outbox.ParseID(event(done + 1))
		if err != nil {
			t.Fatal(err)
		}
		keys := []ReceiptKey{{EventID: id}, {EventID: id, Purpose: "mail"}}
		explain := func(columns string, where func(int) (string, []any), relation string) map[string]int {
			sql, args := where(1000)
			return pgtest.Explain(t, conn, k.sql("SELECT "+columns+sql), args...).Reads(relation)
		}
		for _, tt := range []struct {
			name, columns, relation string
			where                   func(int) (string, []any)
			want                    map[string]int
		}{
			{"open records", quarantineColumns, "outbox_quarantine", QuarantineFilter{Partition: -1, States: []QuarantineState{QuarantineOpen, QuarantineAsked}}.where,
				map[string]int{"outbox_quarantine_open_idx": waiting}},
			{"FAILED receipts", receiptColumns, "outbox_receipt", ReceiptFilter{Statuses: []outbox.Status{outbox.Failed}, Open: true}.where,
				map[string]int{"outbox_receipt_next_attempt_idx": waiting}},
			{"receipts by key", receiptColumns, "outbox_receipt", ReceiptFilter{Keys: keys}.where, map[string]int{"outbox_receipt_pkey": 1}},
		} {
			if diff := cmp.Diff(tt.want, explain(tt.columns, tt.where, tt.relation)); diff != "" {
				t.Errorf("%s: rows read by each index (-want +got):\n%s", tt.name, diff)
			}
		}

		// What is changed is found in the same way.
		for _, tt := range []struct {
			name, sql, relation string
			args                []any
		}{
			{"records", k.sql(quarantineTexts[QuarantineDrop]), "outbox_quarantine", []any{[]int64{done + 1}, "drop", nil, "me", nil}},
			{"receipts", (&ReceiptOrder{Kit: k, Action: ReceiptDrop}).text(), "outbox_receipt", []any{[]string{event(done + 1)}, []string{"mail"}, "drop", "me", false, nil, nil}},
		} {
			for index, rows := range pgtest.Explain(t, conn, tt.sql, tt.args...).Reads(tt.relation) {
				if !strings.HasSuffix(index, "_pkey") || rows > 2 {
					t.Errorf("changing %s reads %d rows by %q", tt.name, rows, index)
				}
			}
		}
	})
}

// A filter is told to the audit trail as the flags that make it.
func TestKitFilterText(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	id := outbox.ID{15: 1}
	for _, tt := range []struct {
		name string
		got  string
		want string
	}{
		{"no record", QuarantineFilter{Partition: -1}.String(), ""},
		{"records", QuarantineFilter{IDs: []int64{3}, EventIDs: []outbox.ID{id}, Consumer: "a b", Topic: "t", Partition: 0, Code: "MISSING",
			States: []QuarantineState{QuarantineOpen}, Since: at, Until: at, After: 7}.String(),
			`--consumer "a b" --topic t --partition 0 --error-code MISSING --since 2026-01-02T03:04:05Z --until 2026-01-02T03:04:05Z --after 7` +
				` --id 3 --event-id ` + id.String() + ` --status open`},
		{"receipts", ReceiptFilter{Keys: []ReceiptKey{{EventID: id}}, Purpose: "p", Code: "C", Statuses: []outbox.Status{outbox.Failed}, Open: true}.String(),
			"--purpose p --error-code C --event-id " + id.String() + " --status failed"},
		{"waived receipts", ReceiptFilter{Statuses: []outbox.Status{outbox.Failed}, Since: at}.String(), "--since 2026-01-02T03:04:05Z --status failed --include-waived"},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Every code that consumers write has words. They name no key that this version
// refuses, such as retention.consumed.
func TestQuarantineCodes(t *testing.T) {
	t.Parallel()
	unknown := ExplainQuarantine("NEW")
	for code := range quarantineCodes {
		if got := ExplainQuarantine(code); got == unknown || got.Meaning == "" || got.Remedy == "" || strings.Contains(got.Remedy, "retention.") {
			t.Errorf("%s: %+v", code, got)
		}
	}
}

// A kit needs its tables.
func TestOpenKit(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		open := func(schema string) error {
			_, err := OpenKit(t.Context(), db.Conn(t), schema, "")
			return err
		}
		if err := open("public"); err == nil || !strings.Contains(err.Error(), "the schema public has no table outbox_quarantine, outbox_receipt, cdc_relay_audit") {
			t.Errorf("without tables: %v", err)
		}
		db.Migrate(t, "public")
		if err := open("public"); err != nil {
			t.Errorf("with tables: %v", err)
		}
	})
}
