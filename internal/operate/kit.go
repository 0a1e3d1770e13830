package operate

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/consumer/tables"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// Kit is what consumers keep in a database, that of the outbox or one of their
// own: the quarantine and receipts, over one connection. Not safe for
// concurrent use.
type Kit struct {
	conn   *pgx.Conn
	schema string
	person string
	names  *strings.Replacer
}

// OpenKit looks for the tables in a schema. One that is missing is a
// *fault.Blocked (table.columns). person is the operating system's name of who
// acts, for the audit trail. The connection stays the caller's, who closes it;
// its session settings are changed for good.
func OpenKit(ctx context.Context, conn *pgx.Conn, schema, person string) (*Kit, error) {
	if _, err := conn.Exec(ctx, prepareSQL, lockTimeout); err != nil {
		return nil, fmt.Errorf("preparing to read what consumers keep: %w", err)
	}
	const sql = `
SELECT coalesce(string_agg(t.name, ', '), '') FROM unnest($2::text[]) t (name)
 WHERE NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                    WHERE n.nspname = $1 AND c.relname = t.name AND c.relkind IN ('r', 'p'))`
	var missing string
	wanted := []string{tables.Quarantine, tables.Receipt, tables.Audit}
	if err := conn.QueryRow(ctx, sql, schema, wanted).Scan(&missing); err != nil {
		return nil, fmt.Errorf("looking for the tables of consumers: %w", err)
	}
	if missing != "" {
		return nil, &fault.Blocked{Reason: "table.columns",
			What:   fmt.Sprintf("the schema %s has no table %s", schema, missing),
			Remedy: "run cdc-relay migrate up; in a database of the consumer's own run the script of the package consumer/tables; or name another one with --dsn and --schema"}
	}
	named := func(name string) string { return pg.Table{Schema: schema, Name: name}.Ident() }
	return &Kit{conn: conn, schema: schema, person: person, names: strings.NewReplacer(
		"{quarantine}", named(tables.Quarantine), "{receipt}", named(tables.Receipt), "{audit}", named(tables.Audit))}, nil
}

// KitResult is what became of a quarantined record or a receipt.
type KitResult struct {
	ID      int64  // of the quarantine's row; 0: not known, or a receipt
	EventID string // "": not known
	Purpose string // of the receipt
	Outcome Outcome
	// Status and Code are the row's as last seen, "" if it was not.
	Status string
	Code   string
	Detail string // a phrase for people; may be empty

	changed bool
}

// Changed tells that the row was changed as asked for.
func (r *KitResult) Changed() bool { return r.changed }

// KitPicked is what a command would do, or did.
type KitPicked struct {
	Results []KitResult
	// Matched rows were picked, at most the filter's limit; Total is how many
	// there are.
	Matched int
	Total   int64
}

// sql puts the names of the tables into a statement's text.
func (k *Kit) sql(text string) string { return k.names.Replace(text) }

// explain says what a person can do about an error.
func (k *Kit) explain(err error) error {
	switch pg.Code(err) {
	case pg.CodeNoPrivilege:
		return fmt.Errorf("%w; give the login the rights of an operator: SELECT and UPDATE on %s and %s, INSERT on %s",
			err, tables.Quarantine, tables.Receipt, tables.Audit)
	case pg.CodeLockNotAvailable:
		return fmt.Errorf("%w; somebody has locked a table of the schema %s: wait for that transaction to end, or end it", err, k.schema)
	}
	return err
}

// pick makes the answer of a dry run from the rows that were found; missing are
// those that were named and are not there.
func pick(rows, missing []KitResult, total int64) KitPicked {
	return KitPicked{Results: append(rows, missing...), Matched: len(rows), Total: total}
}
