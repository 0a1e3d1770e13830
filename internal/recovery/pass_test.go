package recovery

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// passRows are Rows that can open a pass; one statement walks over 5 rows.
func passRows(t *testing.T, db *pgtest.DB) (*Rows, *pgx.Conn) {
	t.Helper()
	db.Migrate(t, "public")
	rows := New(Config{
		DB: connect(t, db), Table: outboxTable, Slot: "s1", Page: 5,
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			conn, _, err := pg.Connect(ctx, pg.Options{DSN: db.DSN}, nil)
			return conn, err
		},
	})
	return rows, db.Conn(t)
}

func openPass(t *testing.T, rows *Rows) *Pass {
	t.Helper()
	pass, err := rows.OpenPass(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pass.Close)
	return pass
}

// drainPass reads to the end and returns the ids of each page.
func drainPass(t *testing.T, pass *Pass, maxBytes int64) (pages [][]int64) {
	t.Helper()
	for {
		page, err := pass.Next(t.Context(), maxBytes)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			return pages
		}
		var ids []int64
		for _, e := range page {
			ids = append(ids, e.ID)
		}
		pages = append(pages, ids)
	}
}

func currentLSN(t *testing.T, conn *pgx.Conn) pglogrepl.LSN {
	t.Helper()
	var text string
	if err := conn.QueryRow(t.Context(), "SELECT pg_current_wal_insert_lsn()::text").Scan(&text); err != nil {
		t.Fatal(err)
	}
	lsn, err := pglogrepl.ParseLSN(text)
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

func TestPass(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := passRows(t, db)
		var want []int64
		for i := range 60 {
			switch {
			case i%10 == 3: // and long runs of nothing to publish
				want = append(want, insert(t, conn, 0, nil).ID)
			case i%10 == 4:
				insert(t, conn, 0, "2000-01-01")
			case i%10 == 5:
				insert(t, conn, 0, "infinity")
			default:
				insert(t, conn, int(i%2)+2, nil)
			}
		}
		begin := currentLSN(t, conn)
		pass := openPass(t, rows)
		insert(t, conn, 0, nil) // not in the snapshot
		if _, err := conn.Exec(t.Context(), "UPDATE public.outbox SET send_status = 2 WHERE id = $1", want[3]); err != nil {
			t.Fatal(err)
		}
		first, err := pass.Next(t.Context(), 1<<20)
		if err != nil || len(first) == 0 {
			t.Fatalf("first page: %v, %v", first, err)
		}
		e := first[0]
		if e.CommitLSN < begin || e.CommitLSN > currentLSN(t, conn) || e.XID != 0 || !e.Due.IsNull() || string(e.AggregateID) != "a" {
			t.Errorf("an event of the pass: %+v, with a position since %s", e, begin)
		}
		got := []int64{}
		for _, e := range first {
			got = append(got, e.ID)
		}
		got = append(got, slices.Concat(drainPass(t, pass, 1<<20)...)...)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("ids of the pass (-want +got):\n%s", diff)
		}
	})
}

// TestPassOfTombstones: without payloads the size before a row tells none of a
// page's rows apart, and where the server sorted them on disk in many runs, as
// with little work_mem, they came in another order: an aggregate's events were
// exchanged, and where a page ended among them, others were left out.
func TestPassOfTombstones(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, _ := passRows(t, db)
		rows.cfg.Page = 5000
		db.Exec(t, "ALTER DATABASE "+db.Name+" SET work_mem = '64kB'")
		db.Exec(t, `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, headers)
			SELECT 'order', 'a', 'deleted', jsonb_build_object('trace', repeat('0123456789', 180)) FROM generate_series(1, 5000)`)
		got := slices.Concat(drainPass(t, openPass(t, rows), 1<<20)...)
		if len(got) != 5000 || !slices.IsSorted(got) {
			t.Errorf("%d rows of 5000, by id: %t", len(got), slices.IsSorted(got))
		}
	})
}

func TestPassIsBoundedByBytes(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := passRows(t, db)
		_, err := conn.Exec(t.Context(), `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
			SELECT 't', 'a', 'e', convert_to(repeat(i::text, 10000), 'UTF8') FROM generate_series(1, 7) i`)
		if err != nil {
			t.Fatal(err)
		}
		page, err := openPass(t, rows).Next(t.Context(), 1<<20)
		if err != nil || len(page) != rows.cfg.Page {
			t.Fatalf("a page of %d rows, %v", len(page), err)
		}
		for _, e := range page {
			if want := bytes.Repeat(fmt.Append(nil, e.ID), 10_000); !bytes.Equal(e.Payload, want) {
				t.Errorf("row %d does not own its payload", e.ID)
			}
		}
		want := [][]int64{{1, 2, 3}, {4, 5, 6}, {7}}
		if diff := cmp.Diff(want, drainPass(t, openPass(t, rows), 25_000)); diff != "" {
			t.Errorf("pages (-want +got):\n%s", diff)
		}
		want = [][]int64{{1}, {2}, {3}, {4}, {5}, {6}, {7}}
		if diff := cmp.Diff(want, drainPass(t, openPass(t, rows), 0)); diff != "" {
			t.Errorf("pages of no byte (-want +got):\n%s", diff)
		}
	})
}

func TestPassOverAnEmptyTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, _ := passRows(t, db)
		if pages := drainPass(t, openPass(t, rows), 1); pages != nil {
			t.Errorf("pages %v, want none", pages)
		}
	})
}

// What the snapshot shows is flushed when the pass begins: an asynchronous
// commit is visible long before.
func TestPassWaitsForTheFlush(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		cluster := pgtest.StartCluster(t, version, "wal_writer_delay = 10s")
		db := cluster.New(t)
		rows, conn := passRows(t, db)
		if _, err := conn.Exec(t.Context(), "SET synchronous_commit = off"); err != nil {
			t.Fatal(err)
		}
		insert(t, conn, 0, nil)
		end := currentLSN(t, conn)
		pages := drainPass(t, openPass(t, rows), 1)
		var flushed bool
		err := conn.QueryRow(t.Context(), "SELECT pg_current_wal_flush_lsn() >= $1::text::pg_lsn", end.String()).Scan(&flushed)
		if err != nil || !flushed || len(pages) != 1 {
			t.Errorf("pg%d: pages %v; flushed up to %s: %t, %v", version, pages, end, flushed, err)
		}
	}
}

// A row of a pass is known to be visible: SENT is written like any other.
func TestLookupOfAPassRow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		there := insert(t, conn, 0, nil)
		got := lookup(t, rows, []event.Ref{{ID: there.ID}, {ID: 1 << 40}})
		if diff := cmp.Diff([]event.Fate{event.FatePublish, event.FateGone}, got); diff != "" {
			t.Errorf("fates without a transaction id (-want +got):\n%s", diff)
		}
	})
}
