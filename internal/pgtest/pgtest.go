// Package pgtest gives tests real PostgreSQL servers: a database of its own
// for each test, or a throw-away cluster for those that change settings, hold
// locks for long or stop the server (StartCluster).
//
// The servers are named by environment variables: CDC_TEST_PG15_DSN and so on,
// superuser DSNs of the database postgres. A test whose server is missing is
// skipped and names the variable; with CDC_TEST_REQUIRE=1 it fails instead.
package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/migrations"
)

// Versions are the PostgreSQL versions that Each runs on.
var Versions = []int{15, 18}

// ClusterVersions are those that a test may start clusters of: the programs
// are installed, while a shared server runs of Versions only.
var ClusterVersions = []int{15, 17, 18}

// patience bounds every wait of this package on a real server. It is there to
// end a broken test, not to measure anything.
const patience = 60 * time.Second

// DB is a database of one test.
type DB struct {
	Version int // PostgreSQL's major version
	Name    string
	DSN     string // of a superuser
	admin   string // DSN of the database postgres of the same server
}

// Each runs a test on every version, in parallel subtests pg15 and pg18 with
// a fresh database each.
func Each(t *testing.T, test func(t *testing.T, db *DB)) {
	t.Helper()
	for _, version := range Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			test(t, New(t, version))
		})
	}
}

// New makes an empty database on the shared server of that version. At the
// end of the test its slots and itself are dropped, whoever is connected.
func New(t testing.TB, version int) *DB {
	t.Helper()
	return create(t, version, Env(t, fmt.Sprintf("CDC_TEST_PG%d_DSN", version)))
}

// Env returns the value of an environment variable that the test needs.
func Env(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value != "" {
		return value
	}
	if os.Getenv("CDC_TEST_REQUIRE") == "1" {
		t.Fatalf("%s is not set: make dev-up starts the servers, make dev-env prints the variables", name)
	}
	t.Skipf("%s is not set: this test needs a real server", name)
	return ""
}

func create(t testing.TB, version int, admin string) *DB {
	t.Helper()
	db := &DB{Version: version, Name: "cdc_test_" + randomName(), admin: admin}
	db.DSN = withDatabase(t, admin, db.Name)
	// template0: nobody can be connected to it, which would refuse the copy.
	execSQL(t, admin, "CREATE DATABASE "+db.Name+" TEMPLATE template0")
	t.Cleanup(func() { db.drop(t) })
	return db
}

// Conn connects as the superuser; the connection is closed at the end.
func (db *DB) Conn(t testing.TB) *pgx.Conn {
	t.Helper()
	conn := connect(t, db.DSN)
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// Exec runs SQL without parameters, several statements if need be, on a
// connection of its own.
func (db *DB) Exec(t testing.TB, sql string) {
	t.Helper()
	execSQL(t, db.DSN, sql)
}

// Migrate creates the tables of cdc-relay in schema.
func (db *DB) Migrate(t testing.TB, schema string) {
	t.Helper()
	conf, err := pgx.ParseConfig(db.DSN)
	if err != nil {
		t.Fatalf("parsing the test's DSN: %v", err)
	}
	if _, err := migrations.Up(t.Context(), conf, schema); err != nil {
		t.Fatalf("migrating schema %s: %v", schema, err)
	}
}

// drop removes the database with its slots, which would keep WAL for ever.
func (db *DB) drop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.admin)
	if err != nil {
		t.Errorf("dropping database %s: connecting: %v", db.Name, err)
		return
	}
	defer conn.Close(context.Background())
	if err := dropSlots(ctx, conn, db.Name); err != nil {
		t.Errorf("dropping database %s: %v", db.Name, err)
		return
	}
	if _, err := conn.Exec(ctx, "DROP DATABASE "+db.Name+" WITH (FORCE)"); err != nil {
		t.Errorf("dropping database %s: %v", db.Name, err)
	}
}

// dropSlots ends the walsenders of a database and drops its slots. A slot is
// free a moment after its walsender was told to end, hence the loop.
func dropSlots(ctx context.Context, conn *pgx.Conn, database string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		var left int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM (
			SELECT CASE WHEN active THEN pg_terminate_backend(active_pid)::text
			       ELSE pg_drop_replication_slot(slot_name)::text END
			  FROM pg_replication_slots WHERE database = $1 OFFSET 0) s`, database).Scan(&left)
		if err == nil && left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("dropping the slots of database %s: %d left: %w", database, left, ctx.Err())
		case <-tick.C:
		}
	}
}

// Eventually waits for a condition on a real server, asking every few
// milliseconds, and fails the test with what state tells if it takes longer
// than a generous deadline.
func Eventually(t testing.TB, what string, condition func() bool, state func() string) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("waited %v for: %s; state: %s", patience, what, state())
		case <-tick.C:
		}
	}
}

func connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatalf("connecting to PostgreSQL: %v", err)
	}
	return conn
}

func execSQL(t testing.TB, dsn, sql string) {
	t.Helper()
	conn := connect(t, dsn)
	defer conn.Close(context.Background())
	// the simple protocol, which takes several statements
	if _, err := conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
		t.Fatalf("executing %q: %v", sql, err)
	}
}

func withDatabase(t testing.TB, dsn, name string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		t.Fatalf("the test server's DSN is no URL")
	}
	u.Path = "/" + name
	return u.String()
}

func randomName() string {
	b := make([]byte, 6)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
