package harness

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/load"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/e2e/topics"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// Partitions is how many partitions a bed's topics have.
const Partitions = 4

// Options say what a bed needs besides a database.
type Options struct {
	Kafka Kafka
	// Types are the aggregate types, a topic each; by default order and user.
	Types []string
	// TopicSettings are topic configurations by aggregate type.
	TopicSettings map[string]map[string]string
	// Config is added to the relay's configuration.
	Config relayproc.Config
	Build  Build
	// OwnTable leaves creating the outbox table, the migrations and init to
	// the test.
	OwnTable bool
}

// Bed is one test's world: a database with its outbox, topics, a slot, a
// publication and the relays that work on them.
type Bed struct {
	DB      *pgtest.DB
	Pool    *pgxpool.Pool
	Admin   *topics.Admin
	History *load.History
	Slot    string
	Table   string // quoted and qualified
	// PayloadBytes is SQL that yields a row's payload as bytea.
	PayloadBytes string

	t       testing.TB
	types   []string
	prefix  string // of topic names
	config  relayproc.Config
	build   Build
	dir     string
	relays  []*Relay
	sampler *sampler
	deleted []check.Record // of topics that are gone
	// forgotten are the ids of events that the database lost in a failover.
	forgotten map[[16]byte]bool
}

// NewBed makes a bed in a fresh database and sets it up by the relay's own
// commands, as a user would. All of it ends with the test.
func NewBed(t testing.TB, db *pgtest.DB, o Options) *Bed {
	t.Helper()
	suffix := make([]byte, 5)
	rand.Read(suffix)
	b := &Bed{
		DB: db, History: load.NewHistory(), Slot: "e2e_" + hex.EncodeToString(suffix), Table: `"public"."outbox"`,
		PayloadBytes: "payload", t: t, types: o.Types, prefix: "e2e-" + hex.EncodeToString(suffix) + ".",
		build: o.Build, dir: t.TempDir(), forgotten: map[[16]byte]bool{},
	}
	if len(b.types) == 0 {
		b.types = []string{"order", "user"}
	}
	b.config = relayproc.Config{
		"postgres.dsn": db.DSN, "slot.name": b.Slot, "slot.publication": b.Slot,
		"kafka.brokers": strings.Split(o.Kafka.Relay, ","), "record.topic": b.prefix + "{aggregate_type}", "record.source": "/e2e",
		"shutdown.drain_timeout": "20s", "log.level": "debug",
	}.With(o.Kafka.Config, o.Config)
	pool, err := pgxpool.New(t.Context(), db.DSN)
	if err != nil {
		t.Fatalf("making a pool: %v", err)
	}
	t.Cleanup(pool.Close)
	b.Pool = pool
	b.makeTopics(o)
	if !o.OwnTable {
		b.Migrate()
		b.Init()
	}
	return b
}

func (b *Bed) makeTopics(o Options) {
	b.t.Helper()
	admin, err := topics.NewAdmin(strings.Split(o.Kafka.Test, ",")...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.Admin = admin
	b.t.Cleanup(func() {
		defer admin.Close()
		// so that the shared broker does not fill up; one of the test's own may be gone already
		if o.Kafka.shared {
			if err := admin.Delete(context.WithoutCancel(b.t.Context()), b.Topics()...); err != nil {
				b.t.Error(err)
			}
		}
	})
	for _, typ := range b.types {
		if err := admin.Create(b.t.Context(), Partitions, o.TopicSettings[typ], b.Topic(typ)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// Topic is the topic of an aggregate type.
func (b *Bed) Topic(aggregateType string) string { return b.prefix + aggregateType }

// DeleteTopic deletes the topic of an aggregate type. What it held then counts
// for the checker all the same.
func (b *Bed) DeleteTopic(aggregateType string) {
	b.t.Helper()
	topic := b.Topic(aggregateType)
	records, err := b.Admin.Read(b.t.Context(), topic)
	if err != nil {
		b.t.Fatal(err)
	}
	b.deleted = append(b.deleted, records...)
	if err := b.Admin.Delete(b.t.Context(), topic); err != nil {
		b.t.Fatal(err)
	}
}

// Topics are all topics of the bed.
func (b *Bed) Topics() []string {
	names := make([]string, len(b.types))
	for i, typ := range b.types {
		names[i] = b.Topic(typ)
	}
	return names
}

// Migrate makes the outbox by `cdc-relay migrate up`.
func (b *Bed) Migrate() {
	b.t.Helper()
	b.mustRun("migrate", "up")
}

// Init makes publication and slot by `cdc-relay init --apply`. It is patient:
// a slot has to wait for every writing transaction of the server, those of
// other tests too.
func (b *Bed) Init() {
	b.t.Helper()
	b.mustRun("init", "--apply", "--timeout", patience.String())
}

func (b *Bed) mustRun(args ...string) {
	b.t.Helper()
	if output, code := b.Command(nil, args...); code != 0 {
		b.t.Fatalf("cdc-relay %s: exit code %d\n%s", strings.Join(args, " "), code, output)
	}
}

// Command runs a command of the relay to its end and returns what it wrote on
// both outputs. config is added to the bed's.
func (b *Bed) Command(config relayproc.Config, args ...string) (output string, code int) {
	b.t.Helper()
	p := b.launch(config, args...)
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil {
		b.t.Fatalf("cdc-relay %s: %v\n%s", strings.Join(args, " "), err, p.Tail(40))
	}
	if trace := relayproc.Crash(p.Output()); trace != "" {
		b.t.Errorf("cdc-relay %s crashed:\n%s", strings.Join(args, " "), trace)
	}
	return p.Output(), code
}

// launch starts the relay's program with a configuration file of its own.
func (b *Bed) launch(config relayproc.Config, args ...string) *relayproc.Process {
	b.t.Helper()
	id := make([]byte, 4)
	rand.Read(id)
	name := filepath.Join(b.dir, hex.EncodeToString(id))
	if err := b.config.With(config).Write(name + ".yaml"); err != nil {
		b.t.Fatal(err)
	}
	p, err := relayproc.Start(name+".log", nil, Binary(b.t, b.build), append([]string{"--config", name + ".yaml"}, args...)...)
	if err != nil {
		b.t.Fatal(err)
	}
	return p
}

// Connect opens a connection to the bed's database; the caller closes it.
func (b *Bed) Connect(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, b.DB.DSN) }

// Conn is a connection to the bed's database, closed with the test.
func (b *Bed) Conn() *pgx.Conn {
	b.t.Helper()
	return b.DB.Conn(b.t)
}

// Exec runs a statement.
func (b *Bed) Exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.Pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("executing %q: %v", sql, err)
	}
}

// Insert writes rows in one transaction and records them.
func (b *Bed) Insert(rows ...load.Row) {
	b.t.Helper()
	conn, err := b.Pool.Acquire(b.t.Context())
	if err != nil {
		b.t.Fatalf("getting a connection: %v", err)
	}
	defer conn.Release()
	if err := load.Insert(b.t.Context(), conn.Conn(), b.Table, b.History, rows...); err != nil {
		b.t.Fatal(err)
	}
}

// Row is a small row of an aggregate.
func Row(aggregateType, aggregateID, payload string) load.Row {
	return load.Row{Aggregate: check.Aggregate{Type: aggregateType, ID: aggregateID}, EventType: "changed", Payload: []byte(payload)}
}

// Load is the writers' load on this bed: events over aggregates, 8 writers.
func (b *Bed) Load(events, aggregates int) load.Spec {
	seed := uint64(time.Now().UnixNano())
	b.t.Logf("load of %d events, seed %d", events, seed)
	return load.Spec{
		Connect: b.Connect, Table: b.Table, Types: b.types,
		Aggregates: aggregates, Writers: 8, Events: events, Seed: seed,
	}
}

// Write runs a load to its end.
func (b *Bed) Write(events, aggregates int) {
	b.t.Helper()
	if err := b.Load(events, aggregates).Run(b.t.Context(), b.History); err != nil {
		b.t.Fatal(err)
	}
}

// Background runs f beside the test and returns a function that waits for it
// and fails the test if f failed.
func (b *Bed) Background(f func(ctx context.Context) error) (wait func()) {
	done := make(chan error, 1)
	go func() { done <- f(b.t.Context()) }()
	return func() {
		b.t.Helper()
		if err := <-done; err != nil {
			b.t.Fatal(err)
		}
	}
}

// Count asks a query with one number as its answer.
func (b *Bed) Count(sql string, args ...any) int {
	b.t.Helper()
	var n int
	if err := b.Pool.QueryRow(b.t.Context(), sql, args...).Scan(&n); err != nil {
		b.t.Fatalf("asking %q: %v", sql, err)
	}
	return n
}

// CountStatus is the number of rows with a status.
func (b *Bed) CountStatus(status int16) int {
	b.t.Helper()
	return b.Count(fmt.Sprintf("SELECT count(*) FROM %s WHERE send_status = $1", b.Table), status)
}

// Walsender is the pid of the server's process that streams to the relay, 0 if
// there is none.
func (b *Bed) Walsender() int {
	b.t.Helper()
	return b.Count(`SELECT coalesce((SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1), 0)`, b.Slot)
}

// WaitSeconds waits until the server's clock has moved on: for tests about
// what must not happen in that time.
func (b *Bed) WaitSeconds(seconds int) {
	b.t.Helper()
	var until time.Time
	if err := b.Pool.QueryRow(b.t.Context(), `SELECT clock_timestamp() + make_interval(secs => $1)`, seconds).Scan(&until); err != nil {
		b.t.Fatalf("asking for the time: %v", err)
	}
	b.Wait(fmt.Sprintf("%d seconds to pass", seconds), func() bool {
		return b.Count(`SELECT (clock_timestamp() >= $1)::int`, until) == 1
	})
}

// InsertOne inserts one row in a transaction of its own and returns its id. No
// other load may run.
func (b *Bed) InsertOne(row load.Row) int64 {
	b.t.Helper()
	known := b.History.Len()
	b.Insert(row)
	return b.History.Since(known)[0].ID
}
