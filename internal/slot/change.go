package slot

import (
	"context"
	"fmt"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// SQLSTATE codes of the server about slots.
const (
	codeInUse  = "55006"
	codeExists = "42710"
)

// CreateSQL is the statement that creates a slot and returns its name and its
// position. The name may stand between quotes: it is letters, digits and
// underscores only.
func CreateSQL(name string, failover bool) string {
	option := ""
	if failover {
		option = ", failover => true"
	}
	return fmt.Sprintf("SELECT * FROM pg_create_logical_replication_slot('%s', '%s'%s)", name, Plugin, option)
}

// Create creates the slot, on a connection of the login that streams, and
// returns the position from which on it delivers. It waits for every
// transaction of the cluster that has written and is still open. One that is
// there is *Refused.
func (s *Slot) Create(ctx context.Context, streaming *pgx.Conn, reason string) (pglogrepl.LSN, error) {
	if err := s.audit(ctx, "create", reason, ""); err != nil {
		return 0, err
	}
	return s.create(ctx, streaming)
}

func (s *Slot) create(ctx context.Context, streaming *pgx.Conn) (pglogrepl.LSN, error) {
	var name, at string
	err := streaming.QueryRow(ctx, CreateSQL(s.cfg.Name, s.cfg.Failover)).Scan(&name, &at)
	if pg.Code(err) == codeExists {
		return 0, refuse("somebody else has just created the slot %s", s.cfg.Name)
	}
	if err != nil {
		return 0, fmt.Errorf("creating the slot %s: %w", s.cfg.Name, explain(err))
	}
	return parseLSN(at)
}

// Recreatable returns the state of a slot that may be dropped; otherwise it is
// *Missing or *Refused.
func (s *Slot) Recreatable(ctx context.Context) (*State, error) { return s.idle(ctx) }

// dropSQL says once more whose slot it must be: what was looked at may have
// become another one. One that is active is refused by the server.
const dropSQL = `
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
 WHERE slot_name = $1 AND plugin = $2 AND database = current_database() AND NOT temporary`

// Recreate drops the slot and creates it, on a connection of the login that
// streams, and returns the position of the new one. When it fails halfway the
// slot is missing, and Create, or the relay, makes it.
func (s *Slot) Recreate(ctx context.Context, streaming *pgx.Conn, reason string) (pglogrepl.LSN, error) {
	st, err := s.idle(ctx)
	if err != nil {
		return 0, err
	}
	if err := s.audit(ctx, "recreate", reason, "confirmed "+st.Confirmed); err != nil {
		return 0, err
	}
	tag, err := streaming.Exec(ctx, dropSQL, s.cfg.Name, Plugin)
	switch {
	case pg.Code(err) == codeInUse:
		return 0, refuse("somebody has begun to stream from the slot %s: nothing was changed; stop the relay first", s.cfg.Name)
	case err != nil:
		return 0, fmt.Errorf("dropping the slot %s: %w", s.cfg.Name, explain(err))
	case tag.RowsAffected() == 0:
		return 0, refuse("the slot %s is not the one any more that it was a moment ago: look at it again", s.cfg.Name)
	}
	return s.create(ctx, streaming)
}

// Move is how far a slot is moved on.
type Move struct {
	From, To pglogrepl.LSN
	// Ready is the number of rows that the next start of the relay publishes
	// from the table, because the slot will not show them.
	Ready int64
}

// PlanAdvance tells what moving the slot on to a position (0: the end of WAL)
// would do. It is *Missing or *Refused if that cannot be.
func (s *Slot) PlanAdvance(ctx context.Context, to pglogrepl.LSN) (Move, error) {
	st, err := s.idle(ctx)
	if err != nil {
		return Move{}, err
	}
	if st.Lost() {
		return Move{}, refuse("the slot %s is lost and cannot be moved on; run: cdc-relay slot recreate --confirm %[1]s", s.cfg.Name)
	}
	m := Move{To: to}
	if m.From, err = parseLSN(st.Confirmed); err != nil {
		return Move{}, fmt.Errorf("reading the slot %s: %w", s.cfg.Name, err)
	}
	end, err := s.end(ctx)
	if err != nil {
		return Move{}, err
	}
	switch {
	case to == 0:
		m.To = end
	case to > end:
		return Move{}, refuse("%s is beyond the end of WAL, which is %s", to, end)
	}
	if m.To < m.From {
		return Move{}, refuse("the slot %s is at %s, beyond %s: a slot cannot be moved back", s.cfg.Name, m.From, m.To)
	}
	m.Ready, err = s.ready(ctx)
	return m, err
}

// end is the end of the WAL that is on disk.
func (s *Slot) end(ctx context.Context) (pglogrepl.LSN, error) {
	var text string
	if err := s.conn.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&text); err != nil {
		return 0, fmt.Errorf("reading the end of WAL: %w", err)
	}
	return parseLSN(text)
}

// readySQL begins at the low-water mark: no row below it is READY and not
// parked.
const readySQL = `
SELECT count(*) FROM {table}
 WHERE id > coalesce((SELECT low_water_id FROM {lease} WHERE slot = $1), 0) AND send_status = 0 AND next_attempt_at IS NULL`

func (s *Slot) ready(ctx context.Context) (n int64, err error) {
	if err := s.conn.QueryRow(ctx, s.names.Replace(readySQL), s.cfg.Name).Scan(&n); err != nil {
		return 0, fmt.Errorf("counting READY rows: %w", explain(err))
	}
	return n, nil
}

// Advance moves the slot on as planned, on a connection of the login that
// streams, and returns where it then is. The plugin does not run meanwhile, so
// WAL that it cannot decode is passed too.
func (s *Slot) Advance(ctx context.Context, streaming *pgx.Conn, m Move, reason string) (pglogrepl.LSN, error) {
	if err := s.audit(ctx, "advance", reason, fmt.Sprintf("%s -> %s", m.From, m.To)); err != nil {
		return 0, err
	}
	var at string
	err := streaming.QueryRow(ctx, "SELECT end_lsn::text FROM pg_replication_slot_advance($1, $2::text::pg_lsn)", s.cfg.Name, m.To.String()).Scan(&at)
	switch {
	case pg.Code(err) == codeInUse:
		return 0, refuse("somebody has begun to stream from the slot %s: nothing was changed; stop the relay first", s.cfg.Name)
	case err != nil:
		return 0, fmt.Errorf("moving the slot %s on: %w", s.cfg.Name, explain(err))
	}
	return parseLSN(at)
}

func (s *Slot) audit(ctx context.Context, action, reason, detail string) error {
	_, err := s.conn.Exec(ctx, s.names.Replace(auditSQL), s.cfg.Person, action, reason, s.subject(detail))
	if err != nil {
		return fmt.Errorf("writing the audit trail: %w", explain(err))
	}
	return nil
}

// subject is what an action is on, for the audit trail.
func (s *Slot) subject(detail string) string {
	if detail == "" {
		return "slot " + s.cfg.Name
	}
	return "slot " + s.cfg.Name + ": " + detail
}
