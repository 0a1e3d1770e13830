package retrysched

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

var owner = [16]byte{15: 7}

// setup returns the table of the leader under epoch 3, and a connection of the
// test's own.
func setup(t testing.TB, db *pgtest.DB, change func(*Config)) (*database, *pgx.Conn) {
	t.Helper()
	db.Migrate(t, "public")
	db.Exec(t, `INSERT INTO public.cdc_relay_slot VALUES ('s1', 3, '00000000-0000-0000-0000-000000000007')`)
	cfg := Config{
		DB: connect(t, db), Table: pg.Table{Schema: "public", Name: "outbox"}, HasPriority: true,
		Slot: "s1", Epoch: 3, Owner: owner, Batch: 100,
	}
	if change != nil {
		change(&cfg)
	}
	return newDatabase(cfg), db.Conn(t)
}

func connect(t testing.TB, db *pgtest.DB) *pgx.Conn {
	t.Helper()
	conn, _, err := pg.Connect(t.Context(), pg.Options{DSN: db.DSN}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// row is one of the outbox. due and lsn are SQL; of is the aggregate's id, and
// kind its type if that is not t.
type row struct {
	kind, of string
	status   int
	due      string
	lsn      string
	priority int
	attempts int
}

func (r row) insert(t testing.TB, conn *pgx.Conn) (id int64) {
	t.Helper()
	err := conn.QueryRow(t.Context(), fmt.Sprintf(`INSERT INTO public.outbox
		(aggregate_type, aggregate_id, event_type, send_status, priority, attempts, commit_lsn, next_attempt_at)
		VALUES ($1, $2, 'e', $3, $4, $5, %s, %s) RETURNING id`, cmp.Or(r.lsn, "NULL"), r.due),
		cmp.Or(r.kind, "t"), cmp.Or(r.of, "a"), r.status, r.priority, r.attempts).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func requeue(t testing.TB, d *database, except ...int64) []requeued {
	t.Helper()
	rows, err := d.requeue(t.Context(), append([]int64{}, except...)) // NULL would be no list
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(rows, func(a, b requeued) int { return int(a.id - b.id) })
	return rows
}

func TestRequeue(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d, conn := setup(t, db, nil)
		db.Exec(t, fmt.Sprintf("SELECT pg_create_logical_replication_slot('requeue_%s', 'test_decoding')", db.Name))
		retried := row{due: "now() - interval '1 s'", attempts: 3}.insert(t, conn)
		delayed := row{due: "now() - interval '1 h'"}.insert(t, conn)
		replayed := row{due: "now() - interval '1 s'", lsn: "'0/1'"}.insert(t, conn)
		inFlight := row{due: "now()"}.insert(t, conn)
		for _, r := range []row{
			{due: "NULL"}, {due: "now() + interval '1 h'"}, {due: "'infinity'", lsn: "'0/1'"},
			{status: 2, due: "now() - interval '1 h'"}, {status: 3, due: "'infinity'"}, {status: 5, due: "now() - interval '1 h'"},
		} {
			r.insert(t, conn)
		}
		locked := row{due: "now()"}.insert(t, conn)
		tx, err := db.Conn(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT 1 FROM public.outbox WHERE id = $1 FOR UPDATE", locked); err != nil {
			t.Fatal(err)
		}
		before := dues(t, conn)
		want := []requeued{{retried, true}, {delayed, false}, {replayed, true}}
		if diff := gocmp.Diff(want, requeue(t, d, inFlight), gocmp.AllowUnexported(requeued{})); diff != "" {
			t.Errorf("requeued (-want +got):\n%s", diff)
		}
		if diff := gocmp.Diff(before, dues(t, conn)); diff != "" {
			t.Errorf("due times (-before +after):\n%s", diff)
		}
		if diff := gocmp.Diff([]int64{retried, delayed, replayed}, messages(t, conn)); diff != "" {
			t.Errorf("messages in the slot (-want +got):\n%s", diff)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.cfg.Epoch++
		if rows := requeue(t, d); len(rows) != 0 {
			t.Errorf("under another epoch: %v", rows)
		}
	})
}

// dues are the due times of all rows, by id.
func dues(t testing.TB, conn *pgx.Conn) []string {
	t.Helper()
	return collect[string](t, conn, "SELECT coalesce(next_attempt_at::text, '') FROM public.outbox ORDER BY id")
}

// messages are the ids of the trigger's messages in the test's slot.
func messages(t testing.TB, conn *pgx.Conn) []int64 {
	t.Helper()
	return collect[int64](t, conn, `SELECT substring(data FROM 'content:(\d+)$')::bigint
		FROM pg_logical_slot_get_changes('requeue_' || current_database(), NULL, NULL)
		WHERE data LIKE 'message: transactional: 1 prefix: cdc-relay/public.outbox,%' ORDER BY 1`)
}

func collect[T any](t testing.TB, conn *pgx.Conn, sql string) []T {
	t.Helper()
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Higher priority first, then what has been due longest.
func TestRequeueInOrder(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d, conn := setup(t, db, func(c *Config) { c.Batch = 2 })
		var ids []int64
		for _, r := range []row{
			{due: "now() - interval '1 h'"}, {due: "now()", priority: 5}, {due: "now() - interval '2 h'"}, {due: "now() - interval '1 s'", priority: 5},
		} {
			ids = append(ids, r.insert(t, conn))
		}
		var got [][]int64
		var done []int64
		for range 3 {
			var batch []int64
			for _, r := range requeue(t, d, done...) {
				batch = append(batch, r.id)
			}
			got, done = append(got, batch), append(done, batch...)
		}
		if diff := gocmp.Diff([][]int64{{ids[1], ids[3]}, {ids[0], ids[2]}, nil}, got); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
	})
}

func TestRequeueInAMappedTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Exec(t, `CREATE SCHEMA "My Schema";
			CREATE TABLE "My Schema".cdc_relay_slot (slot text, epoch bigint, owner uuid);
			INSERT INTO "My Schema".cdc_relay_slot VALUES ('s1', 3, '00000000-0000-0000-0000-000000000007');
			CREATE TABLE "My Schema"."Out.Box" ("Nr" integer PRIMARY KEY, kind varchar(9), "Of" char(3), send_status smallint, attempts integer,
				next_attempt_at timestamptz, commit_lsn pg_lsn);
			INSERT INTO "My Schema"."Out.Box" VALUES (7, 'k', 'a', 0, 1, '2000-01-01', '0/7'), (8, 'k', 'a', 0, 1, '2000-01-01', '0/6'),
				(9, 'k', 'b', 0, NULL, '2000-01-01', NULL), (10, 'free', 'a', 0, 0, '2000-01-01', '0/7'), (11, 'free', 'a', 0, 0, '2000-01-01', '0/6')`)
		d, _ := setup(t, db, func(c *Config) {
			c.Table, c.HasPriority, c.Columns = pg.Table{Schema: "My Schema", Name: "Out.Box"}, false, map[string]string{"id": "Nr", "aggregate_type": "kind", "aggregate_id": "Of"}
			c.Block, c.Except = true, []string{"free"}
		})
		if diff := gocmp.Diff([]requeued{{8, true}, {9, false}, {10, true}, {11, true}}, requeue(t, d), gocmp.AllowUnexported(requeued{})); diff != "" {
			t.Errorf("requeued (-want +got):\n%s", diff)
		}
	})
}

func TestPositions(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		slot := "positions_" + db.Name
		d, conn := setup(t, db, func(c *Config) { c.Slot = slot })
		end, confirmed, err := d.positions(t.Context())
		if err != nil || end == 0 || confirmed != 0 {
			t.Errorf("without a slot: end %s, confirmed %s, %v", end, confirmed, err)
		}
		if _, err := conn.Exec(t.Context(), "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot); err != nil {
			t.Fatal(err)
		}
		row{due: "NULL"}.insert(t, conn)
		end, confirmed, err = d.positions(t.Context())
		if err != nil || confirmed == 0 || end <= confirmed {
			t.Errorf("end %s, confirmed %s, %v; want the slot behind the end", end, confirmed, err)
		}
	})
}

// parked fills the table with rows that wait, all of them due or held, and
// lets the statistics say that it is empty.
func parked(t testing.TB, db *pgtest.DB, conn *pgx.Conn, n int, due string) {
	t.Helper()
	db.Exec(t, "ALTER TABLE public.outbox SET (autovacuum_enabled = off); ANALYZE public.outbox")
	_, err := conn.Exec(t.Context(), fmt.Sprintf(`INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, commit_lsn, next_attempt_at)
		SELECT 't', 'a' || i, 'e', convert_to(repeat('x', 200), 'UTF8'), '0/1', %s FROM generate_series(1, $1::int) i`, due), n)
	if err != nil {
		t.Fatal(err)
	}
}

// The due rows are found through the index although the statistics are stale
// and nearly all parked rows are not due.
func TestRequeueNeverScansTheTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d, conn := setup(t, db, nil)
		for range 10 { // more often than custom plans are tried
			requeue(t, d)
		}
		parked(t, db, conn, 20_000, "'infinity'")
		for range 5 {
			row{due: "now()"}.insert(t, conn)
		}
		for range 10 {
			if rows := requeue(t, d); len(rows) != 5 {
				t.Fatalf("%d rows requeued, want 5", len(rows))
			}
		}
		session := d.cfg.DB.(*pgx.Conn)
		for _, sql := range []string{"SELECT pg_stat_force_next_flush()", "SELECT 1"} { // statistics go out between statements
			if _, err := session.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		var scanned, fetched int
		err := conn.QueryRow(t.Context(), "SELECT seq_tup_read, idx_tup_fetch FROM pg_stat_user_tables WHERE relname = 'outbox'").Scan(&scanned, &fetched)
		if err != nil {
			t.Fatal(err)
		}
		if scanned > 0 || fetched > 2000 {
			t.Errorf("%d rows read by scans of the table and %d by an index, want 0 and at most 2000", scanned, fetched)
		}
	})
}

// BenchmarkRequeue shows the cost of a batch of 500 while 100,000 rows are
// parked: none else due, or all.
func BenchmarkRequeue(b *testing.B) {
	for _, version := range pgtest.Versions {
		for _, due := range []string{"'infinity'", "now() - interval '1 h'"} {
			b.Run(fmt.Sprintf("pg%d/%s", version, due), func(b *testing.B) {
				db := pgtest.New(b, version)
				d, conn := setup(b, db, func(c *Config) { c.Batch = 500 })
				parked(b, db, conn, 100_000, due)
				parked(b, db, conn, 500, "now() - interval '2 h'")
				for b.Loop() {
					if rows := requeue(b, d); len(rows) != 500 {
						b.Fatal(len(rows))
					}
				}
			})
		}
	}
}
