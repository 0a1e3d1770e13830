package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestInitGrants: roles belong to the whole server, so this test has its own.
func TestInitGrants(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			db := pgtest.StartCluster(t, version).New(t)
			d := newDatabase(db)
			db.Exec(t, `REVOKE ALL ON SCHEMA public FROM public; CREATE ROLE cdc_relay_consumer; CREATE ROLE cdc_relay_operator;
				CREATE ROLE mailer LOGIN IN ROLE cdc_relay_consumer; CREATE ROLE anna LOGIN IN ROLE cdc_relay_operator`)
			for _, step := range []struct {
				name string
				args []string
				want string
			}{
				{"plan of an empty database", nil, "tables: to do, grants: to do, grants: to do, publication: to do, slot: to do"},
				{"apply", []string{"--apply"}, "tables: done, grants: done, grants: done, publication: done, slot: done"},
				{"plan of a complete database", nil, "tables: exists, grants: exists, grants: exists, publication: exists, slot: exists"},
			} {
				states, got := d.plan(t, step.args...)
				if diff := cmp.Diff(step.want, strings.Join(states, ", ")); diff != "" || got.code != 0 {
					t.Fatalf("%s: code %d, %s, states (-want +got):\n%s", step.name, got.code, got.stderr, diff)
				}
			}
			db.Exec(t, `REVOKE INSERT ON outbox_receipt FROM cdc_relay_consumer; REVOKE UPDATE (lease_until) ON outbox FROM cdc_relay_consumer;
				REVOKE USAGE ON SCHEMA public FROM cdc_relay_operator`)
			got := runCommand(t, d.environ, "init", "--print-sql")
			want := `-- grants cdc_relay_consumer
GRANT UPDATE ("send_status", "attempts", "next_attempt_at", "claim_generation", "claimed_by", "lease_until", "finished_at", "error_code", "error_message") ON "public"."outbox" TO "cdc_relay_consumer";
GRANT INSERT ON "public"."outbox_receipt" TO "cdc_relay_consumer";
-- grants cdc_relay_operator
GRANT USAGE ON SCHEMA "public" TO "cdc_relay_operator";
`
			if diff := cmp.Diff(result{0, want, ""}, got, cmp.AllowUnexported(result{})); diff != "" {
				t.Errorf("what is missing (-want +got):\n%s", diff)
			}
			if got := runCommand(t, d.environ, "init"); !strings.Contains(got.stdout, "shown by cdc-relay init --print-sql") {
				t.Errorf("the plan is\n%s", got.stdout)
			}
			if got := runCommand(t, d.environ, "init", "--apply"); got.code != 0 {
				t.Fatalf("applying again: %+v", got)
			}
			checkRights(t, db)
		})
	}
}

// checkRights is what the documentation says that each role may do, and what
// not.
func checkRights(t *testing.T, db *pgtest.DB) {
	t.Helper()
	for _, tt := range []struct {
		login, sql string
		refused    bool
	}{
		{"mailer", "UPDATE outbox SET send_status = 5, claim_generation = claim_generation + 1, claimed_by = 'm', lease_until = now() WHERE id = 1 AND event_id IS NOT NULL AND send_status = 2", false},
		{"mailer", "INSERT INTO outbox_receipt (event_id, purpose) VALUES (gen_random_uuid(), 'p') ON CONFLICT (event_id, purpose) DO UPDATE SET status = 5", false},
		{"mailer", "UPDATE outbox_quarantine SET seen = seen + 1", false},
		{"mailer", "SELECT payload FROM outbox", true},
		{"mailer", "UPDATE outbox SET sent_at = NULL", true},
		{"mailer", "INSERT INTO outbox (aggregate_type, aggregate_id, event_type) VALUES ('a', 'b', 'c')", true},
		{"mailer", "DELETE FROM outbox_receipt", true},
		{"mailer", "SELECT FROM cdc_relay_audit", true},
		{"anna", "UPDATE outbox SET send_status = 0, next_attempt_at = now(), sent_at = NULL", false},
		{"anna", "UPDATE outbox_quarantine SET resolution = 'retry'", false},
		{"anna", "UPDATE outbox_receipt SET status = 2", false},
		{"anna", "DELETE FROM outbox_receipt", false},
		{"anna", "INSERT INTO cdc_relay_audit (actor, action) VALUES ('a', 'b')", false},
		{"anna", "SELECT FROM outbox_readable", false},
		{"anna", "DELETE FROM cdc_relay_audit", true},
		{"anna", "UPDATE outbox SET payload = NULL", true},
		{"anna", "DELETE FROM outbox_quarantine", true},
	} {
		conn, err := pgx.Connect(t.Context(), strings.Replace(db.DSN, "postgres@", tt.login+"@", 1))
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Exec(t.Context(), tt.sql)
		if refused := pg.Code(err) == pg.CodeNoPrivilege; refused != tt.refused || err != nil && !refused {
			t.Errorf("%s as %s: %v, want refused %t", tt.sql, tt.login, err, tt.refused)
		}
		if err := conn.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
