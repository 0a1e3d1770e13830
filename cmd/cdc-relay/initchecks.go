package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// missingTables returns the migrations that are not applied.
func missingTables(ctx context.Context, conn *pgx.Conn, schema string) (string, error) {
	version, err := migrations.Version(ctx, conn, schema)
	if err != nil {
		return "", err
	}
	if version > migrations.MaxVersion {
		return "", migrations.Accepted(version)
	}
	if version == migrations.MaxVersion {
		return "", nil
	}
	var sql strings.Builder
	if err := migrations.Print(&sql, schema, version, 0); err != nil {
		return "", err
	}
	return sql.String(), nil
}

// publication is what decides whether a publication is right.
type publication struct {
	exists     bool
	allTables  bool
	insertOnly bool
	viaRoot    bool
	tables     []string // listed, as schema.table
	filtered   bool     // the outbox with a row filter or a column list
}

const publicationSQL = `
SELECT p.puballtables, p.pubinsert AND NOT (p.pubupdate OR p.pubdelete OR p.pubtruncate), p.pubviaroot,
       coalesce(array_agg(n.nspname || '.' || c.relname ORDER BY n.nspname, c.relname) FILTER (WHERE c.oid IS NOT NULL), '{}'),
       coalesce(bool_or(r.prqual IS NOT NULL OR r.prattrs IS NOT NULL), false)
       OR EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid)
  FROM pg_publication p
  LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid
  LEFT JOIN pg_class c ON c.oid = r.prrelid
  LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = $1
 GROUP BY p.oid`

func readPublication(ctx context.Context, conn *pgx.Conn, name string) (publication, error) {
	p := publication{exists: true}
	err := conn.QueryRow(ctx, publicationSQL, name).Scan(&p.allTables, &p.insertOnly, &p.viaRoot, &p.tables, &p.filtered)
	if errors.Is(err, pgx.ErrNoRows) {
		return publication{}, nil
	}
	if err != nil {
		return publication{}, fmt.Errorf("reading the publication %s: %w", name, err)
	}
	return p, nil
}

// isPartitioned reports whether the outbox is a partitioned table. A table that
// is not there yet is not.
func isPartitioned(ctx context.Context, conn *pgx.Conn, table pg.Table) (bool, error) {
	var partitioned bool
	err := conn.QueryRow(ctx,
		"SELECT coalesce((SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass($1)), false)", table.Ident()).Scan(&partitioned)
	if err != nil {
		return false, fmt.Errorf("reading the kind of table %s: %w", table, err)
	}
	return partitioned, nil
}

func missingPublication(ctx context.Context, conn *pgx.Conn, c *config.Config) (string, error) {
	table := pg.Table(c.Outbox.Table)
	partitioned, err := isPartitioned(ctx, conn, table)
	if err != nil {
		return "", err
	}
	p, err := readPublication(ctx, conn, c.Slot.Publication)
	if err != nil {
		return "", err
	}
	name := pgx.Identifier{c.Slot.Publication}.Sanitize()
	if !p.exists {
		options := "publish = 'insert'"
		if partitioned {
			options += ", publish_via_partition_root = true"
		}
		return fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (%s);", name, table.Ident(), options), nil
	}
	return "", judgePublication(p, name, table, partitioned)
}

// judgePublication returns nil for a publication of the outbox alone, whole,
// inserts only.
func judgePublication(p publication, name string, table pg.Table, partitioned bool) error {
	blocked := func(reason, what, remedy string) error {
		return &fault.Blocked{Reason: reason, What: "the publication " + name + " " + what, Remedy: "run: ALTER PUBLICATION " + name + " " + remedy}
	}
	setTable := "SET TABLE " + table.Ident()
	switch {
	case p.allTables:
		return &fault.Blocked{Reason: "pub.all_tables", What: "the publication " + name + " publishes all tables",
			Remedy: "name another one in slot.publication, which cdc-relay init --apply then creates"}
	case len(p.tables) != 1 || p.tables[0] != table.String():
		return blocked("pub.table", "does not list "+table.String()+" alone", setTable)
	case p.filtered:
		return blocked("pub.filter", "has a row filter, a column list or a schema", setTable)
	case !p.insertOnly:
		return blocked("pub.ops", "publishes more or less than inserts", "SET (publish = 'insert')")
	case partitioned && !p.viaRoot:
		return blocked("pub.root", "publishes under the names of partitions", "SET (publish_via_partition_root = true)")
	}
	return nil
}

// slot is what decides whether a slot is right.
type slot struct {
	plugin    string
	database  string
	current   string // database of this connection
	temporary bool
	walStatus string
	failover  bool
}

// slotSQL reads failover through JSON: the column is unknown before 17.
const slotSQL = `
SELECT coalesce(plugin, ''), coalesce(database, ''), current_database(), temporary, coalesce(wal_status, ''),
       coalesce((to_jsonb(s) ->> 'failover')::boolean, false)
  FROM pg_replication_slots s
 WHERE slot_name = $1`

const failoverVersion = 170000

func missingSlot(ctx context.Context, conn *pgx.Conn, c config.Slot, version int) (string, error) {
	if c.Failover && version < failoverVersion {
		return "", &fault.Blocked{Reason: "slot.failover", What: "slot.failover is set, and this server is older than PostgreSQL 17",
			Remedy: "set slot.failover to false"}
	}
	var s slot
	err := conn.QueryRow(ctx, slotSQL, c.Name).Scan(&s.plugin, &s.database, &s.current, &s.temporary, &s.walStatus, &s.failover)
	if errors.Is(err, pgx.ErrNoRows) {
		return createSlotSQL(c), nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the slot %s: %w", c.Name, err)
	}
	return "", judgeSlot(s, c)
}

// createSlotSQL may hold the name between quotes: it is letters, digits and
// underscores only.
func createSlotSQL(c config.Slot) string {
	if c.Failover {
		return fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput', failover => true);", c.Name)
	}
	return fmt.Sprintf("SELECT pg_create_logical_replication_slot('%s', 'pgoutput');", c.Name)
}

func judgeSlot(s slot, c config.Slot) error {
	blocked := func(reason, what, remedy string) error {
		return &fault.Blocked{Reason: reason, What: "the slot " + c.Name + " " + what, Remedy: remedy}
	}
	const another = "name another one in slot.name"
	switch {
	case s.plugin != "pgoutput":
		return blocked("slot.plugin", "does not use the plugin pgoutput", another)
	case s.database != s.current:
		return blocked("slot.database", "belongs to another database", another)
	case s.temporary:
		return blocked("slot.temporary", "is temporary", another)
	case s.walStatus == "lost":
		return blocked("slot.wal_status", "has lost WAL that it needs",
			"drop it with pg_drop_replication_slot, run cdc-relay init --apply again, and requeue the READY rows of the time between")
	case c.Failover && !s.failover:
		return blocked("slot.failover", "is no failover slot, and slot.failover is set",
			"set slot.failover to false, or alter the slot while the relay is stopped (ALTER_REPLICATION_SLOT ... (FAILOVER true))")
	}
	return nil
}

// makeSlot creates the slot as the login that streams. The server waits with
// it for every transaction that is writing.
func makeSlot(ctx context.Context, conn *pgx.Conn, c *config.Config, sql string) error {
	options, err := replicationOptions(c)
	if err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		options.StatementTimeout = time.Until(deadline) // --timeout alone decides
	}
	streaming, _, err := pg.Connect(ctx, options, nil)
	if err != nil {
		return err
	}
	defer streaming.Close(context.WithoutCancel(ctx))
	_, err = streaming.Exec(ctx, sql)
	if ctx.Err() == nil && pg.Code(err) != pg.CodeQueryCanceled {
		return err
	}
	return fmt.Errorf("it waits for the end of all transactions that are writing (%s); end them or give more --timeout: %w",
		oldestWriter(context.WithoutCancel(ctx), conn), err)
}

// oldestWriter names the transaction that a slot's creation waits for longest.
func oldestWriter(ctx context.Context, conn *pgx.Conn) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var pid, seconds int
	err := conn.QueryRow(ctx, `SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::int FROM pg_stat_activity
		WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1`).Scan(&pid, &seconds)
	if err != nil {
		return "which cannot be told"
	}
	return fmt.Sprintf("the oldest is pid %d, open for %d s", pid, seconds)
}
