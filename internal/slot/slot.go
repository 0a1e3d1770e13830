package slot

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// Plugin is the output plugin of a relay's slot.
const Plugin = "pgoutput"

// Missing says that there is no such slot.
type Missing struct{ Name string }

func (m *Missing) Error() string {
	return fmt.Sprintf("there is no replication slot %s; create it with cdc-relay slot create, or set slot.create to true", m.Name)
}

// Refused says why nothing was done.
type Refused struct{ Why string }

func (r *Refused) Error() string { return r.Why }

func refuse(format string, args ...any) error { return &Refused{fmt.Sprintf(format, args...)} }

// Config says which slot, and beside which outbox table.
type Config struct {
	Name  string
	Table pg.Table
	// Failover makes new slots failover slots (PostgreSQL 17 and later).
	Failover bool
	// Person is the operating system's name of who acts, for the audit trail.
	Person string
}

// Slot is a replication slot, as people handle it. Not safe for concurrent use.
type Slot struct {
	cfg   Config
	conn  *pgx.Conn
	names *strings.Replacer
}

// New returns the slot. conn is for statements; what needs the REPLICATION
// attribute takes a connection of the login that streams. It does no I/O.
func New(conn *pgx.Conn, cfg Config) *Slot {
	return &Slot{cfg, conn, strings.NewReplacer(
		"{table}", cfg.Table.Ident(),
		"{fence}", cfg.Table.Sibling("cdc_relay_slot").Ident(),
		"{lease}", cfg.Table.Sibling("cdc_relay_lease").Ident(),
		"{audit}", cfg.Table.Sibling("cdc_relay_audit").Ident(),
	)}
}

// State is a slot as the server has it, and what the relay keeps about it. Nil
// pointers and empty strings are what is not there or not known. Positions are
// text, as PostgreSQL writes them.
type State struct {
	Plugin          string // "" for a physical slot
	SameDatabase    bool   // as the connection's
	Temporary       bool
	Active          bool
	ActivePID       *int32
	ApplicationName string // of who streams from it
	Confirmed       string
	Restart         string
	RetainedBytes   *int64 // WAL that is kept for it
	SafeBytes       *int64 // WAL that may still be written until it is lost; nil: no limit, or lost
	WALStatus       string
	Invalidation    string // why it was invalidated
	Failover        *bool  // nil before PostgreSQL 17, as Synced
	Synced          *bool

	// The lease.
	Saved      string
	SystemID   *int64
	Timeline   *int32
	Epoch      *int64
	Owner      string
	LeaseUntil *time.Time
}

// Lost reports whether the slot can never be streamed from again.
func (s *State) Lost() bool { return s.WALStatus == "lost" || s.Invalidation != "" }

// lookSQL reads what older servers do not have through JSON. The slot is read
// before the end of WAL, so that it never seems to be ahead.
const lookSQL = `
SELECT s.slot_name IS NOT NULL, coalesce(s.plugin::text, ''), coalesce(s.database = current_database(), false),
       coalesce(s.temporary, false), coalesce(s.active, false), s.active_pid, coalesce(a.application_name, ''),
       coalesce(s.confirmed_flush_lsn::text, ''), coalesce(s.restart_lsn::text, ''),
       pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn)::bigint, s.safe_wal_size,
       coalesce(s.wal_status, ''), coalesce(to_jsonb(s) ->> 'invalidation_reason', ''),
       (to_jsonb(s) ->> 'failover')::boolean, (to_jsonb(s) ->> 'synced')::boolean,
       coalesce(l.saved_lsn::text, ''), l.system_identifier, l.timeline, f.epoch, coalesce(f.owner::text, ''), l.lease_until
  FROM (SELECT $1::text AS name) n
  LEFT JOIN pg_replication_slots s ON s.slot_name = n.name
  LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
  LEFT JOIN {lease} l ON l.slot = n.name
  LEFT JOIN {fence} f ON f.slot = n.name`

// Look reads the state. It is *Missing if there is no such slot.
func (s *Slot) Look(ctx context.Context) (*State, error) {
	var found bool
	var st State
	err := s.conn.QueryRow(ctx, s.names.Replace(lookSQL), s.cfg.Name).Scan(
		&found, &st.Plugin, &st.SameDatabase, &st.Temporary, &st.Active, &st.ActivePID, &st.ApplicationName,
		&st.Confirmed, &st.Restart, &st.RetainedBytes, &st.SafeBytes, &st.WALStatus, &st.Invalidation,
		&st.Failover, &st.Synced,
		&st.Saved, &st.SystemID, &st.Timeline, &st.Epoch, &st.Owner, &st.LeaseUntil)
	if err != nil {
		return nil, fmt.Errorf("reading the slot %s: %w", s.cfg.Name, explain(err))
	}
	if !found {
		return nil, &Missing{s.cfg.Name}
	}
	return &st, nil
}

// idle returns the state of a slot that may be changed: it is ours, and nobody
// streams from it.
func (s *Slot) idle(ctx context.Context) (*State, error) {
	st, err := s.Look(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case st.Plugin != Plugin:
		return nil, refuse("the slot %s does not use the plugin %s: it is not a relay's; name another one in slot.name", s.cfg.Name, Plugin)
	case !st.SameDatabase:
		return nil, refuse("the slot %s belongs to another database; name another one in slot.name", s.cfg.Name)
	case st.Temporary:
		return nil, refuse("the slot %s is temporary; name another one in slot.name", s.cfg.Name)
	case st.Active:
		return nil, s.refuseActive(st)
	}
	return st, nil
}

func (s *Slot) refuseActive(st *State) error {
	pid := int32(0)
	if st.ActivePID != nil {
		pid = *st.ActivePID
	}
	return refuse("the slot %s is in use by process %d of the server, application %q; stop the relay first", s.cfg.Name, pid, st.ApplicationName)
}

// auditSQL notes an action that is not on rows. $1 is the person, $2 the
// action, $3 the reason and $4 what is acted on.
const auditSQL = `
INSERT INTO {audit} (actor, action, reason, filter)
VALUES (session_user || coalesce(' (' || nullif($1::text, '') || ')', ''), $2::text, nullif($3::text, ''), $4::text)`

func parseLSN(text string) (pglogrepl.LSN, error) {
	lsn, err := pglogrepl.ParseLSN(text)
	if err != nil {
		return 0, fmt.Errorf("the server told no position: %w", err)
	}
	return lsn, nil
}

// explain adds what to do to an error of the database.
func explain(err error) error {
	switch pg.Code(err) {
	case pg.CodeNoPrivilege:
		return fmt.Errorf("%w; run it with the relay's own logins: the one that streams needs REPLICATION, the one that writes status "+
			"SELECT and UPDATE on the outbox and the cdc_relay tables, and INSERT on cdc_relay_audit", err)
	case pg.CodeUndefinedTable, pg.CodeUndefinedColumn, pg.CodeUndefinedSchema:
		return fmt.Errorf("%w; correct outbox.table, or run cdc-relay migrate up", err)
	}
	return err
}
