package statusback_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/internal/statusback"
)

const (
	slot  = "s"
	epoch = 7
	// patience ends a broken test; it measures nothing.
	patience = 60 * time.Second
)

var owner = [16]byte{0: 1, 15: 9}

// fixture is a recorder over a migrated database of its own.
type fixture struct {
	*statusback.Recorder
	db   *pgtest.DB
	conn *pgx.Conn // of the test
	out  *outcomes
	reg  *prometheus.Registry
	stop context.CancelFunc
	done chan error // of Run

	ended bool // done was read
}

// setup makes a fixture whose recorder runs until the end of the test.
func setup(t testing.TB, db *pgtest.DB, change ...func(*statusback.Config)) *fixture {
	t.Helper()
	db.Migrate(t, "public")
	f := &fixture{db: db, conn: db.Conn(t), out: newOutcomes(), reg: prometheus.NewRegistry(), done: make(chan error, 1)}
	f.exec(t, "INSERT INTO cdc_relay_slot VALUES ($1, $2, $3)", slot, epoch, owner)
	_, server, err := pg.Connect(t.Context(), pg.Options{DSN: db.DSN}, nil)
	if err != nil {
		t.Fatal(err)
	}
	session := server.Identity()
	session.Epoch = epoch
	cfg := statusback.Config{
		Database: pg.Options{DSN: db.DSN, ApplicationName: "recorder"},
		Table:    pg.Table{Schema: "public", Name: "outbox"},
		Slot:     slot, Owner: owner, Session: session,
	}
	for _, c := range change {
		c(&cfg)
	}
	log := slog.New(slog.NewTextHandler(testWriter{t}, nil))
	f.Recorder, err = statusback.New(cfg, f.out, log, statusback.NewMetrics(f.reg))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = cancel
	go func() { f.done <- f.Run(ctx) }()
	t.Cleanup(cancel)
	t.Cleanup(func() {
		if f.ended {
			return
		}
		if err := f.end(t); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return f
}

// end stops the recorder, if it has not ended by itself, and returns what Run
// did.
func (f *fixture) end(t testing.TB) error {
	t.Helper()
	f.stop()
	return f.wait(t)
}

// wait returns what Run did when it has ended by itself.
func (f *fixture) wait(t testing.TB) error {
	t.Helper()
	f.ended = true
	select {
	case err := <-f.done:
		return err
	case <-time.After(patience):
		t.Fatal("Run does not end")
		return nil
	}
}

// waits returns when the recorder waits for a lock, with its process id.
func (f *fixture) waits(t testing.TB) (pid int) {
	t.Helper()
	pgtest.Eventually(t, "the recorder to wait for a lock", func() bool {
		err := f.conn.QueryRow(t.Context(), `SELECT coalesce(max(pid), 0) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'recorder' AND wait_event_type = 'Lock'`).Scan(&pid)
		return err == nil && pid != 0
	}, func() string { return "it does not" })
	return pid
}

// waitWrites waits until a counter of writes has reached n.
func (f *fixture) waitWrites(t testing.TB, to, result string, n float64) {
	t.Helper()
	pgtest.Eventually(t, fmt.Sprintf("%v writes to %s to be %s", n, to, result),
		func() bool { return f.writes(t, to, result) >= n },
		func() string { return fmt.Sprint(f.writes(t, to, result)) })
}

// begin starts a transaction on another connection.
func (f *fixture) begin(t testing.TB, sql string, args ...any) pgx.Tx {
	t.Helper()
	tx, err := f.db.Conn(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return tx
}

func commit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := f.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func (f *fixture) count(t testing.TB, condition string) int {
	t.Helper()
	var n int
	if err := f.conn.QueryRow(t.Context(), "SELECT count(*) FROM outbox WHERE "+condition).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

const insertSQL = `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
	SELECT 'order', 'a' || i, 'created', 'x' FROM generate_series(1, $1::int) i RETURNING id, pg_current_xact_id()::text::bigint`

// insert commits n rows and returns them as the stream would.
func (f *fixture) insert(t testing.TB, n int) []event.Ref {
	t.Helper()
	rows, err := f.conn.Query(t.Context(), insertSQL, n)
	if err != nil {
		t.Fatal(err)
	}
	return refsOf(t, rows)
}

func refsOf(t testing.TB, rows pgx.Rows) []event.Ref {
	t.Helper()
	refs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (event.Ref, error) {
		var id, xid int64
		err := row.Scan(&id, &xid)
		return event.Ref{Seq: event.Seq(id), ID: id, XID: uint64(xid), CommitLSN: 1<<32 + 5}, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return refs
}

func ids(refs []event.Ref) []int64 {
	list := make([]int64, len(refs))
	for i, r := range refs {
		list[i] = r.ID
	}
	return list
}

// metric is the value of a counter with these label values, in order of the
// labels' names.
func (f *fixture) metric(t testing.TB, name string, values ...string) float64 {
	t.Helper()
	families, err := f.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			var got []string
			for _, l := range m.GetLabel() {
				got = append(got, l.GetValue())
			}
			if family.GetName() == name && slices.Equal(got, values) {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no metric %s%v", name, values)
	return 0
}

func (f *fixture) writes(t testing.TB, to, result string) float64 {
	t.Helper()
	return f.metric(t, "cdc_relay_status_writes_total", result, to)
}

// outcomes collects what a recorder reports.
type outcomes struct {
	mu       sync.Mutex
	resolved map[event.Seq]int // how often; nil in a benchmark
	total    int               // how many
	trouble  *fault.Blocked
	changed  chan struct{} // closed and made anew at each report
}

func newOutcomes() *outcomes {
	return &outcomes{resolved: make(map[event.Seq]int), changed: make(chan struct{})}
}

func (o *outcomes) Resolved(refs []event.Ref) {
	o.change(func() {
		o.total += len(refs)
		if o.resolved == nil {
			return
		}
		for _, r := range refs {
			o.resolved[r.Seq]++
		}
	})
}

// countOnly forgets which events were resolved.
func (o *outcomes) countOnly() { o.change(func() { o.resolved = nil }) }

func (o *outcomes) Trouble(b *fault.Blocked) { o.change(func() { o.trouble = b }) }

func (o *outcomes) change(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	f()
	close(o.changed)
	o.changed = make(chan struct{})
}

// waitFor returns when the condition holds, which is asked under the lock.
func (o *outcomes) waitFor(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		o.mu.Lock()
		ok, changed := condition(), o.changed
		state := fmt.Sprintf("%d resolved, trouble %v", o.total, o.trouble)
		o.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-deadline.C:
			t.Fatalf("waited %v for %s; %s", patience, what, state)
		}
	}
}

// waitResolved waits until exactly these events are resolved, once each.
func (o *outcomes) waitResolved(t testing.TB, refs ...[]event.Ref) {
	t.Helper()
	want := make(map[event.Seq]int)
	for _, list := range refs {
		for _, r := range list {
			want[r.Seq] = 1
		}
	}
	o.waitFor(t, fmt.Sprintf("%d resolved events", len(want)), func() bool { return len(o.resolved) >= len(want) })
	o.mu.Lock()
	defer o.mu.Unlock()
	if !maps.Equal(want, o.resolved) {
		t.Fatalf("resolved %v, want %v", o.resolved, want)
	}
}

func (o *outcomes) waitTrouble(t testing.TB, reason string) *fault.Blocked {
	t.Helper()
	var b *fault.Blocked
	o.waitFor(t, "trouble "+reason, func() bool {
		b = o.trouble
		return (b == nil && reason == "") || b != nil && b.Reason == reason
	})
	return b
}

// testWriter shows the log of a test that fails.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Logf("%s", p)
	return len(p), nil
}

// rows are all rows as text, by id.
func (f *fixture) rows(t testing.TB) []string {
	t.Helper()
	rows, err := f.conn.Query(t.Context(), "SELECT outbox::text FROM outbox ORDER BY id")
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func id(ref event.Ref) string { return strconv.FormatInt(ref.ID, 10) }

func lsn(n uint64) pglogrepl.LSN { return pglogrepl.LSN(n) }

func withDue(refs []event.Ref, due time.Time) []event.Ref {
	list := slices.Clone(refs)
	for i := range list {
		list[i].Due = event.DueAt(due)
	}
	return list
}

func parksOf(refs []event.Ref, action event.Action) []event.Park {
	list := make([]event.Park, len(refs))
	for i, r := range refs {
		list[i] = event.Park{Ref: r, Action: action, Delay: time.Hour, Failure: event.Failure{Code: "X", Message: "no"}}
	}
	return list
}

// without joins lists and leaves some rows out.
func without(leave []int64, lists ...[]event.Ref) []event.Ref {
	all := slices.Concat(lists...)
	return slices.DeleteFunc(all, func(r event.Ref) bool { return slices.Contains(leave, r.ID) })
}
