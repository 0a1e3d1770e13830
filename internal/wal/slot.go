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
	row, err := s.row(ctx, "SELECT lsn FROM pg_catalog.pg_create_logical_replication_slot("+arguments+")", 1)
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

// DropSlot drops the slot. One that is not there is no error.
func (s *Stream) DropSlot(ctx context.Context) error {
	_, err := s.row(ctx, "SELECT pg_catalog.pg_drop_replication_slot(slot_name) "+
		"FROM pg_catalog.pg_replication_slots WHERE slot_name = "+literal(s.slot), 1)
	if errors.Is(err, errNoRow) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("dropping slot %q: %w", s.slot, err)
	}
	s.log.Info("slot dropped")
	return nil
}
