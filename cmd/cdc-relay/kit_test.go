package main

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/tables"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// kitRows is a consumer's own database, and an operator's way to it.
type kitRows struct {
	admin *pgx.Conn
	login string
	dsn   string
}

// newKitRows makes the tables by the script for consumers, in a schema of
// their own.
func newKitRows(t *testing.T, db *pgtest.DB) *kitRows {
	t.Helper()
	script, err := tables.SQL("mail")
	if err != nil {
		t.Fatal(err)
	}
	login := db.Name + "_keeper" // roles belong to the whole server
	db.Exec(t, "CREATE SCHEMA mail;"+script+strings.ReplaceAll(`
		CREATE ROLE {login} LOGIN;
		GRANT USAGE ON SCHEMA mail TO {login};
		GRANT SELECT, UPDATE ON mail.outbox_receipt, mail.outbox_quarantine TO {login};
		GRANT INSERT ON mail.cdc_relay_audit TO {login}`, "{login}", login))
	k := &kitRows{admin: db.Conn(t), login: login, dsn: strings.Replace(db.DSN, "postgres@", login+"@", 1)}
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), db.DSN)
		if err == nil {
			defer conn.Close(context.Background())
			_, err = conn.PgConn().Exec(context.Background(), "DROP OWNED BY "+login+"; DROP ROLE "+login).ReadAll()
		}
		if err != nil {
			t.Errorf("removing the operator's login: %v", err)
		}
	})
	k.reset(t)
	return k
}

func (k *kitRows) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := k.admin.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (k *kitRows) reset(t *testing.T) {
	t.Helper()
	k.exec(t, "TRUNCATE mail.outbox_quarantine, mail.outbox_receipt, mail.cdc_relay_audit RESTART IDENTITY")
	headers := tables.EncodeHeaders([]tables.Header{{Name: "ce_id", Value: []byte(planted)}, {Name: "x-none"}, {Name: "x-bytes", Value: []byte{0, 255}}})
	for i, row := range []struct{ event, reason, resolution any }{
		{eventOf(1), "MISSING", nil},
		{nil, "NO_EVENT_ID", nil},
		{nil, "SKIPPED_RANGE", nil},
		{eventOf(4), "MISSING", "retry"},
		{eventOf(5), "MISSING", "dropped"},
		{eventOf(6), "BEYOND_HORIZON", "retried"},
	} {
		k.exec(t, `INSERT INTO mail.outbox_quarantine (consumer, topic, partition, "offset", digest, record_time, event_id, outbox_id, reason, message,
				record_key, record_value, record_headers, resolution, resolved_at)
			VALUES ('mailer', 'user.events', $1::int % 3, 4710 + $1, '\x00', now() - interval '1 hour', $2::text::uuid, 7, $3, 'a sentence',
				$4, $5, $6, $7, CASE WHEN $7 <> 'retry' THEN now() END)`,
			i+1, row.event, row.reason, []byte(planted), []byte(planted), headers, row.resolution)
	}
	k.exec(t, `INSERT INTO mail.outbox_receipt (event_id, purpose, status, attempts, next_attempt_at, effect_at, request_digest, error_code, error_message, finished_at, created_at)
		SELECT v.e::uuid, v.p, v.s, 3, v.n::timestamptz, v.f::timestamptz, CASE WHEN v.f IS NOT NULL THEN '\xabcd'::bytea END, v.c, 'a sentence', v.d::timestamptz, '2026-01-02'::timestamptz + v.i * interval '1 s'
		  FROM (VALUES (1, $1, 'mail', 3::smallint, 'infinity', NULL, 'APP_PAYLOAD', NULL),
		               (2, $1, 'stats', 4::smallint, NULL, NULL, NULL, '2026-01-02'),
		               (3, $2, 'mail', 3::smallint, 'infinity', '2026-01-02', 'CONSUMER_AMBIGUOUS', NULL),
		               (4, $3, 'mail', 3::smallint, NULL, NULL, 'APP_PAYLOAD', '2026-01-02'),
		               (5, $4, 'mail', 2::smallint, '2100-01-01', NULL, 'CONSUMER_SYSTEM', NULL),
		               (6, $4, 'stats', 3::smallint, 'infinity', NULL, 'CONSUMER_ABANDONED', NULL)) v (i, e, p, s, n, f, c, d)`,
		eventOf(1), eventOf(2), eventOf(3), eventOf(4))
}

// state is what is resolved in the quarantine, the status of each receipt, and
// the number of audit entries.
func (k *kitRows) state(t *testing.T) string {
	t.Helper()
	var text string
	err := k.admin.QueryRow(t.Context(), `SELECT
		(SELECT string_agg(coalesce(resolution, 'open') || CASE WHEN (resolved_at IS NULL) = (coalesce(resolution, 'retry') = 'retry') THEN '' ELSE '!' END, ' ' ORDER BY id) FROM mail.outbox_quarantine)
		|| ', ' || (SELECT string_agg(status || CASE WHEN status = 3 AND finished_at IS NOT NULL THEN 'w' WHEN status = 3 AND next_attempt_at IS NULL THEN '?' ELSE '' END
			|| CASE WHEN finished_at IS NOT NULL AND next_attempt_at IS NOT NULL THEN '!' ELSE '' END, ' ' ORDER BY created_at) FROM mail.outbox_receipt)
		|| ', ' || (SELECT count(*) FROM mail.cdc_relay_audit) || ' audited'`).Scan(&text)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const (
	quarantineAsIs = "open open open retry dropped retried"
	receiptsAsAre  = "3 4 3 3w 2 3"
	kitUntouched   = quarantineAsIs + ", " + receiptsAsAre + ", 0 audited"
)

// Each command line on fresh rows.
func TestKitCommands(t *testing.T) {
	t.Parallel()
	const (
		receipt = "EVENT_ID                              PURPOSE  RESULT       STATUS  ERROR_CODE          DETAIL\n"
		again   = "; a consumer tries again when it gets the record again: publish the event anew (cdc-relay replay --status sent --event-id ..), or reset the offset of its group\n"
	)
	key := eventOf(2) + ":mail"
	tests := []struct {
		name   string
		args   []string
		code   int
		stdout string // all of it, unless empty
		stderr string
		state  string
	}{
		{name: "retry by id", args: []string{"quarantine", "retry", "1"}, state: "retry open open retry dropped retried, " + receiptsAsAre + ", 1 audited",
			stdout: "ID  EVENT_ID                              RESULT       STATUS  ERROR_CODE  DETAIL\n" +
				"1   00000000-0000-4000-8000-000000000001  retry_asked  retry   MISSING     \n" +
				"matched 1, changed 1; a consumer of that name makes it when it runs\n"},
		{name: "retry of some that cannot be", args: []string{"quarantine", "retry", "1", "3", "4", "5", "6", "99"}, code: 1,
			state: "retry open open retry dropped retried, " + receiptsAsAre + ", 1 audited",
			stdout: "ID  EVENT_ID                              RESULT       STATUS   ERROR_CODE      DETAIL\n" +
				"1   00000000-0000-4000-8000-000000000001  retry_asked  retry    MISSING         \n" +
				"3   -                                     no_record    open     SKIPPED_RANGE   nothing of the batch could be read: replay its events by the time when they were created, then drop it\n" +
				"4   00000000-0000-4000-8000-000000000004  not_open     retry    MISSING         a retry is asked for already; its consumer makes it when it runs\n" +
				"5   00000000-0000-4000-8000-000000000005  not_open     dropped  MISSING         it was dropped\n" +
				"6   00000000-0000-4000-8000-000000000006  not_open     retried  BEYOND_HORIZON  it was retried\n" +
				"99  -                                     not_found    -        -               there is no such record\n" +
				"matched 5, changed 1; a consumer of that name makes it when it runs\n",
			stderr: "error: quarantine retry: of 6 rows 3 not open, 1 no record, 1 not found\n"},
		{name: "retry of what is not there", args: []string{"quarantine", "retry", "99", "--event-id", eventOf(98)}, code: 4, state: kitUntouched,
			stderr: "error: quarantine retry: of 2 rows 2 not found\n"},
		{name: "retry of events", args: []string{"quarantine", "retry", "--event-id", eventOf(1)}, state: "retry open open retry dropped retried, " + receiptsAsAre + ", 1 audited"},
		{name: "dry run by id", args: []string{"quarantine", "drop", "1", "2", "--reason", "x", "--dry-run"}, state: kitUntouched,
			stdout: "ID  EVENT_ID                              RESULT      STATUS  ERROR_CODE   DETAIL\n" +
				"1   00000000-0000-4000-8000-000000000001  would_drop  open    MISSING      \n" +
				"2   -                                     would_drop  open    NO_EVENT_ID  \n" +
				"matched 2, changed 0 (dry run)\n"},
		{name: "drop", args: []string{"quarantine", "drop", "2", "3", "4", "--reason", "x"}, state: "open dropped dropped dropped dropped retried, " + receiptsAsAre + ", 3 audited"},
		{name: "drop of what is resolved", args: []string{"quarantine", "drop", "5", "6", "--reason", "x"}, code: 1, state: kitUntouched,
			stderr: "error: quarantine drop: of 2 rows 2 not open\n"},
		{name: "filter without confirmation", args: []string{"quarantine", "retry", "--consumer", "mailer"}, code: 5, state: kitUntouched,
			stdout: "ID  EVENT_ID                              RESULT       STATUS  ERROR_CODE     DETAIL\n" +
				"1   00000000-0000-4000-8000-000000000001  would_retry  open    MISSING        \n" +
				"2   -                                     would_retry  open    NO_EVENT_ID    \n" +
				"3   -                                     no_record    open    SKIPPED_RANGE  nothing of the batch could be read: replay its events by the time when they were created, then drop it\n" +
				"matched 3, changed 0 (dry run)\n", stderr: "error: nothing was changed; to do it, add --confirm 3\n"},
		{name: "filter with another number", args: []string{"quarantine", "retry", "--consumer", "mailer", "--confirm", "2"}, code: 5, state: kitUntouched,
			stderr: "error: the number of rows is 3, not 2: nothing was changed; look at them with --dry-run\n"},
		{name: "more than the limit", args: []string{"quarantine", "drop", "--reason", "x", "--topic", "user.events", "--limit", "2", "--confirm", "4"}, code: 5, state: kitUntouched,
			stderr: "error: 4 rows match and --limit takes the first 2 of them, not 4: nothing was changed; give another --limit, or --confirm 2\n"},
		{name: "filter", args: []string{"quarantine", "drop", "--reason", "x", "--error-code", "MISSING", "--confirm", "2"}, state: "dropped open open dropped dropped retried, " + receiptsAsAre + ", 2 audited"},
		{name: "filter by partition and status", args: []string{"quarantine", "drop", "--reason", "x", "--partition", "1", "--status", "open", "--confirm", "1"},
			state: "dropped open open retry dropped retried, " + receiptsAsAre + ", 1 audited"},
		{name: "SQL in a value", args: []string{"quarantine", "drop", "--reason", "'); DROP TABLE mail.outbox_quarantine; --", "--consumer", "x' OR true --", "--confirm", "0"}, state: kitUntouched},

		{name: "receipt retry by key", args: []string{"receipts", "retry", eventOf(1) + ":mail"}, state: quarantineAsIs + ", 2 4 3 3w 2 3, 1 audited",
			stdout: "EVENT_ID                              PURPOSE  RESULT   STATUS  ERROR_CODE  DETAIL\n" +
				"00000000-0000-4000-8000-000000000001  mail     retried  SENT    -           \n" +
				"matched 1, changed 1" + again},
		{name: "receipt retry in doubt", args: []string{"receipts", "retry", key}, state: quarantineAsIs + ", 3 4 2 3w 2 3, 1 audited",
			stdout: "EVENT_ID                              PURPOSE  RESULT   STATUS  ERROR_CODE          DETAIL\n" +
				"00000000-0000-4000-8000-000000000002  mail     retried  SENT    CONSUMER_AMBIGUOUS  its effect may have happened: the consumer's ambiguity policy decides\n" +
				"matched 1, changed 1" + again},
		{name: "receipt retry without doubt", args: []string{"receipts", "retry", key, "--clear-doubt"}, state: quarantineAsIs + ", 3 4 2 3w 2 3, 1 audited",
			stdout: "EVENT_ID                              PURPOSE  RESULT   STATUS  ERROR_CODE  DETAIL\n" +
				"00000000-0000-4000-8000-000000000002  mail     retried  SENT    -           \n" +
				"matched 1, changed 1" + again},
		{name: "receipts of an event", args: []string{"receipts", "retry", eventOf(1), eventOf(3), eventOf(9)}, code: 1, state: quarantineAsIs + ", 2 4 3 3w 2 3, 1 audited",
			stdout: "EVENT_ID                              PURPOSE  RESULT      STATUS    ERROR_CODE   DETAIL\n" +
				"00000000-0000-4000-8000-000000000001  mail     retried     SENT      -            \n" +
				"00000000-0000-4000-8000-000000000001  stats    not_failed  CONSUMED  -            it is CONSUMED\n" +
				"00000000-0000-4000-8000-000000000003  mail     waived      FAILED    APP_PAYLOAD  it was dropped before\n" +
				"00000000-0000-4000-8000-000000000009  -        not_found   -         -            there is no such receipt\n" +
				"matched 3, changed 1" + again,
			stderr: "error: receipt retry: of 4 rows 1 not failed, 1 waived, 1 not found\n"},
		{name: "a dropped receipt", args: []string{"receipts", "retry", eventOf(3) + ":mail", "--include-waived"}, state: quarantineAsIs + ", 3 4 3 2 2 3, 1 audited"},
		{name: "a receipt that is not there", args: []string{"receipts", "drop", eventOf(1) + ":other", "--reason", "x"}, code: 4, state: kitUntouched,
			stderr: "error: receipt drop: of 1 rows 1 not found\n"},
		{name: "a receipt that waits by itself", args: []string{"receipts", "retry", eventOf(4) + ":mail"}, code: 1, state: kitUntouched,
			stderr: "error: receipt retry: of 1 rows 1 not failed\n"},
		{name: "a key given twice", args: []string{"receipts", "drop", key, eventOf(2), key, "--reason", "x"}, state: quarantineAsIs + ", 3 4 3w 3w 2 3, 1 audited"},
		{name: "receipts by a filter, unconfirmed", args: []string{"receipts", "retry", "--purpose", "mail"}, code: 5, state: kitUntouched,
			stdout: receipt +
				"00000000-0000-4000-8000-000000000001  mail     would_retry  FAILED  APP_PAYLOAD         \n" +
				"00000000-0000-4000-8000-000000000002  mail     would_retry  FAILED  CONSUMER_AMBIGUOUS  its effect may have happened: the consumer's ambiguity policy decides; --clear-doubt if you know that it did not\n" +
				"matched 2, changed 0 (dry run)\n", stderr: "error: nothing was changed; to do it, add --confirm 2\n"},
		{name: "receipts by a filter", args: []string{"receipts", "drop", "--status", "failed", "--reason", "x", "--confirm", "3"}, state: quarantineAsIs + ", 3w 4 3w 3w 2 3w, 3 audited"},
		{name: "receipts by an error code", args: []string{"receipts", "drop", "--error-code", "APP_PAYLOAD", "--reason", "x", "--confirm", "1"}, state: quarantineAsIs + ", 3w 4 3 3w 2 3, 1 audited"},
		{name: "receipts of a time", args: []string{"receipts", "drop", "--since", "2026-01-02T00:00:02Z", "--until", "2026-01-02T00:00:06Z", "--reason", "x", "--confirm", "1"}, state: quarantineAsIs + ", 3 4 3w 3w 2 3, 1 audited"},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		k := newKitRows(t, db)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				k.reset(t)
				got := runCommand(t, nil, append(tt.args, "--dsn", k.dsn, "--schema", "mail")...)
				if tt.stdout == "" {
					got.stdout = ""
				}
				if diff := cmp.Diff(result{tt.code, tt.stdout, tt.stderr}, got, cmp.AllowUnexported(result{})); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if state := k.state(t); state != tt.state {
					t.Errorf("rows are\n%s, want\n%s", state, tt.state)
				}
			})
		}
	})
}

// Arguments that make no sense, told without a database.
func TestKitUsage(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"retry of nothing", []string{"quarantine", "retry"}, "retry needs ids, or flags that pick records, such as --error-code or --status open"},
		{"no id", []string{"quarantine", "show", "x"}, `"x" is no id; write the number of a record, as cdc-relay quarantine list shows it`},
		{"no ids", []string{"quarantine", "drop", "x", "--reason", "x"}, `"x" is no id; write the number of a record, as cdc-relay quarantine list shows it`},
		{"drop without a reason", []string{"quarantine", "drop", "1"}, "--reason is required: say why, for the audit trail"},
		{"an unknown state", []string{"quarantine", "list", "--status", "sent"}, `status "sent" is unknown; use one of open, retry, retried, dropped`},
		{"no event", []string{"quarantine", "list", "--event-id", "5"}, "--event-id: an id is 32 hexadecimal digits in groups of 8-4-4-4-12"},
		{"no time", []string{"quarantine", "list", "--since", "noon"}, `"noon" is no time; write 2026-01-02T15:04:05Z, or how long ago: 90m, 2h, 7d`},
		{"no limit", []string{"quarantine", "list", "--limit", "0"}, "--limit must be 1 or more"},
		{"too much", []string{"quarantine", "list", "--limit", "9223372036854775807"}, "--limit must be at most 10000000"},
		{"no partition", []string{"quarantine", "drop", "--partition", "-2", "--reason", "x"}, "--partition must be 0 or more, or -1 for any"},
		{"no consumer", []string{"quarantine", "drop", "--topic", "t", "--consumer", "", "--reason", "x"}, "--consumer is empty; leave it out to pick any, or give it a value"},
		{"an empty purpose", []string{"receipts", "drop", "--error-code", "X", "--purpose", "", "--reason", "x"}, "--purpose is empty; leave it out to pick any, or give it a value"},
		{"no schema", []string{"receipts", "list", "--schema", "\xff"}, "--schema is not UTF-8 text"},
		{"a key's password that others can see", []string{"receipts", "list", "--dsn", "host=db.invalid sslpassword=" + planted}, "--dsn holds a password, which others can see there; use $PGPASSWORD, a password file or a service file"},
		{"after nothing", []string{"quarantine", "list", "--after", "-1"}, "--after must be the id that a list ended with"},
		{"receipts of nothing", []string{"receipts", "retry"}, "retry needs keys, or flags that pick receipts, such as --error-code or --status failed"},
		{"no key", []string{"receipts", "show", "5"}, `"5" names no receipt; write an event id, or with the purpose 0190163d-8694-739b-aea5-966c26f8ad91:welcome-mail`},
		{"no purpose", []string{"receipts", "drop", eventOf(1) + ":", "--reason", "x"}, `"` + eventOf(1) + `:" names no receipt; write an event id, or with the purpose 0190163d-8694-739b-aea5-966c26f8ad91:welcome-mail`},
		{"receipts that are done", []string{"receipts", "retry", "--status", "consumed"}, "receipts retry does nothing to receipts that are CONSUMED"},
		{"drop of a receipt without a reason", []string{"receipts", "drop", eventOf(1)}, "--reason is required: say why, for the audit trail"},
		{"drop of dropped ones", []string{"receipts", "drop", eventOf(1), "--reason", "x", "--include-waived"}, "--include-waived makes no sense here: those receipts are dropped already"},
		{"nothing to be done", []string{"receipts"}, "cdc-relay receipts needs one of: list, show, retry, drop"},
		{"a password that others can see", []string{"receipts", "list", "--dsn", "postgres://u:" + planted + "@db.invalid/app"}, "--dsn holds a password, which others can see there; use $PGPASSWORD, a password file or a service file"},
		{"no connection string", []string{"quarantine", "list", "--dsn", planted}, "--dsn is not a connection string; write postgres://user@host:5432/database, or keywords: host, user, dbname"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := runCommand(t, []string{"CDC_RELAY_POSTGRES__DSN=postgres://u:" + planted + "@db.invalid/app"}, tt.args...)
			if diff := cmp.Diff(result{2, "", "error: " + tt.want + "; run cdc-relay help\n"}, got, cmp.AllowUnexported(result{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A record that its consumer is resolving at this moment is left to it.
func TestKitLockedRows(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		k := newKitRows(t, db)
		tx, err := k.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, sql := range []string{"SELECT FROM mail.outbox_quarantine WHERE id = 1 FOR UPDATE", "SELECT FROM mail.outbox_receipt WHERE purpose = 'mail' FOR UPDATE"} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range [][]string{{"quarantine", "drop", "1"}, {"receipts", "drop", eventOf(1) + ":mail"}} {
			got := runCommand(t, nil, append(args, "--reason", "x", "--dsn", k.dsn, "--schema", "mail")...)
			if got.code != 1 || !strings.Contains(got.stdout, "locked") || !strings.Contains(got.stderr, "of 1 rows 1 locked") {
				t.Errorf("%v: %+v, want the row to be locked", args, got)
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := k.state(t); got != kitUntouched {
			t.Errorf("rows are %s, want %s", got, kitUntouched)
		}
	})
}

// Without --dsn it is the outbox's own database.
func TestKitInTheOutboxDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		_, dsn := db.Operator(t)
		environ := []string{"CDC_RELAY_POSTGRES__DSN=" + dsn}
		db.Exec(t, `INSERT INTO outbox_quarantine (consumer, topic, partition, "offset", digest, reason, message, record_headers) VALUES ('c', 't', 0, 1, '', 'MISSING', 'm', '')`)
		if got := runCommand(t, environ, "quarantine", "drop", "1", "--reason", "x"); got.code != 0 {
			t.Errorf("%+v", got)
		}
		if got := runCommand(t, environ, "receipts", "list"); got.code != 0 {
			t.Errorf("%+v", got)
		}
		db.Exec(t, "DROP TABLE outbox_receipt")
		got := runCommand(t, environ, "quarantine", "list")
		if got.code != 1 || !strings.Contains(got.stderr, "the schema public has no table outbox_receipt; run cdc-relay migrate up") {
			t.Errorf("without a table: %+v", got)
		}
		if got := runCommand(t, nil, "quarantine", "list"); got.code != 78 || !strings.Contains(got.stderr, "postgres.dsn: is required") {
			t.Errorf("without any database: %+v", got)
		}
	})
}
