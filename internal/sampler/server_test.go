package sampler

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// application is what these tests' samplers are called on the server.
const application = "sampler-under-test"

// setup returns what a sampler of this database needs. The time-outs are
// those of a machine that does much else.
func setup(t *testing.T, db *pgtest.DB) Config {
	t.Helper()
	db.Migrate(t, "public")
	return Config{
		Connect: func(ctx context.Context) (*pgx.Conn, pg.Server, error) {
			return pg.Connect(ctx, pg.Options{DSN: db.DSN, ApplicationName: application}, nil)
		},
		Accept:   func(context.Context, *pgx.Conn) error { return nil },
		Table:    pg.Table{Schema: "public", Name: "outbox"},
		Slot:     db.Name, // slots are named over the whole server
		Interval: time.Minute,
		Timeout:  30 * time.Second,
		MaxRows:  1000,
	}
}

func takeOne(t *testing.T, cfg Config) *Sample {
	t.Helper()
	s, err := Once(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// insert makes n rows; set is what their columns become, in SQL, where g is
// the number of the row.
func insert(t *testing.T, conn *pgx.Conn, n int, columns, values string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), fmt.Sprintf(`INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, %s)
		SELECT 'order', 'a-' || g, 'created', '{}', %s FROM generate_series(1, %d) g`, columns, values, n))
	if err != nil {
		t.Fatal(err)
	}
}

func counts(s *Sample) map[Group]int64 {
	got := map[Group]int64{}
	for _, r := range s.Rows {
		if r.Count > 0 {
			got[r.Group] = r.Count
		}
	}
	return got
}

func TestRowsByKind(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		cfg := setup(t, db)
		conn := db.Conn(t)
		insert(t, conn, 1, "send_status, created_at", "0, now() - interval '1 hour'")
		insert(t, conn, 2, "send_status, created_at", "0, 'infinity'")                      // no age
		insert(t, conn, 3, "next_attempt_at", "now() + interval '1 day'")                   // delayed
		insert(t, conn, 4, "next_attempt_at, attempts", "now() + interval '5 s', 1")        // retrying
		insert(t, conn, 5, "next_attempt_at, commit_lsn", "now(), '0/1'")                   // replayed after a failure
		insert(t, conn, 6, "next_attempt_at, commit_lsn", "'infinity', '0/1'")              // held
		insert(t, conn, 7, "send_status, next_attempt_at, attempts", "3, 'infinity', 10")   // not published
		insert(t, conn, 8, "send_status, next_attempt_at, sent_at", "3, 'infinity', now()") // not consumed
		insert(t, conn, 9, "send_status, finished_at", "3, now()")                          // waived
		insert(t, conn, 10, "send_status, lease_until", "1, now() + interval '1 hour'")
		insert(t, conn, 11, "send_status, sent_at", "2, now()")
		insert(t, conn, 12, "send_status, sent_at, next_attempt_at", "2, now(), now()") // delayed by its consumer
		insert(t, conn, 13, "send_status, lease_until", "5, now() - interval '1 s'")    // expired
		insert(t, conn, 14, "send_status, finished_at", "4, now()")
		s := takeOne(t, cfg)

		want := map[Group]int64{
			{outbox.Ready, "new"}: 3, {outbox.Ready, "delayed"}: 3, {outbox.Ready, "retrying"}: 9, {outbox.Ready, "held"}: 6,
			{outbox.Failed, "publish"}: 7, {outbox.Failed, "consume"}: 8,
			{outbox.InProgress, ""}: 10, {outbox.Sent, ""}: 23, {outbox.Consuming, ""}: 13,
		}
		if diff := cmp.Diff(want, counts(s)); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
		if *s.LeasesExpired != 13 {
			t.Errorf("%d leases expired, want 13", *s.LeasesExpired)
		}
		if s.Complete != (Complete{true, true, true}) {
			t.Errorf("complete: %+v", s.Complete)
		}
		if age := *s.Rows[0].OldestAge; age < 3600 || age > 7200 {
			t.Errorf("the oldest new row is %v s old, want an hour", age)
		}
	})
}

func TestFiguresAreBounded(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		cfg := setup(t, db)
		cfg.MaxRows = 10
		conn := db.Conn(t)
		insert(t, conn, 25, "send_status", "0")
		insert(t, conn, 25, "next_attempt_at", "now() + interval '1 day'")
		insert(t, conn, 3, "send_status, next_attempt_at", "3, 'infinity'")
		s := takeOne(t, cfg)
		want := map[Group]int64{{outbox.Ready, "new"}: 10, {outbox.Ready, "delayed"}: 7, {outbox.Failed, "publish"}: 3}
		if diff := cmp.Diff(want, counts(s)); diff != "" {
			t.Errorf("rows: what waits for a person comes first (-want +got):\n%s", diff)
		}
		if s.Complete != (Complete{}) {
			t.Errorf("complete: %+v", s.Complete)
		}
	})
}

// TestWalksGoOn has far more rows that are done than one statement reads.
func TestWalksGoOn(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		cfg := setup(t, db)
		cfg.MaxRows = 10
		conn := db.Conn(t)
		insert(t, conn, 95, "send_status, finished_at", "4, now()")
		insert(t, conn, 4, "send_status", "0")
		r := newReader(cfg)
		defer r.close()
		sample := func() *Sample {
			ctx, cancel := context.WithTimeout(t.Context(), cfg.Timeout)
			defer cancel()
			s, err := r.take(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		if s := sample(); s.Rows[0].Count != 4 || !s.Complete.New || !s.Complete.Consume {
			t.Errorf("first sample: %d new rows, %+v", s.Rows[0].Count, s.Complete)
		}

		// A transaction that is under way has taken an id and keeps the mark.
		late, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		insert(t, late.Conn(), 1, "send_status", "0") // id 100
		insert(t, db.Conn(t), 9, "send_status, finished_at", "4, now()")
		db.Exec(t, "UPDATE outbox SET send_status = 4 WHERE send_status = 0")
		for range 3 {
			if s := sample(); s.Rows[0].Count != 0 || !s.Complete.New {
				t.Errorf("before the commit: %d new rows, %+v", s.Rows[0].Count, s.Complete)
			}
		}
		if err := late.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if s := sample(); s.Rows[0].Count != 1 {
				t.Errorf("after the commit: %d new rows, want 1", s.Rows[0].Count)
			}
		}
		// Transactions of other databases count, too.
		marks := func() string { return fmt.Sprint(r.fresh.mark, r.consume.mark) }
		pgtest.Eventually(t, "the marks to stand before the row that came late", func() bool {
			sample()
			return r.fresh.mark == 99 && r.consume.mark == 99
		}, marks)

		// Ids start over.
		db.Exec(t, "TRUNCATE outbox RESTART IDENTITY")
		insert(t, conn, 2, "send_status", "0")
		if s := sample(); s.Rows[0].Count != 2 {
			t.Errorf("after TRUNCATE: %d new rows, want 2", s.Rows[0].Count)
		}
	})
}

func TestLease(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		cfg := setup(t, db)
		if diff := cmp.Diff(Lease{}, takeOne(t, cfg).Lease); diff != "" {
			t.Errorf("before the first leader:\n%s", diff)
		}
		insert(t, db.Conn(t), 3, "send_status", "0")
		insert(t, db.Conn(t), 2, "send_status", "2") // ids 4 and 5
		db.Exec(t, fmt.Sprintf(`INSERT INTO cdc_relay_lease (slot, epoch, instance, renewed_at, lease_until, saved_lsn, low_water_id, consumer_low_water_id)
			VALUES ('%s', 7, 'host/1', now() - interval '1 hour', now() + interval '1 hour', '1/A', 2, 4)`, cfg.Slot))
		s := takeOne(t, cfg)
		want := Lease{Instance: "host/1", Epoch: 7, Held: true, Age: time.Hour, Saved: 0x1_0000000A}
		roughly := cmpopts.EquateApproxTime(0)
		if diff := cmp.Diff(want, s.Lease, roughly, cmpopts.IgnoreFields(Lease{}, "Age")); diff != "" {
			t.Errorf("lease (-want +got):\n%s", diff)
		}
		if s.Lease.Age < time.Hour || s.Lease.Age > 2*time.Hour {
			t.Errorf("renewed %v ago, want an hour", s.Lease.Age)
		}
		if s.Rows[0].Count != 1 {
			t.Errorf("%d new rows above the low-water id, want 1", s.Rows[0].Count)
		}
		if n := counts(s)[Group{outbox.Sent, ""}]; n != 1 {
			t.Errorf("%d rows SENT above the consumers' low-water id, want 1", n)
		}
	})
}

func TestExistingTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		cfg := setup(t, db)
		db.Exec(t, `CREATE TABLE "my events" ("No" int PRIMARY KEY, send_status smallint, attempts int, next_attempt_at timestamptz,
			commit_lsn pg_lsn, sent_at timestamptz, "When" timestamp);
			INSERT INTO "my events" VALUES (1, 0, 0, NULL, NULL, NULL, now() AT TIME ZONE 'UTC' - interval '1 hour')`)
		cfg.Table.Name = "my events"
		cfg.Columns = map[string]string{"id": "No", "created_at": "When"}
		s := takeOne(t, cfg)
		if s.Rows[0].Count != 1 || *s.Rows[0].OldestAge < 3600 || *s.Rows[0].OldestAge > 7200 || s.LeasesExpired != nil {
			t.Errorf("sample %+v, %v", s.Rows[0], s.LeasesExpired)
		}
		cfg.Columns = map[string]string{"id": "No"}
		if s := takeOne(t, cfg); s.Rows[0].Count != 1 || s.Rows[0].OldestAge != nil {
			t.Errorf("without a creation time: %+v", s.Rows[0])
		}
	})
}

func TestSlot(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		cfg := setup(t, db)
		slot := takeOne(t, cfg).Slot
		if slot.Server == 0 {
			t.Error("no end of WAL")
		}
		slot.Server = 0
		if diff := cmp.Diff(Slot{WALStatus: Unknown}, slot); diff != "" {
			t.Errorf("no slot (-want +got):\n%s", diff)
		}

		// A slot that is older than the publication would fail at the first change.
		db.Exec(t, "CREATE PUBLICATION p FOR TABLE outbox")
		db.Exec(t, "SELECT pg_create_logical_replication_slot('"+cfg.Slot+"', 'pgoutput')")
		db.Exec(t, "CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 10000)")
		slot = takeOne(t, cfg).Slot
		if !slot.Exists || slot.Active || slot.WALStatus != "reserved" || slot.SafeBytes != nil || slot.CatalogXminAge == nil {
			t.Errorf("slot %+v", slot)
		}
		if slot.Restart == 0 || slot.Confirmed < slot.Restart || slot.Server < slot.Confirmed+10_000_000 {
			t.Errorf("positions %v, %v, %v", slot.Restart, slot.Confirmed, slot.Server)
		}
		if *slot.RetainedBytes != int64(slot.Server-slot.Restart) || *slot.ConfirmedLagBytes != int64(slot.Server-slot.Confirmed) {
			t.Errorf("slot %+v", slot)
		}

		stream(t, db, cfg.Slot)
		pgtest.Eventually(t, "the slot to be active", func() bool { return takeOne(t, cfg).Slot.Active }, func() string { return "" })
	})
}

// stream holds the slot until the end of the test, with the publication p.
func stream(t *testing.T, db *pgtest.DB, slot string) {
	t.Helper()
	conf, err := pgconn.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	conf.RuntimeParams["replication"] = "database"
	conn, err := pgconn.ConnectConfig(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	options := pglogrepl.StartReplicationOptions{PluginArgs: []string{"proto_version '1'", "publication_names 'p'"}}
	if err := pglogrepl.StartReplication(t.Context(), conn, slot, 0, options); err != nil {
		t.Fatal(err)
	}
}

func TestSlotIsLost(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			cluster := pgtest.StartCluster(t, version, "max_slot_wal_keep_size = '32MB'", "wal_keep_size = 0",
				"max_wal_size = '32MB'", "min_wal_size = '32MB'")
			db := cluster.New(t)
			cfg := setup(t, db)
			db.Exec(t, "SELECT pg_create_logical_replication_slot('"+cfg.Slot+"', 'pgoutput')")
			slot := takeOne(t, cfg).Slot
			if slot.WALStatus != "reserved" || slot.SafeBytes == nil || *slot.SafeBytes <= 0 || *slot.SafeBytes > 64<<20 {
				t.Errorf("new slot: %+v", slot)
			}
			before := *slot.SafeBytes
			db.Exec(t, "CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
			if slot = takeOne(t, cfg).Slot; *slot.SafeBytes > before-5_000_000 {
				t.Errorf("%d bytes safe after 5 MB of %d", *slot.SafeBytes, before)
			}
			pgtest.Eventually(t, "the slot to be lost", func() bool {
				db.Exec(t, "INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 20000); CHECKPOINT")
				slot = takeOne(t, cfg).Slot
				return slot.WALStatus == "lost"
			}, func() string { return slot.WALStatus })
			if !slot.Exists || slot.RetainedBytes != nil || slot.SafeBytes == nil || *slot.SafeBytes != 0 {
				t.Errorf("lost slot: %+v", slot)
			}
			if seconds, ok := (&Sample{Slot: slot}).TimeToLoss(); seconds != 0 || !ok {
				t.Errorf("time to loss %v, %v, want 0", seconds, ok)
			}
		})
	}
}

// TestTableIsLocked locks the table as a migration by hand would.
func TestTableIsLocked(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		cfg := setup(t, db)
		cfg.Interval, cfg.Timeout = 50*time.Millisecond, 250*time.Millisecond
		cfg.Connect = func(ctx context.Context) (*pgx.Conn, pg.Server, error) {
			return pg.Connect(ctx, pg.Options{DSN: db.DSN, ApplicationName: application, StatementTimeout: 250 * time.Millisecond}, nil)
		}
		reg := prometheus.NewRegistry()
		s, err := New(cfg, slog.New(slog.DiscardHandler), reg)
		if err != nil {
			t.Fatal(err)
		}
		run(t, s)
		state := func() string { return fmt.Sprint(gather(t, reg)) }
		sampled := func() bool { _, ok := gather(t, reg)["outbox_rows{READY new}"]; return ok }
		pgtest.Eventually(t, "a sample", sampled, state)

		locker := db.Conn(t)
		tx, err := locker.Begin(t.Context())
		if err == nil {
			_, err = tx.Exec(t.Context(), "LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
		}
		if err != nil {
			t.Fatal(err)
		}
		pgtest.Eventually(t, "the figures to be absent", func() bool { return !sampled() }, state)
		// Each sample waits in the server on a connection of its own; had
		// they piled up, there would soon be many.
		watcher := db.Conn(t)
		most := 0
		seen := map[int32]bool{}
		pgtest.Eventually(t, "ten samples that waited for the lock", func() bool {
			rows, err := watcher.Query(t.Context(), `SELECT pid FROM pg_stat_activity
				WHERE datname = current_database() AND application_name = $1 AND wait_event_type = 'Lock'`, application)
			if err != nil {
				t.Fatal(err)
			}
			pids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
			if err != nil {
				t.Fatal(err)
			}
			most = max(most, len(pids))
			for _, pid := range pids {
				seen[pid] = true
			}
			return len(seen) >= 10
		}, func() string { return fmt.Sprintf("%d seen, %d at once", len(seen), most) })
		if most > 2 { // the one that is being ended, and the next
			t.Errorf("%d statements waited at once", most)
		}
		if sampled() {
			t.Error("figures although the table is locked")
		}
		success := gather(t, reg)["stats_last_success_timestamp_seconds{}"]
		if success == 0 {
			t.Error("the last success is forgotten")
		}

		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		pgtest.Eventually(t, "a sample again", sampled, state)
	})
}

// TestPlans makes sure that no statement reads all of a table, not even one
// that was never analysed.
func TestPlans(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		r := newReader(setup(t, db))
		defer r.close()
		insert(t, db.Conn(t), 5000, "send_status, next_attempt_at", "CASE WHEN g % 10 = 0 THEN 0 ELSE 4 END, CASE WHEN g % 10 = 0 THEN now() END")
		if _, err := r.take(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			name, sql, index string
			args             []any
		}{
			{"attention", r.sql.attention, "outbox_next_attempt_idx", []any{100}},
			{"new", r.sql.fresh, "outbox_pkey", []any{int64(7), 100}},
			{"consume", r.sql.consume, "outbox_pkey", []any{int64(7), 100}},
			{"lease", r.sql.lease, "outbox_pkey", []any{"slot", int64(7)}},
		} {
			rows, err := r.conn.Query(t.Context(), "EXPLAIN "+tt.sql, tt.args...)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			plan := strings.Join(lines, "\n")
			if !strings.Contains(plan, tt.index) || strings.Contains(plan, "Seq Scan on outbox") {
				t.Errorf("%s:\n%s", tt.name, plan)
			}
		}
	})
}
