package operate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// ErrNotFound says that there is no such row, or no longer.
var ErrNotFound = errors.New("there is no such event; it may have been purged, or its transaction may not be committed yet")

// Detail is all that is known of one event.
type Detail struct {
	At time.Time // by the clock of the database
	Row
	// PayloadBytes is the size of the payload; -1 for a tombstone.
	PayloadBytes int64
	// First is the earliest parked row of the aggregate before this one, if it
	// has to wait for that.
	First Head
	// Blocking is how many held rows stand behind this one, up to MaxBlocking.
	Blocking int
	// Lockers are the sessions that have locked or changed the row and not
	// ended their transaction, as far as the server tells.
	Lockers []Locker
	Leader  Leader
	Pinned  Pinned
	Audit   []AuditEntry // the latest first, at most maxAudit
}

// Locker is a session.
type Locker struct {
	PID         int32
	Application string
}

// Leader is who leads the slot, or did so last.
type Leader struct {
	Instance  string // "": nobody ever did
	Leads     bool
	RenewedAt Moment
}

// Pinned is the partition count of the event's topic.
type Pinned struct {
	Partitions int32 // 0: nothing was published to the topic yet
	ChangedAt  Moment
}

// AuditEntry is what a person did to a row, or the relay for lack of one.
type AuditEntry struct {
	At     time.Time `json:"at"`
	Actor  string    `json:"actor"`
	Action string    `json:"action"`
	Reason string    `json:"reason"`
	Filter string    `json:"filter"`
}

const maxAudit = 20

// Show returns what is known of the one event that f names. ErrNotFound is in
// the error's chain if there is none.
func (t *Table) Show(ctx context.Context, f Filter) (*Detail, error) {
	d := &Detail{}
	var err error
	if d.At, err = t.now(ctx); err != nil {
		return nil, err
	}
	for _, step := range []struct {
		doing string
		read  func(context.Context, *Detail) error
	}{
		{"reading the event", func(ctx context.Context, d *Detail) error { return t.readRow(ctx, f, d) }},
		{"looking for locks", t.readLockers},
		{"reading who leads", t.readLeader},
		{"reading the pinned partitions", t.readPinned},
		{"reading the audit trail", t.readAudit},
	} {
		if err := step.read(ctx, d); err != nil {
			return nil, fmt.Errorf("%s: %w", step.doing, t.explain(ctx, err))
		}
	}
	return d, nil
}

func (t *Table) readRow(ctx context.Context, f Filter, d *Detail) error {
	f.Limit = 1
	s, err := t.selection(f)
	if err != nil {
		return err
	}
	more := ", coalesce({payload_bytes}, -1)::bigint, " + blockingSQL + ", " + headColumns
	sql := s.query(t.rowColumns(s)+t.sql(more), t.sql(headSQL), 1)
	dest := append(d.Row.dest(), &d.PayloadBytes, &d.Blocking)
	err = t.conn.QueryRow(ctx, sql, s.args...).Scan(append(dest, d.First.dest()...)...)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if t.cfg.Blocks != nil && !t.cfg.Blocks(d.AggregateType) && d.Kind() != KindHeld {
		d.First = Head{} // it need not wait; one that is held already is released all the same
	}
	return err
}

func (t *Table) readLockers(ctx context.Context, d *Detail) error {
	who, err := t.lockers(ctx, t.conn, []int64{d.ID})
	d.Lockers = who[d.ID]
	return err
}

func (t *Table) readLeader(ctx context.Context, d *Detail) error {
	const sql = `SELECT coalesce(instance, ''), coalesce(lease_until > clock_timestamp(), false), renewed_at FROM {lease} WHERE slot = $1`
	l := &d.Leader
	err := t.conn.QueryRow(ctx, t.sql(sql), t.cfg.Slot).Scan(&l.Instance, &l.Leads, &l.RenewedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

func (t *Table) readPinned(ctx context.Context, d *Detail) error {
	const sql = `SELECT partitions, changed_at FROM {topics} WHERE topic = $1`
	err := t.conn.QueryRow(ctx, t.sql(sql), d.Topic).Scan(&d.Pinned.Partitions, &d.Pinned.ChangedAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

func (t *Table) readAudit(ctx context.Context, d *Detail) error {
	const sql = `
SELECT at, actor, action, coalesce(reason, ''), coalesce(filter, '') FROM {audit} WHERE id = $1 ORDER BY audit_id DESC LIMIT $2`
	rows, err := t.conn.Query(ctx, t.sql(sql), d.ID, maxAudit)
	if err != nil {
		return err
	}
	d.Audit, err = pgx.CollectRows(rows, pgx.RowToStructByPos[AuditEntry])
	for i := range d.Audit {
		d.Audit[i].At = d.Audit[i].At.UTC()
	}
	return err
}

// Payload returns what is published of a row, nil for a tombstone.
func (t *Table) Payload(ctx context.Context, id int64) (payload []byte, err error) {
	const sql = `SELECT {payload_raw} FROM {table} o WHERE o.{=id} = $1::bigint`
	if err := t.conn.QueryRow(ctx, t.sql(sql), id).Scan(&payload); err != nil {
		return nil, fmt.Errorf("reading the payload: %w", t.explain(ctx, err))
	}
	return payload, nil
}

// Headers returns the row's headers as it has them, "" for none.
func (t *Table) Headers(ctx context.Context, id int64) (headers string, err error) {
	const sql = `SELECT coalesce({headers}, '') FROM {table} o WHERE o.{=id} = $1::bigint`
	if err := t.conn.QueryRow(ctx, t.sql(sql), id).Scan(&headers); err != nil {
		return "", fmt.Errorf("reading the headers: %w", t.explain(ctx, err))
	}
	return headers, nil
}

// explain says what a person can do about an error; a lock on the table is a
// *fault.Blocked (table.locked) that names who has it.
func (t *Table) explain(ctx context.Context, err error) error {
	if pg.Code(err) != pg.CodeLockNotAvailable {
		return explain(err)
	}
	const sql = `
SELECT l.pid, coalesce(a.application_name, '')
  FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE n.nspname = $1 AND c.relname = $2 AND l.granted AND l.mode = 'AccessExclusiveLock'
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1`
	who := "another session"
	var locker Locker
	if t.conn.QueryRow(ctx, sql, t.cfg.Table.Schema, t.cfg.Table.Name).Scan(&locker.PID, &locker.Application) == nil {
		who = locker.String()
	}
	return &fault.Blocked{Reason: "table.locked",
		What:   fmt.Sprintf("the table %s is locked by %s", t.cfg.Table, who),
		Remedy: "wait for its transaction to end, or end it", Err: err}
}

// String names a session for people.
func (l Locker) String() string {
	if l.Application == "" {
		return fmt.Sprintf("pid %d", l.PID)
	}
	return fmt.Sprintf("pid %d (%s)", l.PID, l.Application)
}
