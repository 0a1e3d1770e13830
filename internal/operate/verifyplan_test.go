package operate

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// tracer keeps the statements of a connection that read the outbox.
type tracer struct {
	statements []pgx.TraceQueryStartData
}

func (t *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, outboxTable.Ident()) {
		t.statements = append(t.statements, data)
	}
	return ctx
}

func (*tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestPlansOfVerify: of 100,000 rows that were never analysed each statement
// reads by an index what it is about, and no more.
func TestPlansOfVerify(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newVerified(t, db)
		v.relay(t, false)
		db.Exec(t, "ALTER TABLE outbox SET (autovacuum_enabled = off)")
		traced := &tracer{}
		conf := v.table.conn.Config()
		conf.Tracer = traced
		conn, err := pgx.ConnectConfig(t.Context(), conf)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.Background()) })
		if v.table, err = Open(t.Context(), conn, v.table.cfg); err != nil {
			t.Fatal(err)
		}
		v.verify(t, Filter{Limit: 25_000}, 0) // with the plans of an empty table
		// Of a hundred rows, two are FAILED with eight held behind each, two are
		// overdue, one is READY.
		db.Exec(t, `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, send_status, next_attempt_at, commit_lsn) OVERRIDING SYSTEM VALUE
			SELECT n, 'order', n / 50, 'x', CASE WHEN n % 50 = 1 THEN 3 WHEN n % 50 BETWEEN 2 AND 10 THEN 0 WHEN n % 100 = 20 THEN 0 ELSE 2 END,
			       CASE WHEN n % 50 BETWEEN 1 AND 9 THEN 'infinity'::timestamptz WHEN n % 50 = 10 THEN now() - interval '1 hour' END,
			       CASE WHEN n % 50 BETWEEN 1 AND 9 THEN '0/100'::pg_lsn END FROM generate_series(1, 100000) n`)
		traced.statements = nil
		got := v.verify(t, Filter{Limit: 25_000}, time.Second)
		want := []string{
			"missing 250 [75020 75120 75220 75320 75420 75520 75620 75720 75820 75920]",
			"overdue 2000 [10 60 110 160 210 260 310 360 410 460]",
			"failed 2000 [1 51 101 151 201 251 301 351 401 451]",
		}
		if diff := cmp.Diff(want, foundIn(got)); diff != "" {
			t.Errorf("found (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(RowsSeen{Walked: 25_000, From: 75_001, To: 100_000, After: 75_001, Parked: 20_000, ParkedComplete: true}, got.Rows); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
		for _, s := range traced.statements {
			plan := pgtest.Explain(t, conn, s.SQL, s.Args...)
			for index, rows := range plan.Reads("outbox") {
				most := map[string]int{"outbox_pkey": 10_000, "outbox_next_attempt_idx": 20_000, "outbox_parked_idx": 20_000}[index]
				if rows > most {
					t.Errorf("%d rows by the index %q, at most %d of 100,000 are needed: %s", rows, index, most, s.SQL)
				}
			}
		}
		if n := len(traced.statements); n < 8 {
			t.Errorf("%d statements were seen", n)
		}
	})
}
