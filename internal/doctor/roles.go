package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// The roles of people and of consumers. A login gets their rights by being a
// member; who wants other names grants the same to those.
const (
	RoleConsumer = "cdc_relay_consumer"
	RoleOperator = "cdc_relay_operator"
)

// grant is what a role may do with a table.
type grant struct {
	table      string // "": the outbox
	privileges []string
	// columns of the outbox, by their names in the design, to which the one
	// privilege is bound; nil: none.
	columns []string
}

// roleGrants are the least rights that each role works with. A consumer gets no
// payload from here: that comes from Kafka.
var roleGrants = map[string][]grant{
	RoleConsumer: {
		{privileges: []string{"SELECT"}, columns: []string{"id", "event_id", "aggregate_type", "event_type", "send_status", "attempts",
			"next_attempt_at", "claim_generation", "claimed_by", "lease_until", "sent_at", "finished_at", "error_code"}},
		{privileges: []string{"UPDATE"}, columns: []string{"send_status", "attempts", "next_attempt_at", "claim_generation", "claimed_by",
			"lease_until", "finished_at", "error_code", "error_message"}},
		{table: "outbox_receipt", privileges: []string{"SELECT", "INSERT", "UPDATE"}},
		{table: "outbox_quarantine", privileges: []string{"SELECT", "INSERT", "UPDATE"}},
	},
	RoleOperator: {
		{privileges: []string{"SELECT", "DELETE"}},
		{privileges: []string{"UPDATE"}, columns: []string{"send_status", "attempts", "next_attempt_at", "commit_lsn", "claim_generation",
			"claimed_by", "lease_until", "sent_at", "finished_at", "error_code", "error_message"}},
		{table: "cdc_relay_slot", privileges: []string{"SELECT"}},
		{table: "cdc_relay_lease", privileges: []string{"SELECT"}},
		{table: "cdc_relay_topic", privileges: []string{"SELECT", "UPDATE"}},
		{table: "cdc_relay_schema_version", privileges: []string{"SELECT"}},
		{table: "cdc_relay_audit", privileges: []string{"SELECT", "INSERT"}},
		{table: "outbox_readable", privileges: []string{"SELECT"}},
		{table: "outbox_receipt", privileges: []string{"SELECT", "UPDATE", "DELETE"}},
		{table: "outbox_quarantine", privileges: []string{"SELECT", "UPDATE"}},
	},
}

// Roles returns those of the roles that the server has.
func Roles(ctx context.Context, conn *pgx.Conn) ([]string, error) {
	rows, err := conn.Query(ctx, "SELECT rolname::text FROM pg_roles WHERE rolname = ANY ($1::text[]) ORDER BY rolname",
		[]string{RoleConsumer, RoleOperator})
	if err == nil {
		var roles []string
		if roles, err = pgx.CollectRows(rows, pgx.RowTo[string]); err == nil {
			return roles, nil
		}
	}
	return nil, fmt.Errorf("reading the roles: %w", err)
}

// MissingRoleGrants returns the statements that give a role, which must be
// there, what it lacks. A table that is not there yet counts as lacking.
func MissingRoleGrants(ctx context.Context, conn *pgx.Conn, cfg Config, role string) ([]string, error) {
	var missing []string
	to := " TO " + pgx.Identifier{role}.Sanitize()
	var usage bool
	err := conn.QueryRow(ctx, `SELECT coalesce((SELECT has_schema_privilege($1::text, n.oid, 'USAGE') FROM pg_namespace n WHERE n.nspname = $2), false)`,
		role, cfg.Table.Schema).Scan(&usage)
	if err != nil {
		return nil, fmt.Errorf("reading the grants of %s: %w", role, err)
	}
	if !usage {
		missing = append(missing, "GRANT USAGE ON SCHEMA "+pgx.Identifier{cfg.Table.Schema}.Sanitize()+to)
	}
	for _, g := range roleGrants[role] {
		what, err := lacking(ctx, conn, cfg, role, g)
		if err != nil {
			return nil, fmt.Errorf("reading the grants of %s: %w", role, err)
		}
		if what != "" {
			missing = append(missing, "GRANT "+what+to)
		}
	}
	return missing, nil
}

// lacking is what a role lacks of a grant, as in GRANT, and on what; "" if
// nothing.
func lacking(ctx context.Context, conn *pgx.Conn, cfg Config, role string, g grant) (string, error) {
	table, columns := cfg.Table, make([]string, len(g.columns))
	if g.table != "" {
		table = table.Sibling(g.table)
	}
	for i, design := range g.columns {
		columns[i] = cfg.column(design)
	}
	const sql = `
SELECT ARRAY(SELECT p FROM unnest($4::text[]) WITH ORDINALITY w (p, n)
              WHERE NOT coalesce((SELECT CASE WHEN cardinality($5::text[]) = 0 THEN has_table_privilege($1::text, c.oid, p)
                ELSE (SELECT bool_and(has_column_privilege($1::text, c.oid, a.attnum, p)) FROM pg_attribute a
                       WHERE a.attrelid = c.oid AND a.attname = ANY ($5::text[]) AND NOT a.attisdropped) END
                FROM pg_class c JOIN pg_namespace ns ON ns.oid = c.relnamespace WHERE ns.nspname = $2 AND c.relname = $3), false) ORDER BY n),
       ARRAY(SELECT a.attname::text FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace ns ON ns.oid = c.relnamespace
              WHERE ns.nspname = $2 AND c.relname = $3 AND a.attname = ANY ($5::text[]) AND NOT a.attisdropped)`
	var privileges, there []string
	if err := conn.QueryRow(ctx, sql, role, table.Schema, table.Name, g.privileges, columns).Scan(&privileges, &there); err != nil {
		return "", err
	}
	if len(privileges) == 0 {
		return "", nil
	}
	what := strings.Join(privileges, ", ")
	if len(there) > 0 { // a mapped table may lack some
		columns = slices.DeleteFunc(columns, func(name string) bool { return !slices.Contains(there, name) })
	}
	if len(columns) > 0 {
		what += " (" + identList(columns) + ")"
	}
	return what + " ON " + table.Ident(), nil
}
