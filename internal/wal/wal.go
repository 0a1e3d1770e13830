package wal

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

// Config says what to stream from where.
type Config struct {
	// Conn is how to reach the server, made by pgconn.ParseConfig or
	// pg.Options. It is copied; what the protocol needs is added. Its
	// application_name tells a relay of the same slot from a stranger.
	Conn *pgconn.Config
	// Slot is the logical replication slot, with plugin pgoutput.
	Slot string
	// Publication is the one that the slot is streamed through.
	Publication string
	// ConfirmInterval is how long to wait between two statuses, at most a
	// second and a tenth of the server's wal_sender_timeout. 0 is the most.
	ConfirmInterval time.Duration
	// AnswerTimeout is how long the server may take for each answer before the
	// stream starts, the creation of a slot aside; 0 is 30 s.
	AnswerTimeout time.Duration
	// Permit is asked before the walsender of another relay is terminated: nil
	// while the caller leads for certain, else it waits or returns an error,
	// which Start returns. It may be nil, for a caller without rivals.
	Permit func(context.Context) error
	// Log receives changes of state. Required.
	Log *slog.Logger
	// Pulse gets the beats of Run's goroutines. It may be nil.
	Pulse *pulse.Board
}

// Stream is one replication connection. Its methods that report, and Confirm,
// are safe for concurrent use; the others are for one goroutine, and none of
// them but Run may be called after Start.
type Stream struct {
	slot        string
	publication string
	application string
	interval    time.Duration // between two standby statuses
	patience    time.Duration // without a message before the server is asked for one
	answer      time.Duration // the server may take for one, before the stream starts
	permit      func(context.Context) error
	rhythm      sendRhythm // owned by Run
	log         *slog.Logger
	pulse       *pulse.Board
	config      *pgconn.Config

	conn   *pgconn.PgConn // until the stream starts
	socket *socket
	stream net.Conn // socket, or TLS over it

	systemID uint64
	timeline uint32
	version  int // server_version_num
	timeout  time.Duration

	seen      *progress
	permitted atomic.Uint64 // Invariant: only rises
	confirmed atomic.Uint64 // Invariant: confirmed <= permitted
	gulps     chan event.Gulp
}

// Connect opens a replication connection and asks the server who it is. A
// login that is refused, a standby and a wal_level that is not logical are a
// *fault.Blocked; any other error may pass.
func Connect(ctx context.Context, cfg Config) (*Stream, error) {
	s := &Stream{
		slot:        cfg.Slot,
		publication: cfg.Publication,
		application: cfg.Conn.RuntimeParams["application_name"],
		permit:      cfg.Permit,
		log:         cfg.Log.With("slot", cfg.Slot),
		pulse:       cfg.Pulse,
		config:      replicationConfig(cfg.Conn),
		seen:        newProgress(),
		gulps:       make(chan event.Gulp, bufferCount),
		answer:      cmp.Or(cfg.AnswerTimeout, answerTimeout),
	}
	conf := s.config.Copy()
	conf.DialFunc = dial
	conf.AfterNetConnect = func(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
		s.stream = conn // of the last attempt, which is the one that succeeds
		return &handshake{Conn: conn}, nil
	}
	conn, err := pgconn.ConnectConfig(ctx, conf)
	if err != nil {
		return nil, connectError(err, conf)
	}
	s.conn = conn
	if err := s.identify(ctx, cfg.ConfirmInterval); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// replicationConfig pins what roles and databases may have set otherwise.
func replicationConfig(given *pgconn.Config) *pgconn.Config {
	conf := given.Copy()
	if conf.RuntimeParams == nil {
		conf.RuntimeParams = make(map[string]string)
	}
	for name, value := range map[string]string{
		"replication":                         "database",
		"client_encoding":                     "UTF8",
		"client_min_messages":                 "warning", // the one about a skipped publication must come
		"bytea_output":                        "hex",
		"datestyle":                           "ISO",
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_session_timeout":                "0",
		"idle_in_transaction_session_timeout": "0",
	} {
		conf.RuntimeParams[name] = value
	}
	return conf
}

const settingsSQL = `SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('wal_level'), ` +
	`pg_catalog.current_setting('server_version_num'), ` +
	`(SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout')`

// answerTimeout is what Config.AnswerTimeout is by default. A server that says
// nothing must not keep a leader waiting that renews its lease meanwhile.
const answerTimeout = 30 * time.Second

// identify asks the server who it is and how patient.
func (s *Stream) identify(ctx context.Context, confirmInterval time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, s.answer)
	defer cancel()
	who, err := pglogrepl.IdentifySystem(ctx, s.conn)
	if err != nil {
		return fmt.Errorf("identifying the server: %w", safe(err))
	}
	if s.systemID, err = strconv.ParseUint(who.SystemID, 10, 64); err != nil {
		return fmt.Errorf("identifying the server: its system identifier is not a number")
	}
	s.timeline = uint32(who.Timeline)

	row, err := s.row(ctx, settingsSQL, 4)
	if err != nil {
		return fmt.Errorf("reading the server's settings: %w", err)
	}
	switch recovery, level := row[0], row[1]; {
	case recovery == "t":
		return inRecovery()
	case level != "logical":
		return noLogicalWAL(level)
	}
	if s.version, err = strconv.Atoi(row[2]); err != nil {
		return fmt.Errorf("reading the server's settings: its version is not a number")
	}
	millis, err := strconv.Atoi(row[3])
	if err != nil {
		return fmt.Errorf("reading the server's settings: wal_sender_timeout is not a number")
	}
	s.timeout = time.Duration(millis) * time.Millisecond
	s.interval, s.patience = intervals(s.timeout, confirmInterval)
	return nil
}

// statusesInTime is how many statuses the server gets within its time-out: with
// one of a few seconds, a machine that stalls for some of them must not cost
// the connection.
const statusesInTime = 10

// intervals returns how often to send a status, and how long to be without a
// message before asking for one. The server ends a connection that sent
// nothing for its time-out, 0 being none.
func intervals(serverTimeout, wanted time.Duration) (interval, patience time.Duration) {
	interval, patience = time.Second, 30*time.Second
	if serverTimeout > 0 {
		interval, patience = min(interval, serverTimeout/statusesInTime), serverTimeout/2
	}
	if wanted > 0 {
		interval = min(interval, wanted)
	}
	return interval, patience
}

// row runs a query that returns one row of so many columns, NULL as "".
func (s *Stream) row(ctx context.Context, sql string, columns int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.answer)
	defer cancel()
	return s.slowRow(ctx, sql, columns)
}

// slowRow is row for a query that may take any time. On a replication connection
// only the simple protocol works.
func (s *Stream) slowRow(ctx context.Context, sql string, columns int) ([]string, error) {
	results, err := s.conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, safe(err)
	}
	if len(results) != 1 || len(results[0].Rows) != 1 || len(results[0].Rows[0]) != columns {
		return nil, errNoRow
	}
	row := make([]string, columns)
	for i, value := range results[0].Rows[0] {
		row[i] = string(value)
	}
	return row, nil
}

// literal quotes a string for SQL and for replication commands.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

// identifier quotes a name.
func identifier(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

// Server returns the system identifier and the timeline of the server: a
// session is bound to them.
func (s *Stream) Server() (systemID uint64, timeline uint32) { return s.systemID, s.timeline }

// Gulps yields what Run reads; Run closes it.
func (s *Stream) Gulps() <-chan event.Gulp { return s.gulps }

// Confirm permits the stream to confirm lsn. A lower position than before
// changes nothing.
func (s *Stream) Confirm(lsn pglogrepl.LSN) {
	for {
		old := s.permitted.Load()
		if uint64(lsn) <= old || s.permitted.CompareAndSwap(old, uint64(lsn)) {
			return
		}
	}
}

// ReceivedAt returns when anything was last received, keepalives included;
// the zero time before that.
func (s *Stream) ReceivedAt() time.Time { return s.seen.receivedAt() }

// SenderTimeout returns the server's wal_sender_timeout for this connection; 0
// is none. A server that has one sends something at least that often.
func (s *Stream) SenderTimeout() time.Duration { return s.timeout }

// ServerEnd returns how far the server has sent, as its last keepalive told;
// 0 before the first one.
func (s *Stream) ServerEnd() pglogrepl.LSN { return s.seen.end() }

// Confirmed returns the position that was last sent to the server.
func (s *Stream) Confirmed() pglogrepl.LSN { return pglogrepl.LSN(s.confirmed.Load()) }

// Close ends a connection that is not handed to Run. After Run it does
// nothing.
func (s *Stream) Close() {
	if s.socket != nil {
		s.socket.shutdown()
		_ = s.stream.Close() // nothing is left to be lost
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), farewell)
	defer cancel()
	_ = s.conn.Close(ctx) // nothing is left to be lost
	select {              // the driver may be closing it in the background already
	case <-s.conn.CleanupDone():
	case <-ctx.Done():
	}
}

// socketOf returns the socket beneath a connection.
func socketOf(conn net.Conn) (*socket, error) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	bottom, ok := conn.(*socket)
	if !ok {
		return nil, fmt.Errorf("a replication connection over %T is not supported", conn)
	}
	return bottom, nil
}
