package lease

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// cluster is a database with the relay's tables in it, and a slot of a test.
type cluster struct {
	*pgtest.DB
	slot string
	conn *pgx.Conn // of the test itself
}

// other is the same database with another slot.
func (c *cluster) other(t *testing.T, name string) *cluster {
	t.Helper()
	hash := fnv.New32a()
	hash.Write([]byte(name))
	return &cluster{DB: c.DB, slot: fmt.Sprintf("%s_%08x", c.slot, hash.Sum32()), conn: c.Conn(t)}
}

// quick is patient enough for a busy machine where a test does not wait for
// the time-out itself.
func (c *cluster) quick() Config {
	return Config{
		Connect:       c.connect,
		Schema:        "public",
		Slot:          c.slot,
		Instance:      "test",
		TTL:           time.Hour,
		RenewInterval: 10 * time.Millisecond,
		PublishWithin: 10 * time.Minute,
		TakeoverAfter: 30 * time.Minute,
	}
}

func (c *cluster) options() pg.Options {
	return pg.Options{DSN: c.DSN, LocalCommit: true, ApplicationName: "lease/" + c.slot}
}

func (c *cluster) connect(ctx context.Context, expect *event.Session) (*pgx.Conn, pg.Server, error) {
	return pg.Connect(ctx, c.options(), expect)
}

// connectTraced is connect with a tracer that sees every statement.
func (c *cluster) connectTraced(ctx context.Context, expect *event.Session, tracer pgx.QueryTracer) (*pgx.Conn, pg.Server, error) {
	conf, err := c.options().ConnConfig()
	if err != nil {
		return nil, pg.Server{}, err
	}
	conf.Tracer = tracer
	conn, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return nil, pg.Server{}, err
	}
	server, err := pg.Prove(ctx, conn, expect)
	return conn, server, err
}

func newLease(t *testing.T, cfg Config) *Lease {
	t.Helper()
	l, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// acquire takes a lease that must be free and closes its connection at the end
// of the test, without a release.
func acquire(t *testing.T, l *Lease) *Tenure {
	t.Helper()
	tenure, err := l.Acquire(patient(t), func() { t.Error("has to stand by") })
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	t.Cleanup(tenure.unlink)
	return tenure
}

// patient ends a test that would wait for ever; it measures nothing.
func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// row is what other parts of the relay and people read.
type row struct {
	Epoch, LeaseEpoch int64
	SameOwner         bool
	Released          bool
	Saved             string
	Timeline          int32
}

func (c *cluster) row(t *testing.T) row {
	t.Helper()
	var r row
	err := c.conn.QueryRow(t.Context(), `
		SELECT f.epoch, l.epoch, f.owner = l.owner, l.lease_until IS NULL, coalesce(saved_lsn::text, ''), coalesce(timeline, 0)
		  FROM cdc_relay_slot f JOIN cdc_relay_lease l USING (slot) WHERE slot = $1`, c.slot).
		Scan(&r.Epoch, &r.LeaseEpoch, &r.SameOwner, &r.Released, &r.Saved, &r.Timeline)
	if err != nil {
		t.Fatalf("reading the rows of the slot: %v", err)
	}
	return r
}

func (c *cluster) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := c.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// renewedAt is when the lease was last renewed or taken, by the database's clock.
func (c *cluster) renewedAt(t *testing.T) (at time.Time) {
	t.Helper()
	if err := c.conn.QueryRow(t.Context(), "SELECT renewed_at FROM cdc_relay_lease WHERE slot = $1", c.slot).Scan(&at); err != nil {
		t.Fatal(err)
	}
	return at
}

// setLease changes the lease row of the slot.
func (c *cluster) setLease(t *testing.T, set string) {
	t.Helper()
	c.exec(t, "UPDATE cdc_relay_lease SET "+set+" WHERE slot = $1", c.slot)
}

// start runs a tenure and returns how to stop it.
func start(t *testing.T, tenure *Tenure, saved func(pglogrepl.LSN)) (stop func() error) {
	t.Helper()
	stop = sync.OnceValue(run(t, tenure, saved))
	t.Cleanup(func() { _ = stop() }) // a second call in most tests
	return stop
}

// stream makes the slot and keeps it active until the end of the test.
func (c *cluster) stream(t *testing.T) {
	t.Helper()
	c.exec(t, "CREATE PUBLICATION "+c.slot)
	c.exec(t, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", c.slot)
	conf, err := pg.Options{DSN: c.DSN}.ReplicationConfig()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgconn.ConnectConfig(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	err = pglogrepl.StartReplication(t.Context(), conn, c.slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names '" + c.slot + "'"}})
	if err != nil {
		t.Fatalf("starting to stream: %v", err)
	}
}
