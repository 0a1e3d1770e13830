package operate

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// bench is a database with an operator who has the documented rights only.
type bench struct {
	*pgtest.DB
	admin   *pgx.Conn
	login   string
	actions *Actions
	conn    *pgx.Conn // the operator's
}

const testPerson = "anna"

func newBench(t *testing.T, db *pgtest.DB) *bench {
	t.Helper()
	db.Migrate(t, "public")
	login, dsn := db.Operator(t)
	b := &bench{DB: db, admin: db.Conn(t), login: login}
	b.actions, b.conn = b.operator(t, dsn, nil)
	return b
}

// operator opens another connection. Its patience with locked rows is short.
func (b *bench) operator(t *testing.T, dsn string, columns map[string]string) (*Actions, *pgx.Conn) {
	t.Helper()
	conn, _, err := pg.Connect(t.Context(), pg.Options{DSN: dsn}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pg.Close(conn) })
	table, err := Open(t.Context(), conn, Config{Table: pg.Table{Schema: "public", Name: "outbox"}, Columns: columns, TopicTemplate: "t"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "SET lock_timeout = '200ms'"); err != nil {
		t.Fatal(err)
	}
	return NewActions(table, testPerson, time.Minute), conn
}

func (b *bench) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := b.admin.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Rows in each state that matters, as columns to set.
const (
	publishFailed = "send_status = 3, attempts = 10, next_attempt_at = 'infinity', commit_lsn = '0/100', error_code = 'RECORD_TOO_LARGE', error_message = 'too large'"
	consumeFailed = "send_status = 3, attempts = 2, next_attempt_at = 'infinity', sent_at = now(), error_code = 'CONSUMER_DATA', error_message = 'bad'"
	waived        = "send_status = 3, attempts = 10, finished_at = now(), error_code = 'RECORD_INVALID'"
	ready         = "attempts = 0"
	sent          = "send_status = 2, sent_at = now()"
	consumed      = "send_status = 4, sent_at = now(), finished_at = now()"
	held          = "next_attempt_at = 'infinity', commit_lsn = '0/200'"
)

// insert adds a row for each set of columns, and returns their ids.
func (b *bench) insert(t *testing.T, aggregate string, sets ...string) []int64 {
	t.Helper()
	var ids []int64
	for _, set := range sets {
		var id int64
		err := b.admin.QueryRow(t.Context(), `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload)
			VALUES ('order', $1, 'created', '{}') RETURNING id`, aggregate).Scan(&id)
		if err != nil {
			t.Fatal(err)
		}
		b.exec(t, "UPDATE outbox SET "+set+" WHERE id = $1", id)
		ids = append(ids, id)
	}
	return ids
}

// row is a whole row as text, without what is its own.
func (b *bench) row(t *testing.T, id int64) string {
	t.Helper()
	var text string
	err := b.admin.QueryRow(t.Context(), `SELECT (to_jsonb(o) - '{id,event_id,created_at,next_attempt_at}'::text[])::text || ' due ' ||
		CASE WHEN next_attempt_at IS NULL THEN 'null' WHEN next_attempt_at = 'infinity' THEN 'infinity'
		     WHEN next_attempt_at <= clock_timestamp() THEN 'now' ELSE 'later' END FROM outbox o WHERE id = $1`, id).Scan(&text)
	if err != nil {
		t.Fatalf("row %d: %v", id, err)
	}
	return text
}

func (b *bench) rows(t *testing.T, ids []int64) []string {
	t.Helper()
	var texts []string
	for _, id := range ids {
		texts = append(texts, b.row(t, id))
	}
	return texts
}

func (b *bench) apply(t *testing.T, order Order, ids ...int64) []Result {
	t.Helper()
	results, err := b.actions.Apply(t.Context(), order, ids, 0)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func outcomes(results []Result) []string {
	var list []string
	for _, r := range results {
		text := string(r.Outcome)
		if r.Found {
			text += " " + r.Status.String()
		}
		list = append(list, text)
	}
	return list
}

var failedOnly = []outbox.Status{outbox.Failed}

// What each order does to a row in each state, and what it tells.
func TestOrders(t *testing.T) {
	t.Parallel()
	states := []string{publishFailed, consumeFailed, waived, ready, held, sent, consumed}
	const replayed = "replayed READY"
	tests := []struct {
		name  string
		order Order
		want  []string
	}{
		{"replay", Order{Action: Replay, From: failedOnly},
			[]string{replayed, replayed, "waived FAILED", "not_failed READY", "not_failed READY", "not_failed SENT", "not_failed CONSUMED", "not_found"}},
		{"replay with waived", Order{Action: Replay, From: failedOnly, Waived: true},
			[]string{replayed, replayed, replayed, "not_failed READY", "not_failed READY", "not_failed SENT", "not_failed CONSUMED", "not_found"}},
		{"replay SENT", Order{Action: Replay, From: []outbox.Status{outbox.Sent}},
			[]string{"not_failed FAILED", "not_failed FAILED", "not_failed FAILED", "not_failed READY", "not_failed READY", replayed, "not_failed CONSUMED", "not_found"}},
		{"replay FAILED and SENT", Order{Action: Replay, From: []outbox.Status{outbox.Failed, outbox.Sent}},
			[]string{replayed, replayed, "waived FAILED", "not_failed READY", "not_failed READY", replayed, "not_failed CONSUMED", "not_found"}},
		{"skip", Order{Action: Skip, From: failedOnly},
			[]string{"skipped FAILED", "skipped FAILED", "waived FAILED", "not_failed READY", "not_failed READY", "not_failed SENT", "not_failed CONSUMED", "not_found"}},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				var ids []int64
				for i, state := range states {
					ids = append(ids, b.insert(t, fmt.Sprint(tt.name, i), state)...)
				}
				ids = append(ids, 1<<40)
				before := b.rows(t, ids[:len(states)])

				preview, err := b.actions.Preview(t.Context(), tt.order, ids)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(before, b.rows(t, ids[:len(states)])); diff != "" {
					t.Errorf("a dry run changed rows (-before +after):\n%s", diff)
				}
				results := b.apply(t, tt.order, ids...)
				if diff := cmp.Diff(tt.want, outcomes(results)); diff != "" {
					t.Errorf("results (-want +got):\n%s", diff)
				}
				would := map[Outcome]Outcome{Replayed: WouldReplay, Skipped: WouldSkip}
				for i, r := range results {
					want := r.Outcome
					if w, ok := would[want]; ok {
						want = w
					}
					if preview[i].Outcome != want || preview[i].Changed() {
						t.Errorf("a dry run says %+v of row %d, want %s", preview[i], i, want)
					}
					_, did := would[r.Outcome]
					if r.Changed() != did || r.ID != ids[i] {
						t.Errorf("result %d: %+v", i, r)
					}
					if i < len(states) && !did && b.row(t, r.ID) != before[i] {
						t.Errorf("row %d was changed:\n%s\n%s", i, before[i], b.row(t, r.ID))
					}
				}
				again := b.apply(t, tt.order, ids...)
				if i := slices.IndexFunc(again, func(r Result) bool { return r.Changed() }); i >= 0 {
					t.Errorf("doing it again changed row %d: %+v", i, again[i])
				}
			})
		}
	})
}

// A plain UPDATE in psql equals the command, but for the audit.
func TestEqualsPlainSQL(t *testing.T) {
	t.Parallel()
	const replaySQL = `UPDATE public.outbox SET send_status = 0, next_attempt_at = now(), attempts = 0, error_code = NULL, error_message = NULL,
		sent_at = NULL, finished_at = NULL WHERE id = $1 AND send_status IN (2, 3)`
	const skipSQL = `UPDATE public.outbox SET finished_at = now(), next_attempt_at = NULL, commit_lsn = NULL WHERE id = $1 AND send_status = 3`
	tests := []struct {
		name  string
		state string
		order Order
		sql   string
	}{
		{"replay of a publish failure", publishFailed, Order{Action: Replay, From: failedOnly}, replaySQL},
		{"replay of a consume failure", consumeFailed, Order{Action: Replay, From: failedOnly}, replaySQL},
		{"replay of a waived one", waived, Order{Action: Replay, From: failedOnly, Waived: true}, replaySQL},
		{"replay of a SENT one", sent, Order{Action: Replay, From: []outbox.Status{outbox.Sent}}, replaySQL},
		{"skip", publishFailed, Order{Action: Skip, From: failedOnly}, skipSQL},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				ids := b.insert(t, tt.name, tt.state, tt.state)
				b.apply(t, tt.order, ids[0])
				if _, err := b.conn.Exec(t.Context(), tt.sql, ids[1]); err != nil {
					t.Fatal(err)
				}
				// The time of a skip is the transaction's.
				b.exec(t, "UPDATE outbox SET finished_at = 'epoch' WHERE finished_at IS NOT NULL")
				if diff := cmp.Diff(b.row(t, ids[1]), b.row(t, ids[0])); diff != "" {
					t.Errorf("rows (-by SQL +by command):\n%s", diff)
				}
			})
		}
	})
}

type auditEntry struct {
	Actor, Action string
	ID            *int64
	EventID       *string
	Reason        *string
	Filter        *string
}

func (b *bench) audit(t *testing.T) []auditEntry {
	t.Helper()
	rows, err := b.conn.Query(t.Context(), "SELECT actor, action, id, event_id::text, reason, filter FROM public.cdc_relay_audit ORDER BY id, audit_id")
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[auditEntry])
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestAudit(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		ids := b.insert(t, "a", publishFailed, publishFailed, ready)
		hostile := `x'; DROP TABLE outbox; --`
		results := b.apply(t, Order{Action: Replay, From: failedOnly}, ids[0], ids[2])
		skipped := b.apply(t, Order{Action: Skip, From: failedOnly, Reason: hostile, Filter: "--topic " + hostile}, ids[1])
		actor, filter := b.login+" ("+testPerson+")", "--topic "+hostile
		want := []auditEntry{
			{Actor: actor, Action: "replay", ID: &ids[0], EventID: &results[0].EventID},
			{Actor: actor, Action: "skip", ID: &ids[1], EventID: &skipped[0].EventID, Reason: &hostile, Filter: &filter},
		}
		if diff := cmp.Diff(want, b.audit(t)); diff != "" {
			t.Errorf("audit (-want +got):\n%s", diff)
		}
	})
}

// Without its audit entry nothing happens.
func TestNoChangeWithoutAudit(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		ids := b.insert(t, "a", publishFailed)
		before := b.row(t, ids[0])
		b.exec(t, "REVOKE INSERT ON cdc_relay_audit FROM "+b.login)
		for _, action := range []Action{Replay, Skip} {
			results, err := b.actions.Apply(t.Context(), Order{Action: action, From: failedOnly}, ids, 0)
			if err == nil || len(results) > 0 || !strings.Contains(err.Error(), "ended after 0 of 1 rows; the others are as they were") ||
				!strings.Contains(err.Error(), "INSERT on cdc_relay_audit") {
				t.Errorf("%s: %v, %v", action, results, err)
			}
			if diff := cmp.Diff(before, b.row(t, ids[0])); diff != "" {
				t.Errorf("%s changed the row (-before +after):\n%s", action, diff)
			}
		}
	})
}

// A row that somebody has locked is named with who it is; the others are done.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		ids := b.insert(t, "a", publishFailed, publishFailed, publishFailed)
		tx, err := b.admin.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var pid int
		if err := tx.QueryRow(t.Context(), "SELECT pg_backend_pid() FROM outbox WHERE id = $1 FOR UPDATE", ids[1]).Scan(&pid); err != nil {
			t.Fatal(err)
		}
		results := b.apply(t, Order{Action: Replay, From: failedOnly}, ids...)
		if diff := cmp.Diff([]string{"replayed READY", "locked FAILED", "replayed READY"}, outcomes(results)); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		if want := fmt.Sprintf("pid %d has locked it; let that transaction end, or end it, and do this again", pid); results[1].Detail != want {
			t.Errorf("detail %q, want %q", results[1].Detail, want)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := outcomes(b.apply(t, Order{Action: Replay, From: failedOnly}, ids[1])); got[0] != "replayed READY" {
			t.Errorf("after the lock: %v", got)
		}
		if n := len(b.audit(t)); n != 3 {
			t.Errorf("%d audit entries, want 3", n)
		}
	})
}

// What another transaction commits while an order waits for the row decides.
func TestChangedMeanwhile(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		state string
		order Order
		sql   string
		want  string
	}{
		{"another operator replays it", publishFailed, Order{Action: Replay, From: failedOnly}, "UPDATE outbox SET send_status = 0, next_attempt_at = now() WHERE id = $1", "not_failed READY"},
		{"another operator skips it", publishFailed, Order{Action: Replay, From: failedOnly}, "UPDATE outbox SET finished_at = now(), next_attempt_at = NULL, commit_lsn = NULL WHERE id = $1", "waived FAILED"},
		{"it is purged", publishFailed, Order{Action: Skip, From: failedOnly}, "DELETE FROM outbox WHERE id = $1", "not_found"},
		{"the consumer claims it", sent, Order{Action: Replay, From: []outbox.Status{outbox.Sent}}, "UPDATE outbox SET send_status = 5, claim_generation = 1 WHERE id = $1", "not_failed CONSUMING"},
		{"it is only touched", publishFailed, Order{Action: Replay, From: failedOnly}, "UPDATE outbox SET attempts = 11 WHERE id = $1", "replayed READY"},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		if _, err := b.conn.Exec(t.Context(), "SET lock_timeout = '1min'"); err != nil {
			t.Fatal(err)
		}
		watcher := db.Conn(t)
		for _, tt := range tests {
			t.Run(tt.name, func(t *testing.T) {
				ids := b.insert(t, tt.name, tt.state)
				tx, err := b.admin.Begin(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := tx.Exec(t.Context(), tt.sql, ids[0]); err != nil {
					t.Fatal(err)
				}
				done := make(chan error, 1)
				var results []Result
				go func() {
					var err error
					results, err = b.actions.Apply(t.Context(), tt.order, ids, 0)
					done <- err
				}()
				pgtest.Eventually(t, "the order to wait for the row", func() bool {
					var waiting bool
					err := watcher.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)", b.conn.PgConn().PID()).Scan(&waiting)
					return err == nil && waiting
				}, func() string { return "not waiting" })
				if err := tx.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff([]string{tt.want}, outcomes(results)); diff != "" {
					t.Errorf("results (-want +got):\n%s", diff)
				}
			})
		}
	})
}

// Many rows go in batches, a transaction each; when the connection breaks in one
// of them, what was committed is told.
func TestBatches(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		const all = 2*maxBatch + 1
		b.exec(t, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, send_status, next_attempt_at, commit_lsn)
			SELECT 'order', g::text, 'created', '{}', 3, 'infinity', '0/100' FROM generate_series(1, $1) g`, all)
		picked, err := b.actions.Pick(t.Context(), Filter{Statuses: failedOnly, Open: true, AggregateType: "order", Limit: 10_000})
		if err != nil || len(picked.IDs) != all || picked.Total != all {
			t.Fatalf("picked %d of %d: %v", len(picked.IDs), picked.Total, err)
		}
		// The session ends at the first row of the second batch.
		b.exec(t, fmt.Sprintf(`CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
			'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END';
			CREATE TRIGGER die BEFORE UPDATE ON outbox FOR EACH ROW WHEN (NEW.id = %d) EXECUTE FUNCTION die()`, picked.IDs[maxBatch]))
		order := Order{Action: Replay, From: failedOnly}
		results, err := b.actions.Apply(t.Context(), order, picked.IDs, 0)
		if err == nil || !strings.HasPrefix(err.Error(), "replay ended after 500 of 1001 rows and perhaps 500 more; the others are as they were") {
			t.Errorf("broken connection: %v", err)
		}
		var ready int
		if err := b.admin.QueryRow(t.Context(), "SELECT count(*) FROM outbox WHERE send_status = 0").Scan(&ready); err != nil {
			t.Fatal(err)
		}
		if len(results) != maxBatch || ready != maxBatch {
			t.Errorf("%d results, %d rows READY, want %d", len(results), ready, maxBatch)
		}
		b.exec(t, "DROP TRIGGER die ON outbox")
		b.actions, b.conn = b.operator(t, strings.Replace(b.DSN, "postgres@", b.login+"@", 1), nil)
		changed := 0
		for _, r := range b.apply(t, order, picked.IDs...) {
			if r.Changed() {
				changed++
			}
		}
		var transactions int
		if err := b.admin.QueryRow(t.Context(), "SELECT count(DISTINCT xmin::text) FROM outbox WHERE send_status = 0").Scan(&transactions); err != nil {
			t.Fatal(err)
		}
		if changed != all-maxBatch || transactions != 3 || len(b.audit(t)) != all {
			t.Errorf("again: %d changed in %d transactions, %d audit entries", changed, transactions, len(b.audit(t)))
		}
	})
}

func TestRate(t *testing.T) {
	t.Parallel()
	ids := make([]int64, 1200)
	tests := []struct {
		name string
		rate int
		want []string // size of each batch and when it came
	}{
		{"no limit", 0, []string{"500 0s", "500 0s", "200 0s"}},
		{"more than a batch a second", 1000, []string{"500 0s", "500 500ms", "200 1s"}},
		{"less", 400, []string{"400 0s", "400 1s", "400 2s"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var got []string
				err := inBatches(t.Context(), ids, tt.rate, func(batch []int64) error {
					got = append(got, fmt.Sprint(len(batch), " ", time.Since(start)))
					return nil
				})
				if diff := cmp.Diff(tt.want, got); diff != "" || err != nil {
					t.Errorf("%v, batches (-want +got):\n%s", err, diff)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n := 0
		err := inBatches(ctx, ids, 1, func([]int64) error { n++; return nil })
		if err != context.DeadlineExceeded || n != 1 && n != 2 {
			t.Errorf("ended context: %v after %d batches", err, n)
		}
	})
}

func TestPick(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		ids := b.insert(t, "a", publishFailed, consumeFailed, waived, publishFailed, ready)
		eventID := func(id int64) outbox.ID {
			var text string
			if err := b.admin.QueryRow(t.Context(), "SELECT event_id::text FROM outbox WHERE id = $1", id).Scan(&text); err != nil {
				t.Fatal(err)
			}
			event, err := outbox.ParseID(text)
			if err != nil {
				t.Fatal(err)
			}
			return event
		}
		stranger, err := outbox.ParseID("0190163d-8694-739b-aea5-966c26f8ad91")
		if err != nil {
			t.Fatal(err)
		}
		open := Filter{Statuses: failedOnly, Open: true, Limit: 10}
		with := func(change func(f *Filter)) Filter {
			f := open
			change(&f)
			return f
		}
		tests := []struct {
			name   string
			filter Filter
			want   Picked
		}{
			{"ids, each once, whatever their state", with(func(f *Filter) { f.IDs = []int64{ids[4], ids[0], ids[4], 99999} }),
				Picked{IDs: []int64{ids[4], ids[0], 99999}, Total: 3}},
			{"event ids", with(func(f *Filter) {
				f.IDs, f.EventIDs = []int64{ids[0]}, []outbox.ID{stranger, eventID(ids[1]), eventID(ids[0])}
			}), Picked{IDs: []int64{ids[0], ids[1]}, Total: 2, Missing: []Result{{EventID: stranger.String(), Outcome: NotFound, Detail: noSuchRow}}}},
			{"open ones by type", with(func(f *Filter) { f.AggregateType = "order" }), Picked{IDs: []int64{ids[0], ids[1], ids[3]}, Total: 3}},
			{"at most the limit", with(func(f *Filter) { f.AggregateType, f.Limit = "order", 2 }), Picked{IDs: []int64{ids[0], ids[1]}, Total: 3}},
			{"ids and a condition", with(func(f *Filter) { f.IDs, f.ErrorCode = ids, "CONSUMER_DATA" }), Picked{IDs: []int64{ids[1]}, Total: 1}},
			{"none", with(func(f *Filter) { f.ErrorCode = "X' OR true --" }), Picked{}},
		}
		for _, tt := range tests {
			got, err := b.actions.Pick(t.Context(), tt.filter)
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(Result{})); diff != "" || err != nil {
				t.Errorf("%s: %v, picked (-want +got):\n%s", tt.name, err, diff)
			}
		}
		if !open.Empty() || with(func(f *Filter) { f.Phase = PhasePublish }).Empty() || with(func(f *Filter) { f.IDs = ids }).Empty() {
			t.Error("Empty")
		}
	})
}

// A table whose written columns have other names.
func TestMappedColumns(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		ids := b.insert(t, "a", publishFailed, held)
		b.exec(t, `ALTER TABLE outbox RENAME COLUMN event_id TO "Event ""Id"""`)
		b.exec(t, "ALTER TABLE outbox RENAME COLUMN aggregate_id TO key")
		b.exec(t, "ALTER TABLE outbox RENAME COLUMN aggregate_type TO kind")
		b.actions, b.conn = b.operator(t, strings.Replace(b.DSN, "postgres@", b.login+"@", 1),
			map[string]string{"event_id": `Event "Id"`, "aggregate_id": "key", "aggregate_type": "kind"})
		results := b.apply(t, Order{Action: Skip, From: failedOnly}, ids[0])
		event, err := outbox.ParseID(results[0].EventID)
		if err != nil {
			t.Fatal(err)
		}
		picked, err := b.actions.Pick(t.Context(), Filter{EventIDs: []outbox.ID{event}, Limit: 1})
		if err != nil || !slices.Equal(picked.IDs, ids[:1]) || !strings.HasSuffix(b.row(t, ids[1]), "due now") {
			t.Errorf("%v, %v, held row: %s", picked, err, b.row(t, ids[1]))
		}
	})
}

// An application's own table need not have the columns that only consumers use,
// finished_at among them. Its FAILED rows were listed with the advice to replay
// or to skip them, and both ended with "column o.finished_at does not exist".
func TestTableWithoutConsumers(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		ids := b.insert(t, "a", publishFailed, publishFailed, sent)
		b.exec(t, `ALTER TABLE outbox DROP COLUMN claim_generation CASCADE, DROP COLUMN claimed_by CASCADE,
			DROP COLUMN lease_until CASCADE, DROP COLUMN finished_at CASCADE`)
		table, err := Open(t.Context(), b.admin, Config{Table: pg.Table{Schema: "public", Name: "outbox"}, TopicTemplate: "t"})
		if err != nil {
			t.Fatal(err)
		}
		actions := NewActions(table, testPerson, time.Minute)
		results, err := actions.Apply(t.Context(), Order{Action: Replay, From: failedOnly}, ids, 0)
		if err != nil {
			t.Fatalf("replay: %v", err)
		}
		var got []Outcome
		for _, r := range results {
			got = append(got, r.Outcome)
		}
		if diff := cmp.Diff([]Outcome{Replayed, Replayed, NotFailed}, got); diff != "" {
			t.Errorf("replay (-want +got):\n%s", diff)
		}

		b.exec(t, "UPDATE outbox SET "+publishFailed+" WHERE id = $1", ids[0])
		before := b.rows(t, ids)
		skip := Order{Action: Skip, From: failedOnly, Reason: "test"}
		_, preview := actions.Preview(t.Context(), skip, ids[:1])
		_, applied := actions.Apply(t.Context(), skip, ids[:1], 0)
		for what, err := range map[string]error{"a preview": preview, "a skip": applied} {
			blocked := fault.AsBlocked(err)
			if blocked == nil || blocked.Reason != "table.columns" || !strings.Contains(blocked.Remedy, `ALTER TABLE "public"."outbox" ADD COLUMN finished_at timestamptz`) {
				t.Errorf("%s without finished_at: %v, want table.columns with the statement that adds it", what, err)
			}
		}
		if diff := cmp.Diff(before, b.rows(t, ids)); diff != "" {
			t.Errorf("a skip that was refused has changed rows (-before +after):\n%s", diff)
		}
	})
}
