package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/decoder"
	"github.com/cdc-relay/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/lease"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/recovery"
	"github.com/cdc-relay/cdc-relay/internal/relay"
	"github.com/cdc-relay/cdc-relay/internal/retrysched"
	"github.com/cdc-relay/cdc-relay/internal/sink"
	"github.com/cdc-relay/cdc-relay/internal/statusback"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// opener connects the parts of a session. Metrics are made once a process,
// parts once a session.
type opener struct {
	c           *config.Config
	vitals      *vitals
	source      atomic.Pointer[source] // of the present session, nil between two
	log         *slog.Logger
	kafka       sink.Config
	sinkMetrics *sink.Metrics
	backMetrics *statusback.Metrics

	requeueMetrics *retrysched.Metrics
}

func newOpener(c *config.Config, v *vitals, log *slog.Logger, reg prometheus.Registerer) (*opener, error) {
	kafka, err := sinkConfig(c)
	if err != nil {
		return nil, err
	}
	return &opener{
		c: c, vitals: v, log: log, kafka: kafka,
		sinkMetrics: sink.NewMetrics(reg), backMetrics: statusback.NewMetrics(reg), requeueMetrics: retrysched.NewMetrics(reg),
	}, nil
}

func (o *opener) table() pg.Table { return pg.Table(o.c.Outbox.Table) }

// connectLease makes a connection for the lease alone. It commits locally, so
// that leadership does not hang on a standby. As the lease is renewed all the
// time, it is the first to see that the server shuts down.
func (o *opener) connectLease(ctx context.Context, expect *event.Session) (*pgx.Conn, pg.Server, error) {
	options, err := sqlOptions(o.c)
	if err != nil {
		return nil, pg.Server{}, err
	}
	options.LocalCommit = true
	conn, server, err := pg.Connect(ctx, options, expect)
	if s := o.source.Load(); s != nil && pg.Code(err) == cannotConnectNow {
		o.log.Warn("the server shuts down or starts up: letting go of the stream")
		s.letGo()
	}
	return conn, server, err
}

// open checks the database, connects every part to the server of the tenure
// and starts the stream.
func (o *opener) open(ctx context.Context, t relay.Tenure, inbox *relay.Inbox) (_ *relay.Parts, err error) {
	tenure := t.(*lease.Tenure)
	session := tenure.Session()
	options, err := sqlOptions(o.c)
	if err != nil {
		return nil, err
	}
	facts, err := o.check(ctx, options, &session)
	if err != nil {
		return nil, err
	}
	for _, w := range facts.Warnings(doctorConfig(o.c)) {
		o.log.Warn("somebody should look", "slot", o.c.Slot.Name, "reason", w.Reason, "what", w.What, "remedy", w.Remedy)
	}
	stream, err := o.connectStream(ctx, tenure)
	if err != nil {
		return nil, err
	}
	pool, err := pg.NewPool(ctx, options, &session, int32(o.c.Postgres.MaxConns))
	if err != nil {
		stream.Close()
		return nil, err
	}
	if facts.Slot != nil && facts.Slot.Lost() {
		err = o.unblock(o.dropLost(ctx, stream, &facts))
	}
	if err == nil && facts.Slot == nil {
		err = o.createSlot(ctx, pool, stream, facts)
	}
	var parts *relay.Parts
	if err == nil {
		parts, err = o.parts(ctx, tenure, inbox, options, pool, facts)
	}
	if err == nil {
		err = o.unblock(stream.Start(ctx))
	}
	if err != nil {
		stream.Close()
		pool.Close()
		return nil, pg.Explain(err)
	}
	source := newSource(stream)
	o.source.Store(source)
	parts.Source = source
	parts.Decoder = decoder.New(decoder.Config{Table: facts.Table.OID, Columns: o.c.Outbox.Columns})
	parts.Check = func(ctx context.Context) error {
		_, err := o.check(ctx, options, &session)
		return err
	}
	o.vitals.stream.Store(stream)
	parts.Close = func() {
		o.vitals.stream.Store(nil)
		o.source.Store(nil)
		source.letGo()
		pool.Close()
	}
	return parts, nil
}

// check returns what the database tells about itself, once everything is as it
// must be, but for what the relay mends by itself.
func (o *opener) check(ctx context.Context, options pg.Options, session *event.Session) (doctor.Facts, error) {
	conn, _, err := pg.Connect(ctx, options, session)
	if err != nil {
		return doctor.Facts{}, err
	}
	defer pg.Close(conn)
	facts, err := doctor.Check(ctx, conn, doctorConfig(o.c))
	if b := fault.AsBlocked(err); b != nil && o.mends(b) {
		return facts, nil
	}
	return facts, err
}

// mends reports whether the relay itself does something about a condition.
func (o *opener) mends(b *fault.Blocked) bool {
	switch b.Reason {
	case doctor.SlotMissing:
		return o.c.Slot.Create
	case doctor.SlotLost, doctor.SlotInvalidated:
		return o.c.Slot.RecreateIfLost
	}
	return false
}

// unblock makes an error that soon passes of a condition that came after the
// check, if the relay will mend it.
func (o *opener) unblock(err error) error {
	if b := fault.AsBlocked(err); b != nil && o.mends(b) {
		return errors.New(b.What)
	}
	return err
}

// dropLost drops a slot that can never be streamed from again. What it would
// have shown is READY in the table.
func (o *opener) dropLost(ctx context.Context, stream *wal.Stream, facts *doctor.Facts) error {
	o.log.Warn("the slot is lost: dropping it, to create it anew and to publish from the table what it would have shown",
		"slot", o.c.Slot.Name, "wal_status", facts.Slot.WALStatus, "invalidation", facts.Slot.Invalidated)
	if err := stream.DropLostSlot(ctx); err != nil {
		return err
	}
	facts.Slot = nil
	return nil
}

// createSlot makes the slot, as the login that streams.
func (o *opener) createSlot(ctx context.Context, db recovery.DB, stream *wal.Stream, facts doctor.Facts) error {
	if o.c.Slot.Failover && facts.Version < failoverSlots {
		return noFailoverSlots()
	}
	o.log.Info("creating the slot; that waits for the end of every transaction that is writing",
		"slot", o.c.Slot.Name, "writers", oldestWriter(ctx, db))
	_, err := stream.CreateSlot(ctx, o.c.Slot.Failover)
	switch pg.Code(err) {
	case codeTooManySlots, pg.CodeNoPrivilege:
		return &fault.Blocked{Reason: doctor.SlotMissing,
			What:   fmt.Sprintf("the slot %s is missing and cannot be created (SQLSTATE %s)", o.c.Slot.Name, pg.Code(err)),
			Remedy: "give the login that streams the REPLICATION attribute, and raise max_replication_slots if all are in use; or create the slot with cdc-relay slot create",
			Err:    err}
	}
	return err
}

// codeTooManySlots is what the server answers when all slots are in use.
const codeTooManySlots = "53400"

// connectStream makes the replication connection and proves that it reaches
// the server of the session.
func (o *opener) connectStream(ctx context.Context, t *lease.Tenure) (*wal.Stream, error) {
	session := t.Session()
	options, err := replicationOptions(o.c)
	if err != nil {
		return nil, err
	}
	conf, err := options.ReplicationConfig()
	if err != nil {
		return nil, err
	}
	stream, err := wal.Connect(ctx, wal.Config{
		Conn:            conf,
		Slot:            o.c.Slot.Name,
		Publication:     o.c.Slot.Publication,
		ConfirmInterval: o.c.Slot.ConfirmInterval,
		Permit:          t.Permit,
		Log:             o.log,
		Pulse:           o.vitals.pulse,
	})
	if err != nil {
		return nil, err
	}
	if system, timeline := stream.Server(); system != session.SystemID || timeline != session.Timeline {
		stream.Close()
		return nil, &fault.Blocked{
			Reason: "pg.same_system",
			What: fmt.Sprintf("the replication connection reaches system %d on timeline %d, SQL connections system %d on timeline %d",
				system, timeline, session.SystemID, session.Timeline),
			Remedy: "let postgres.dsn and postgres.replication_dsn name the same server",
			Err:    fault.ErrFenced,
		}
	}
	return stream, nil
}

// parts makes what works through SQL and Kafka. None of it connects yet, but
// to ask for a transaction id and the name of the database.
func (o *opener) parts(ctx context.Context, t *lease.Tenure, inbox *relay.Inbox, options pg.Options, db recovery.DB, facts doctor.Facts) (*relay.Parts, error) {
	rows := o.rows(t, options, db, facts.Table)
	xmax, err := rows.XMax(ctx)
	if err != nil {
		return nil, err
	}
	recorder, err := statusback.New(statusback.Config{
		Database: options,
		Table:    o.table(),
		Slot:     o.c.Slot.Name,
		Owner:    t.Owner(),
		Session:  t.Session(),
		Batch:    o.c.Writeback.Batch,
		Interval: o.c.Writeback.Interval,
		Pulse:    o.vitals.pulse,
	}, inbox.Recorder(), o.log, o.backMetrics)
	if err != nil {
		return nil, err
	}
	kafka := o.kafka
	if kafka.Identity == sink.Fenced {
		if kafka.TransactionalID, err = o.transactionalID(ctx, db, t.Session()); err != nil {
			return nil, err
		}
	}
	publisher, err := sink.New(kafka, sink.Deps{
		Outcomes: inbox.Publisher(),
		Pins:     rows.Topics(),
		Permit:   t.Permit,
		Metrics:  o.sinkMetrics,
		Log:      o.log,
		Pulse:    o.vitals.pulse,
	})
	if err != nil {
		return nil, err
	}
	o.vitals.publisher.Store(publisher)
	parts := &relay.Parts{Publisher: publisher, Recorder: recorder, Rows: rows, Scheduler: o.scheduler(t, db, facts.Table), XMax: xmax}
	if o.hasClaims(facts.Table) {
		parts.Sweeper = o.sweep(t, db)
	}
	if why := doctor.Position(facts.Slot, t.SavedLSN(), t.TimelineSwitched()); why != nil {
		o.log.Info("READY rows of the table are to be published first", "slot", o.c.Slot.Name, "reason", why.Reason, "what", why.What)
		parts.OpenPass = func(ctx context.Context) (relay.Pass, error) {
			pass, err := rows.OpenPass(ctx)
			if err != nil {
				return nil, err // not a Pass that holds nil
			}
			return pass, nil
		}
	}
	return parts, nil
}

// transactionalID is the name under which the brokers tell this slot's leader
// from former ones. The database gives its own name: a pooler may have another.
func (o *opener) transactionalID(ctx context.Context, db recovery.DB, session event.Session) (string, error) {
	if id := o.c.Kafka.TransactionalID; id != "" {
		return id, nil
	}
	var database string
	if err := db.QueryRow(ctx, "SELECT current_database()").Scan(&database); err != nil {
		return "", fmt.Errorf("asking for the name of the database: %w", err)
	}
	return fmt.Sprintf("cdc-relay/%d/%s/%s", session.SystemID, database, o.c.Slot.Name), nil
}

// passIdle is how long a snapshot may wait for room on the line.
const passIdle = 10 * time.Minute

func (o *opener) rows(t *lease.Tenure, options pg.Options, db recovery.DB, table *doctor.Table) *recovery.Rows {
	session := t.Session()
	options.IdleInTx = passIdle
	return recovery.New(recovery.Config{
		DB: db,
		Connect: func(ctx context.Context) (*pgx.Conn, error) {
			conn, _, err := pg.Connect(ctx, options, &session)
			return conn, err
		},
		Table:       o.table(),
		Columns:     o.c.Outbox.Columns,
		HasPriority: o.hasPriority(table),
		Slot:        o.c.Slot.Name,
		Epoch:       session.Epoch,
		Owner:       t.Owner(),
		Page:        o.c.Reconcile.Page,
		Missed:      o.requeueMetrics.Missed(),
	})
}

// sweep is the search for stranded claims. It works with what the table holds
// and never reads a payload.
func (o *opener) sweep(t *lease.Tenure, db recovery.DB) *recovery.Sweep {
	return recovery.NewSweep(recovery.Config{
		DB:      db,
		Table:   o.table(),
		Columns: o.c.Outbox.Columns,
		Slot:    o.c.Slot.Name,
		Epoch:   t.Session().Epoch,
		Owner:   t.Owner(),
		Page:    o.c.Reconcile.Page,
	}, recovery.SweepConfig{
		Every: o.c.Reconcile.Interval,
		After: o.c.Reconcile.SweepAfter,
		Swept: o.requeueMetrics.ClaimExpired(),
	}, o.log)
}

// hasPriority tells whether the table has a column for the priority of events.
func (o *opener) hasPriority(table *doctor.Table) bool { return o.hasColumn(table, "priority") }

// hasClaims tells whether the table has the columns of consumers' claims.
func (o *opener) hasClaims(table *doctor.Table) bool {
	return o.hasColumn(table, "claim_generation") && o.hasColumn(table, "claimed_by") && o.hasColumn(table, "lease_until")
}

func (o *opener) hasColumn(table *doctor.Table, design string) bool {
	name, mapped := o.c.Outbox.Columns[design]
	if !mapped {
		name = design
	}
	_, has := table.Columns[name]
	return has
}

func (o *opener) scheduler(t *lease.Tenure, db retrysched.DB, table *doctor.Table) *retrysched.Scheduler {
	return retrysched.New(retrysched.Config{
		DB:          db,
		Table:       o.table(),
		Columns:     o.c.Outbox.Columns,
		HasPriority: o.hasPriority(table),
		Slot:        o.c.Slot.Name,
		Epoch:       t.Session().Epoch,
		Owner:       t.Owner(),
		Tick:        o.c.Retry.Tick,
		Batch:       o.c.Retry.Batch,
		Patience:    o.c.Retry.Patience,
		Block:       o.c.Failure.Blocks(""),
		Except:      orderExceptions(o.c),
		Pulse:       o.vitals.pulse,
	}, o.log, o.requeueMetrics)
}
