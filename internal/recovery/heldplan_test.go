package recovery

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// The cost of questions about parked rows is that of their answers, whether
// many aggregates are parked or one aggregate has many parked rows, and whatever
// the statistics say.
func TestQuestionsAboutParkedRowsReadWhatTheyAnswer(t *testing.T) {
	t.Parallel()
	const many = 20_000
	const hot = "'t', 'hot'"
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		rows, conn := heldRows(t, db)
		session := connect(t, db)
		run := func(sql string) {
			t.Helper()
			if _, err := session.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatalf("%.80s: %v", sql, err)
			}
		}
		run(strings.ReplaceAll(pinSQL, "true)", "false)")) // for the session
		prepare := func() {
			for name, sql := range map[string]string{
				"aggregates": rows.sql.aggregates, "heads": rows.sql.heads, "held": rows.sql.held, "read": rows.sql.read,
			} {
				run("PREPARE " + name + " AS " + sql)
			}
		}
		// The hot aggregate's rows come first, and its last 100 ones are due.
		ids := func(from, to int) string {
			var list []string
			for id := from; id <= to; id++ {
				list = append(list, fmt.Sprint(id))
			}
			return "'{" + strings.Join(list, ",") + "}'"
		}
		check := func(when string) {
			t.Helper()
			for _, q := range []struct {
				name, call  string
				index, keys int // rows read by the index on parked rows and by the primary key
			}{
				{"aggregates from the first on", "aggregates ('', '', 1000)", 1000, 0},
				{"aggregates from the middle on", "aggregates ('t', 'a5', 1000)", 1000, 0},
				{"the hot aggregate", "aggregates ('t', 'h', 1)", 1, 0},
				{"behind the last aggregate", "aggregates ('t', 'x', 1000)", 0, 0},
				{"heads of rows of the hot aggregate", "heads (" + ids(many-499, many) + ")", 500, 500},
				{"heads of aggregates", "heads (" + ids(many+1, many+500) + ")", 500, 500},
				{"heads of rows that are gone", "heads (" + ids(10*many, 10*many+9) + ")", 0, 0},
				{"held rows of the hot aggregate", "held (" + hot + ", 1001, 1000000)", 1001, 0},
				{"held row of another one", "held ('t', 'a5', 1001, 1000000)", 1, 0},
				{"held rows of none", "held ('t', 'nothing', 1001, 1000000)", 0, 0},
				{"due rows of the hot aggregate", "read (" + ids(many-99, many) + ", 1000000)", 100, 100},
			} {
				plan := pgtest.Explain(t, session, "EXECUTE "+q.call)
				reads := plan.Reads("outbox")
				if reads["outbox_parked_idx"] != q.index || reads["outbox_pkey"] != q.keys || reads[""] != 0 || reads["outbox_next_attempt_idx"] != 0 {
					t.Errorf("%s, %s: rows read by index %v, want %d parked ones and %d by key", when, q.name, reads, q.index, q.keys)
				}
				// A step in an index is a few pages; the first one after a change of rows also visits what is dead.
				if most := 50 + 8*(q.index+q.keys); plan.Buffers() > most {
					t.Errorf("%s, %s: %d pages read, want at most %d", when, q.name, plan.Buffers(), most)
				}
			}
		}
		prepare()
		for _, call := range []string{"aggregates ('', '', 1)", "heads ('{1}')", "held ('', '', 1, 1)", "read ('{1}', 1)"} {
			run("EXECUTE " + call) // a plan for an empty table
		}
		// Statistics that know of no parked row.
		db.Exec(t, fmt.Sprintf(`ALTER TABLE public.outbox SET (autovacuum_enabled = off);
			INSERT INTO public.outbox (id, aggregate_type, aggregate_id, event_type, send_status) OVERRIDING SYSTEM VALUE
				SELECT %d + i, 't', 'sent' || i, 'e', 2 FROM generate_series(1, 5000) i;
			ANALYZE public.outbox`, 5*many))
		for _, fill := range []string{
			"SELECT " + hot + ", '0/1'::pg_lsn + i, CASE WHEN i > $1 - 100 THEN '2000-01-01' ELSE 'infinity' END::timestamptz",
			"SELECT 't', 'a' || i, '0/5'::pg_lsn, 'infinity'::timestamptz",
		} {
			exec(t, conn, `INSERT INTO public.outbox (event_type, aggregate_type, aggregate_id, commit_lsn, next_attempt_at)
				SELECT 'e', r.* FROM (`+fill+` FROM generate_series(1, $1::int) i) r`, many)
		}
		check("plans of an empty table")
		run("DEALLOCATE aggregates; DEALLOCATE heads; DEALLOCATE held; DEALLOCATE read")
		prepare()
		check("old statistics")
		db.Exec(t, "ANALYZE public.outbox")
		check("analysed")
	})
}
