package wal

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pglogrepl"
)

const outputPlugin = "pgoutput"

// failoverSlots is the first server_version_num that knows them.
const failoverSlots = 170000

// CreateSlot creates the slot and returns the position from which on it
// delivers. It waits for every transaction of the whole cluster that has
// written and is still open. failover makes it a failover slot, which needs
// PostgreSQL 17.
func (s *Stream) CreateSlot(ctx context.Context, failover bool) (pglogrepl.LSN, error) {
	doing := fmt.Sprintf("creating slot %q", s.slot)
	arguments := literal(s.slot) + ", " + literal(outputPlugin)
	if failover {
		if s.version < failoverSlots {
			return 0, fmt.Errorf("%s: failover slots need PostgreSQL 17 or later; set slot.failover to false", doing)
		}
		arguments += ", failover => true"
	}
	row, err := s.slowRow(ctx, "SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot("+arguments+")", 1)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", doing, err)
	}
	lsn, err := pglogrepl.ParseLSN(row[0])
	if err != nil {
		return 0, fmt.Errorf("%s: reading its position: %w", doing, err)
	}
	s.log.Info("slot created", "lsn", lsn, "failover", failover)
	return lsn, nil
}

// ErrNotLost says that a slot is not one that DropLostSlot drops.
var ErrNotLost = errors.New("it is not there, or can be streamed from, or belongs to another plugin or database")

// DropLostSlot drops the slot if it can never be streamed from again: the
// server has removed WAL that it needs, or has invalidated it. Any other slot
// stays, which is ErrNotLost; so does one that is in use, which is an error of
// the server.
func (s *Stream) DropLostSlot(ctx context.Context) error {
	_, err := s.row(ctx, `SELECT pg_catalog.pg_drop_replication_slot(s.slot_name) FROM pg_catalog.pg_replication_slots s `+
		`WHERE s.slot_name = `+literal(s.slot)+` AND s.plugin = `+literal(outputPlugin)+` AND s.database = pg_catalog.current_database() `+
		`AND (s.wal_status = 'lost' OR pg_catalog.to_jsonb(s) ->> 'invalidation_reason' IS NOT NULL)`, 1)
	if errors.Is(err, errNoRow) {
		err = ErrNotLost
	}
	if err != nil {
		return fmt.Errorf("dropping slot %q, which is lost: %w", s.slot, err)
	}
	s.log.Info("slot dropped: it was lost")
	return nil
}
