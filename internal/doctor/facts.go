package doctor

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// Facts is what a database tells about itself.
type Facts struct {
	Version          int // server_version_num, such as 180004
	WALLevel         string
	SyncStandbyNames string // synchronous_standby_names
	Login            string // current_user
	SchemaVersion    int64  // 0: not migrated
	SchemaHidden     bool   // the login may not read the version

	Table       *Table       // nil: there is none
	Publication *Publication // nil: there is none
	Slot        *Slot        // nil: there is none
	// StandbySlots are those that synchronized_standby_slots names.
	StandbySlots []StandbySlot
	// Standbys: somebody uses a physical slot, a standby most likely.
	Standbys bool
	// MissingGrants are the statements that give the login what it lacks.
	MissingGrants []string
}

// Table is the outbox table.
type Table struct {
	OID         uint32
	Partitioned bool
	Ordinary    bool // a table, partitioned or not: no view, no foreign table
	Unlogged    bool
	// HiddenRows: row security applies to the login and no policy lets it
	// see or update a row.
	HiddenRows bool
	Columns    map[string]string // name -> type
	Triggers   []Trigger
}

// Trigger is one that calls cdc_relay_requeue.
type Trigger struct {
	Name    string
	Enabled string // A always, O origin and local, R replica, D disabled
	OnEach  bool   // after the update of each row
	Args    []byte // each followed by a zero byte
}

// Publication is what is published of the table, and how.
type Publication struct {
	AllTables bool
	Inserts   bool
	Others    bool // updates, deletes or truncates
	ViaRoot   bool
	Listed    bool     // the table is in it
	Filter    string   // the table's row filter, "" without
	Columns   []string // the columns published, nil where the server does not tell
}

// Slot is the replication slot.
type Slot struct {
	Plugin       string // "" for a physical slot
	SameDatabase bool   // as this connection's
	Temporary    bool
	Failover     bool   // it is copied to standbys; 17 and newer
	WALStatus    string // reserved, extended, unreserved, lost
	Invalidated  string // why, "" if it is not; 17 and newer
	ActivePID    int32  // 0: nobody streams from it
	Confirmed    pglogrepl.LSN
}

// Lost reports whether the slot can never be streamed from again.
func (s *Slot) Lost() bool { return s.WALStatus == "lost" || s.Invalidated != "" }

// Look reads the facts. It changes nothing.
func Look(ctx context.Context, conn *pgx.Conn, cfg Config) (Facts, error) {
	var f Facts
	for _, read := range []struct {
		what string
		read func(context.Context, *pgx.Conn, Config, *Facts) error
	}{
		{"the server's settings", readServer},
		{"the schema version", readSchemaVersion},
		{"the outbox table", readTable},
		{"the requeue trigger", readTriggers},
		{"the grants", readGrants},
		{"the publication", readPublication},
		{"the slot", readSlot},
		{"the standbys' slots", readStandbySlots},
	} {
		if err := read.read(ctx, conn, cfg, &f); err != nil {
			return Facts{}, fmt.Errorf("reading %s: %w", read.what, err)
		}
	}
	return f, nil
}

func readServer(ctx context.Context, conn *pgx.Conn, _ Config, f *Facts) error {
	return conn.QueryRow(ctx, `
		SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
		       current_setting('synchronous_standby_names'), current_user::text,
		       EXISTS (SELECT FROM pg_replication_slots WHERE slot_type = 'physical' AND active)`).
		Scan(&f.Version, &f.WALLevel, &f.SyncStandbyNames, &f.Login, &f.Standbys)
}

func readSchemaVersion(ctx context.Context, conn *pgx.Conn, cfg Config, f *Facts) (err error) {
	f.SchemaVersion, err = migrations.Version(ctx, conn, cfg.Table.Schema)
	if pg.Code(err) == pg.CodeNoPrivilege {
		f.SchemaHidden = true // for which there is a grant
		return nil
	}
	return err
}

// readTable does not use regclass: it is refused, as an error, to a login that
// may not use the schema.
func readTable(ctx context.Context, conn *pgx.Conn, cfg Config, f *Facts) error {
	t := Table{Columns: make(map[string]string)}
	err := conn.QueryRow(ctx, `
		SELECT c.oid, c.relkind = 'p', c.relkind IN ('r', 'p'), c.relpersistence = 'u',
		       row_security_active(c.oid) AND (SELECT count(DISTINCT wanted) < 2
		         FROM pg_policy p, unnest(ARRAY['r', 'w']) wanted
		        WHERE p.polrelid = c.oid AND p.polpermissive AND p.polcmd::text IN (wanted, '*')
		          AND EXISTS (SELECT FROM unnest(p.polroles) r WHERE r = 0 OR pg_has_role(r, 'USAGE')))
		  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		 WHERE n.nspname = $1 AND c.relname = $2`, cfg.Table.Schema, cfg.Table.Name).
		Scan(&t.OID, &t.Partitioned, &t.Ordinary, &t.Unlogged, &t.HiddenRows)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	rows, err := conn.Query(ctx, `SELECT attname::text, format_type(atttypid, NULL) FROM pg_attribute
		WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped`, t.OID)
	if err != nil {
		return err
	}
	var name, kind string
	_, err = pgx.ForEachRow(rows, []any{&name, &kind}, func() error {
		t.Columns[name] = kind
		return nil
	})
	if err != nil {
		return err
	}
	f.Table = &t
	return nil
}

func readTriggers(ctx context.Context, conn *pgx.Conn, _ Config, f *Facts) error {
	if f.Table == nil {
		return nil
	}
	const afterUpdateOfRow, bits = 1 | 16, 1 | 2 | 16 | 64 // row, before, update, instead
	rows, err := conn.Query(ctx, `
		SELECT t.tgname::text, t.tgenabled::text, t.tgtype::int & $2 = $3, t.tgargs
		  FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
		 WHERE t.tgrelid = $1 AND NOT t.tgisinternal AND p.proname = 'cdc_relay_requeue'
		 ORDER BY t.tgname`, f.Table.OID, bits, afterUpdateOfRow)
	if err != nil {
		return err
	}
	f.Table.Triggers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Trigger])
	return err
}

// readPublication reads what older servers do not have through JSON.
func readPublication(ctx context.Context, conn *pgx.Conn, cfg Config, f *Facts) error {
	var p Publication
	err := conn.QueryRow(ctx, `
		SELECT p.puballtables, p.pubinsert, p.pubupdate OR p.pubdelete OR p.pubtruncate, p.pubviaroot,
		       t.pubname IS NOT NULL, coalesce(to_jsonb(t) ->> 'rowfilter', ''),
		       CASE WHEN jsonb_typeof(to_jsonb(t) -> 'attnames') = 'array'
		            THEN ARRAY(SELECT jsonb_array_elements_text(to_jsonb(t) -> 'attnames')) END
		  FROM pg_publication p
		  LEFT JOIN pg_publication_tables t ON t.pubname = p.pubname AND t.schemaname = $2 AND t.tablename = $3
		 WHERE p.pubname = $1`, cfg.Publication, cfg.Table.Schema, cfg.Table.Name).
		Scan(&p.AllTables, &p.Inserts, &p.Others, &p.ViaRoot, &p.Listed, &p.Filter, &p.Columns)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	f.Publication = &p
	return nil
}

func readSlot(ctx context.Context, conn *pgx.Conn, cfg Config, f *Facts) error {
	var s Slot
	var confirmed string
	err := conn.QueryRow(ctx, `
		SELECT coalesce(plugin::text, ''), coalesce(database = current_database(), false), temporary,
		       coalesce((to_jsonb(s) ->> 'failover')::boolean, false),
		       coalesce(wal_status, ''), coalesce(to_jsonb(s) ->> 'invalidation_reason', ''), coalesce(active_pid, 0),
		       coalesce(confirmed_flush_lsn, '0/0')::text
		  FROM pg_replication_slots s WHERE slot_name = $1`, cfg.Slot).
		Scan(&s.Plugin, &s.SameDatabase, &s.Temporary, &s.Failover, &s.WALStatus, &s.Invalidated, &s.ActivePID, &confirmed)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	if s.Confirmed, err = pglogrepl.ParseLSN(confirmed); err != nil {
		return err
	}
	f.Slot = &s
	return nil
}

// readGrants finds out what the login may not do, and says so as GRANTs.
func readGrants(ctx context.Context, conn *pgx.Conn, cfg Config, f *Facts) error {
	if f.Table == nil {
		return nil
	}
	var usage, read bool
	var columns []string
	err := conn.QueryRow(ctx, `
		SELECT has_schema_privilege($1::text, 'USAGE'), has_table_privilege($2::oid, 'SELECT'),
		       ARRAY(SELECT a.attname::text FROM pg_attribute a
		              WHERE a.attrelid = $2 AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY($3::text[])
		                AND NOT has_column_privilege($2::oid, a.attnum, 'UPDATE') ORDER BY a.attnum)`,
		cfg.Table.Schema, f.Table.OID, cfg.written()).Scan(&usage, &read, &columns)
	if err != nil {
		return err
	}
	login := pgx.Identifier{f.Login}.Sanitize()
	grant := func(what, on string) {
		f.MissingGrants = append(f.MissingGrants, fmt.Sprintf("GRANT %s ON %s TO %s", what, on, login))
	}
	if !usage {
		grant("USAGE", "SCHEMA "+pgx.Identifier{cfg.Table.Schema}.Sanitize())
	}
	if !read {
		grant("SELECT", cfg.Table.Ident())
	}
	if len(columns) > 0 {
		grant("UPDATE ("+identList(columns)+")", cfg.Table.Ident())
	}
	if f.SchemaHidden {
		grant("SELECT", cfg.Table.Sibling("cdc_relay_schema_version").Ident())
	}
	return readOwnGrants(ctx, conn, cfg.Table, grant)
}

// readOwnGrants does the same for the tables that the relay keeps for itself.
func readOwnGrants(ctx context.Context, conn *pgx.Conn, table pg.Table, grant func(what, on string)) error {
	rows, err := conn.Query(ctx, `
		SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		 WHERE n.nspname = $1 AND c.relname IN ('cdc_relay_slot', 'cdc_relay_lease', 'cdc_relay_topic')
		   AND NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
		            AND has_table_privilege(c.oid, 'UPDATE'))
		 ORDER BY c.relname`, table.Schema)
	if err != nil {
		return err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	for _, name := range names {
		grant("SELECT, INSERT, UPDATE", table.Sibling(name).Ident())
	}
	return err
}
