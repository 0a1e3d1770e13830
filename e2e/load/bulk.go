package load

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
)

// Bulk describes many small rows written inside the server by one session.
type Bulk struct {
	Table      string // quoted and qualified
	Type       string // aggregate type
	Aggregates int
	Rows       int
	OneTx      bool // one transaction instead of one a row
}

// Run writes the rows and records them. The session does not wait for its
// commits to reach the disk.
func (b Bulk) Run(ctx context.Context, conn *pgx.Conn, h *History) error {
	asked := time.Now()
	var before int64
	if err := conn.QueryRow(ctx, `SELECT coalesce(max(id), 0) FROM `+b.Table).Scan(&before); err != nil {
		return fmt.Errorf("reading the highest id: %w", err)
	}
	insert := `INSERT INTO ` + b.Table + ` (aggregate_type, aggregate_id, event_type, payload)`
	row := fmt.Sprintf(`'%s', (i %% %d)::text, 'loaded', convert_to('{"n":' || i || '}', 'UTF8')`, b.Type, b.Aggregates)
	sql := fmt.Sprintf(`DO $$ BEGIN FOR i IN 1..%d LOOP %s VALUES (%s); COMMIT; END LOOP; END $$`,
		b.Rows, insert, row)
	if b.OneTx {
		sql = fmt.Sprintf(`%s SELECT %s FROM generate_series(1, %d) i`, insert, row, b.Rows)
	}
	if _, err := conn.Exec(ctx, `SET synchronous_commit = off`); err != nil {
		return fmt.Errorf("preparing the load: %w", err)
	}
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("loading %d rows: %w", b.Rows, err)
	}
	return b.record(ctx, conn, before, asked, h)
}

// record takes the rows from the table: one session wrote them, so the order
// of ids is the commit order.
func (b Bulk) record(ctx context.Context, conn *pgx.Conn, before int64, asked time.Time, h *History) error {
	var text string
	if err := conn.QueryRow(ctx, `SELECT pg_current_wal_insert_lsn()::text`).Scan(&text); err != nil {
		return fmt.Errorf("reading the position after the load: %w", err)
	}
	past, err := pglogrepl.ParseLSN(text)
	if err != nil {
		return fmt.Errorf("reading the position after the load: %w", err)
	}
	rows, err := conn.Query(ctx, `SELECT id, event_id, aggregate_type, aggregate_id FROM `+b.Table+
		` WHERE id > $1 AND aggregate_type = $2 ORDER BY id`, before, b.Type)
	if err != nil {
		return fmt.Errorf("reading the loaded rows: %w", err)
	}
	events, err := pgx.CollectRows(rows, scanEvent)
	if err != nil {
		return fmt.Errorf("reading the loaded rows: %w", err)
	}
	h.Add(events, past, asked)
	return nil
}
