package wal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// How long to try to get a slot that somebody else holds.
const (
	slotPatience   = 10 * time.Second
	slotRetryFirst = 20 * time.Millisecond
	slotRetryMost  = time.Second
)

// maxName is how many bytes of an application name the server keeps.
const maxName = 63

var errNoRow = errors.New("the server returned no row")

// Start begins to stream from the slot, whose own position is the only one
// that counts. Call it after the server has been proved and while the caller
// leads the slot: a walsender of the same application name that still holds
// the slot is then a remnant of an earlier leader, and is terminated, once
// Config.Permit has said that the caller still leads: one that was frozen on
// its way here must not end the stream of its successor. A slot that stays
// active for 10 s, is missing or is lost, is a *fault.Blocked.
func (s *Stream) Start(ctx context.Context) error {
	deadline := time.Now().Add(slotPatience)
	for wait := slotRetryFirst; ; wait = min(2*wait, slotRetryMost) {
		err := s.start(ctx)
		if err == nil {
			return s.detach()
		}
		if pg.Code(err) != codeObjectInUse {
			return s.startError(ctx, err)
		}
		holder, holderErr := s.holder(ctx)
		if holderErr != nil {
			return fmt.Errorf("asking who holds slot %q: %w", s.slot, holderErr)
		}
		if time.Now().After(deadline) {
			return holder.blocked(s.slot, err)
		}
		if err := s.evict(ctx, holder); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for slot %q: %w", s.slot, ctx.Err())
		case <-time.After(wait):
		}
	}
}

func (s *Stream) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.answer)
	defer cancel()
	err := pglogrepl.StartReplication(ctx, s.conn, identifier(s.slot), 0, pglogrepl.StartReplicationOptions{
		Mode: pglogrepl.LogicalReplication,
		PluginArgs: []string{
			"proto_version '1'",
			"publication_names " + literal(identifier(s.publication)),
			"messages 'true'",
			"binary 'true'",
		},
	})
	if answer := (*pgconn.PgError)(nil); !errors.As(err, &answer) {
		return err
	}
	// the refusal ends with ReadyForQuery, and then the connection is usable again
	for {
		msg, receiveErr := s.conn.ReceiveMessage(ctx)
		if receiveErr != nil {
			return err
		}
		if _, ready := msg.(*pgproto3.ReadyForQuery); ready {
			return err
		}
	}
}

// detach takes the connection away from the driver, which has read nothing
// beyond the answer to START_REPLICATION.
func (s *Stream) detach() error {
	bottom, err := socketOf(s.stream)
	if err != nil {
		return err
	}
	if err := bottom.detach(); err != nil {
		return err
	}
	s.socket = bottom
	s.log.Info("streaming from the slot", "publication", s.publication, "status_interval", s.interval)
	return nil
}

// slotHolder is who streams from the slot.
type slotHolder struct {
	pid         string // "" when nobody does
	application string
}

func (h slotHolder) blocked(slot string, err error) error {
	return &fault.Blocked{
		Reason: "slot.active",
		What: fmt.Sprintf("slot %q is in use by process %s of the server, application %q",
			slot, h.pid, h.application),
		Remedy: "stop that client, or give this relay a slot of its own (slot.name)",
		Err:    err,
	}
}

func (s *Stream) holder(ctx context.Context) (slotHolder, error) {
	row, err := s.row(ctx, `SELECT s.active_pid, a.application_name FROM pg_catalog.pg_replication_slots s `+
		`LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = `+literal(s.slot), 2)
	if errors.Is(err, errNoRow) {
		return slotHolder{}, nil // dropped just now: the next try tells
	}
	if err != nil {
		return slotHolder{}, err
	}
	return slotHolder{pid: row[0], application: row[1]}, nil
}

// evict ends the walsender of an earlier leader. That it is gone shows when
// the slot is free. The only error is that of the permit.
func (s *Stream) evict(ctx context.Context, holder slotHolder) error {
	ours := s.application[:min(len(s.application), maxName)]
	if holder.pid == "" || ours == "" || holder.application != ours {
		return nil
	}
	if s.permit != nil {
		if err := s.permit(ctx); err != nil {
			return fmt.Errorf("taking slot %q over from process %s of the server: %w", s.slot, holder.pid, err)
		}
	}
	s.log.Info("terminating the walsender of an earlier leader", "pid", holder.pid)
	_, err := s.row(ctx, `SELECT pg_catalog.pg_terminate_backend(s.active_pid) FROM pg_catalog.pg_replication_slots s `+
		`WHERE s.slot_name = `+literal(s.slot)+` AND s.active_pid = `+holder.pid, 1)
	if err != nil && !errors.Is(err, errNoRow) {
		s.log.Warn("the walsender that holds the slot could not be terminated", "pid", holder.pid, "err", err)
	}
	return nil
}

// unusableSlot tells why a slot that is there cannot be streamed from.
func (s *Stream) unusableSlot(ctx context.Context, cause error) error {
	row, err := s.row(ctx, `SELECT slot_type, plugin, database = pg_catalog.current_database(), wal_status `+
		`FROM pg_catalog.pg_replication_slots WHERE slot_name = `+literal(s.slot), 4)
	if err != nil {
		return fmt.Errorf("starting to stream from slot %q: %w", s.slot, safe(cause))
	}
	blocked := func(reason, what, remedy string) error {
		return &fault.Blocked{Reason: reason, What: fmt.Sprintf("slot %q %s", s.slot, what), Remedy: remedy, Err: cause}
	}
	switch kind, plugin, here, status := row[0], row[1], row[2], row[3]; {
	case kind != "logical":
		return blocked("slot.plugin", "is a physical slot", "set slot.name to a slot of this relay's own")
	case plugin != outputPlugin:
		return blocked("slot.plugin", fmt.Sprintf("has the plugin %q, not pgoutput", plugin), "set slot.name to a slot of this relay's own")
	case here != "t":
		return blocked("slot.database", "belongs to another database", "set slot.name to a slot of this database")
	case status == "lost":
		return blocked("slot.wal_status", "is lost: the server has removed WAL that it needs, or has invalidated it",
			recreate(s.slot))
	}
	return fmt.Errorf("starting to stream from slot %q: %w", s.slot, safe(cause))
}

// publicationExists looks the publication up on a connection of its own,
// since this one is at its end.
func (s *Stream) publicationExists(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), slotPatience)
	defer cancel()
	conn, err := pgconn.ConnectConfig(ctx, s.config)
	if err != nil {
		return false
	}
	asking := &Stream{conn: conn, answer: s.answer}
	defer asking.Close()
	_, err = asking.row(ctx, `SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = `+literal(s.publication), 1)
	return err == nil
}
