package pgtest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestDatabaseGoesWithItsTest leaves a slot and an open session behind.
func TestDatabaseGoesWithItsTest(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		var name string
		t.Run("user", func(t *testing.T) {
			db := pgtest.New(t, version)
			name = db.Name
			db.Migrate(t, "public")
			db.Exec(t, "SELECT pg_create_logical_replication_slot('"+name+"', 'pgoutput')")
			conn, err := pgx.Connect(t.Context(), db.DSN) // not closed: DROP must force it
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Exec(t.Context(), "SELECT count(*) FROM outbox"); err != nil {
				t.Fatal(err)
			}
		})
		var left int
		err := pgtest.New(t, version).Conn(t).QueryRow(t.Context(), `
			SELECT (SELECT count(*) FROM pg_database WHERE datname = $1)
			     + (SELECT count(*) FROM pg_replication_slots WHERE database = $1)`, name).Scan(&left)
		if err != nil || left != 0 {
			t.Errorf("PostgreSQL %d: %d left of %s, %v", version, left, name, err)
		}
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		cluster := pgtest.StartCluster(t, version, "wal_sender_timeout = '3s'")
		db := cluster.New(t)
		db.Exec(t, "CREATE TABLE t (i int); INSERT INTO t VALUES (1)")
		cluster.Stop(t, pgtest.Immediate)
		if _, err := pgx.Connect(context.Background(), db.DSN); err == nil {
			t.Errorf("PostgreSQL %d answers after it was stopped", version)
		}
		cluster.Start(t)
		var timeout string
		var rows int
		err := db.Conn(t).QueryRow(t.Context(), "SELECT current_setting('wal_sender_timeout'), count(*) FROM t").
			Scan(&timeout, &rows)
		if err != nil || timeout != "3s" || rows != 1 {
			t.Errorf("PostgreSQL %d after a crash: wal_sender_timeout %q, %d rows, %v", version, timeout, rows, err)
		}
		if !strings.HasPrefix(db.DSN, "postgres://postgres@127.0.0.1:") {
			t.Errorf("DSN %s", db.DSN)
		}
	}
}

func TestReplica(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		primary := pgtest.StartCluster(t, version)
		db := primary.New(t)
		db.Exec(t, "CREATE TABLE t (i int)")
		replica := primary.StartReplica(t)
		db.Exec(t, "INSERT INTO t VALUES (1)")
		primary.WaitReplica(t)
		primary.Stop(t, pgtest.Immediate)
		replica.Promote(t)
		conn, err := pgx.Connect(t.Context(), replica.DSN(db.Name))
		if err != nil {
			t.Fatalf("PostgreSQL %d: %v", version, err)
		}
		var rows int
		var file string
		if _, err = conn.Exec(t.Context(), "INSERT INTO t VALUES (2)"); err == nil {
			err = conn.QueryRow(t.Context(), "SELECT count(*), pg_walfile_name(pg_current_wal_lsn()) FROM t").Scan(&rows, &file)
		}
		if err != nil || rows != 2 || !strings.HasPrefix(file, "00000002") {
			t.Errorf("PostgreSQL %d: %d rows, WAL file %s, %v; want 2 on timeline 2", version, rows, file, err)
		}
		conn.Close(context.Background())
	}
}

func TestBackup(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		original := pgtest.StartCluster(t, version, "archive_mode = on")
		db := original.New(t)
		conn := db.Conn(t)
		count := func(conn *pgx.Conn) (rows int, file string) {
			if err := conn.QueryRow(t.Context(), "SELECT count(*), pg_walfile_name(pg_current_wal_lsn()) FROM t").Scan(&rows, &file); err != nil {
				t.Fatalf("PostgreSQL %d: %v", version, err)
			}
			return rows, file
		}
		db.Exec(t, "CREATE TABLE t (i int); INSERT INTO t VALUES (1)")
		backup := original.TakeBackup(t)
		db.Exec(t, "INSERT INTO t VALUES (2)")
		var then time.Time
		if err := conn.QueryRow(t.Context(), "SELECT clock_timestamp()").Scan(&then); err != nil {
			t.Fatal(err)
		}
		db.Exec(t, "INSERT INTO t VALUES (3)")
		copied := &pgtest.DB{DSN: backup.Recover(t, then).DSN(db.Name)}
		if rows, file := count(copied.Conn(t)); rows != 2 || !strings.HasPrefix(file, "00000002") {
			t.Errorf("PostgreSQL %d: %d rows, WAL file %s; want 2 on timeline 2", version, rows, file)
		}
		if rows, file := count(conn); rows != 3 || !strings.HasPrefix(file, "00000001") {
			t.Errorf("PostgreSQL %d: the original has %d rows, WAL file %s; want 3 on timeline 1", version, rows, file)
		}
	}
}
