package operate

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// verified is a database with a slot, and an operator's way to it.
type verified struct {
	*pgtest.DB
	table  *Table
	server pg.Server
	conn   *pgx.Conn // a superuser's
	slot   string
}

func newVerified(t *testing.T, db *pgtest.DB) *verified {
	t.Helper()
	db.Migrate(t, "public")
	_, dsn := db.Operator(t)
	conn, server, err := pg.Connect(t.Context(), pg.Options{DSN: dsn, ApplicationName: "verifying"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.Close(conn) })
	v := &verified{DB: db, server: server, conn: db.Conn(t), slot: "slot_" + db.Name}
	v.table, err = Open(t.Context(), conn, Config{Table: outboxTable, Slot: v.slot, TopicTemplate: "outbox.event.{aggregate_type}",
		Blocks: func(aggregateType string) bool { return aggregateType != "log" }})
	if err != nil {
		t.Fatal(err)
	}
	v.exec(t, "CREATE PUBLICATION "+v.slot+" FOR TABLE outbox WITH (publish = 'insert')")
	return v
}

func (v *verified) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := v.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (v *verified) createSlot(t *testing.T) {
	t.Helper()
	v.exec(t, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", v.slot)
}

// lead writes the lease of a relay that has saved the position of the slot.
func (v *verified) lead(t *testing.T) {
	t.Helper()
	v.exec(t, `INSERT INTO cdc_relay_lease (slot, instance, lease_until, saved_lsn, system_identifier, timeline)
		SELECT slot_name, 'relay-1', now() + interval '1 hour', confirmed_flush_lsn, $2, $3
		  FROM pg_replication_slots WHERE slot_name = $1`,
		v.slot, int64(v.server.SystemID), int32(v.server.Timeline))
}

// relay stands for one that streams: it saves and confirms whatever the WAL has
// come to, which says that all before is resolved. With still it confirms
// nothing. It ends with the test.
func (v *verified) relay(t *testing.T, still bool) {
	t.Helper()
	conn := v.stream(t, "verifying")
	lease := v.Conn(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.confirm(ctx, conn, lease, still) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the stand-in relay: %v", err)
		}
		conn.Close(context.Background())
	})
}

// stream makes a slot that a relay leads, and streams from it under a name. The
// caller closes the connection.
func (v *verified) stream(t *testing.T, application string) *pgconn.PgConn {
	t.Helper()
	v.createSlot(t)
	v.lead(t)
	conn, err := pgconn.Connect(t.Context(), v.DSN+"&replication=database&application_name="+url.QueryEscape(application))
	if err != nil {
		t.Fatal(err)
	}
	err = pglogrepl.StartReplication(t.Context(), conn, v.slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "messages 'true'", "publication_names '" + v.slot + "'"}})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func (v *verified) confirm(ctx context.Context, conn *pgconn.PgConn, lease *pgx.Conn, still bool) error {
	for ctx.Err() == nil {
		wait, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		_, err := conn.ReceiveMessage(wait)
		cancel()
		if err != nil && !pgconn.Timeout(err) && ctx.Err() == nil {
			return err
		}
		if still || ctx.Err() != nil {
			continue
		}
		var text string
		if err := lease.QueryRow(context.WithoutCancel(ctx), `UPDATE cdc_relay_lease SET saved_lsn = pg_current_wal_flush_lsn() RETURNING saved_lsn::text`).Scan(&text); err != nil {
			return err
		}
		at, err := pglogrepl.ParseLSN(text)
		if err != nil {
			return err
		}
		if err := pglogrepl.SendStandbyStatusUpdate(context.WithoutCancel(ctx), conn, pglogrepl.StandbyStatusUpdate{WALWritePosition: at, WALFlushPosition: at, WALApplyPosition: at}); err != nil {
			return err
		}
	}
	return nil
}

// verify runs Verify with so much patience.
func (v *verified) verify(t *testing.T, f Filter, wait time.Duration) *Report {
	t.Helper()
	if f.Limit == 0 {
		f.Limit = 1000
	}
	r, err := v.table.Verify(t.Context(), f, VerifyConfig{Server: v.server, Wait: wait})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// foundIn are the findings as text: name, count and ids.
func foundIn(r *Report) []string {
	var list []string
	for _, f := range r.Findings {
		list = append(list, strings.TrimSuffix(fmt.Sprintf("%s %d %v", f.Name, f.Count, f.IDs), " []"))
	}
	return list
}

// rowSQL inserts a row with these values for id, status, next attempt, position
// and whatever else is named.
func rowSQL(more, values string) string {
	if more != "" {
		more = ", " + more
	}
	return "INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, send_status, next_attempt_at, commit_lsn" + more + ") OVERRIDING SYSTEM VALUE VALUES " + values
}

// A finding that is planted is found, and nothing else is.
func TestVerifyFindsInRows(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		sql    string
		filter Filter
		want   []string
	}{
		{name: "nothing", sql: zoo + `; DELETE FROM outbox WHERE id NOT IN (4, 6, 7, 9)`},
		{name: "an empty table", sql: "SELECT 1"},
		{name: "missing", sql: rowSQL("", "(1, 'order', 'a', 'x', 0, NULL, NULL), (2, 'order', 'a', 'x', 2, NULL, NULL), (3, 'order', 'b', 'x', 0, NULL, NULL)"),
			want: []string{"missing 2 [1 3]"}},
		{name: "missing, but not of the filter", sql: rowSQL("", "(1, 'order', 'a', 'x', 0, NULL, NULL), (3, 'order', 'b', 'x', 0, NULL, NULL)"),
			filter: Filter{AggregateID: "b"}, want: []string{"missing 1 [3]"}},
		{name: "missing, by name", sql: rowSQL("", "(1, 'order', 'a', 'x', 0, NULL, NULL), (3, 'order', 'b', 'x', 3, 'infinity', '0/1')"),
			filter: Filter{IDs: []int64{1}}, want: []string{"missing 1 [1]"}},
		{name: "stranded", sql: "ALTER TABLE outbox DROP CONSTRAINT outbox_next_attempt_check; " + rowSQL("", "(1, 'order', 'a', 'x', 0, 'infinity', NULL)"),
			want: []string{"stranded 1 [1]"}},
		{name: "not released", sql: rowSQL("", "(1, 'order', 'a', 'x', 0, 'infinity', '0/5'), (2, 'order', 'a', 'x', 0, 'infinity', '0/6')"),
			want: []string{"unreleased 1 [1]"}},
		{name: "held, with cause", sql: rowSQL("", "(1, 'order', 'a', 'x', 0, '2999-01-01', '0/5'), (2, 'order', 'a', 'x', 0, 'infinity', '0/6')")},
		{name: "overdue", sql: rowSQL("", "(1, 'order', 'a', 'x', 0, now() - interval '6 minutes', '0/5'), (2, 'order', 'b', 'x', 0, now() - interval '6 minutes', NULL)"),
			want: []string{"overdue 2 [1 2]"}},
		{name: "due, but not for long or not the first", sql: rowSQL("", `(1, 'order', 'a', 'x', 0, now() - interval '4 minutes', '0/5'),
			(2, 'order', 'a', 'x', 0, now() - interval '6 minutes', '0/6'), (3, 'log', 'a', 'x', 0, '2999-01-01', '0/5'), (4, 'log', 'a', 'x', 0, now() - interval '6 minutes', '0/6')`),
			want: []string{"overdue 1 [4]"}},
		{name: "abandoned", sql: rowSQL("lease_until", `(1, 'order', 'a', 'x', 5, NULL, NULL, now() - interval '6 minutes'),
			(2, 'order', 'a', 'x', 5, NULL, NULL, now() - interval '4 minutes'), (3, 'order', 'a', 'x', 1, NULL, NULL, now() - interval '6 minutes'), (4, 'order', 'a', 'x', 4, NULL, NULL, now() - interval '6 minutes')`),
			want: []string{"abandoned 2 [1 3]"}},
		{name: "failed, and what is held behind it", sql: rowSQL("finished_at", `(1, 'order', 'a', 'x', 3, 'infinity', '0/5', NULL), (2, 'order', 'a', 'x', 0, 'infinity', '0/6', NULL),
			(3, 'order', 'b', 'x', 3, NULL, NULL, now())`), want: []string{"failed 1 [1]"}},
		{name: "several, the worst first", sql: rowSQL("lease_until", `(1, 'order', 'a', 'x', 3, 'infinity', '0/5', NULL), (2, 'order', 'a', 'x', 5, NULL, NULL, now() - interval '6 minutes'),
			(3, 'order', 'b', 'x', 0, NULL, NULL, NULL)`), want: []string{"missing 1 [3]", "abandoned 1 [2]", "failed 1 [1]"}},
		{name: "many", sql: rowSQL("", "(0, 'order', 'a', 'x', 0, NULL, NULL)") + `; INSERT INTO outbox (aggregate_type, aggregate_id, event_type) SELECT 'order', n, 'x' FROM generate_series(1, 20) n`,
			want: []string{"missing 21 [0 1 2 3 4 5 6 7 8 9]"}},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newVerified(t, db)
		v.relay(t, false)
		for _, tt := range tests {
			db.Exec(t, "TRUNCATE outbox; "+tt.sql)
			got := v.verify(t, tt.filter, time.Second)
			if diff := cmp.Diff(tt.want, foundIn(got)); diff != "" || len(got.Notes) > 0 {
				t.Errorf("%s: notes %q, found (-want +got):\n%s", tt.name, got.Notes, diff)
			}
			for _, f := range got.Findings {
				if f.Name.Meaning() == "" || f.Next == "" || strings.Contains(f.Next, "{") {
					t.Errorf("%s: meaning %q, next %q", f.Name, f.Name.Meaning(), f.Next)
				}
			}
		}
	})
}
