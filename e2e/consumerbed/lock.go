package consumerbed

import (
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
