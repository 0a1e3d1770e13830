package load

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/check"
)

// Row is an outbox row to insert.
type Row struct {
	Aggregate check.Aggregate
	EventType string
	Payload   []byte
}

// Tx is an open transaction of a writer. It is not safe for concurrent use.
type Tx struct {
	conn   *pgx.Conn
	table  string
	events []check.Event
}

// Begin starts a transaction. table is a quoted, qualified name.
func Begin(ctx context.Context, conn *pgx.Conn, table string) (*Tx, error) {
	if _, err := conn.Exec(ctx, "BEGIN"); err != nil {
		return nil, fmt.Errorf("beginning a transaction: %w", err)
	}
	return &Tx{conn: conn, table: table}, nil
}

// Insert adds rows by one statement.
func (tx *Tx) Insert(ctx context.Context, rows []Row) error {
	n := len(rows)
	eventIDs := make([][16]byte, n)
	types, ids, kinds, payloads := make([]string, n), make([]string, n), make([]string, n), make([][]byte, n)
	for i, r := range rows {
		rand.Read(eventIDs[i][:])
		types[i], ids[i], kinds[i], payloads[i] = r.Aggregate.Type, r.Aggregate.ID, r.EventType, r.Payload
	}
	got, err := tx.conn.Query(ctx, `INSERT INTO `+tx.table+` (event_id, aggregate_type, aggregate_id, event_type, payload)
		SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bytea[])
		RETURNING id, event_id, aggregate_type, aggregate_id`, eventIDs, types, ids, kinds, payloads)
	if err != nil {
		return fmt.Errorf("inserting %d rows: %w", n, err)
	}
	events, err := pgx.CollectRows(got, scanEvent)
	if err != nil {
		return fmt.Errorf("inserting %d rows: %w", n, err)
	}
	tx.events = append(tx.events, events...)
	return nil
}

func scanEvent(row pgx.CollectableRow) (e check.Event, err error) {
	err = row.Scan(&e.ID, &e.EventID, &e.Aggregate.Type, &e.Aggregate.ID)
	return e, err
}

// Savepoint runs f; unless keep, what f inserted is rolled back.
func (tx *Tx) Savepoint(ctx context.Context, keep bool, f func() error) error {
	before := len(tx.events)
	if _, err := tx.conn.Exec(ctx, "SAVEPOINT s"); err != nil {
		return fmt.Errorf("setting a savepoint: %w", err)
	}
	if err := f(); err != nil {
		return err
	}
	end := "RELEASE SAVEPOINT s"
	if !keep {
		end = "ROLLBACK TO SAVEPOINT s"
		tx.events = tx.events[:before]
	}
	if _, err := tx.conn.Exec(ctx, end); err != nil {
		return fmt.Errorf("ending a savepoint: %w", err)
	}
	return nil
}

// Rollback gives the transaction up.
func (tx *Tx) Rollback(ctx context.Context, h *History) error {
	h.Abandon()
	if _, err := tx.conn.Exec(ctx, "ROLLBACK"); err != nil {
		return fmt.Errorf("rolling back: %w", err)
	}
	return nil
}

// Commit commits and records the events in h; when the answer is lost, as
// uncertain ones.
func (tx *Tx) Commit(ctx context.Context, h *History) error {
	asked := time.Now()
	// one round trip: the position must be read after the commit
	results, err := tx.conn.PgConn().Exec(ctx, "COMMIT; SELECT pg_current_wal_insert_lsn()").ReadAll()
	if err != nil {
		for i := range tx.events {
			tx.events[i].Uncertain = true
		}
		h.Add(tx.events, 0, asked)
		return fmt.Errorf("committing: %w", err)
	}
	if tag := results[0].CommandTag.String(); tag != "COMMIT" {
		return fmt.Errorf("committing: the server answered %s", tag)
	}
	past, err := pglogrepl.ParseLSN(string(results[1].Rows[0][0]))
	if err != nil {
		return fmt.Errorf("reading the position after a commit: %w", err)
	}
	h.Add(tx.events, past, asked)
	return nil
}

// Insert writes rows in one transaction.
func Insert(ctx context.Context, conn *pgx.Conn, table string, h *History, rows ...Row) error {
	tx, err := Begin(ctx, conn, table)
	if err != nil {
		return err
	}
	if err := tx.Insert(ctx, rows); err != nil {
		return err
	}
	return tx.Commit(ctx, h)
}
