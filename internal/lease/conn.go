package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

const (
	// takeTimeouts bound the wait for a write-back of the old leader that still
	// holds the fence row, and how long an instance that is frozen in the middle
	// of taking the lease keeps it from all others.
	takeTimeouts = "SET LOCAL lock_timeout = '2s'; SET LOCAL idle_in_transaction_session_timeout = '2s'"
	// stepTimeout bounds each step of opening a connection and competing.
	stepTimeout = 10 * time.Second
)

// conn is one connection to the rows of the slot. It is not safe for
// concurrent use.
type conn struct {
	db    *pgx.Conn
	lease *Lease
}

// open connects. With expect, another server than that session's is
// fault.ErrFenced.
func (l *Lease) open(ctx context.Context, expect *event.Session) (*conn, pg.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	db, server, err := l.cfg.Connect(ctx, expect)
	if err != nil {
		return nil, pg.Server{}, fmt.Errorf("connecting for the lease: %w", err)
	}
	return &conn{db: db, lease: l}, server, nil
}

// ensureRows makes the two rows of the slot if they are not there.
func (c *conn) ensureRows(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	for _, sql := range []string{c.lease.sql.ensureSlot, c.lease.sql.ensureLease} {
		if _, err := c.db.Exec(ctx, sql, c.lease.cfg.Slot); err != nil {
			return classify("making the rows of the slot", err)
		}
	}
	return nil
}

// observe reads who leads.
func (c *conn) observe(ctx context.Context) (view, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	var v view
	var owner pgtype.UUID
	var system *int64
	var timeline *int32
	var saved *string
	var age float64
	err := c.db.QueryRow(ctx, c.lease.sql.observe, c.lease.cfg.Slot).Scan(
		&v.fenceEpoch, &v.epoch, &owner, &v.instance, &v.renewedAt, &system, &timeline, &saved,
		&v.released, &v.expired, &age, &v.slotActive)
	if err != nil {
		return view{}, classify("reading the lease", err)
	}
	if owner.Valid {
		v.owner = &owner.Bytes
	}
	if system != nil {
		id := uint64(*system)
		v.systemID = &id
	}
	if timeline != nil {
		tl := uint32(*timeline)
		v.timeline = &tl
	}
	v.age = time.Duration(age * float64(time.Second))
	if saved != nil {
		if v.saved, err = pglogrepl.ParseLSN(*saved); err != nil {
			return view{}, fmt.Errorf("reading the lease: saved_lsn: %w", err)
		}
	}
	return v, nil
}

// take makes this instance the leader, if nothing has changed since v was
// seen. The lease row comes first: who gets it, gets both.
func (c *conn) take(ctx context.Context, v view, s pg.Server) (won bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	l := c.lease
	err = pgx.BeginFunc(ctx, c.db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, takeTimeouts); err != nil {
			return err
		}
		next := v.nextEpoch()
		tag, err := tx.Exec(ctx, l.sql.takeLease, l.cfg.Slot, l.owner, next, l.cfg.Instance, l.cfg.TTL, int64(s.SystemID),
			v.epoch, v.owner, v.renewedAt)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return errLost
		}
		tag, err = tx.Exec(ctx, l.sql.takeSlot, l.cfg.Slot, l.owner, next, v.fenceEpoch)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return errLost
		}
		return nil
	})
	if errors.Is(err, errLost) {
		return false, nil
	}
	if err != nil {
		return false, classify("taking the lease", err)
	}
	return true, nil
}

var errLost = errors.New("another instance was quicker")

// renew prolongs the lease and saves lsn, if it is not 0. It reports whether
// the lease is still held.
func (c *conn) renew(ctx context.Context, epoch int64, timeline uint32, lsn pglogrepl.LSN) (bool, error) {
	l := c.lease
	tag, err := c.db.Exec(ctx, l.sql.renew, l.cfg.Slot, l.owner, epoch, nullable(lsn), int32(timeline), l.cfg.TTL)
	if err != nil {
		return false, classify("renewing the lease", err)
	}
	return tag.RowsAffected() == 1, nil
}

// release saves lsn, if it is not 0, and gives the lease up. It reports
// whether the lease was still held.
func (c *conn) release(ctx context.Context, epoch int64, timeline uint32, lsn pglogrepl.LSN) (bool, error) {
	l := c.lease
	tag, err := c.db.Exec(ctx, l.sql.release, l.cfg.Slot, l.owner, epoch, nullable(lsn), int32(timeline))
	if err != nil {
		return false, classify("releasing the lease", err)
	}
	return tag.RowsAffected() == 1, nil
}

func (c *conn) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.db.Close(ctx) // the server sees the end of the socket at the latest
}

// nullable is NULL for a position of 0, which means: none.
func nullable(lsn pglogrepl.LSN) *string {
	if lsn == 0 {
		return nil
	}
	s := lsn.String()
	return &s
}

// classify tells errors that only a person can fix from those that pass.
func classify(doing string, err error) error {
	switch pg.Code(err) {
	case pg.CodeUndefinedTable, pg.CodeUndefinedSchema, pg.CodeUndefinedColumn:
		err = &fault.Blocked{Reason: "table.schema_version", Err: err,
			What:   "the relay's tables are missing or older than this version",
			Remedy: "run cdc-relay migrate up"}
	case pg.CodeNoPrivilege:
		err = &fault.Blocked{Reason: "grants.status", Err: err,
			What:   "the login may not read and write the relay's tables",
			Remedy: "grant it SELECT, INSERT, UPDATE on cdc_relay_slot and cdc_relay_lease"}
	}
	return fmt.Errorf("%s: %w", doing, err)
}
