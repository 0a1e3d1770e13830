package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// Arguments that make no sense, told without a database.
func TestActUsage(t *testing.T) {
	t.Parallel()
	environ := []string{"CDC_RELAY_POSTGRES__DSN=postgres://u:" + planted + "@db.invalid/app"}
	tests := []struct {
		name string
		args []string
		want string
	}{
		{"replay of nothing", []string{"replay"}, "replay needs ids, or flags that pick rows, such as --error-code or --status failed"},
		{"a limit picks nothing", []string{"replay", "--limit", "5", "--confirm", "5"}, "replay needs ids, or flags that pick rows, such as --error-code or --status failed"},
		{"no id", []string{"replay", "five"}, `"five" is no id; write the number of a row, or an event id such as 0190163d-8694-739b-aea5-966c26f8ad91`},
		{"replay of what is under way", []string{"replay", "5", "--status", "ready"}, "replay does nothing to rows that are READY"},
		{"skip of what is done", []string{"skip", "5", "--status", "sent", "--reason", "x"}, "skip does nothing to rows that are SENT"},
		{"skip without a reason", []string{"skip", "5"}, "--reason is required: say why, for the audit trail"},
		{"skip with an empty reason", []string{"skip", "5", "--reason", "  "}, "--reason is required: say why, for the audit trail"},
		{"skip of skipped ones", []string{"skip", "5", "--reason", "x", "--include-waived"}, "--include-waived makes no sense here: those rows are skipped already"},
		{"a long reason", []string{"replay", "5", "--reason", strings.Repeat("x", 1001)}, "--reason is longer than 1000 bytes"},
		{"a negative rate", []string{"replay", "5", "--rate", "-1"}, "--rate and --wait must not be negative"},
		{"a negative wait", []string{"replay", "5", "--wait", "-1s"}, "--rate and --wait must not be negative"},
		{"skips are not waited for", []string{"skip", "5", "--reason", "x", "--wait", "1s"}, "unknown flag: --wait"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := runCommand(t, environ, tt.args...)
			if diff := cmp.Diff(result{2, "", "error: " + tt.want + "; run cdc-relay help\n"}, got, cmp.AllowUnexported(result{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// failedRows is a database with FAILED rows and an operator's way to it.
type failedRows struct {
	admin   *pgx.Conn
	login   string
	environ []string
}

// eventOf is the event id of a row.
func eventOf(id int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", id) }

// newFailedRows has the rows 1 and 2 that failed to be published, 3 at its
// consumer, 4 waived, 5 READY.
func newFailedRows(t *testing.T, db *pgtest.DB) *failedRows {
	t.Helper()
	db.Migrate(t, "public")
	login, dsn := db.Operator(t)
	f := &failedRows{admin: db.Conn(t), login: login, environ: []string{"CDC_RELAY_POSTGRES__DSN=" + dsn, "CDC_RELAY_PIPELINE=shop"}}
	f.reset(t)
	return f
}

func (f *failedRows) reset(t *testing.T) {
	t.Helper()
	f.exec(t, "TRUNCATE outbox, cdc_relay_audit RESTART IDENTITY")
	f.exec(t, `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload, send_status, next_attempt_at, commit_lsn, sent_at, finished_at, error_code)
		VALUES ('`+eventOf(1)+`', 'order', 'o''1', 'created', '{}', 3, 'infinity', '0/1', NULL, NULL, 'RECORD_TOO_LARGE'),
		       ('`+eventOf(2)+`', 'order', 'o2', 'created', '{}', 3, 'infinity', '0/2', NULL, NULL, 'RECORD_TOO_LARGE'),
		       ('`+eventOf(3)+`', 'order', 'o3', 'created', '{}', 3, 'infinity', NULL, now(), NULL, 'CONSUMER_DATA'),
		       ('`+eventOf(4)+`', 'order', 'o4', 'created', '{}', 3, NULL, NULL, NULL, now(), 'RECORD_TOO_LARGE'),
		       ('`+eventOf(5)+`', 'order', 'o5', 'created', '{}', 0, NULL, NULL, NULL, NULL, NULL)`)
}

func (f *failedRows) exec(t *testing.T, sql string) {
	t.Helper()
	if _, err := f.admin.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// state is the status of each row and whether it is waived, and the number of
// audit entries.
func (f *failedRows) state(t *testing.T) string {
	t.Helper()
	var text string
	err := f.admin.QueryRow(t.Context(), `SELECT (SELECT string_agg(send_status || CASE WHEN finished_at IS NULL THEN '' ELSE 'w' END, ' ' ORDER BY id) FROM outbox)
		|| ', ' || (SELECT count(*) FROM cdc_relay_audit) || ' audited'`).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const untouched = "3 3 3 3w 0, 0 audited"

// Each command line on fresh rows.
func TestActCommands(t *testing.T) {
	t.Parallel()
	const (
		header  = "ID  EVENT_ID                              RESULT        STATUS  ERROR_CODE        DETAIL\n"
		wouldBe = header +
			"1   00000000-0000-4000-8000-000000000001  would_replay  FAILED  RECORD_TOO_LARGE  \n" +
			"2   00000000-0000-4000-8000-000000000002  would_replay  FAILED  RECORD_TOO_LARGE  \n"
	)
	tests := []struct {
		name   string
		args   []string
		code   int
		stdout string // all of it, unless empty
		stderr string
		state  string
	}{
		{name: "replay by id", args: []string{"replay", "1", eventOf(3)}, state: "0 3 0 3w 0, 2 audited",
			stdout: "ID  EVENT_ID                              RESULT    STATUS  ERROR_CODE  DETAIL\n" +
				"1   00000000-0000-4000-8000-000000000001  replayed  READY   -           \n" +
				"3   00000000-0000-4000-8000-000000000003  replayed  READY   -           \n" +
				"matched 2, changed 2\n"},
		{name: "replay of some that cannot be", args: []string{"replay", "1", "4", "5", "99"}, code: 1, state: "0 3 3 3w 0, 1 audited",
			stdout: "ID  EVENT_ID                              RESULT      STATUS  ERROR_CODE        DETAIL\n" +
				"1   00000000-0000-4000-8000-000000000001  replayed    READY   -                 \n" +
				"4   00000000-0000-4000-8000-000000000004  waived      FAILED  RECORD_TOO_LARGE  it was skipped before\n" +
				"5   00000000-0000-4000-8000-000000000005  not_failed  READY   -                 it is READY\n" +
				"99  -                                     not_found   -       -                 there is no such row; it may have been purged or deleted\n" +
				"matched 4, changed 1\n",
			stderr: "error: replay: of 4 rows 1 not failed, 1 waived, 1 not found\n"},
		{name: "replay of what is not there", args: []string{"replay", "99", "--event-id", eventOf(98)}, code: 4, state: untouched,
			stdout: "ID  EVENT_ID                              RESULT     STATUS  ERROR_CODE  DETAIL\n" +
				"99  -                                     not_found  -       -           there is no such row; it may have been purged or deleted\n" +
				"-   00000000-0000-4000-8000-000000000098  not_found  -       -           there is no such row; it may have been purged or deleted\n" +
				"matched 1, changed 0\n",
			stderr: "error: replay: of 2 rows 2 not found\n"},
		{name: "a skipped one", args: []string{"replay", "4", "--include-waived"}, state: "3 3 3 0 0, 1 audited"},
		{name: "dry run by id", args: []string{"replay", "1", "2", "--dry-run"}, state: untouched, stdout: wouldBe + "matched 2, changed 0 (dry run)\n"},
		{name: "filter without confirmation", args: []string{"replay", "--error-code", "RECORD_TOO_LARGE"}, code: 5, state: untouched,
			stdout: wouldBe + "matched 2, changed 0 (dry run)\n", stderr: "error: nothing was changed; to do it, add --confirm 2\n"},
		{name: "filter with another number", args: []string{"replay", "--error-code", "RECORD_TOO_LARGE", "--confirm", "3"}, code: 5, state: untouched,
			stderr: "error: the number of rows is 2, not 3: nothing was changed; look at them with --dry-run\n"},
		{name: "filter", args: []string{"replay", "--error-code", "RECORD_TOO_LARGE", "--confirm", "2", "--rate", "1000"}, state: "0 0 3 3w 0, 2 audited"},
		{name: "filter with waived ones", args: []string{"replay", "--error-code", "RECORD_TOO_LARGE", "--include-waived", "--confirm", "3"}, state: "0 0 3 0 0, 3 audited"},
		{name: "all of them", args: []string{"replay", "--status", "failed", "--confirm", "3"}, state: "0 0 0 3w 0, 3 audited"},
		{name: "phase", args: []string{"replay", "--phase", "consume", "--confirm", "1"}, state: "3 3 0 3w 0, 1 audited"},
		{name: "ids and a condition", args: []string{"replay", "1", "3", "--phase", "consume"}, code: 5, state: untouched,
			stderr: "error: nothing was changed; to do it, add --confirm 1\n"},
		{name: "limit", args: []string{"replay", "--aggregate-type", "order", "--limit", "1", "--confirm", "1"}, state: "0 3 3 3w 0, 1 audited",
			stdout: "ID  EVENT_ID                              RESULT    STATUS  ERROR_CODE  DETAIL\n" +
				"1   00000000-0000-4000-8000-000000000001  replayed  READY   -           \n" +
				"matched 1, changed 1; 3 rows match in all, the first of them are taken: --limit\n"},
		{name: "more than the limit", args: []string{"replay", "--aggregate-type", "order", "--limit", "2", "--confirm", "3"}, code: 5, state: untouched,
			stderr: "error: 3 rows match and --limit takes the first 2 of them, not 3: nothing was changed; give another --limit, or --confirm 2\n"},
		{name: "nothing matches", args: []string{"skip", "--topic", "t", "--reason", "x", "--confirm", "0"}, state: untouched,
			stdout: "ID  EVENT_ID  RESULT  STATUS  ERROR_CODE  DETAIL\nmatched 0, changed 0\n"},
		{name: "a quote in a value", args: []string{"replay", "--aggregate-id", "o'1", "--confirm", "1"}, state: "0 3 3 3w 0, 1 audited"},
		{name: "SQL in a value", args: []string{"skip", "--aggregate-id", "x' OR true --", "--reason", "'); DROP TABLE outbox; --", "--confirm", "0"}, state: untouched},
		{name: "SQL in an id", args: []string{"replay", "1; DROP TABLE outbox"}, code: 2, state: untouched,
			stderr: `error: "1; DROP TABLE outbox" is no id; write the number of a row, or an event id such as 0190163d-8694-739b-aea5-966c26f8ad91; run cdc-relay help` + "\n"},
		{name: "skip", args: []string{"skip", "1", "--reason", "gone"}, state: "3w 3 3 3w 0, 1 audited",
			stdout: "ID  EVENT_ID                              RESULT   STATUS  ERROR_CODE        DETAIL\n" +
				"1   00000000-0000-4000-8000-000000000001  skipped  FAILED  RECORD_TOO_LARGE  \n" +
				"matched 1, changed 1\n"},
		{name: "skip twice", args: []string{"skip", "4", "--reason", "gone"}, code: 1, state: untouched, stderr: "error: skip: of 1 rows 1 waived\n"},
		{name: "replay and wait in vain", args: []string{"replay", "1", "--wait", "1ms"}, code: 1, state: "0 3 3 3w 0, 1 audited",
			stdout: "ID  EVENT_ID                              RESULT   STATUS  ERROR_CODE  DETAIL\n" +
				"1   00000000-0000-4000-8000-000000000001  waiting  READY   -           \n" +
				"matched 1, changed 1\n",
			stderr: "error: replay: of 1 rows 1 waiting; --wait is over, which changes nothing for them: look later with cdc-relay events show, and whether a relay runs with cdc-relay status\n"},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := newFailedRows(t, db)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				f.reset(t)
				got := runCommand(t, f.environ, tt.args...)
				if tt.stdout == "" {
					got.stdout = ""
				}
				if diff := cmp.Diff(result{tt.code, tt.stdout, tt.stderr}, got, cmp.AllowUnexported(result{})); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if state := f.state(t); state != tt.state {
					t.Errorf("rows are %s, want %s", state, tt.state)
				}
			})
		}
	})
}

func TestReplayJSON(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := newFailedRows(t, db)
		got := runCommand(t, f.environ, "replay", "2", eventOf(98), "--json", "--reason", "the topic is back")
		var answer map[string]any
		if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil || got.code != 4 {
			t.Fatalf("%v: %+v", err, got)
		}
		delete(answer, "at")
		want := map[string]any{"v": 1.0, "pipeline": "shop", "action": "replay", "dry_run": false, "matched": 1.0, "total": 1.0, "changed": 1.0,
			"items": []any{
				map[string]any{"id": 2.0, "event_id": eventOf(2), "result": "replayed", "status": "READY", "status_code": 0.0, "error_code": nil, "detail": ""},
				map[string]any{"id": nil, "event_id": eventOf(98), "result": "not_found", "status": nil, "status_code": nil, "error_code": nil,
					"detail": "there is no such row; it may have been purged or deleted"},
			}}
		if diff := cmp.Diff(want, answer); diff != "" {
			t.Errorf("answer (-want +got):\n%s", diff)
		}
		var audit string
		err := f.admin.QueryRow(t.Context(), "SELECT concat_ws('|', actor, action, id, event_id, reason, filter) FROM cdc_relay_audit").Scan(&audit)
		if want := fmt.Sprintf("%s (%s)|replay|2|%s|the topic is back", f.login, person(), eventOf(2)); err != nil || audit != want {
			t.Errorf("audit %q, want %q: %v", audit, want, err)
		}
		for want, args := range map[string][]string{
			"--aggregate-id o3 --phase consume --status failed":  {"skip", "--phase", "consume", "--aggregate-id", "o3", "--reason", "x"},
			"--aggregate-id o4 --status failed --include-waived": {"replay", "--aggregate-id", "o4", "--include-waived"},
		} {
			got := runCommand(t, f.environ, append(args, "--confirm", "1")...)
			err = f.admin.QueryRow(t.Context(), "SELECT filter FROM cdc_relay_audit ORDER BY audit_id DESC LIMIT 1").Scan(&audit)
			if err != nil || audit != want || got.code != 0 {
				t.Errorf("filter %q, want %q: %v, %+v", audit, want, err, got)
			}
		}
	})
}

// TestReplayWaits plays the relay's part with a trigger: a replayed row is SENT,
// or FAILED again, at once.
func TestReplayWaits(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := newFailedRows(t, db)
		f.exec(t, `CREATE FUNCTION relay() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF NEW.id = 2 THEN NEW.send_status = 3; NEW.next_attempt_at = 'infinity'; NEW.error_code = 'TOPIC_DENIED';
			ELSE NEW.send_status = 2; NEW.next_attempt_at = NULL; NEW.commit_lsn = NULL; NEW.sent_at = now(); END IF;
			RETURN NEW; END $$;
			CREATE TRIGGER relay BEFORE UPDATE ON outbox FOR EACH ROW WHEN (NEW.send_status = 0) EXECUTE FUNCTION relay()`)
		got := runCommand(t, f.environ, "replay", "1", "--wait", "1m")
		if want := "1   00000000-0000-4000-8000-000000000001  sent    SENT    -           \n"; got.code != 0 || !strings.Contains(got.stdout, want) {
			t.Errorf("SENT: %+v, want %q", got, want)
		}
		got = runCommand(t, f.environ, "replay", "2", "3", "--wait", "1m")
		want := result{1, "ID  EVENT_ID                              RESULT        STATUS  ERROR_CODE    DETAIL\n" +
			"2   00000000-0000-4000-8000-000000000002  failed_again  FAILED  TOPIC_DENIED  \n" +
			"3   00000000-0000-4000-8000-000000000003  sent          SENT    -             \n" +
			"matched 2, changed 2\n", "error: replay: of 2 rows 1 failed again\n"}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(result{})); diff != "" {
			t.Errorf("FAILED again (-want +got):\n%s", diff)
		}
	})
}

// A login without the rights is told which ones it needs.
func TestActWithoutRights(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := newFailedRows(t, db)
		f.exec(t, "REVOKE UPDATE (send_status) ON outbox FROM "+f.login)
		got := runCommand(t, f.environ, "replay", "1")
		if got.code != 1 || !strings.Contains(got.stderr, "permission denied for table outbox") || !strings.Contains(got.stderr, "; give the login the rights of an operator: ") ||
			strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%+v", got)
		}
		if state := f.state(t); state != untouched {
			t.Errorf("rows are %s", state)
		}
	})
}
