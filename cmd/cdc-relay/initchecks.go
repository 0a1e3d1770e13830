package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/recovery"
	"github.com/cdc-relay/cdc-relay/internal/slot"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// doctorConfig says what the database is to be fit for.
func doctorConfig(c *config.Config) doctor.Config {
	return doctor.Config{
		Table:           pg.Table(c.Outbox.Table),
		Columns:         c.Outbox.Columns,
		Publication:     c.Slot.Publication,
		Slot:            c.Slot.Name,
		ApplicationName: applicationName(c),
	}
}

// firstProblem returns the first problem whose id is one of ids, or begins
// with one that ends in a dot; nil if there is none.
func firstProblem(problems []*fault.Blocked, ids ...string) error {
	for _, p := range problems {
		for _, id := range ids {
			if p.Reason == id || strings.HasSuffix(id, ".") && strings.HasPrefix(p.Reason, id) {
				return p
			}
		}
	}
	return nil
}

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

// missingGrants returns what a role lacks.
func missingGrants(ctx context.Context, conn *pgx.Conn, c *config.Config, role string) (string, error) {
	statements, err := doctor.MissingRoleGrants(ctx, conn, doctorConfig(c), role)
	if err != nil || len(statements) == 0 {
		return "", err
	}
	return strings.Join(statements, ";\n") + ";", nil
}

func missingPublication(ctx context.Context, conn *pgx.Conn, c *config.Config) (string, error) {
	facts, err := doctor.Look(ctx, conn, doctorConfig(c))
	if err != nil {
		return "", err
	}
	if facts.Publication != nil {
		return "", firstProblem(facts.Problems(doctorConfig(c)), "pub.")
	}
	options := "publish = 'insert'"
	if facts.Table != nil && facts.Table.Partitioned {
		options += ", publish_via_partition_root = true"
	}
	return fmt.Sprintf("CREATE PUBLICATION %s FOR TABLE %s WITH (%s);",
		pgx.Identifier{c.Slot.Publication}.Sanitize(), pg.Table(c.Outbox.Table).Ident(), options), nil
}

// failoverSlots is the first server_version_num that knows them.
const failoverSlots = doctor.FailoverSlots

func missingSlot(ctx context.Context, conn *pgx.Conn, c *config.Config) (string, error) {
	facts, err := doctor.Look(ctx, conn, doctorConfig(c))
	if err != nil {
		return "", err
	}
	problems := facts.Problems(doctorConfig(c))
	switch {
	case c.Slot.Failover && facts.Version < failoverSlots:
		return "", noFailoverSlots()
	case facts.Slot == nil:
		return slot.CreateSQL(c.Slot.Name, c.Slot.Failover) + ";", firstProblem(problems, "pg.wal_level")
	case c.Slot.Failover:
		if err := checkFailover(ctx, conn, c.Slot.Name); err != nil {
			return "", err
		}
	}
	return "", firstProblem(problems, "pg.wal_level", "slot.")
}

func noFailoverSlots() error {
	return &fault.Blocked{Reason: "slot.failover", What: "slot.failover is set, and this server is older than PostgreSQL 17",
		Remedy: "set slot.failover to false"}
}

// checkFailover refuses an existing slot that is not copied to standbys.
func checkFailover(ctx context.Context, conn *pgx.Conn, name string) error {
	var failover bool
	err := conn.QueryRow(ctx, "SELECT failover FROM pg_replication_slots WHERE slot_name = $1", name).Scan(&failover)
	if err != nil {
		return fmt.Errorf("reading the slot %s: %w", name, err)
	}
	if !failover {
		return &fault.Blocked{Reason: "slot.failover", What: "the slot " + name + " is no failover slot, and slot.failover is set",
			Remedy: "stop the relay and run: cdc-relay slot recreate --confirm " + name + "; or set slot.failover to false"}
	}
	return nil
}

// makeSlot creates the slot as the login that streams. The server waits with
// it for every transaction that is writing.
func makeSlot(ctx context.Context, conn *pgx.Conn, c *config.Config, sql string) error {
	streaming, err := connectStreaming(ctx, c)
	if err != nil {
		return err
	}
	defer pg.Close(streaming)
	_, err = streaming.Exec(ctx, sql)
	return waitedForWriters(ctx, conn, err)
}

// connectStreaming connects for a command as the login that streams. How long
// a statement may take is for --timeout alone to decide.
func connectStreaming(ctx context.Context, c *config.Config) (*pgx.Conn, error) {
	options, err := replicationOptions(c)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		options.StatementTimeout = time.Until(deadline)
	}
	conn, _, err := pg.Connect(ctx, options, nil)
	return conn, err
}

// waitedForWriters explains why a slot was not created in time.
func waitedForWriters(ctx context.Context, conn *pgx.Conn, err error) error {
	if err == nil || ctx.Err() == nil && pg.Code(err) != pg.CodeQueryCanceled {
		return err
	}
	return fmt.Errorf("it waits for the end of all transactions that are writing (%s); end them or give more --timeout: %w",
		oldestWriter(context.WithoutCancel(ctx), conn), err)
}

// oldestWriter names the transaction that a slot's creation waits for longest.
func oldestWriter(ctx context.Context, db recovery.DB) string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var pid, seconds int
	err := db.QueryRow(ctx, `SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::int FROM pg_stat_activity
		WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY xact_start LIMIT 1`).Scan(&pid, &seconds)
	if errors.Is(err, pgx.ErrNoRows) {
		return "there is none now"
	}
	if err != nil {
		return "which cannot be told"
	}
	return fmt.Sprintf("the oldest is pid %d, open for %d s", pid, seconds)
}
