package consumerbed

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
)

// Lock is a lock on the memory of an event, as a person in psql might hold it.
type Lock struct {
	b   *Bed
	tx  pgx.Tx
	pid uint32
}

// Lock locks the row of an event, or its receipt. A receipt that is not there
// yet is inserted, to be taken back.
func (b *Bed) Lock(ev Event) *Lock {
	b.t.Helper()
	conn := b.DB.Conn(b.t)
	tx, err := conn.Begin(b.t.Context())
	switch {
	case err != nil:
	case b.cfg.Mode == consumerproc.Shared:
		_, err = tx.Exec(b.t.Context(), `SELECT FROM public.outbox WHERE id = $1 FOR UPDATE`, ev.RowID)
	default:
		_, err = tx.Exec(b.t.Context(), `INSERT INTO public.outbox_receipt (event_id, purpose) VALUES ($1, $2)
			ON CONFLICT (event_id, purpose) DO UPDATE SET purpose = EXCLUDED.purpose`, ev.ID, b.cfg.Purpose)
	}
	if err != nil {
		b.t.Fatalf("locking an event: %v", err)
	}
	return &Lock{b, tx, conn.PgConn().PID()}
}

// LockEnd makes the statement that records an event as CONSUMED wait, inside
// PostgreSQL, where it goes on after its client has died. It is to be called
// before others have locks on the table.
func (b *Bed) LockEnd(ev Event) *Lock {
	b.t.Helper()
	table, done := "public.outbox", fmt.Sprintf("NEW.send_status = 4 AND NEW.id = %d", ev.RowID)
	if b.cfg.Mode != consumerproc.Shared {
		table, done = "public.outbox_receipt", fmt.Sprintf("NEW.status = 4 AND NEW.event_id = '%s'", ev.ID)
	}
	b.Exec(`CREATE FUNCTION public.wait_at_the_end() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_catalog.pg_advisory_xact_lock(1); RETURN NEW; END $$`)
	b.Exec(fmt.Sprintf(`CREATE TRIGGER wait_at_the_end BEFORE UPDATE ON %s FOR EACH ROW WHEN (%s) EXECUTE FUNCTION public.wait_at_the_end()`,
		table, done))
	conn := b.DB.Conn(b.t)
	tx, err := conn.Begin(b.t.Context())
	if err == nil {
		_, err = tx.Exec(b.t.Context(), `SELECT pg_advisory_xact_lock(1)`)
	}
	if err != nil {
		b.t.Fatalf("locking the end of an event: %v", err)
	}
	return &Lock{b, tx, conn.PgConn().PID()}
}

// Wait waits until a statement that contains text waits for the lock.
func (l *Lock) Wait(text string) {
	l.b.t.Helper()
	l.b.Wait("a statement with "+text+" to wait for a lock", func() bool {
		return l.b.Count(`SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid)) AND query LIKE '%' || $2 || '%'`, l.pid, text) > 0
	})
}

// Refuse ends the sessions that wait: what they asked for is not done.
func (l *Lock) Refuse() {
	l.b.t.Helper()
	l.b.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`, l.pid)
	l.b.Wait("the waiting sessions to end", func() bool {
		return l.b.Count(`SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`, l.pid) == 0
	})
}

// Release gives the lock up and changes nothing.
func (l *Lock) Release() {
	l.b.t.Helper()
	if err := l.tx.Rollback(l.b.t.Context()); err != nil {
		l.b.t.Fatalf("unlocking an event: %v", err)
	}
}
