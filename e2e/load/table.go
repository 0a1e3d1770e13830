package load

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/check"
)

// Querier is a connection or a pool.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// ReadTable returns what the outbox holds. payload is SQL that yields a row's
// payload as bytea.
func ReadTable(ctx context.Context, q Querier, table, payload string) ([]check.Row, error) {
	got, err := q.Query(ctx, fmt.Sprintf(`SELECT id, event_id, send_status, next_attempt_at IS NOT NULL, sha256(%s) FROM %s`, payload, table))
	if err != nil {
		return nil, fmt.Errorf("reading the outbox: %w", err)
	}
	rows, err := pgx.CollectRows(got, func(row pgx.CollectableRow) (r check.Row, err error) {
		var digest []byte
		err = row.Scan(&r.ID, &r.EventID, &r.Status, &r.Parked, &digest)
		copy(r.Payload[:], digest)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the outbox: %w", err)
	}
	return rows, nil
}
