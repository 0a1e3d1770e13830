package store_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestPlans: every statement looks at no more rows of a large table than it is
// about, whatever PostgreSQL believes of the table: with a plan for its
// parameters and one for any, with statistics, without any, and with a plan
// that was made while the table was empty.
func TestPlans(t *testing.T) {
	t.Parallel()
	const (
		total = 100_000
		chunk = 100
	)
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		db.Exec(t, "ALTER TABLE outbox SET (autovacuum_enabled = off); ALTER TABLE outbox_receipt SET (autovacuum_enabled = off)")
		sessions := []struct {
			name string
			*pgx.Conn
			early bool // prepared while the table is empty
		}{
			{"the kit's, prepared early", session(t, db, true, "force_generic_plan"), true},
			{"the kit's, any parameters", session(t, db, true, "force_generic_plan"), false},
			{"the kit's, these parameters", session(t, db, true, "force_custom_plan"), false},
			{"the application's, any parameters", session(t, db, false, "force_generic_plan"), false},
			{"the application's, these parameters", session(t, db, false, "force_custom_plan"), false},
		}
		for _, s := range sessions {
			if s.early {
				prepare(t, s.Conn)
				explainAll(t, s.Conn, nil) // which makes the plans
			}
		}
		for _, sql := range fillTables {
			db.Exec(t, fmt.Sprintf(sql, total))
		}
		for _, statistics := range []string{"no statistics", "statistics"} {
			if statistics == "statistics" {
				db.Exec(t, "ANALYZE")
			}
			for _, s := range sessions {
				if s.early && statistics == "statistics" {
					continue // ANALYZE makes new plans
				}
				if !s.early && statistics == "no statistics" {
					prepare(t, s.Conn)
				}
				explainAll(t, s.Conn, func(table string, text store.Text, plan pgtest.Plan) {
					if text.Name == "purge" && statistics == "no statistics" {
						return // what is old enough to be purged has been analysed
					}
					rows := 0
					for _, n := range plan.Reads(table) {
						rows += n
					}
					if most := 4 * chunk; rows > most {
						t.Errorf("%s, %s: %s of %s looks at %d rows: %v", statistics, s.name, text.Name, table, rows, plan.Reads(table))
					}
				})
			}
		}
	})
}

var fillTables = []string{
	`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, send_status, sent_at, claim_generation)
	 SELECT ('00000000-0000-4000-8000-' || lpad(i::text, 12, '0'))::uuid, 'order', 'o', 'created', CASE WHEN i %% 2 = 0 THEN 2 ELSE 5 END, now(), 1
	   FROM generate_series(1, %d) i`,
	`INSERT INTO outbox_receipt (event_id, purpose, status, claim_generation)
	 SELECT ('00000000-0000-4000-8000-' || lpad(i::text, 12, '0'))::uuid, 'mail', CASE WHEN i %% 2 = 0 THEN 2 ELSE 5 END, 1
	   FROM generate_series(1, %d) i`,
}

// session is one of the kit's own, or one of an application.
func session(t *testing.T, db *pgtest.DB, kits bool, mode string) *pgx.Conn {
	t.Helper()
	conn := db.Conn(t)
	if kits {
		for _, sql := range []string{store.PinSQL, "SET statement_timeout = 0"} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := conn.Exec(t.Context(), "SET plan_cache_mode = "+mode); err != nil {
		t.Fatal(err)
	}
	return conn
}

// family is a set of statements on one table.
type family struct {
	table             string
	receipts, byEvent bool
}

var families = []family{{"outbox", false, false}, {"outbox", false, true}, {"outbox_receipt", true, false}}

func (f family) name(i int) string { return fmt.Sprintf("p_%s_%t_%d", f.table, f.byEvent, i) }

func prepare(t *testing.T, conn *pgx.Conn) {
	t.Helper()
	for _, f := range families {
		for i, text := range store.Texts(f.receipts, f.byEvent) {
			if _, err := conn.Exec(t.Context(), "PREPARE "+f.name(i)+" AS "+text.SQL); err != nil {
				t.Fatalf("%s: %v", text.Name, err)
			}
		}
	}
}

// explainAll runs every statement, in transactions that are rolled back.
func explainAll(t *testing.T, conn *pgx.Conn, check func(table string, text store.Text, plan pgtest.Plan)) {
	t.Helper()
	for _, f := range families {
		for i, text := range store.Texts(f.receipts, f.byEvent) {
			tx, err := conn.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			plan := pgtest.Explain(t, conn, "EXECUTE "+f.name(i)+"("+f.arguments(text.Args)+")")
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if check != nil {
				check(f.table, text, plan)
			}
		}
	}
}

// arguments name a hundred events in the middle of the table, one of which is
// claimed and one is not.
func (f family) arguments(text string) string {
	var ids, events, generations []string
	for i := 50_000; i < 50_100; i++ {
		ids = append(ids, fmt.Sprint(map[bool]int{false: i, true: 0}[f.byEvent]))
		events = append(events, fmt.Sprintf("00000000-0000-4000-8000-%012d", i))
		generations = append(generations, "1")
	}
	array := func(list []string) string { return "'{" + strings.Join(list, ",") + "}'" }
	many, one := array(ids)+", "+array(events), ids[1]+", '"+events[1]+"'"
	if f.receipts {
		many, one = "'mail', "+array(events), "'mail', '"+events[1]+"'"
	}
	return strings.NewReplacer("many", many, "one", one, "generations", array(generations)).Replace(text)
}
