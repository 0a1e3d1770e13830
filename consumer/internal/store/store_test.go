package store_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// claims is what the line uses of Rows and Receipts.
type claims interface {
	Claim(ctx context.Context, refs []store.Ref) ([]store.Claim, error)
	ClaimOne(ctx context.Context, ref store.Ref) (store.Claim, bool, error)
	TakeOver(ctx context.Context, ref store.Ref) (c store.Claim, parked, ok bool, err error)
	States(ctx context.Context, refs []store.Ref) ([]store.State, error)
	Renew(ctx context.Context, held []store.Held) (renewed, locked []store.Held, err error)
	DoneNow(ctx context.Context, held []store.Held) (kept, locked []store.Held, err error)
	Done(ctx context.Context, held []store.Held) (kept []store.Held, err error)
	Fail(ctx context.Context, f store.Failure) (bool, error)
	Release(ctx context.Context, r store.Release) (bool, error)
	HandBack(ctx context.Context, held []store.Held) error
}

const (
	lease = time.Minute
	limit = 3 // AbandonLimit
)

// fixture is a database with the tables and, for each way to keep claims, one
// to test.
type fixture struct {
	db    *pgtest.DB
	admin *pgx.Conn // superuser, sees and changes everything
	pool  *pgxpool.Pool
	kind  kind
	claims
}

// kind is a way to keep claims.
type kind struct {
	name          string
	table, status string
	byEvent       bool // events are named without their row's id
}

var kinds = []kind{
	{name: "rows", table: "outbox", status: "send_status"},
	{name: "rows by event id", table: "outbox", status: "send_status", byEvent: true},
	{name: "receipts", table: "outbox_receipt", status: "status"},
}

func (k kind) receipts() bool { return k.table == "outbox_receipt" }

// each runs a test for every kind and version. Kinds share a database, in which
// each test has events of its own.
func each(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		dsn := migrate(t, db)
		for _, k := range kinds {
			t.Run(k.name, func(t *testing.T) { test(t, newFixture(t, db, dsn, k)) })
		}
	})
}

func setup(t *testing.T, db *pgtest.DB, k kind) *fixture {
	t.Helper()
	return newFixture(t, db, migrate(t, db), k)
}

// migrate makes the tables, and returns the DSN of a consumer with no more
// rights than documented.
func migrate(t *testing.T, db *pgtest.DB) string {
	t.Helper()
	db.Migrate(t, "public")
	_, dsn := db.Consumer(t)
	return dsn
}

func newFixture(t *testing.T, db *pgtest.DB, dsn string, k kind) *fixture {
	t.Helper()
	f := &fixture{db: db, admin: db.Conn(t), pool: poolOf(t, dsn), kind: k}
	f.claims = f.owned(f.pool, "me")
	return f
}

// owned is for claims of another owner, or on another connection.
func (f *fixture) owned(db store.DB, owner string) claims {
	if f.kind.receipts() {
		return store.NewReceipts(db, `"public"."outbox_receipt"`, "mail", owner, lease, limit)
	}
	return store.NewRows(db, `"public"."outbox"`, owner, lease, limit)
}

func poolOf(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	conf, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	conf.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(t.Context(), store.PoolConfig(conf))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// event makes an event that can be claimed: a SENT row; of receipts nothing is
// needed, only an id.
func (f *fixture) event(t *testing.T) store.Ref {
	t.Helper()
	ref := store.Ref{EventID: outbox.NewID()}
	if f.kind.receipts() {
		return ref
	}
	var id int64
	err := f.admin.QueryRow(t.Context(), `INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, send_status, sent_at)
		VALUES ($1, 'order', 'o-1', 'created', 2, now()) RETURNING id`, ref.EventID).Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	if !f.kind.byEvent {
		ref.RowID = id
	}
	return ref
}

func (f *fixture) events(t *testing.T, n int) []store.Ref {
	t.Helper()
	refs := make([]store.Ref, n)
	for i := range refs {
		refs[i] = f.event(t)
	}
	return refs
}

// set changes an event's row or receipt behind everybody's back. STATUS stands
// for the column's name.
func (f *fixture) set(t *testing.T, ref store.Ref, set string) {
	t.Helper()
	set = strings.ReplaceAll(set, "STATUS", f.kind.status)
	tag, err := f.admin.Exec(t.Context(), fmt.Sprintf("UPDATE %s SET %s WHERE event_id = $1", f.kind.table, set), ref.EventID)
	if err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("SET %s: %v, %v", set, tag, err)
	}
}

// expire lets a lease end.
func (f *fixture) expire(t *testing.T, ref store.Ref) {
	t.Helper()
	f.set(t, ref, "lease_until = clock_timestamp() - interval '1 ms'")
}

// row is what a row or receipt holds, in words.
type row struct {
	Status     int
	Generation int32
	Attempts   int
	By         string
	Leased     bool // lease_until is set
	Next       string
	Code       string
	Message    string
	Finished   bool
}

func (f *fixture) row(t *testing.T, ref store.Ref) row {
	t.Helper()
	var r row
	err := f.admin.QueryRow(t.Context(), fmt.Sprintf(`SELECT %s, claim_generation, attempts, coalesce(claimed_by, ''),
		lease_until IS NOT NULL, CASE WHEN next_attempt_at = 'infinity' THEN 'never' WHEN next_attempt_at > clock_timestamp() THEN 'later'
		WHEN next_attempt_at IS NOT NULL THEN 'now' ELSE '' END, coalesce(error_code, ''), coalesce(error_message, ''),
		finished_at IS NOT NULL FROM %s WHERE event_id = $1`, f.kind.status, f.kind.table), ref.EventID).
		Scan(&r.Status, &r.Generation, &r.Attempts, &r.By, &r.Leased, &r.Next, &r.Code, &r.Message, &r.Finished)
	if err != nil {
		t.Fatalf("reading the row: %v", err)
	}
	return r
}

// claim claims an event that must be free.
func (f *fixture) claim(t *testing.T, ref store.Ref) store.Claim {
	t.Helper()
	list, err := f.Claim(t.Context(), []store.Ref{ref})
	if err != nil || len(list) != 1 {
		t.Fatalf("claiming a free event: %v, %v", list, err)
	}
	return list[0]
}

func (f *fixture) state(t *testing.T, ref store.Ref) store.State {
	t.Helper()
	states, err := f.States(t.Context(), []store.Ref{ref})
	if err != nil || len(states) != 1 {
		t.Fatalf("reading the state: %v, %v", states, err)
	}
	return states[0]
}

// taken makes an event that an attempt holds, under generation 1.
func (f *fixture) taken(t *testing.T) store.Claim {
	t.Helper()
	return f.claim(t, f.event(t))
}
