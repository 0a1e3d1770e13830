package main

import (
	"context"
	"fmt"
	"log/slog"

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
	"github.com/cdc-relay/cdc-relay/internal/sink"
	"github.com/cdc-relay/cdc-relay/internal/statusback"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// opener connects the parts of a session. Metrics are made once a process,
// parts once a session.
type opener struct {
	c           *config.Config
	vitals      *vitals
	log         *slog.Logger
	kafka       sink.Config
	sinkMetrics *sink.Metrics
	backMetrics *statusback.Metrics
}

func newOpener(c *config.Config, v *vitals, log *slog.Logger, reg prometheus.Registerer) (*opener, error) {
	kafka, err := sinkConfig(c)
	if err != nil {
		return nil, err
	}
	return &opener{c: c, vitals: v, log: log, kafka: kafka, sinkMetrics: sink.NewMetrics(reg), backMetrics: statusback.NewMetrics(reg)}, nil
}

func (o *opener) table() pg.Table { return pg.Table(o.c.Outbox.Table) }

// connectLease makes a connection for the lease alone. It commits locally, so
// that leadership does not hang on a standby.
func (o *opener) connectLease(ctx context.Context, expect *event.Session) (*pgx.Conn, pg.Server, error) {
	options, err := sqlOptions(o.c)
	if err != nil {
		return nil, pg.Server{}, err
	}
	options.LocalCommit = true
	return pg.Connect(ctx, options, expect)
}

// open checks the database, connects every part to the server of the tenure
// and starts the stream.
func (o *opener) open(ctx context.Context, t relay.Tenure, inbox *relay.Inbox) (_ *relay.Parts, err error) {
	session := t.Session()
	options, err := sqlOptions(o.c)
	if err != nil {
		return nil, err
	}
	table, err := o.check(ctx, options, &session)
	if err != nil {
		return nil, err
	}
	stream, err := o.connectStream(ctx, session)
	if err != nil {
		return nil, err
	}
	pool, err := pg.NewPool(ctx, options, &session, int32(o.c.Postgres.MaxConns))
	if err != nil {
		stream.Close()
		return nil, err
	}
	parts, err := o.parts(ctx, t, inbox, options, pool)
	if err == nil {
		err = stream.Start(ctx)
	}
	if err != nil {
		stream.Close()
		pool.Close()
		return nil, pg.Explain(err)
	}
	parts.Source = stream
	parts.Decoder = decoder.New(decoder.Config{Table: table, Columns: o.c.Outbox.Columns})
	o.vitals.stream.Store(stream)
	parts.Close = func() {
		o.vitals.stream.Store(nil)
		pool.Close()
	}
	return parts, nil
}

// check returns the OID of the outbox table, once everything is as it must be.
func (o *opener) check(ctx context.Context, options pg.Options, session *event.Session) (table uint32, err error) {
	conn, _, err := pg.Connect(ctx, options, session)
	if err != nil {
		return 0, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	facts, err := doctor.Check(ctx, conn, doctor.Config{
		Table:           o.table(),
		Columns:         o.c.Outbox.Columns,
		Publication:     o.c.Slot.Publication,
		Slot:            o.c.Slot.Name,
		ApplicationName: options.ApplicationName,
	})
	if err != nil {
		return 0, err
	}
	return facts.Table.OID, nil
}

// connectStream makes the replication connection and proves that it reaches
// the server of the session.
func (o *opener) connectStream(ctx context.Context, session event.Session) (*wal.Stream, error) {
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
// to ask for a transaction id.
func (o *opener) parts(ctx context.Context, t relay.Tenure, inbox *relay.Inbox, options pg.Options, db recovery.DB) (*relay.Parts, error) {
	rows := recovery.New(recovery.Config{DB: db, Table: o.table(), Columns: o.c.Outbox.Columns, Slot: o.c.Slot.Name})
	xmax, err := rows.XMax(ctx)
	if err != nil {
		return nil, err
	}
	recorder, err := statusback.New(statusback.Config{
		Database: options,
		Table:    o.table(),
		Slot:     o.c.Slot.Name,
		Owner:    t.(*lease.Tenure).Owner(),
		Session:  t.Session(),
		Batch:    o.c.Writeback.Batch,
		Interval: o.c.Writeback.Interval,
		Pulse:    o.vitals.pulse,
	}, inbox.Recorder(), o.log, o.backMetrics)
	if err != nil {
		return nil, err
	}
	publisher, err := sink.New(o.kafka, sink.Deps{
		Outcomes: inbox.Publisher(),
		Pins:     recovery.NewTopics(db, o.c.Outbox.Table.Schema),
		Permit:   t.Permit,
		Metrics:  o.sinkMetrics,
		Log:      o.log,
		Pulse:    o.vitals.pulse,
	})
	if err != nil {
		return nil, err
	}
	o.vitals.publisher.Store(publisher)
	return &relay.Parts{Publisher: publisher, Recorder: recorder, Rows: rows, XMax: xmax}, nil
}
