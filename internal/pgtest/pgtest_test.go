package pgtest_test

import (
	"context"
	"strings"
	"testing"

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
