package retrysched

import (
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

const (
	isDue    = "'2000-01-01'"
	isHeld   = "'infinity'"
	comesDue = "'2100-01-01'"
)

// Of rows that keep an order only the first parked one is requeued.
func TestTurn(t *testing.T) {
	t.Parallel()
	block := func(c *Config) { c.Block = true }
	pass := func(*Config) {}
	tests := []struct {
		name   string
		config func(*Config)
		rows   []row   // with ids from 1 on
		except []int64 // in flight
		want   []int64
	}{
		{"the first one", block, []row{{due: isDue, lsn: "'0/5'"}, {due: isDue, lsn: "'0/6'"}}, nil, []int64{1}},
		{"by commit, not by id", block, []row{{due: isDue, lsn: "'0/6'"}, {due: isDue, lsn: "'0/5'"}}, nil, []int64{2}},
		{"of a transaction by id", block, []row{{due: isDue, lsn: "'0/6'"}, {due: isDue, lsn: "'0/6'"}}, nil, []int64{1}},
		{"positions of different length", block, []row{{due: isDue, lsn: "'0/10'"}, {due: isDue, lsn: "'0/9'"}}, nil, []int64{2}},
		{"the first one is in flight", block, []row{{due: isDue, lsn: "'0/5'"}, {due: isDue, lsn: "'0/6'"}}, []int64{1}, nil},
		{"the first one has FAILED", block, []row{{status: 3, due: isHeld, lsn: "'0/5'"}, {due: isDue, lsn: "'0/6'"}}, nil, nil},
		{"the first one waits for its time", block, []row{{due: comesDue, lsn: "'0/5'"}, {due: isDue, lsn: "'0/6'"}}, nil, nil},
		{"the first one waits for its release", block, []row{{due: isHeld, lsn: "'0/5'"}, {due: isDue, lsn: "'0/6'"}}, nil, nil},
		{"held ones behind", block, []row{{due: isDue, lsn: "'0/5'"}, {due: isHeld, lsn: "'0/6'"}}, nil, []int64{1}},
		{"the first one was skipped", block, []row{{status: 3, due: "NULL"}, {due: isDue, lsn: "'0/6'"}}, nil, []int64{2}},
		{"an earlier one is not parked any more", block, []row{{due: "NULL", lsn: "'0/5'"}, {due: isDue, lsn: "'0/6'"}}, nil, []int64{2}},
		{"an earlier one is SENT by hand", block, []row{{status: 2, due: isHeld, lsn: "'0/5'"}, {due: isDue, lsn: "'0/6'"}}, nil, []int64{2}},
		{"failed at its consumer", block, []row{{status: 3, due: isHeld}, {due: isDue, lsn: "'0/6'"}}, nil, []int64{2}},
		{"without a place", block, []row{{status: 3, due: isHeld, lsn: "'0/5'"}, {due: isDue}, {due: isDue}}, nil, []int64{2, 3}},
		{"aggregates", block, []row{
			{of: "a", due: isDue, lsn: "'0/5'"}, {of: "b", due: isDue, lsn: "'0/5'"}, {kind: "s", of: "a", due: isDue, lsn: "'0/5'"},
			{of: "a", due: isDue, lsn: "'0/6'"}, {of: "b", due: isDue, lsn: "'0/6'"}, {kind: "s", of: "a", due: isDue, lsn: "'0/6'"},
		}, nil, []int64{1, 2, 3}},
		{"no order", pass, []row{{status: 3, due: isHeld, lsn: "'0/5'"}, {due: isDue, lsn: "'0/6'"}, {due: isDue, lsn: "'0/7'"}}, nil, []int64{2, 3}},
		{"an order but for some types", func(c *Config) { c.Block, c.Except = true, []string{"r", "s"} }, []row{
			{due: isDue, lsn: "'0/5'"}, {due: isDue, lsn: "'0/6'"}, {kind: "s", due: isDue, lsn: "'0/5'"}, {kind: "s", due: isDue, lsn: "'0/6'"},
		}, nil, []int64{1, 3, 4}},
		{"no order but for some types", func(c *Config) { c.Except = []string{"r", "s"} }, []row{
			{due: isDue, lsn: "'0/5'"}, {due: isDue, lsn: "'0/6'"}, {kind: "s", due: isDue, lsn: "'0/5'"}, {kind: "s", due: isDue, lsn: "'0/6'"},
		}, nil, []int64{1, 2, 3}},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d, conn := setup(t, db, nil)
		for _, test := range tests {
			if _, err := conn.Exec(t.Context(), "TRUNCATE public.outbox RESTART IDENTITY"); err != nil {
				t.Fatal(err)
			}
			for _, r := range test.rows {
				r.insert(t, conn)
			}
			cfg := d.cfg
			test.config(&cfg)
			if diff := gocmp.Diff(test.want, ids(requeue(t, newDatabase(cfg), test.except...))); diff != "" {
				t.Errorf("%s: requeued (-want +got):\n%s", test.name, diff)
			}
		}
	})
}

func ids(rows []requeued) (list []int64) {
	for _, r := range rows {
		list = append(list, r.id)
	}
	return list
}

// While somebody holds the first row, its aggregate waits, and others do not,
// however many rows are locked.
func TestTurnOfALockedRow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d, conn := setup(t, db, func(c *Config) { c.Block, c.Batch = true, 2 })
		for _, of := range []string{"a", "b", "c", "d"} {
			row{of: of, due: isDue, lsn: "'0/5'", priority: 9}.insert(t, conn)
			row{of: of, due: isDue, lsn: "'0/6'", priority: 9}.insert(t, conn)
		}
		free := row{of: "e", due: isDue, lsn: "'0/5'"}.insert(t, conn)
		tx, err := db.Conn(t).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT FROM public.outbox WHERE id < 7 AND id % 2 = 1 FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff([]int64{7, free}, ids(requeue(t, d))); diff != "" {
			t.Errorf("requeued beside locks (-want +got):\n%s", diff)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff([]int64{1, 3}, ids(requeue(t, d))); diff != "" {
			t.Errorf("requeued after that (-want +got):\n%s", diff)
		}
	})
}

// Whatever is parked, due or not, the statement looks at due rows once, and for
// the turn of as many as it takes to fill the batch.
func TestRequeuePlans(t *testing.T) {
	t.Parallel()
	const many, batch = 20_000, 500
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d, conn := setup(t, db, func(c *Config) { c.Block = true })
		session := connect(t, db)
		run := func(sql string) {
			t.Helper()
			if _, err := session.Exec(t.Context(), sql); err != nil {
				t.Fatalf("%.80s: %v", sql, err)
			}
		}
		run(strings.ReplaceAll(pinSQL, "true)", "false)")) // for the session
		run("SET plan_cache_mode = force_generic_plan")
		run("PREPARE requeue AS " + d.requeueSQL)
		const call = "EXECUTE requeue ('s1', 3, '00000000-0000-0000-0000-000000000007', '{1,2}', 500, '{x}', true)"
		explain := func() (p pgtest.Plan) {
			t.Helper()
			run("BEGIN")
			p = pgtest.Explain(t, session, call)
			run("ROLLBACK")
			return p
		}
		check := func(when string, due, turns int) {
			t.Helper()
			plan := explain()
			reads := plan.Reads("outbox")
			// Each row whose turn it may be is read by its key, and once more to be changed.
			for index, most := range map[string]int{
				"outbox_next_attempt_idx": due, "outbox_parked_idx": turns, "outbox_pkey": turns + batch, "": 0,
			} {
				if reads[index] > most {
					t.Errorf("%s: %d rows read by index %q, want at most %d", when, reads[index], index, most)
				}
			}
			if reads["outbox_parked_idx"] == 0 || len(reads) > 4 {
				t.Errorf("%s: rows read by index: %v", when, reads)
			}
		}
		explain() // a plan for an empty table
		// Statistics that know of no parked row.
		db.Exec(t, `ALTER TABLE public.outbox SET (autovacuum_enabled = off);
			INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, send_status) SELECT 't', 'sent' || i, 'e', 2 FROM generate_series(1, 5000) i;
			ANALYZE public.outbox`)
		fill := func(of, due string) {
			t.Helper()
			_, err := conn.Exec(t.Context(), fmt.Sprintf(`INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload, commit_lsn, next_attempt_at)
				SELECT 't', %s, 'e', 'x', '0/5', %s FROM generate_series(1, $1::int) i`, of, due), many)
			if err != nil {
				t.Fatal(err)
			}
		}
		fill("'held' || i", isHeld)
		fill("'hot'", isHeld)
		for i := range 5 {
			row{of: fmt.Sprint("due", i), due: isDue, lsn: "'0/5'"}.insert(t, conn)
		}
		row{of: "hot", due: isDue, lsn: "'0/6'"}.insert(t, conn)
		check("a few due behind many held ones, plan of an empty table", 6, 6)
		fill("'failed' || i", isDue)
		check("many aggregates due, plan of an empty table", many+6, batch+6)
		run("DEALLOCATE requeue")
		run("PREPARE requeue AS " + d.requeueSQL)
		check("many aggregates due, old statistics", many+6, batch+6)
		db.Exec(t, "ANALYZE public.outbox")
		check("many aggregates due, analysed", many+6, batch+6)
	})
}
