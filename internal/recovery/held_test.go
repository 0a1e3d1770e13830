package recovery

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// heldRows are Rows of a fresh outbox that has a column for the priority, and a
// connection of the test's own.
func heldRows(t testing.TB, db *pgtest.DB) (*Rows, *pgx.Conn) {
	t.Helper()
	db.Migrate(t, "public")
	conn := db.Conn(t)
	exec(t, conn, "SET synchronous_commit = off") // many small transactions
	return New(Config{DB: connect(t, db), Table: outboxTable, Slot: "s1", HasPriority: true}), conn
}

// outboxRow is a row to be inserted; due and lsn are SQL.
type outboxRow struct {
	kind, of string // the aggregate's type and id
	status   int
	due, lsn string
	priority int
	payload  []byte
}

func parkedRow(of string, status int, due, lsn string) outboxRow {
	return outboxRow{kind: "t", of: of, status: status, due: due, lsn: lsn}
}

func heldRow(of, lsn string) outboxRow   { return parkedRow(of, 0, "'infinity'", lsn) }
func failedRow(of, lsn string) outboxRow { return parkedRow(of, 3, "'infinity'", lsn) }
func dueRow(of, lsn string) outboxRow    { return parkedRow(of, 0, "'2000-01-01'", lsn) }

// asserter is a *testing.T or a *rapid.T.
type asserter interface {
	Helper()
	Context() context.Context
	Fatal(...any)
}

func (r outboxRow) insert(t asserter, conn *pgx.Conn) (ref event.Ref) {
	t.Helper()
	err := conn.QueryRow(t.Context(), fmt.Sprintf(`INSERT INTO public.outbox
		(aggregate_type, aggregate_id, event_type, send_status, priority, payload, attempts, commit_lsn, next_attempt_at)
		VALUES ($1, $2, 'e', $3, $4, $5, 2, %s, %s) RETURNING id, pg_current_xact_id()::text::bigint`, r.lsn, r.due),
		r.kind, r.of, r.status, r.priority, r.payload).Scan(&ref.ID, &ref.XID)
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// insertAll inserts rows whose ids begin with 1.
func insertAll(t asserter, conn *pgx.Conn, rows ...outboxRow) {
	t.Helper()
	exec(t, conn, "DELETE FROM public.outbox")
	exec(t, conn, "ALTER TABLE public.outbox ALTER id RESTART")
	for _, r := range rows {
		r.insert(t, conn)
	}
}

func exec(t asserter, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// walkParked walks all aggregates in pages.
func walkParked(t asserter, rows *Rows, limit int) (list []event.Aggregate) {
	t.Helper()
	var last event.Aggregate
	for {
		page, err := rows.Parked(t.Context(), last.Type, last.ID, limit)
		if err != nil || len(page) > limit {
			t.Fatal(len(page), err)
		}
		if len(page) == 0 {
			return list
		}
		list = append(list, page...)
		last = page[len(page)-1]
	}
}

func heads(t asserter, rows *Rows, ids ...int64) []event.Aggregate {
	t.Helper()
	list, err := rows.Heads(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// release is what Held returns, as ids.
type release struct {
	IDs   []int64
	Whole bool
}

func readHeld(t asserter, rows *Rows, of string, limit int) release {
	t.Helper()
	events, whole, err := rows.Held(t.Context(), "t", of, limit, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	r := release{Whole: whole}
	for _, e := range events {
		r.IDs = append(r.IDs, e.ID)
	}
	return r
}

func behind(t asserter, rows *Rows, id int64) bool {
	t.Helper()
	found, err := rows.Read(t.Context(), []event.Ref{{ID: id, XID: 1}}, 1)
	if err != nil || len(found) != 1 || found[0].Fate != event.FatePublish {
		t.Fatal("the row is not due:", found, err)
	}
	return found[0].Behind
}

// The first parked row of an aggregate, in all the states of its rows.
var orders = []struct {
	name  string
	rows  []outboxRow // of aggregate a, with ids from 1 on
	first int64       // 0: nothing is parked
	held  bool
	// free are the rows that wait for their release, from the first one on.
	free release
}{
	{"nothing parked", []outboxRow{parkedRow("a", 0, "NULL", "NULL")}, 0, false, release{nil, true}},
	{"one held", []outboxRow{heldRow("a", "'0/5'")}, 1, true, release{[]int64{1}, true}},
	{"held ones", []outboxRow{heldRow("a", "'0/5'"), heldRow("a", "'0/5'"), heldRow("a", "'0/6'")}, 1, true, release{[]int64{1, 2, 3}, true}},
	{"behind a failed one", []outboxRow{failedRow("a", "'0/5'"), heldRow("a", "'0/6'")}, 1, false, release{nil, false}},
	{"behind one that is tried again", []outboxRow{parkedRow("a", 0, "'2100-01-01'", "'0/5'"), heldRow("a", "'0/6'")}, 1, false, release{nil, false}},
	{"by commit, not by id", []outboxRow{failedRow("a", "'0/6'"), heldRow("a", "'0/5'")}, 2, true, release{[]int64{2}, false}},
	{"positions of different length", []outboxRow{heldRow("a", "'1/0'"), heldRow("a", "'0/FFFFFFFF'"), heldRow("a", "'0/9'"), heldRow("a", "'0/10'")}, 3, true,
		release{[]int64{3, 4, 2, 1}, true}},
	{"up to a failed one", []outboxRow{heldRow("a", "'0/5'"), heldRow("a", "'0/6'"), failedRow("a", "'0/7'"), heldRow("a", "'0/8'")}, 1, true,
		release{[]int64{1, 2}, false}},
	{"up to one that is due", []outboxRow{heldRow("a", "'0/5'"), dueRow("a", "'0/6'"), heldRow("a", "'0/7'")}, 1, true, release{[]int64{1}, false}},
	{"failed at the end", []outboxRow{heldRow("a", "'0/5'"), failedRow("a", "'0/6'")}, 1, true, release{[]int64{1}, false}},
	{"a delayed one has no place", []outboxRow{parkedRow("a", 0, "'2100-01-01'", "NULL"), heldRow("a", "'0/5'")}, 2, true, release{[]int64{2}, true}},
	{"one that failed at its consumer has none", []outboxRow{failedRow("a", "NULL"), heldRow("a", "'0/5'")}, 2, true, release{[]int64{2}, true}},
	{"not parked any more", []outboxRow{parkedRow("a", 0, "NULL", "'0/5'"), heldRow("a", "'0/6'")}, 2, true, release{[]int64{2}, true}},
	{"SENT by hand", []outboxRow{parkedRow("a", 2, "'infinity'", "'0/5'"), heldRow("a", "'0/6'")}, 2, true, release{[]int64{2}, true}},
	{"CONSUMED by hand", []outboxRow{parkedRow("a", 4, "'infinity'", "'0/5'")}, 0, false, release{nil, true}},
	{"before all positions", []outboxRow{heldRow("a", "'0/5'"), failedRow("a", "'0/0'")}, 2, false, release{nil, false}},
}

func TestOrderOfParkedRows(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := heldRows(t, db)
		for _, test := range orders {
			insertAll(t, conn, test.rows...)
			heldRow("b", "'0/1'").insert(t, conn) // of another aggregate
			outboxRow{kind: "s", of: "a", status: 3, due: "'infinity'", lsn: "'0/1'"}.insert(t, conn)

			want := []event.Aggregate{{Type: "s", ID: "a", First: int64(len(test.rows) + 2)}}
			if test.first != 0 {
				want = append(want, event.Aggregate{Type: "t", ID: "a", First: test.first, Held: test.held})
			}
			want = append(want, event.Aggregate{Type: "t", ID: "b", First: int64(len(test.rows) + 1), Held: true})
			if diff := gocmp.Diff(want, walkParked(t, rows, 2)); diff != "" {
				t.Errorf("%s: aggregates (-want +got):\n%s", test.name, diff)
			}
			for id := range test.rows {
				want := []event.Aggregate{{Type: "t", ID: "a", First: test.first, Held: test.held}}
				if diff := gocmp.Diff(want, heads(t, rows, int64(id+1))); diff != "" {
					t.Errorf("%s: head of row %d (-want +got):\n%s", test.name, id+1, diff)
				}
			}
			if diff := gocmp.Diff(test.free, readHeld(t, rows, "a", 10)); diff != "" {
				t.Errorf("%s: held rows (-want +got):\n%s", test.name, diff)
			}
		}
	})
}

// Rows at random, against a plain model.
func TestOrderOfRandomRows(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := heldRows(t, db)
		rapid.Check(t, func(t *rapid.T) {
			list := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) outboxRow {
				r := parkedRow(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "of"), 0, "'infinity'",
					rapid.SampledFrom([]string{"'0/5'", "'0/6'", "'1/0'"}).Draw(t, "lsn"))
				switch rapid.IntRange(0, 4).Draw(t, "state") {
				case 0:
					r.status = 3
				case 1:
					r.due = "'2000-01-01'"
				case 2:
					r.due, r.lsn = "'2000-01-01'", "NULL"
				}
				return r
			}), 0, 8).Draw(t, "rows")
			insertAll(t, conn, list...)
			limit := rapid.IntRange(1, 9).Draw(t, "limit")
			checkOrder(t, rows, list, limit)
		})
	})
}

func checkOrder(t *rapid.T, rows *Rows, list []outboxRow, limit int) {
	var want []event.Aggregate
	for _, of := range []string{"a", "b"} {
		var ids []int64 // of the aggregate's parked rows, in order
		for i, r := range list {
			if r.of == of && r.lsn != "NULL" {
				ids = append(ids, int64(i+1))
			}
		}
		slices.SortFunc(ids, func(x, y int64) int { return cmp.Or(cmp.Compare(list[x-1].lsn, list[y-1].lsn), cmp.Compare(x, y)) })
		free := release{}
		for len(free.IDs) < min(len(ids), limit) && list[ids[len(free.IDs)]-1].isHeld() {
			free.IDs = append(free.IDs, ids[len(free.IDs)])
		}
		free.Whole = len(free.IDs) == len(ids)
		if diff := gocmp.Diff(free, readHeld(t, rows, of, limit)); diff != "" {
			t.Fatalf("held rows of %s, limit %d (-want +got):\n%s", of, limit, diff)
		}
		for i, r := range list {
			if r.of == of && r.due == "'2000-01-01'" {
				want := r.lsn != "NULL" && ids[0] != int64(i+1)
				if got := behind(t, rows, int64(i+1)); got != want {
					t.Fatalf("row %d of %s is behind: %t, want %t", i+1, of, got, want)
				}
			}
		}
		if len(ids) > 0 {
			want = append(want, event.Aggregate{Type: "t", ID: of, First: ids[0], Held: list[ids[0]-1].isHeld()})
		}
	}
	if diff := gocmp.Diff(want, walkParked(t, rows, limit)); diff != "" {
		t.Fatalf("aggregates (-want +got):\n%s", diff)
	}
}

func (r outboxRow) isHeld() bool { return r.status == 0 && r.due == "'infinity'" }

func TestParkedGoesOnWhereItEnded(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := heldRows(t, db)
		var want []event.Aggregate
		for i, name := range []string{"a/1", "a/10", "a/2", "b/", "b/ü", "c/%", "c/_"} {
			r := outboxRow{kind: name[:1], of: name[2:] + ".", due: "'infinity'", lsn: "'0/1'", priority: i - 3}
			for range 3 {
				r.insert(t, conn)
			}
			want = append(want, event.Aggregate{Type: r.kind, ID: r.of, Priority: int16(i - 3), First: int64(3*i + 1), Held: true})
		}
		// The order of names is the database's: only the whole list matters.
		byID := func(a, b event.Aggregate) int { return cmp.Compare(a.First, b.First) }
		for limit := range 9 {
			got := walkParked(t, rows, limit+1)
			slices.SortFunc(got, byID)
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Errorf("in pages of %d (-want +got):\n%s", limit+1, diff)
			}
		}
		page, err := rows.Parked(t.Context(), "a", "9", 1) // which is not there
		if err != nil || len(page) != 1 || page[0].Type != "b" {
			t.Errorf("behind the last aggregate of a type: %v, %v; want one of the next type", page, err)
		}
	})
}

func TestHeads(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := heldRows(t, db)
		urgent := heldRow("b", "'0/5'")
		urgent.priority = 7
		insertAll(t, conn, failedRow("a", "'0/5'"), urgent, heldRow("a", "'0/6'"), parkedRow("c", 2, "NULL", "NULL"), heldRow("d", "'0/1'"))
		exec(t, conn, "DELETE FROM public.outbox WHERE id = 5")
		a := event.Aggregate{Type: "t", ID: "a", First: 1}
		b := event.Aggregate{Type: "t", ID: "b", First: 2, Held: true, Priority: 7}
		want := []event.Aggregate{a, b, {}, {Type: "t", ID: "c"}, {}, a, b}
		if diff := gocmp.Diff(want, heads(t, rows, 3, 2, 99, 4, 5, 1, 2)); diff != "" {
			t.Errorf("heads (-want +got):\n%s", diff)
		}
		if list := heads(t, rows); len(list) != 0 {
			t.Errorf("of no row: %v", list)
		}
	})
}

func TestHeldYieldsRows(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := heldRows(t, db)
		r := heldRow("a", "'1/A'")
		r.priority, r.payload = -5, []byte{0, 1, 2}
		insertAll(t, conn, r)
		events, whole, err := rows.Held(t.Context(), "t", "a", 10, 1<<20)
		if err != nil || !whole || len(events) != 1 {
			t.Fatalf("%d rows, whole: %t, %v", len(events), whole, err)
		}
		got := events[0]
		if got.Due != event.DueInfinity() || got.CommitLSN != pglogrepl.LSN(1<<32|10) || got.Attempts != 2 || got.Priority != -5 ||
			got.XID != 0 || got.ID != 1 || got.Bytes == 0 || string(got.AggregateID) != "a" || !bytes.Equal(got.Payload, r.payload) {
			t.Errorf("got %+v", got)
		}
	})
}

func TestHeldIsBounded(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := heldRows(t, db)
		var list []outboxRow
		for i := range 8 {
			r := heldRow("a", "'0/5'")
			r.payload = bytes.Repeat([]byte{byte(i)}, 100_000) // stored compressed
			list = append(list, r)
		}
		insertAll(t, conn, list...)
		for _, test := range []struct {
			limit    int
			maxBytes int64
			want     int
		}{
			{10, 0, 1}, {10, 1, 1}, {10, 100_000, 1}, {10, 100_100, 2}, {10, 250_000, 3}, {10, 1 << 30, 8},
			{0, 1 << 30, 1}, {1, 1 << 30, 1}, {7, 1 << 30, 7}, {8, 1 << 30, 8},
		} {
			events, whole, err := rows.Held(t.Context(), "t", "a", test.limit, test.maxBytes)
			if err != nil || len(events) != test.want || whole != (test.want == 8) {
				t.Errorf("limit %d, %d bytes: %d rows, whole: %t, %v; want %d", test.limit, test.maxBytes, len(events), whole, err, test.want)
			}
			for i, e := range events {
				if !bytes.Equal(e.Payload, list[i].payload) {
					t.Errorf("row %d does not own its payload", e.ID)
				}
			}
		}
	})
}

// What people do to parked rows in psql.
func TestOrderAfterHandsOfPeople(t *testing.T) {
	t.Parallel()
	const skip = `UPDATE public.outbox SET finished_at = now(), next_attempt_at = NULL, commit_lsn = NULL WHERE send_status = 3`
	tests := []struct {
		name string
		sql  string // of a failed row 1 with held rows 2 to 4
		want event.Aggregate
		free release
	}{
		{"nothing", "SELECT", event.Aggregate{First: 1}, release{nil, false}},
		{"skip", skip, event.Aggregate{First: 2, Held: true}, release{[]int64{2, 3, 4}, true}},
		{"the head is deleted", "DELETE FROM public.outbox WHERE id = 1", event.Aggregate{First: 2, Held: true}, release{[]int64{2, 3, 4}, true}},
		{"a held row is deleted", "DELETE FROM public.outbox WHERE id = 2", event.Aggregate{First: 1}, release{nil, false}},
		{"replay", "UPDATE public.outbox SET send_status = 0, next_attempt_at = now(), attempts = 0 WHERE id = 1",
			event.Aggregate{First: 1}, release{nil, false}},
		{"now() on a held row", "UPDATE public.outbox SET next_attempt_at = now() WHERE id = 3", event.Aggregate{First: 1}, release{nil, false}},
		{"now() on a held row, then skip", "UPDATE public.outbox SET next_attempt_at = now() WHERE id = 3; " + skip,
			event.Aggregate{First: 2, Held: true}, release{[]int64{2}, false}},
		{"all skipped or deleted", "DELETE FROM public.outbox WHERE id BETWEEN 2 AND 4; " + skip, event.Aggregate{}, release{nil, true}},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := heldRows(t, db)
		for _, test := range tests {
			insertAll(t, conn, failedRow("a", "'0/5'"), heldRow("a", "'0/6'"), heldRow("a", "'0/7'"), heldRow("a", "'0/8'"),
				parkedRow("a", 2, "NULL", "NULL"))
			db.Exec(t, test.sql)
			test.want.Type, test.want.ID = "t", "a"
			if diff := gocmp.Diff([]event.Aggregate{test.want}, heads(t, rows, 5)); diff != "" {
				t.Errorf("%s: head (-want +got):\n%s", test.name, diff)
			}
			var listed []event.Aggregate
			if test.want.First != 0 {
				listed = append(listed, test.want)
			}
			if diff := gocmp.Diff(listed, walkParked(t, rows, 9)); diff != "" {
				t.Errorf("%s: aggregates (-want +got):\n%s", test.name, diff)
			}
			if diff := gocmp.Diff(test.free, readHeld(t, rows, "a", 9)); diff != "" {
				t.Errorf("%s: held rows (-want +got):\n%s", test.name, diff)
			}
		}
	})
}

// A requeued row is behind while anything parked is before it.
func TestReadSaysWhatIsBehind(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := heldRows(t, db)
		insertAll(t, conn, failedRow("a", "'0/5'"), heldRow("a", "'0/6'"), heldRow("a", "'0/7'"), dueRow("b", "'0/9'"), dueRow("a", "NULL"))
		exec(t, conn, "UPDATE public.outbox SET next_attempt_at = now() WHERE id = 3") // by hand, in the middle
		want := func(when string, third bool) {
			t.Helper()
			for id, want := range map[int64]bool{3: third, 4: false, 5: false} {
				if got := behind(t, rows, id); got != want {
					t.Errorf("%s: row %d is behind: %t, want %t", when, id, got, want)
				}
			}
		}
		want("behind a failed and a held one", true)
		exec(t, conn, "DELETE FROM public.outbox WHERE id = 1")
		want("behind a held one", true)
		exec(t, conn, "UPDATE public.outbox SET send_status = 2, next_attempt_at = NULL, commit_lsn = NULL WHERE id = 2")
		want("behind none", false)
		exec(t, conn, "UPDATE public.outbox SET send_status = 0, next_attempt_at = 'infinity', commit_lsn = '0/7' WHERE id = 2")
		want("behind one of the same transaction", true)
	})
}

// Names, types and padding are the table's own.
func TestParkedInAMappedTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Exec(t, `CREATE SCHEMA "My Schema"; CREATE TABLE "My Schema"."Out.Box" ("Nr" integer PRIMARY KEY, event_id uuid DEFAULT gen_random_uuid(),
			kind varchar(10), "Of" char(4), event_type text DEFAULT 'e', body text, urgency integer, state integer, "retry at" timestamptz, "at LSN" pg_lsn);
			INSERT INTO "My Schema"."Out.Box" (kind, "Of", "Nr", urgency, state, "retry at", "at LSN") VALUES
				('k', 'a', 1, 9, 0, 'infinity', '0/5'), ('k', 'a', 2, NULL, 0, '2000-01-01', '0/6'), ('k', 'bb', 3, NULL, 0, 'infinity', '0/4')`)
		cfg := Config{
			DB: connect(t, db), Table: pg.Table{Schema: "My Schema", Name: "Out.Box"}, HasPriority: true,
			Columns: map[string]string{"id": "Nr", "aggregate_type": "kind", "aggregate_id": "Of", "payload": "body", "priority": "urgency",
				"send_status": "state", "next_attempt_at": "retry at", "commit_lsn": "at LSN"},
		}
		rows := New(cfg)
		// A char(n) is padded in the stream, too.
		a, b := event.Aggregate{Type: "k", ID: "a   ", Priority: 9, First: 1, Held: true}, event.Aggregate{Type: "k", ID: "bb  ", First: 3, Held: true}
		if diff := gocmp.Diff([]event.Aggregate{a, b}, walkParked(t, rows, 1)); diff != "" {
			t.Errorf("aggregates (-want +got):\n%s", diff)
		}
		if diff := gocmp.Diff([]event.Aggregate{b, a}, heads(t, rows, 3, 2)); diff != "" {
			t.Errorf("heads (-want +got):\n%s", diff)
		}
		events, whole, err := rows.Held(t.Context(), "k", "a   ", 9, 1)
		if err != nil || whole || len(events) != 1 || events[0].CommitLSN != 5 || string(events[0].AggregateID) != "a   " {
			t.Errorf("held: %+v, whole: %t, %v", events, whole, err)
		}
		if !behind(t, rows, 2) {
			t.Error("row 2 is not behind row 1")
		}
		db.Exec(t, `ALTER TABLE "My Schema"."Out.Box" DROP COLUMN urgency`)
		cfg.HasPriority = false
		delete(cfg.Columns, "priority")
		a.Priority = 0
		if diff := gocmp.Diff([]event.Aggregate{a, b}, walkParked(t, New(cfg), 9)); diff != "" {
			t.Errorf("aggregates without a priority (-want +got):\n%s", diff)
		}
	})
}
