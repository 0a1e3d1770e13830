package recovery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var outboxTable = pg.Table{Schema: "public", Name: "outbox"}

// setup returns the Rows of a fresh outbox, and a connection of the test's own.
func setup(t testing.TB, db *pgtest.DB) (*Rows, *pgx.Conn) {
	t.Helper()
	db.Migrate(t, "public")
	return New(Config{DB: connect(t, db), Table: outboxTable, Slot: "s1"}), db.Conn(t)
}

// connect connects as the relay does.
func connect(t testing.TB, db *pgtest.DB) *pgx.Conn {
	t.Helper()
	conn, _, err := pg.Connect(t.Context(), pg.Options{DSN: db.DSN}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

const insertSQL = `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, send_status, next_attempt_at, commit_lsn)
	VALUES ('t', 'a', 'e', $1, $2::text::timestamptz, '0/1') RETURNING id, pg_current_xact_id()::text::bigint`

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func insert(t *testing.T, conn querier, status int, due any) event.Ref {
	t.Helper()
	var ref event.Ref
	if err := conn.QueryRow(t.Context(), insertSQL, status, due).Scan(&ref.ID, &ref.XID); err != nil {
		t.Fatal(err)
	}
	return ref
}

func TestLookup(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		other := db.Conn(t)
		tx, err := other.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ready := insert(t, conn, 0, nil)
		deleted := insert(t, conn, 0, nil)
		if _, err := conn.Exec(t.Context(), "DELETE FROM public.outbox WHERE id = $1", deleted.ID); err != nil {
			t.Fatal(err)
		}
		cases := []struct {
			name string
			ref  event.Ref
			want event.Fate
		}{
			{"READY", ready, event.FatePublish},
			{"READY, not visible yet", insert(t, tx, 0, nil), event.FatePublish},
			{"SENT by a transaction that is not visible yet", insert(t, tx, 2, nil), event.FatePublish},
			{"a transaction that the server has not seen", event.Ref{ID: 1 << 40, XID: 1 << 40}, event.FatePublish},
			{"READY, tried again later", insert(t, conn, 0, "2100-01-01"), event.FateSettled},
			{"READY, requeued", insert(t, conn, 0, "2000-01-01"), event.FateSettled},
			{"READY, held", insert(t, conn, 0, "infinity"), event.FateSettled},
			{"INPROGRESS", insert(t, conn, 1, nil), event.FateSettled},
			{"SENT", insert(t, conn, 2, nil), event.FateSettled},
			{"SENT, delayed by its consumer", insert(t, conn, 2, "2100-01-01"), event.FateSettled},
			{"FAILED", insert(t, conn, 3, "infinity"), event.FateSettled},
			{"FAILED, waived", insert(t, conn, 3, nil), event.FateSettled},
			{"CONSUMED", insert(t, conn, 4, nil), event.FateSettled},
			{"CONSUMING", insert(t, conn, 5, nil), event.FateSettled},
			{"deleted", deleted, event.FateGone},
			{"a second time READY", ready, event.FatePublish},
			{"a second time deleted", deleted, event.FateGone},
		}
		for range 5 {
			rand.Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
			refs := make([]event.Ref, len(cases))
			for i, c := range cases {
				refs[i] = c.ref
			}
			got := lookup(t, rows, refs)
			for i, c := range cases {
				if got[i] != c.want {
					t.Errorf("%s: fate %d, want %d", c.name, got[i], c.want)
				}
			}
		}
		for _, c := range cases {
			if got := lookup(t, rows, []event.Ref{c.ref}); got[0] != c.want {
				t.Errorf("%s, alone: fate %d, want %d", c.name, got[0], c.want)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			want := c.want
			if strings.HasPrefix(c.name, "SENT by a transaction") {
				want = event.FateSettled
			}
			if got := lookup(t, rows, []event.Ref{c.ref}); got[0] != want {
				t.Errorf("%s, after the open transaction's commit: fate %d, want %d", c.name, got[0], want)
			}
		}
		if got := lookup(t, rows, nil); len(got) != 0 {
			t.Errorf("fates of nothing: %v", got)
		}
	})
}

func lookup(t testing.TB, rows *Rows, refs []event.Ref) []event.Fate {
	t.Helper()
	fates, err := rows.Lookup(t.Context(), refs)
	if err != nil {
		t.Fatal(err)
	}
	if len(fates) != len(refs) {
		t.Fatalf("%d fates for %d refs", len(fates), len(refs))
	}
	return fates
}

// A plan that was made while the table was empty must not read all of it later.
func TestLookupNeverScansTheTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		absent := []event.Ref{{ID: 1, XID: 1}, {ID: 2, XID: 1}}
		for range 10 { // more often than custom plans are tried
			lookup(t, rows, absent)
		}
		fill(t, conn, 20_000)
		refs := make([]event.Ref, 300)
		for i := range refs {
			refs[i] = event.Ref{ID: int64(1 + i*50), XID: 1}
		}
		refs[7].ID = 1 << 40 // gone: the second statement runs, too
		for range 10 {
			lookup(t, rows, refs)
		}
		session := rows.db.(*pgx.Conn)
		flushStatistics(t, session)
		var scanned, fetched int
		err := conn.QueryRow(t.Context(), "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'outbox'").
			Scan(&scanned, &fetched)
		if err != nil {
			t.Fatal(err)
		}
		if scanned > 0 || fetched < 10*299 {
			t.Errorf("%d rows read by scans of the table and %d by an index, want 0 and at least %d", scanned, fetched, 10*299)
		}
		var left string
		if err := session.QueryRow(t.Context(), "SHOW enable_seqscan").Scan(&left); err != nil || left != "on" {
			t.Errorf("enable_seqscan = %s after a lookup (%v), want on", left, err)
		}
	})
}

func fill(t testing.TB, conn *pgx.Conn, n int) {
	t.Helper()
	_, err := conn.Exec(t.Context(), `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
		SELECT 't', 'a' || i % 100, 'e', convert_to(repeat('x', 200), 'UTF8') FROM generate_series(1, $1::int) i`, n)
	if err != nil {
		t.Fatal(err)
	}
}

func TestLookupInAMappedTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Exec(t, `CREATE SCHEMA "My Schema"; CREATE TABLE "My Schema"."Out.Box" ("Nr" integer PRIMARY KEY, state integer, "retry at" timestamptz);
			INSERT INTO "My Schema"."Out.Box" VALUES (1, 0, NULL), (2, 2, NULL), (3, 0, now())`)
		rows := New(Config{
			DB:      connect(t, db),
			Table:   pg.Table{Schema: "My Schema", Name: "Out.Box"},
			Columns: map[string]string{"id": "Nr", "send_status": "state", "next_attempt_at": "retry at"},
		})
		got := lookup(t, rows, []event.Ref{{ID: 1, XID: 1}, {ID: 2, XID: 1}, {ID: 3, XID: 1}, {ID: 4, XID: 1}})
		want := []event.Fate{event.FatePublish, event.FateSettled, event.FateSettled, event.FateGone}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("fates (-want +got):\n%s", diff)
		}
	})
}

func TestLookupReportsErrors(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows := New(Config{DB: connect(t, db), Table: outboxTable}) // which is not there
		if _, err := rows.Lookup(t.Context(), []event.Ref{{ID: 1}}); pg.Code(err) != pg.CodeUndefinedTable {
			t.Errorf("Lookup: %v, want %s", err, pg.CodeUndefinedTable)
		}
	})
}

func TestProbeComesThroughTheSlot(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		slot := "probe_" + db.Name
		if _, err := conn.Exec(t.Context(), "SELECT pg_create_logical_replication_slot($1, 'test_decoding')", slot); err != nil {
			t.Fatal(err)
		}
		id := [16]byte{0: 0xc0, 1: 0x1d, 15: 0x0f}
		if err := rows.Probe(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		result, err := conn.Query(t.Context(), "SELECT data FROM pg_logical_slot_peek_changes($1, NULL, NULL)", slot)
		if err != nil {
			t.Fatal(err)
		}
		changes, err := pgx.CollectRows(result, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		want := "message: transactional: 1 prefix: cdc-relay-probe/s1, sz: 36 content:c01d0000-0000-0000-0000-00000000000f"
		if !slices.Contains(changes, want) {
			t.Errorf("in the slot: %q, want among them %q", changes, want)
		}
	})
}

func TestXMax(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		before := insert(t, conn, 0, nil).XID
		xmax, err := rows.XMax(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		after := insert(t, conn, 0, nil).XID
		if xmax <= before || xmax > after {
			t.Errorf("xmax = %d, want above %d and at most %d", xmax, before, after)
		}
	})
}

func TestBigintsAreEncodedWithoutAllocations(t *testing.T) {
	m := pgtype.NewMap()
	buf := make([]byte, 0, 1<<16)
	encode := func(n int) float64 {
		ids := make(bigints, n)
		for i := range ids {
			ids[i] = int64(i) << 20
		}
		return testing.AllocsPerRun(100, func() {
			var err error
			if buf, err = m.Encode(pgtype.Int8ArrayOID, pgtype.BinaryFormatCode, ids, buf[:0]); err != nil {
				t.Fatal(err)
			}
		})
	}
	if one, many := encode(1), encode(1000); many > one {
		t.Errorf("%v allocations for 1000 ids, %v for one", many, one)
	}
}

// BenchmarkLookup shows the cost of an event of a backlog (all READY), and of
// one that turns out to be settled.
func BenchmarkLookup(b *testing.B) {
	for _, version := range pgtest.Versions {
		for _, status := range []string{"READY", "SENT"} {
			b.Run(fmt.Sprintf("pg%d/%s", version, status), func(b *testing.B) {
				const total, batch = 50_000, 1000
				rows, conn := setup(b, pgtest.New(b, version))
				fill(b, conn, total)
				if status == "SENT" {
					if _, err := conn.Exec(b.Context(), "UPDATE public.outbox SET send_status = 2"); err != nil {
						b.Fatal(err)
					}
				}
				refs := make([]event.Ref, batch)
				next := 0
				b.ReportAllocs()
				for b.Loop() {
					for i := range refs {
						refs[i] = event.Ref{ID: int64(1 + (next+i)%total), XID: 1}
					}
					next += batch
					lookup(b, rows, refs)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/event")
			})
		}
	}
}
