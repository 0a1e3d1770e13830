package slot

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// Adoption is how a copy of a database comes to publish.
type Adoption struct {
	// Needed is false where the slot was last led on this very system, or
	// never.
	Needed bool
	From   uint64 // system identifier of the original
	To     uint64 // of this server
	Parked int64  // rows that are parked in an order
}

// Reads of the lease; the second one keeps it until the end of the transaction.
const (
	systemSQL     = `SELECT system_identifier FROM {lease} WHERE slot = $1`
	systemLockSQL = systemSQL + ` FOR UPDATE`
)

const parkedSQL = `SELECT count(*) FROM {table} WHERE commit_lsn IS NOT NULL`

// replaceSQL gives parked rows new positions before all that this server will
// ever give, in the order of the old ones, which mean nothing here. Not 0/0,
// which is no position to those who read it.
const replaceSQL = `
UPDATE {table} o SET commit_lsn = '0/0'::pg_lsn + p.place
  FROM (SELECT id, row_number() OVER (ORDER BY commit_lsn, id) AS place FROM {table} WHERE commit_lsn IS NOT NULL) p
 WHERE o.id = p.id`

// adoptSQL forgets the saved position, so that the READY rows go out first, and
// how far walks over the table may begin.
const adoptSQL = `
UPDATE {lease}
   SET system_identifier = $2, timeline = $3, saved_lsn = NULL, low_water_id = NULL, consumer_low_water_id = NULL
 WHERE slot = $1`

// PlanAdopt tells what Adopt would do.
func (s *Slot) PlanAdopt(ctx context.Context, server pg.Server) (Adoption, error) {
	a, err := s.adoption(ctx, s.conn, systemSQL, server)
	if err != nil || !a.Needed {
		return a, err
	}
	if err := s.conn.QueryRow(ctx, s.names.Replace(parkedSQL)).Scan(&a.Parked); err != nil {
		return Adoption{}, fmt.Errorf("counting parked rows: %w", explain(err))
	}
	return a, nil
}

// querier is a connection or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func (s *Slot) adoption(ctx context.Context, q querier, sql string, server pg.Server) (Adoption, error) {
	a := Adoption{To: server.SystemID}
	var from *int64
	err := q.QueryRow(ctx, s.names.Replace(sql), s.cfg.Name).Scan(&from)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Adoption{}, fmt.Errorf("reading the lease of the slot %s: %w", s.cfg.Name, explain(err))
	}
	if from != nil {
		a.From = uint64(*from)
		a.Needed = a.From != a.To
	}
	return a, nil
}

// Adopt lets this copy of a database publish: the slot's lease belongs to this
// server from now on. It does nothing where none is needed.
func (s *Slot) Adopt(ctx context.Context, server pg.Server, reason string) (a Adoption, err error) {
	err = pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		if a, err = s.adoption(ctx, tx, systemLockSQL, server); err != nil || !a.Needed {
			return err
		}
		tag, err := tx.Exec(ctx, s.names.Replace(replaceSQL))
		if err != nil {
			return fmt.Errorf("giving parked rows new positions: %w", explain(err))
		}
		a.Parked = tag.RowsAffected()
		if _, err := tx.Exec(ctx, s.names.Replace(adoptSQL), s.cfg.Name, int64(server.SystemID), int32(server.Timeline)); err != nil {
			return fmt.Errorf("changing the lease of the slot %s: %w", s.cfg.Name, explain(err))
		}
		detail := s.subject(fmt.Sprintf("system %d -> %d, %d parked rows", a.From, a.To, a.Parked))
		if _, err := tx.Exec(ctx, s.names.Replace(auditSQL), s.cfg.Person, "adopt", reason, detail); err != nil {
			return fmt.Errorf("writing the audit trail: %w", explain(err))
		}
		return nil
	})
	return a, err
}
