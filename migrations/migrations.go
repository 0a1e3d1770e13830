// Package migrations creates and upgrades the tables of cdc-relay: goose
// files, embedded, forward only.
//
// The schema they live in is configurable; the files name it by a placeholder
// that is filled in when they are read. Which versions are applied is kept in
// the table cdc_relay_schema_version of that schema. Any number of processes
// may migrate at once: an advisory lock lets one work, the others find nothing
// left to do. A migration that fails leaves the database at the version
// before it.
package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/cdc-relay/cdc-relay/consumer/tables"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// The versions of the schema that this program works with. Version 3 brings
// the tables of consumers, which the relay itself does without.
const (
	MinVersion = 2
	MaxVersion = 3
)

// DefaultSchema is where the tables live unless configured otherwise.
const DefaultSchema = "public"

const (
	versionTable = "cdc_relay_schema_version"
	// lockKey is the advisory lock under which the schema changes, the same
	// for all schemas of a database. The bytes spell cdcrelay.
	lockKey int64 = 0x63646372656c6179
	// lockPoll is how often the lock is asked for.
	lockPoll = 200 * time.Millisecond
)

// Migration is one file and what the database knows of it.
type Migration struct {
	Version int64
	Name    string
	// AppliedAt is zero while the migration is not applied.
	AppliedAt time.Time
}

// CheckSchema returns an error unless schema is a name that the migrations
// accept: lower case, digits and underscores, at most 63 bytes.
func CheckSchema(schema string) error { return tables.CheckSchema(schema) }

// Up creates the schema if it is missing and applies all migrations that are
// not applied yet. It returns those it applied: none if another process did,
// or if there was nothing to do. A *fault.Blocked says that the database is
// newer than this program, or that the login is refused.
func Up(ctx context.Context, conf *pgx.ConnConfig, schema string) ([]Migration, error) {
	if err := CheckSchema(schema); err != nil {
		return nil, err
	}
	conf = sessionConfig(conf, schema)
	conn, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return nil, fmt.Errorf("connecting to migrate: %w", pg.Explain(err))
	}
	defer pg.Close(conn) // which gives the lock back
	if err := lock(ctx, conn); err != nil {
		return nil, err
	}
	if err := createSchema(ctx, conn, schema); err != nil {
		return nil, err
	}
	version, err := Version(ctx, conn, schema)
	if err != nil {
		return nil, err
	}
	if version > MaxVersion {
		return nil, Accepted(version)
	}
	db := stdlib.OpenDB(*conf)
	defer db.Close()
	return apply(ctx, db, schema)
}

// Status lists all migrations of this program, in order, and when each was
// applied. It changes nothing, so it works with read access alone.
func Status(ctx context.Context, conn *pgx.Conn, schema string) ([]Migration, error) {
	all, err := list(schema)
	if err != nil {
		return nil, err
	}
	applied, err := appliedVersions(ctx, conn, schema)
	if err != nil {
		return nil, err
	}
	for i := range all {
		all[i].AppliedAt = applied[all[i].Version]
	}
	return all, nil
}

// Version returns the highest version applied in schema, 0 if there is none.
func Version(ctx context.Context, conn *pgx.Conn, schema string) (int64, error) {
	applied, err := appliedVersions(ctx, conn, schema)
	if err != nil {
		return 0, err
	}
	var highest int64
	for v := range applied {
		highest = max(highest, v)
	}
	return highest, nil
}

// Accepted returns nil if this program works with that version of the schema,
// else a *fault.Blocked that tells what to do.
func Accepted(version int64) error {
	const reason = "table.schema_version"
	switch {
	case version == 0:
		return &fault.Blocked{Reason: reason,
			What:   "the tables of cdc-relay are not there, or this login may not see them",
			Remedy: "run: cdc-relay migrate up, and check outbox.table"}
	case version < MinVersion:
		return &fault.Blocked{Reason: reason,
			What:   fmt.Sprintf("the database schema has version %d, this program needs at least %d", version, MinVersion),
			Remedy: "run: cdc-relay migrate up"}
	case version > MaxVersion:
		return &fault.Blocked{Reason: reason,
			What:   fmt.Sprintf("the database schema has version %d, this program knows up to %d", version, MaxVersion),
			Remedy: "upgrade cdc-relay to the release that migrated the database, or a later one"}
	}
	return nil
}

// sessionConfig is conf for a session that migrates. A lock that is not
// granted soon is given up: whatever waits for a lock on the outbox makes the
// applications' inserts wait behind it.
func sessionConfig(conf *pgx.ConnConfig, schema string) *pgx.ConnConfig {
	conf = conf.Copy()
	for name, value := range map[string]string{
		"search_path":          schema, // goose names its table without a schema
		"timezone":             "UTC",  // goose keeps times without a zone
		"client_min_messages":  "warning",
		"statement_timeout":    "0",
		"lock_timeout":         "5s",
		"idle_session_timeout": "0",
	} {
		conf.RuntimeParams[name] = value
	}
	return conf
}

// lock takes the advisory lock, which lives as long as conn. It asks instead
// of waiting in the server: a waiting statement holds a snapshot, and an index
// that the holder builds concurrently would wait for its end.
func lock(ctx context.Context, conn *pgx.Conn) error {
	ticker := time.NewTicker(lockPoll)
	defer ticker.Stop()
	for {
		var got bool
		if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", lockKey).Scan(&got); err != nil {
			return fmt.Errorf("locking the schema against other migrations: %w", err)
		}
		if got {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for another migration of this database to end: %w", ctx.Err())
		case <-ticker.C:
		}
	}
}

// createSchema looks first: CREATE SCHEMA needs a right on the database even
// if the schema is there.
func createSchema(ctx context.Context, conn *pgx.Conn, schema string) error {
	var missing bool
	err := conn.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", schema).Scan(&missing)
	if err == nil && missing {
		_, err = conn.Exec(ctx, "CREATE SCHEMA "+pgx.Identifier{schema}.Sanitize())
	}
	if err != nil {
		return fmt.Errorf("creating schema %s: %w", schema, err)
	}
	return nil
}

func apply(ctx context.Context, db *sql.DB, schema string) ([]Migration, error) {
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files{schema},
		goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, fmt.Errorf("reading the migrations: %w", err)
	}
	results, err := provider.Up(ctx)
	if partial := (*goose.PartialError)(nil); errors.As(err, &partial) {
		results = partial.Applied
	}
	done := make([]Migration, 0, len(results))
	for _, r := range results {
		done = append(done, Migration{Version: r.Source.Version, Name: r.Source.Path, AppliedAt: time.Now().UTC()})
	}
	if err != nil {
		return done, fmt.Errorf("migrating schema %s: %w", schema, err)
	}
	return done, nil
}

// appliedVersions returns each applied version with its time; none if the
// table of versions is not there.
func appliedVersions(ctx context.Context, conn *pgx.Conn, schema string) (map[int64]time.Time, error) {
	if err := CheckSchema(schema); err != nil {
		return nil, err
	}
	table := pgx.Identifier{schema, versionTable}.Sanitize()
	var there bool
	if err := conn.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", table).Scan(&there); err != nil {
		return nil, fmt.Errorf("looking for the table of schema versions: %w", err)
	}
	if !there {
		return nil, nil
	}
	rows, err := conn.Query(ctx, "SELECT version_id, tstamp FROM "+table+" WHERE is_applied AND version_id > 0")
	if err != nil {
		return nil, fmt.Errorf("reading the schema version: %w", err)
	}
	applied := make(map[int64]time.Time)
	var version int64
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{&version, &at}, func() error {
		applied[version] = at
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the schema version: %w", err)
	}
	return applied, nil
}
