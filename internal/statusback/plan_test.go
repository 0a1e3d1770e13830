package statusback

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

var discard = slog.New(slog.DiscardHandler)

// TestPlans: every statement reads the outbox through its primary key, whether
// it was planned for an empty table or a full one, analysed or not.
func TestPlans(t *testing.T) {
	t.Parallel()
	table := pg.Table{Schema: "public", Name: "outbox"}
	var list []string
	for id := range 2000 {
		list = append(list, strconv.Itoa(id))
	}
	fence := "'s', 1, '00000000-0000-0000-0000-000000000000', '{" + strings.Join(list, ",") + "}'"
	const seen = ", array_fill('2026-01-02'::timestamptz, ARRAY[2000])"
	const lsns = ", array_fill('0/5'::text, ARRAY[2000])"
	const failures = ", array_fill('c'::text, ARRAY[2000]), array_fill('m'::text, ARRAY[2000])"
	const delays = ", array_fill(1::bigint, ARRAY[2000])"
	more := [formKept]string{
		formRequeued: seen,
		formRetry:    seen + lsns + failures + delays,
		formFail:     seen + lsns + failures,
		formHeld:     seen + lsns,
		formLater:    seen + lsns + delays,
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		conn, _, err := pg.Connect(t.Context(), newDatabase(Config{Database: pg.Options{DSN: db.DSN}, Table: table}, discard, nil).options, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		s := newStatements(table)
		calls := map[string]string{} // name of the prepared statement -> its call
		prepare := func(name, sql, args string) {
			if _, err := conn.Exec(t.Context(), "PREPARE "+name+" AS "+sql); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			calls[name] = "EXPLAIN EXECUTE " + name + "(" + args + ")"
		}
		for f := range formKept {
			prepare(fmt.Sprintf("wait%d", f), s.wait[f], fence+more[f])
			prepare(fmt.Sprintf("skip%d", f), s.skip[f], fence+more[f])
		}
		prepare("look", s.look, fence+", array_fill('5'::text, ARRAY[2000])")
		check := func(when string) {
			for name, call := range calls {
				checkPlan(t, when+", "+name, explain(t, conn, call))
			}
		}
		check("empty")
		db.Exec(t, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, next_attempt_at)
			SELECT 't', 'a', 'e', CASE WHEN i % 3 = 0 THEN '2026-01-02'::timestamptz END FROM generate_series(1, 20000) i;
			UPDATE outbox SET commit_lsn = '0/5', next_attempt_at = 'infinity' WHERE id % 4 = 0`)
		check("full")
		db.Exec(t, "ANALYZE outbox")
		check("analysed")
	})
}

func explain(t *testing.T, conn *pgx.Conn, call string) string {
	t.Helper()
	rows, err := conn.Query(t.Context(), call, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%.100s: %v", call, err)
	}
	return strings.Join(lines, "\n")
}

func checkPlan(t *testing.T, name, plan string) {
	t.Helper()
	if !strings.Contains(plan, "outbox_pkey") || strings.Contains(plan, "outbox_next_attempt_idx") ||
		strings.Contains(plan, "outbox_parked_idx") || strings.Contains(plan, "Seq Scan on outbox") {
		t.Errorf("%s:\n%s", name, plan)
	}
	// Two arrays side by side must not be compared each with each.
	if strings.Contains(plan, "Nested Loop") {
		t.Errorf("%s:\n%s", name, plan)
	}
	// The ids must be the index condition, not a filter over the whole index.
	for line := range strings.Lines(plan) {
		if strings.Contains(line, "Filter: ") && strings.Contains(line, "ANY") {
			t.Errorf("%s: ids as a filter:\n%s", name, plan)
		}
	}
}
