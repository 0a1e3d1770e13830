package recovery

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func read(t *testing.T, rows *Rows, maxBytes int64, refs ...event.Ref) []event.Found {
	t.Helper()
	found, err := rows.Read(t.Context(), refs, maxBytes)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func fates(found []event.Found) []event.Fate {
	var list []event.Fate
	for _, f := range found {
		list = append(list, f.Fate)
	}
	return list
}

func TestRead(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		gone := insert(t, conn, 0, "2000-01-01")
		if _, err := conn.Exec(t.Context(), "DELETE FROM public.outbox WHERE id = $1", gone.ID); err != nil {
			t.Fatal(err)
		}
		due := insert(t, conn, 0, "2000-01-01")
		cases := []struct {
			name string
			ref  event.Ref
			want event.Fate
		}{
			{"READY and due", due, event.FatePublish},
			{"READY, not parked", insert(t, conn, 0, nil), event.FateSettled},
			{"READY, due later", insert(t, conn, 0, "2100-01-01"), event.FateSettled},
			{"READY, held", insert(t, conn, 0, "infinity"), event.FateSettled},
			{"SENT", insert(t, conn, 2, "2000-01-01"), event.FateSettled},
			{"FAILED", insert(t, conn, 3, "infinity"), event.FateSettled},
			{"deleted", gone, event.FateGone},
			{"never there", event.Ref{ID: 1 << 40, XID: due.XID}, event.FateGone},
			{"the first one again", due, event.FatePublish},
		}
		refs := make([]event.Ref, len(cases))
		for i, c := range cases {
			refs[i] = c.ref
			refs[i].Seq = event.Seq(100 + i)
		}
		found := read(t, rows, 1<<20, refs...)
		if len(found) != len(refs) {
			t.Fatalf("%d answers for %d refs", len(found), len(refs))
		}
		for i, c := range cases {
			if found[i].Fate != c.want || found[i].Event.ID != c.ref.ID {
				t.Errorf("%s: fate %d of row %d, want %d of row %d", c.name, found[i].Fate, found[i].Event.ID, c.want, c.ref.ID)
			}
			if found[i].Fate == event.FatePublish && (found[i].Event.Seq != refs[i].Seq || found[i].Event.XID != c.ref.XID) {
				t.Errorf("%s: sequence number %d, transaction %d", c.name, found[i].Event.Seq, found[i].Event.XID)
			}
		}
		if found := read(t, rows, 1<<20); len(found) != 0 {
			t.Errorf("of no row: %v", found)
		}
	})
}

// A whole row, in each type that its payload may have.
func TestReadYieldsTheRow(t *testing.T) {
	t.Parallel()
	binary := make([]byte, 1_000_000)
	rand.Read(binary)
	for _, test := range []struct {
		typ     string
		payload any
		want    []byte
	}{
		{"bytea", binary, binary},
		{"bytea", []byte{}, []byte{}},
		{"json", `{"b": 1,  "a": "ü"}`, []byte(`{"b": 1,  "a": "ü"}`)},
		{"jsonb", `{"b": 1,  "a": "ü"}`, []byte(`{"a": "ü", "b": 1}`)},
		{"text", "ü", []byte("ü")},
		{"text", "", []byte{}},
		{"varchar", "v", []byte("v")},
	} {
		t.Run(fmt.Sprintf("%s of %d bytes", test.typ, len(test.want)), func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				rows, conn := setup(t, db)
				if test.typ != "bytea" {
					db.Exec(t, "DROP VIEW public.outbox_readable; ALTER TABLE public.outbox DROP COLUMN payload; ALTER TABLE public.outbox ADD payload "+test.typ)
				}
				var ref event.Ref
				err := conn.QueryRow(t.Context(), `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, headers,
						content_type, topic, priority, created_at, next_attempt_at, attempts, commit_lsn, event_id)
					VALUES ('type', 'id', 'happened', $1, '{"a": "b"}', 'text/plain', 'topic', 7, '2020-02-02T02:02:02.000002Z',
						'2021-01-01T00:00:00.000001Z', 3, '1/A', '00000000-0000-0000-0000-0000000000ff')
					RETURNING id, pg_current_xact_id()::text::bigint`, test.payload).Scan(&ref.ID, &ref.XID)
				if err != nil {
					t.Fatal(err)
				}
				got := read(t, rows, 1, ref)[0].Event
				want := event.Event{
					Ref:     event.Ref{ID: ref.ID, XID: ref.XID, CommitLSN: 1<<32 | 10, Due: event.DueAtMicros(1609459200000001), Attempts: 3},
					EventID: [16]byte{15: 0xff}, AggregateType: []byte("type"), AggregateID: []byte("id"), EventType: []byte("happened"),
					ContentType: []byte("text/plain"), Headers: []byte(`{"a": "b"}`), Topic: []byte("topic"),
					CreatedAt: 1580608922000002, Priority: 7,
				}
				want.Bytes = int32(len(test.want) + len("typeidhappenedtext/plaintopic") + len(want.Headers))
				if !bytes.Equal(got.Payload, test.want) || got.PayloadNull {
					t.Errorf("payload of %d bytes, NULL: %t; want the %d bytes as written", len(got.Payload), got.PayloadNull, len(test.want))
				}
				got.Payload = nil
				if diff := cmp.Diff(want, got, cmp.AllowUnexported(event.Due{})); diff != "" {
					t.Errorf("event (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Columns of other names and types, and none where the outbox has a default.
func TestReadInAMappedTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Exec(t, `CREATE SCHEMA "My Schema"; CREATE TABLE "My Schema"."Out.Box" ("Nr" integer PRIMARY KEY, event_id uuid DEFAULT gen_random_uuid(),
			kind varchar(10), aggregate_id char(2), event_type text, body jsonb, send_status integer DEFAULT 0, "retry at" timestamptz, commit_lsn pg_lsn);
			INSERT INTO "My Schema"."Out.Box" VALUES (7, DEFAULT, 'k', 'ab', 'e', NULL, 0, '2000-01-01')`)
		rows := New(Config{
			DB: connect(t, db), Table: pg.Table{Schema: "My Schema", Name: "Out.Box"},
			Columns: map[string]string{"id": "Nr", "aggregate_type": "kind", "payload": "body", "next_attempt_at": "retry at"},
		})
		got := read(t, rows, 1<<20, event.Ref{ID: 7})[0]
		if got.Fate != event.FatePublish || string(got.Event.AggregateType) != "k" || !got.Event.PayloadNull ||
			string(got.Event.ContentType) != "application/json" || got.Event.CreatedAt == 0 || got.Event.CommitLSN != 0 {
			t.Errorf("got %+v", got)
		}
	})
}

func TestReadEndsEarly(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		payloads := map[string][]byte{"compressible": bytes.Repeat([]byte("x"), 100_000), "random": make([]byte, 100_000)}
		rand.Read(payloads["random"])
		for name, payload := range payloads {
			var refs []event.Ref
			for range 8 {
				var ref event.Ref
				err := conn.QueryRow(t.Context(), `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, next_attempt_at)
					VALUES ('t', 'a', 'e', $1, now()) RETURNING id, pg_current_xact_id()::text::bigint`, payload).Scan(&ref.ID, &ref.XID)
				if err != nil {
					t.Fatal(err)
				}
				refs = append(refs, ref)
			}
			for maxBytes, want := range map[int64]int{0: 1, 1: 1, 100_000: 1, 100_100: 2, 250_000: 3, 10_000_000: 8} {
				if got := len(read(t, rows, maxBytes, refs...)); got != want {
					t.Errorf("%s payloads: %d rows for %d bytes, want %d", name, got, maxBytes, want)
				}
			}
		}
	})
}

// The WAL of a transaction may arrive before its commit is visible: then the
// row is neither gone nor as it was before.
func TestReadWaitsForTheTransaction(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		parked := insert(t, conn, 0, "2100-01-01")
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		inserted := insert(t, tx, 0, "2000-01-01")
		if _, err := tx.Exec(t.Context(), "UPDATE public.outbox SET next_attempt_at = now() WHERE id = $1", parked.ID); err != nil {
			t.Fatal(err)
		}
		parked.XID = inserted.XID
		asked := make(chan struct{})
		rows.db = &notifying{DB: rows.db, asked: asked}
		got := make(chan []event.Found)
		go func() {
			found, err := rows.Read(t.Context(), []event.Ref{parked, inserted}, 1<<20)
			if err != nil {
				t.Error(err)
			}
			got <- found
		}()
		for range 3 { // looks again and again
			select {
			case <-asked:
			case <-got: // an open transaction would stall the whole server
				t.Fatal("Read did not wait for the transaction")
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		go func() {
			for range asked {
			}
		}()
		found := <-got
		close(asked)
		if diff := cmp.Diff([]event.Fate{event.FatePublish, event.FatePublish}, fates(found)); diff != "" {
			t.Errorf("fates (-want +got):\n%s", diff)
		}
	})
}

// notifying tells of each question for visibility.
type notifying struct {
	DB
	asked chan struct{}
}

func (n *notifying) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	row := n.DB.QueryRow(ctx, sql, args...)
	n.asked <- struct{}{}
	return row
}

func TestReadOfAnUnreadableRowIsForAPerson(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		db.Exec(t, "ALTER TABLE public.outbox ALTER event_id DROP NOT NULL, DROP CONSTRAINT outbox_event_id_key")
		ref := insert(t, conn, 0, "2000-01-01")
		db.Exec(t, "UPDATE public.outbox SET event_id = NULL")
		_, err := rows.Read(t.Context(), []event.Ref{ref}, 1)
		if b := fault.AsBlocked(err); b == nil || b.Reason != "table.columns" || !strings.Contains(b.What, "event_id") {
			t.Errorf("error %v, want blocked: table.columns, about event_id", err)
		}
	})
}

// A column that comes or goes must not break the statement for good.
func TestReadAfterAChangeOfTheTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		ref := insert(t, conn, 0, "2000-01-01")
		read(t, rows, 1, ref)
		db.Exec(t, "DROP VIEW public.outbox_readable; ALTER TABLE public.outbox DROP COLUMN topic; ALTER TABLE public.outbox ADD x int DEFAULT 1")
		if _, err := rows.Read(t.Context(), []event.Ref{ref}, 1); err != nil { // the plan that is out of date
			t.Log("as expected:", err)
		}
		if got := read(t, rows, 1, ref); got[0].Fate != event.FatePublish || string(got[0].Event.AggregateID) != "a" {
			t.Errorf("got %+v", got[0])
		}
	})
}

// BenchmarkRead shows the cost of a requeued row.
func BenchmarkRead(b *testing.B) {
	for _, version := range pgtest.Versions {
		b.Run(fmt.Sprintf("pg%d", version), func(b *testing.B) {
			rows, conn := setup(b, pgtest.New(b, version))
			fill(b, conn, 20_000)
			if _, err := conn.Exec(b.Context(), "UPDATE public.outbox SET next_attempt_at = now()"); err != nil {
				b.Fatal(err)
			}
			const batch = 512
			refs := make([]event.Ref, batch)
			next := 0
			b.ReportAllocs()
			for b.Loop() {
				for i := range refs {
					refs[i] = event.Ref{ID: int64(1 + (next+i)%20_000), XID: 1}
				}
				next += batch
				if found, err := rows.Read(b.Context(), refs, 1<<20); err != nil || len(found) != batch {
					b.Fatal(len(found), err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch), "ns/row")
		})
	}
}

// A plan that was made while the table was empty must not read all of it later.
func TestReadNeverScansTheTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := setup(t, db)
		for range 10 { // more often than custom plans are tried
			read(t, rows, 1<<20, event.Ref{ID: 1, XID: 1})
		}
		db.Exec(t, `INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, next_attempt_at)
			SELECT 't', 'a', 'e', convert_to(repeat('x', 200), 'UTF8'), CASE WHEN i % 2 = 0 THEN now() END FROM generate_series(1, 20000) i`)
		refs := make([]event.Ref, 300)
		for i := range refs {
			refs[i] = event.Ref{ID: int64(1 + i*67), XID: 1} // every other one due, the last ones gone
		}
		for range 10 {
			read(t, rows, 1<<20, refs...)
		}
		flushStatistics(t, rows.db.(*pgx.Conn))
		var scanned, found int
		err := conn.QueryRow(t.Context(), "SELECT seq_tup_read, idx_scan FROM pg_stat_user_tables WHERE relname = 'outbox'").
			Scan(&scanned, &found)
		if err != nil {
			t.Fatal(err)
		}
		if scanned > 0 || found < 10*300 {
			t.Errorf("%d rows read by scans of the table and %d look-ups in an index, want none and at least %d", scanned, found, 10*300)
		}
	})
}
