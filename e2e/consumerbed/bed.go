// Package consumerbed gives each test of the consumer kit a world of its own: a
// database with its outbox, a topic, a group, the e-mail provider's stub, and
// consumers that are processes which the test holds at any step. Bed.Finish ends
// every test with the one check of package check.
package consumerbed

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer/tables"
	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/topics"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// Options say what a bed is.
type Options struct {
	// Relay is the bed of a relay whose database and topics are used. Without
	// it the bed has a database of the shared server of PostgreSQL 18 and one
	// topic, and Put does the relay's part.
	Relay *harness.Bed
	// DB is used instead of a fresh database.
	DB *pgtest.DB
	// Kafka is the shared broker unless it is set.
	Kafka *harness.Kafka
	// Partitions of the topic; 1 unless it is set. Negative: no topic is made.
	Partitions int
	// Consumer is what all processes have in common.
	Consumer consumerproc.Config
}

// Bed is one test's world.
type Bed struct {
	DB       *pgtest.DB
	Pool     *pgxpool.Pool
	Admin    *topics.Admin
	Topics   []string
	Group    string
	Provider *provider.Server

	control   *control
	t         testing.TB
	cfg       consumerproc.Config
	dir       string
	processes []*Process
}

// lease is short, so that tests wait little for one to run out; it is the
// kit's least.
const lease = 3 * time.Second

// New makes a bed. All of it ends with the test.
func New(t testing.TB, o Options) *Bed {
	t.Helper()
	b := &Bed{t: t, dir: t.TempDir(), DB: o.DB, Group: "e2e-" + randomName(), Provider: provider.New(provider.Config{})}
	b.control = startControl(t)
	kafka := o.Kafka
	if kafka == nil {
		shared := harness.Shared(t)
		kafka = &shared
	}
	if o.Relay != nil {
		b.DB, b.Topics = o.Relay.DB, o.Relay.Topics()
	}
	if b.DB == nil {
		b.DB = pgtest.New(t, 18)
	}
	b.makeTables(o)
	b.connect(*kafka, o)
	stub := httptest.NewServer(b.Provider)
	t.Cleanup(stub.Close)
	t.Cleanup(func() { // first of all
		b.control.open()
		b.Provider.Reset()
		b.stopProcesses()
	})
	b.cfg = o.Consumer
	b.cfg.Brokers, b.cfg.Group, b.cfg.Topics = strings.Split(kafka.Relay, ","), b.Group, b.Topics
	b.cfg.DSN = orElse(b.cfg.DSN, b.DB.DSN)
	b.cfg.Provider, b.cfg.Control = stub.URL, b.control.url
	b.cfg.Mode = orElse(b.cfg.Mode, consumerproc.Shared)
	b.cfg.Lease = orElse(b.cfg.Lease, lease)
	b.cfg.Purpose, b.cfg.Horizon = orElse(b.cfg.Purpose, consumerproc.Purpose), orElse(b.cfg.Horizon, time.Hour)
	return b
}

// makeTables makes an outbox or, for effects in transactions, what a consumer
// needs in a database of its own.
func (b *Bed) makeTables(o Options) {
	b.t.Helper()
	switch {
	case o.Relay != nil: // did it
	case o.Consumer.Mode == consumerproc.Transaction:
		sql, err := tables.SQL("public")
		if err != nil {
			b.t.Fatal(err)
		}
		b.DB.Exec(b.t, sql)
		b.DB.Exec(b.t, `CREATE TABLE public.effect (event_id uuid NOT NULL, purpose text NOT NULL)`)
	default:
		b.DB.Migrate(b.t, "public")
	}
}

// Sibling is a bed in the same world for another group, with another purpose.
func (b *Bed) Sibling(change func(*consumerproc.Config)) *Bed {
	b.t.Helper()
	s := *b
	s.Group, s.processes, s.dir = "e2e-"+randomName(), nil, b.t.TempDir()
	s.cfg.Group = s.Group
	change(&s.cfg)
	b.t.Cleanup(s.forget)
	b.t.Cleanup(s.stopProcesses)
	return &s
}

// connect makes the test's own ways to the servers, and the topic.
func (b *Bed) connect(kafka harness.Kafka, o Options) {
	b.t.Helper()
	pool, err := pgxpool.New(b.t.Context(), b.DB.DSN)
	if err != nil {
		b.t.Fatalf("making a pool: %v", err)
	}
	b.t.Cleanup(pool.Close)
	b.Pool = pool
	if b.Admin, err = topics.NewAdmin(strings.Split(kafka.Test, ",")...); err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(b.Admin.Close)
	if o.Relay != nil {
		b.t.Cleanup(b.forget)
		return
	}
	b.Topics = []string{"e2e-" + randomName() + ".user"}
	b.t.Cleanup(b.forget)
	if o.Partitions >= 0 {
		b.CreateTopic(max(o.Partitions, 1))
	}
}

// CreateTopic makes the bed's topic.
func (b *Bed) CreateTopic(partitions int) {
	b.t.Helper()
	if err := b.Admin.Create(b.t.Context(), int32(partitions), nil, b.Topics[0]); err != nil {
		b.t.Fatal(err)
	}
}

// forget removes the group, and topics that no other bed removes, so that a
// shared broker does not fill up.
func (b *Bed) forget() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.t.Context()), 10*time.Second)
	defer cancel()
	_ = b.Admin.DeleteGroups(ctx, b.Group) // a broker of the test's own may be gone already
	_ = b.Admin.Delete(ctx, b.Topics...)
}

func orElse[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

func randomName() string {
	id := make([]byte, 5)
	rand.Read(id)
	return hex.EncodeToString(id)
}

// Partition names a partition of the bed's first topic.
func (b *Bed) Partition(n int) check.PartitionName {
	return check.PartitionName{Topic: b.Topics[0], Number: int32(n)}
}

// Exec runs a statement.
func (b *Bed) Exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.Pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatalf("executing %q: %v", sql, err)
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

// Wait asks for a condition until it holds. It fails the test, with all that is
// known, when that takes too long or when a consumer ends that nobody ended.
func (b *Bed) Wait(what string, condition func() bool) {
	b.t.Helper()
	b.wait(what, condition, b.state)
}

func (b *Bed) wait(what string, condition func() bool, state func() string) {
	b.t.Helper()
	pgtest.Eventually(b.t, what, func() bool {
		for _, p := range b.processes {
			if p.Exited() && !p.expected {
				b.t.Fatalf("consumer %s ended while the test waited for %s", p.cfg.Name, what)
			}
		}
		return condition()
	}, state)
}

// state is all that helps to understand why a wait did not end.
func (b *Bed) state() string {
	var s strings.Builder
	for _, q := range []struct{ what, sql string }{
		{"rows", `SELECT coalesce(json_agg(r), '[]') FROM (SELECT id, event_id, send_status, attempts, claim_generation, claimed_by, lease_until - clock_timestamp() AS lease,
			next_attempt_at - clock_timestamp() AS due, error_code FROM public.outbox WHERE send_status <> 4 ORDER BY id LIMIT 10) r`},
		{"by status", `SELECT coalesce(json_agg(r), '[]') FROM (SELECT send_status, claim_generation, count(*) FROM public.outbox GROUP BY 1, 2) r`},
		{"receipts", `SELECT coalesce(json_agg(r), '[]') FROM (SELECT * FROM public.outbox_receipt WHERE status <> 4 LIMIT 10) r`},
		{"quarantine", `SELECT coalesce(json_agg(r), '[]') FROM (SELECT topic, partition, "offset", reason, message FROM public.outbox_quarantine LIMIT 10) r`},
	} {
		var text string
		if err := b.Pool.QueryRow(context.WithoutCancel(b.t.Context()), q.sql).Scan(&text); err != nil {
			text = err.Error()
		}
		fmt.Fprintf(&s, "%s: %s\n", q.what, text)
	}
	positions, err := b.Admin.Positions(b.t.Context(), b.Group, b.Topics...)
	members, groupState, _ := b.Admin.Members(b.t.Context(), b.Group)
	fmt.Fprintf(&s, "positions: %+v, %v\ngroup: %s %+v\n", positions, err, groupState, members)
	for _, p := range b.processes {
		if !p.Exited() {
			fmt.Fprintf(&s, "consumer %s: %+v\n", p.cfg.Name, p.Status())
		}
	}
	return s.String()
}

// scan reads rows of a query.
func scan[T any](b *Bed, f pgx.RowToFunc[T], sql string, args ...any) []T {
	b.t.Helper()
	rows, err := b.Pool.Query(b.t.Context(), sql, args...)
	if err != nil {
		b.t.Fatalf("asking %q: %v", sql, err)
	}
	all, err := pgx.CollectRows(rows, f)
	if err != nil {
		b.t.Fatalf("asking %q: %v", sql, err)
	}
	return all
}
