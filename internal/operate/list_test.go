package operate

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// view is a database as a person sees it who has the rights of an operator and
// no others.
type view struct {
	*pgtest.DB
	table *Table
	login string
}

func newView(t *testing.T, db *pgtest.DB) *view {
	t.Helper()
	db.Migrate(t, "public")
	login, dsn := db.Operator(t)
	return &view{db, openTable(t, dsn, Config{Table: outboxTable, Slot: "s", TopicTemplate: "outbox.event.{aggregate_type}"}), login}
}

var outboxTable = pg.Table{Schema: "public", Name: "outbox"}

func openTable(t *testing.T, dsn string, cfg Config) *Table {
	t.Helper()
	conn, _, err := pg.Connect(t.Context(), pg.Options{DSN: dsn}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.Close(conn) })
	table, err := Open(t.Context(), conn, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// zoo has a row of each kind, and values that look like SQL.
const zoo = `
INSERT INTO outbox (id, event_id, aggregate_type, aggregate_id, event_type, topic, created_at,
                    send_status, attempts, next_attempt_at, commit_lsn, sent_at, finished_at, error_code) OVERRIDING SYSTEM VALUE VALUES
 (1, '00000000-0000-0000-0000-000000000001', 'order', 'o-1', 'created', NULL, '2026-01-01T01:00:00Z', 3, 1, 'infinity', '0/10', NULL, NULL, 'RECORD_TOO_LARGE'),
 (2, '00000000-0000-0000-0000-000000000002', 'order', 'o-1', 'paid',    NULL, '2026-01-01T02:00:00Z', 0, 0, 'infinity', '0/20', NULL, NULL, NULL),
 (3, '00000000-0000-0000-0000-000000000003', 'order', 'o-1', 'shipped', NULL, '2026-01-01T03:00:00Z', 0, 0, 'infinity', '0/20', NULL, NULL, NULL),
 (4, '00000000-0000-0000-0000-000000000004', 'order', 'o-2', 'created', NULL, '2026-01-01T04:00:00Z', 2, 0, NULL, NULL, '2026-01-01T05:00:00Z', NULL, NULL),
 (5, '00000000-0000-0000-0000-000000000005', 'user',  'u-1', 'created', 'people', '2026-01-01T05:00:00Z', 3, 2, 'infinity', NULL, '2026-01-01T05:00:00Z', NULL, 'CONSUMER_DATA'),
 (6, '00000000-0000-0000-0000-000000000006', 'user',  'u-2', 'created', NULL, '2026-01-01T06:00:00Z', 3, 2, NULL, NULL, NULL, '2026-01-01T07:00:00Z', 'TOPIC_DENIED'),
 (7, '00000000-0000-0000-0000-000000000007', 'user',  'u-3', 'created', NULL, '2026-01-01T07:00:00Z', 0, 0, '2999-01-01T00:00:00Z', NULL, NULL, NULL, NULL),
 (8, '00000000-0000-0000-0000-000000000008', 'user',  $q$' OR 'a' = 'a$q$, 'x'' --', NULL, '2026-01-01T08:00:00Z', 0, 0, NULL, NULL, NULL, NULL, NULL),
 (9, '00000000-0000-0000-0000-000000000009', 'user',  '%', '_', NULL, '2026-01-01T09:00:00Z', 4, 0, NULL, NULL, '2026-01-01T09:00:00Z', '2026-01-01T09:00:00Z', NULL)`

func idsOf(rows []Listed) []int64 {
	var ids []int64
	for _, r := range rows {
		ids = append(ids, r.ID)
	}
	return ids
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	moment, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return moment
}

func TestFilterPicks(t *testing.T) {
	t.Parallel()
	failed := []outbox.Status{outbox.Failed}
	tests := []struct {
		name   string
		filter Filter
		want   []int64
	}{
		{"everything, the newest first", Filter{}, []int64{9, 8, 7, 6, 5, 4, 3, 2, 1}},
		{"everything after an id", Filter{After: 4}, []int64{3, 2, 1}},
		{"by id, the oldest first", Filter{IDs: []int64{3, 1, 99}}, []int64{1, 3}},
		{"by event id", Filter{EventIDs: []outbox.ID{{15: 4}, {15: 0xff}}}, []int64{4}},
		{"by id or event id", Filter{IDs: []int64{2}, EventIDs: []outbox.ID{{15: 1}, {15: 2}}}, []int64{1, 2}},
		{"by id and a condition", Filter{IDs: []int64{1, 2, 4}, Statuses: failed}, []int64{1}},
		{"by id after one of them", Filter{IDs: []int64{1, 2, 4}, After: 1}, []int64{2, 4}},
		{"open FAILED ones, the oldest first", Filter{Statuses: failed, Open: true}, []int64{1, 5}},
		{"open FAILED ones after an id", Filter{Statuses: failed, Open: true, After: 1}, []int64{5}},
		{"waived ones too, the newest first", Filter{Statuses: failed}, []int64{6, 5, 1}},
		{"open FAILED and SENT ones", Filter{Statuses: []outbox.Status{outbox.Failed, outbox.Sent}, Open: true}, []int64{5, 4, 1}},
		{"failed to be published", Filter{Statuses: failed, Open: true, Phase: PhasePublish}, []int64{1}},
		{"failed at the consumer", Filter{Statuses: failed, Open: true, Phase: PhaseConsume}, []int64{5}},
		{"held ones", Filter{Held: true}, []int64{2, 3}},
		{"parked ones", Filter{Parked: true}, []int64{1, 2, 3, 5, 7}},
		{"parked READY ones", Filter{Parked: true, Statuses: []outbox.Status{outbox.Ready}}, []int64{2, 3, 7}},
		{"of an aggregate type", Filter{AggregateType: "order"}, []int64{4, 3, 2, 1}},
		{"of an aggregate", Filter{AggregateType: "order", AggregateID: "o-1"}, []int64{3, 2, 1}},
		{"of an event type", Filter{EventType: "paid"}, []int64{2}},
		{"with an error", Filter{ErrorCode: "CONSUMER_DATA"}, []int64{5}},
		{"for the topic of the template", Filter{Topic: "outbox.event.user"}, []int64{9, 8, 7, 6}},
		{"for a topic of the row", Filter{Topic: "people"}, []int64{5}},
		{"since, inclusive", Filter{Since: at(t, "2026-01-01T08:00:00Z")}, []int64{9, 8}},
		{"until, exclusive, in another zone", Filter{Until: at(t, "2026-01-01T04:00:00+02:00")}, []int64{1}},
		{"since and until", Filter{Since: at(t, "2026-01-01T02:00:00Z"), Until: at(t, "2026-01-01T03:30:00Z")}, []int64{3, 2}},
		{"a quote is a quote", Filter{AggregateID: "' OR 'a' = 'a"}, []int64{8}},
		{"SQL that would pick everything", Filter{AggregateID: "x' OR true --"}, nil},
		{"SQL that would drop the table", Filter{EventType: "x'; DROP TABLE outbox; --"}, nil},
		{"a comment", Filter{EventType: "x' --"}, []int64{8}},
		{"a pattern is no pattern", Filter{AggregateID: "%"}, []int64{9}},
		{"a placeholder", Filter{EventType: "$1", Topic: "{aggregate_type}", ErrorCode: "%s"}, nil},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newView(t, db)
		db.Exec(t, zoo)
		for _, tt := range tests {
			f := tt.filter
			f.Limit = 50
			list, err := v.table.Events(t.Context(), f)
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				continue
			}
			if diff := cmp.Diff(tt.want, idsOf(list.Rows)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
			matched, err := v.table.Match(t.Context(), f)
			if diff := cmp.Diff(Matched{IDs: tt.want, Count: int64(len(tt.want)), Page: list.Page}, matched); err != nil || diff != "" {
				t.Errorf("%s: match %v (-want +got):\n%s", tt.name, err, diff)
			}
		}
	})
}

// Two pages of two, in each order.
func TestPages(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newView(t, db)
		db.Exec(t, zoo)
		for _, tt := range []struct {
			filter Filter
			want   [][]int64
		}{
			{Filter{AggregateType: "order", Limit: 3}, [][]int64{{4, 3, 2}, {1}}},
			{Filter{AggregateType: "order", Limit: 2}, [][]int64{{4, 3}, {2, 1}}},
			{Filter{Parked: true, Limit: 2}, [][]int64{{1, 2}, {3, 5}, {7}}},
			{Filter{IDs: []int64{1, 2}, Limit: 2}, [][]int64{{1, 2}}},
		} {
			var got [][]int64
			for f := tt.filter; ; {
				list, err := v.table.Events(t.Context(), f)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, idsOf(list.Rows))
				if f.After = list.Page.After; f.After == 0 {
					break
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%+v: pages (-want +got):\n%s", tt.filter, diff)
			}
			matched, err := v.table.Match(t.Context(), tt.filter)
			var all []int64
			for _, page := range tt.want {
				all = append(all, page...)
			}
			if err != nil || int(matched.Count) != len(all) || !cmp.Equal(matched.IDs, tt.want[0]) {
				t.Errorf("%+v: matched %+v, %v", tt.filter, matched, err)
			}
		}
	})
}

func TestFailedAndHeld(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newView(t, db)
		// Of an aggregate with two FAILED rows the later one has fewer behind it;
		// rows of others, and rows that wait for a time, do not count.
		db.Exec(t, zoo+`;
			INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, send_status, next_attempt_at, commit_lsn) OVERRIDING SYSTEM VALUE VALUES
			 (10, 'order', 'o-1', 'x', 3, 'infinity', '0/30'), (11, 'order', 'o-1', 'x', 0, 'infinity', '0/40'),
			 (12, 'order', 'o-1', 'x', 0, '2999-01-01', '0/50'), (13, 'user', 'o-1', 'x', 0, 'infinity', '0/60');
			INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, send_status, next_attempt_at, commit_lsn) OVERRIDING SYSTEM VALUE
			 SELECT n, 'big', 'b', 'x', CASE n WHEN 100 THEN 3 ELSE 0 END, 'infinity', '0/70' FROM generate_series(100, 1200) n`)
		failed, err := v.table.Failed(t.Context(), Filter{Statuses: []outbox.Status{outbox.Failed}, Open: true, Limit: 50})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range failed.Rows {
			got = append(got, fmt.Sprintf("%d blocks %d", r.ID, r.Blocking))
		}
		if diff := cmp.Diff([]string{"1 blocks 3", "5 blocks 0", "10 blocks 1", "100 blocks 1000"}, got); diff != "" {
			t.Errorf("failed (-want +got):\n%s", diff)
		}
		held, err := v.table.Held(t.Context(), Filter{Held: true, Limit: 5})
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, r := range held.Rows {
			got = append(got, fmt.Sprintf("%d behind %d %s %s", r.ID, r.First.ID, r.First.Status, r.First.ErrorCode))
		}
		want := []string{"2 behind 1 FAILED RECORD_TOO_LARGE", "3 behind 1 FAILED RECORD_TOO_LARGE", "11 behind 1 FAILED RECORD_TOO_LARGE",
			"13 behind 0 READY ", "101 behind 100 FAILED "}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("held (-want +got):\n%s", diff)
		}
	})
}

// TestPlansOfLists: no list reads all of a table that was never analysed, and a
// walk ends where it must. A plan of before the rows came would not.
func TestPlansOfLists(t *testing.T) {
	t.Parallel()
	failed := []outbox.Status{outbox.Failed}
	tests := []struct {
		name   string
		filter Filter
		want   []string // nodes of the plan
		absent []string
		page   Page
		rows   int
	}{
		{"newest", Filter{}, []string{"Index Scan Backward using outbox_pkey"}, []string{"Sort"}, Page{After: 99_951}, 50},
		{"walk in vain", Filter{AggregateID: "none"}, []string{"Index Scan Backward using outbox_pkey"}, []string{"Sort"},
			Page{Walked: MaxWalk, After: 1}, 0},
		{"rest of a walk in vain", Filter{AggregateID: "none", After: 101}, []string{"Index Scan Backward using outbox_pkey"}, nil, Page{Walked: 101}, 0},
		{"failed", Filter{Statuses: failed, Open: true}, []string{"outbox_next_attempt_idx"}, []string{"outbox_pkey"}, Page{After: 4951}, 50},
		{"held", Filter{Held: true}, []string{"outbox_next_attempt_idx"}, []string{"outbox_pkey"}, Page{After: 556}, 50},
		{"ids", Filter{IDs: []int64{1, 2}, EventIDs: []outbox.ID{{15: 1}}}, []string{"outbox_pkey", "outbox_event_id_key"}, nil, Page{}, 2},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newView(t, db)
		db.Exec(t, "ALTER TABLE outbox SET (autovacuum_enabled = off)")
		for _, tt := range tests { // on the empty table
			if _, err := v.table.Failed(t.Context(), limited(tt.filter)); err != nil {
				t.Fatal(err)
			}
		}
		// Of a hundred rows, one is FAILED and nine are held behind it. The first
		// one has an id of 0.
		db.Exec(t, `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, send_status, next_attempt_at, commit_lsn) OVERRIDING SYSTEM VALUE
			SELECT n, 'order', n / 100, 'x', CASE WHEN n % 100 = 51 THEN 3 WHEN n % 100 BETWEEN 52 AND 60 THEN 0 ELSE 2 END,
			       CASE WHEN n % 100 BETWEEN 51 AND 60 THEN 'infinity'::timestamptz END,
			       CASE WHEN n % 100 BETWEEN 51 AND 60 THEN '0/100'::pg_lsn END FROM generate_series(0, 100000) n`)
		for _, tt := range tests {
			list, err := v.table.Failed(t.Context(), limited(tt.filter))
			if err != nil {
				t.Fatal(err)
			}
			if len(list.Rows) != tt.rows || list.Page != tt.page {
				t.Errorf("%s: %d rows, page %+v; want %d, %+v", tt.name, len(list.Rows), list.Page, tt.rows, tt.page)
			}
			plan := v.planOf(t, limited(tt.filter))
			for _, node := range append(tt.want, "outbox_parked_idx") {
				if !strings.Contains(plan, node) {
					t.Errorf("%s: no %s in\n%s", tt.name, node, plan)
				}
			}
			for _, node := range append(tt.absent, "Seq Scan", "JIT") {
				if strings.Contains(plan, node) {
					t.Errorf("%s: %s in\n%s", tt.name, node, plan)
				}
			}
		}
	})
}

func limited(f Filter) Filter {
	f.Limit = 50
	return f
}

// planOf is the plan of a list with all that can be joined to it.
func (v *view) planOf(t *testing.T, f Filter) string {
	t.Helper()
	s, err := v.table.selection(f)
	if err != nil {
		t.Fatal(err)
	}
	sql := s.query(v.table.rowColumns(s)+v.table.sql(", "+blockingSQL+", "+headColumns), v.table.sql(headSQL), f.Limit+1)
	rows, err := v.table.conn.Query(t.Context(), "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) "+sql, s.args...)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

// TestMappedTable has other names, other types, and only what must be there.
func TestMappedTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		db.Exec(t, `CREATE TABLE "Old Outbox" (id integer PRIMARY KEY, "Event" uuid, "Type" varchar(20), "Key" varchar(20), kind text,
				body json, born timestamp, send_status integer DEFAULT 0, attempts bigint, next_attempt_at timestamptz, commit_lsn pg_lsn,
				sent_at timestamptz, error_code text, error_message text);
			INSERT INTO "Old Outbox" VALUES (7, '00000000-0000-0000-0000-000000000007', 'order', 'o-1', 'created', '{"a": "ä"}',
				'2026-01-01 01:00:00', 3, 1, 'infinity', '0/10', NULL, 'X', 'y'), (8, '00000000-0000-0000-0000-000000000008', 'order', 'o-1', 'paid',
				NULL, NULL, 0, NULL, 'infinity', '0/20', NULL, NULL, NULL)`)
		cfg := Config{Table: pg.Table{Schema: "public", Name: "Old Outbox"}, Slot: "s", TopicTemplate: "{schema}-{aggregate_type}.{event_type}",
			Columns: map[string]string{"event_id": "Event", "aggregate_type": "Type", "aggregate_id": "Key", "event_type": "kind", "payload": "body", "created_at": "born"}}
		table := openTable(t, db.DSN, cfg)
		list, err := table.Failed(t.Context(), Filter{Statuses: []outbox.Status{outbox.Failed}, Open: true, Topic: "public-order.created",
			AggregateType: "order", AggregateID: "o-1", Since: at(t, "2026-01-01T01:00:00Z"), Until: at(t, "2026-01-01T01:00:01Z"), Limit: 5})
		if err != nil || len(list.Rows) != 1 || list.Rows[0].ID != 7 || list.Rows[0].Blocking != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		d, err := table.Show(t.Context(), Filter{EventIDs: []outbox.ID{{15: 8}}})
		if err != nil || d.ID != 8 || d.First.ID != 7 || d.PayloadBytes != -1 || d.ContentType != "application/json" || d.Topic != "public-order.paid" {
			t.Errorf("%+v, %v", d, err)
		}
		payload, err := table.Payload(t.Context(), 7)
		if err != nil || string(payload) != `{"a": "ä"}` {
			t.Errorf("payload %s, %v", payload, err)
		}
		if payload, err = table.Payload(t.Context(), 8); err != nil || payload != nil {
			t.Errorf("payload %q, %v", payload, err)
		}
		if headers, err := table.Headers(t.Context(), 7); err != nil || headers != "" {
			t.Errorf("headers %q, %v", headers, err)
		}
		if d, err = table.Show(t.Context(), Filter{IDs: []int64{7}}); err != nil || d.PayloadBytes != int64(len(`{"a": "ä"}`)) {
			t.Errorf("size %+v, %v", d, err)
		}
		delete(cfg.Columns, "created_at")
		_, err = openTable(t, db.DSN, cfg).Events(t.Context(), Filter{Since: time.Now(), Limit: 1})
		if b := fault.AsBlocked(err); b == nil || b.Reason != "table.columns" {
			t.Errorf("--since without created_at: %v", err)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newView(t, db)
		db.Exec(t, "CREATE TABLE other (id int)")
		for name, want := range map[string]string{
			"absent": "table.columns: there is no table public.absent, or this login may not see it; " +
				"correct outbox.table, run cdc-relay migrate up, or grant the login cdc_relay_operator",
			"other": "table.columns: the table public.other lacks event_id, aggregate_type, aggregate_id, event_type, payload, send_status, " +
				"attempts, next_attempt_at, commit_lsn, sent_at, error_code, error_message; add what is missing, or map it with outbox.columns",
		} {
			_, err := Open(t.Context(), v.table.conn, Config{Table: pg.Table{Schema: "public", Name: name}})
			if err == nil || err.Error() != want {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestLockedTable: who is in the way is told, after a moment.
func TestLockedTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newView(t, db)
		if _, err := v.table.conn.Exec(t.Context(), "SET lock_timeout = '50ms'"); err != nil {
			t.Fatal(err)
		}
		locker := db.Conn(t)
		var pid int
		tx, err := locker.Begin(t.Context())
		if err == nil {
			err = tx.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid)
		}
		if err == nil {
			_, err = tx.Exec(t.Context(), "SET application_name = 'psql'; LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
		}
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		want := fmt.Sprintf("table.locked: the table public.outbox is locked by pid %d (psql); wait for its transaction to end, or end it", pid)
		_, err = v.table.Events(t.Context(), Filter{Limit: 1})
		if b := fault.AsBlocked(err); b == nil || b.Error() != want {
			t.Errorf("list: %v\nwant: %s", err, want)
		}
		_, err = v.table.Show(t.Context(), Filter{IDs: []int64{1}})
		if b := fault.AsBlocked(err); b == nil || b.Error() != want {
			t.Errorf("show: %v", err)
		}
	})
}
