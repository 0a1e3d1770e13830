package sampler

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

// Config says what to look at and how often. All fields but Columns, Observe
// and Pulse are required.
type Config struct {
	// Connect opens a connection for the sampler alone. The server should end
	// its statements after Timeout too, so that none is left behind.
	Connect func(context.Context) (*pgx.Conn, pg.Server, error)
	// Accept returns nil if this program works with the schema that the
	// database has. A *fault.Blocked refuses it; any other error is no answer.
	Accept func(context.Context, *pgx.Conn) error

	Table pg.Table
	// Columns gives, for a column of the design, the name of the table's
	// column that plays its part. What is missing has the same name.
	Columns map[string]string
	Slot    string

	Interval time.Duration // between the beginnings of two samples
	Timeout  time.Duration // for one sample, with its connect
	MaxRows  int           // that one statement walks over

	// Observe is called by Run with each sample; nil: nobody wants to know.
	Observe func(*Sample)
	// Pulse gets the beat of Run's goroutine. It may be nil.
	Pulse *pulse.Board
}

func (c Config) validate() error {
	switch {
	case c.Connect == nil || c.Accept == nil:
		return errors.New("sampler: Connect and Accept must be set")
	case c.Table.Schema == "" || c.Table.Name == "" || c.Slot == "":
		return errors.New("sampler: Table and Slot must be set")
	case c.Interval <= 0 || c.Timeout <= 0 || c.MaxRows <= 0:
		return errors.New("sampler: Interval, Timeout and MaxRows must be positive")
	}
	return nil
}

// Schema is what is known of the database's schema.
type Schema uint8

// What is known of a schema.
const (
	SchemaUnknown  Schema = iota // no database has answered yet
	SchemaAccepted               // this program works with it
	SchemaRefused                // a person must migrate it, or upgrade this program
)

// Sampler takes samples and offers the last one. Its methods are safe for
// concurrent use.
type Sampler struct {
	cfg  Config
	log  *slog.Logger
	take func(context.Context) (*Sample, error)
	end  func()

	mu     sync.Mutex
	latest latest
}

// latest is what the sampling has come to.
type latest struct {
	sample  *Sample // nil before the first, and after one that failed
	success time.Time
	schema  Schema
}

// New returns a sampler and registers its metrics. It does no I/O.
func New(cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Sampler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := newReader(cfg)
	s := &Sampler{cfg: cfg, log: log.With("slot", cfg.Slot), take: r.take, end: r.close}
	return s, reg.Register(newCollector(s.get))
}

// Once takes a single sample, within Timeout.
func Once(ctx context.Context, cfg Config) (*Sample, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	r := newReader(cfg)
	defer r.close()
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	return r.take(ctx)
}

// Last returns the last sample, nil if there is none or it failed.
func (s *Sampler) Last() *Sample { return s.get().sample }

// Schema is the last verdict on the database's schema.
func (s *Sampler) Schema() Schema { return s.get().schema }

// Run takes a sample at once and then one at every interval, until ctx ends.
// It returns nil: what fails is logged, once, and tried again.
func (s *Sampler) Run(ctx context.Context) error {
	defer s.end()
	tick := time.NewTicker(s.cfg.Interval)
	defer tick.Stop()
	beat := s.cfg.Pulse.Start("sampler")
	defer beat.End()
	news := news{log: s.log, walStatus: "reserved"}
	for {
		beat.Work()
		sample, err := s.once(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.keep(sample, err)
		news.tell(sample, err)
		if err == nil && s.cfg.Observe != nil {
			s.cfg.Observe(sample)
		}
		beat.Rest()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Sampler) once(ctx context.Context) (*Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	return s.take(ctx)
}

func (s *Sampler) keep(sample *Sample, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.latest.sample = sample
	switch b := fault.AsBlocked(err); {
	case err == nil:
		s.latest.success = sample.At
		s.latest.schema = SchemaAccepted
	case b != nil && b.Reason == "table.schema_version":
		s.latest.schema = SchemaRefused
	}
}

func (s *Sampler) get() latest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

// news logs what changes from one sample to the next.
type news struct {
	log       *slog.Logger
	walStatus string
	failing   bool
}

func (n *news) tell(s *Sample, err error) {
	if err != nil {
		if !n.failing {
			n.log.Warn("cannot sample the slot and the outbox, trying again", "err", err)
		}
		n.failing = true
		return
	}
	if n.failing {
		n.log.Info("sampling the slot and the outbox again")
	}
	n.failing = false
	if s.Slot.WALStatus == n.walStatus {
		return
	}
	args := []any{"wal_status", s.Slot.WALStatus, "was", n.walStatus, "exists", s.Slot.Exists}
	n.walStatus = s.Slot.WALStatus
	if s.Slot.RetainedBytes != nil {
		args = append(args, "retained_bytes", *s.Slot.RetainedBytes)
	}
	switch n.walStatus {
	case "lost":
		n.log.Error("the slot's WAL status changed", args...)
	case "reserved":
		n.log.Info("the slot's WAL status changed", args...)
	default:
		n.log.Warn("the slot's WAL status changed", args...)
	}
}
