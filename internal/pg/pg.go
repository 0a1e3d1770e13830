// Package pg makes every SQL connection of the relay, and the configuration
// of its replication connection, always the same way: session settings that a
// role or a database may have changed behind one's back are pinned, the
// password is read anew, and the server proves that it is the primary which
// the session was made on.
//
// A login that is refused is a *fault.Blocked for a person; a server that
// does not answer is an ordinary error, which may pass. No text of either
// holds a password or a DSN.
package pg

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// What Options left at zero become.
const (
	DefaultConnectTimeout   = 5 * time.Second
	DefaultStatementTimeout = 30 * time.Second
	DefaultIdleInTx         = 60 * time.Second
)

// Options say how to reach a database. They hold a secret, so they print as
// nothing but their name.
type Options struct {
	// DSN is a URL or keywords and values. The environment (PGHOST and so
	// on), a service file and a password file apply as in libpq.
	DSN string
	// Password, if set, is called before each connect and overrides the
	// password of the DSN, so that a changed secret needs no restart. An
	// empty result leaves the DSN's.
	Password func() (string, error)
	// ApplicationName is what pg_stat_activity shows.
	ApplicationName string
	// ConnectTimeout bounds a connect to one host, and after it the proof; 0
	// is the default.
	ConnectTimeout time.Duration
	// StatementTimeout is the server's limit for one statement; 0 is the
	// default.
	StatementTimeout time.Duration
	// LockTimeout is the server's limit for a wait on one lock; 0 is none but
	// the statement's.
	LockTimeout time.Duration
	// IdleInTx is how long the server lets a transaction of ours sit idle; 0
	// is the default.
	IdleInTx time.Duration
	// LocalCommit makes commits wait for the local disk only, never for a
	// synchronous standby.
	LocalCommit bool
	// Settings are further session settings of this connection.
	Settings map[string]string
}

func (Options) String() string { return "pg.Options" }

// GoString is for %#v.
func (o Options) GoString() string { return o.String() }

// ConnConfig returns the configuration of an SQL connection. The password in
// it is the one of now: make a new one for each connect.
func (o Options) ConnConfig() (*pgx.ConnConfig, error) {
	conf, err := pgx.ParseConfig(o.DSN)
	if err != nil {
		return nil, errDSN
	}
	if err := o.setPassword(&conf.Config); err != nil {
		return nil, err
	}
	o.pin(&conf.Config)
	return conf, nil
}

// ReplicationConfig returns the configuration of a connection that speaks the
// replication protocol to the database of the DSN. No time-out of statements
// or transactions applies to it. The password in it is the one of now: make a
// new one for each connect.
func (o Options) ReplicationConfig() (*pgconn.Config, error) {
	conf, err := pgconn.ParseConfig(o.DSN)
	if err != nil {
		return nil, errDSN
	}
	if err := o.setPassword(conf); err != nil {
		return nil, err
	}
	o.pin(conf)
	for _, name := range []string{"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"} {
		conf.RuntimeParams[name] = "0"
	}
	conf.RuntimeParams["replication"] = "database"
	return conf, nil
}

// errDSN keeps the parser's own text back: it may quote the DSN.
var errDSN = errors.New("reading the PostgreSQL DSN: it is neither a URL (postgres://user@host:5432/database) " +
	"nor a list of keywords and values (host=.. user=.. dbname=..), or names a file that cannot be read; " +
	"in a URL, percent-encode special characters; the DSN is not shown because it may hold a password")

func (o Options) setPassword(conf *pgconn.Config) error {
	if o.Password == nil {
		return nil
	}
	password, err := o.Password()
	if err != nil {
		return fmt.Errorf("reading the PostgreSQL password: %w", err)
	}
	if password != "" {
		conf.Password = password
	}
	return nil
}

// pin sets what goes into the startup message, where it beats the settings of
// roles and databases. What an older server would refuse there is set by
// Prove.
func (o Options) pin(conf *pgconn.Config) {
	conf.ConnectTimeout = orDefault(o.ConnectTimeout, DefaultConnectTimeout)
	params := conf.RuntimeParams
	if o.ApplicationName != "" {
		params["application_name"] = o.ApplicationName
	}
	params["client_min_messages"] = "warning"
	params["default_transaction_isolation"] = "read committed"
	params["default_transaction_read_only"] = "off"
	params["default_transaction_deferrable"] = "off"
	params["statement_timeout"] = millis(orDefault(o.StatementTimeout, DefaultStatementTimeout))
	params["lock_timeout"] = millis(o.LockTimeout)
	params["idle_in_transaction_session_timeout"] = millis(orDefault(o.IdleInTx, DefaultIdleInTx))
	params["idle_session_timeout"] = "0"
	params["search_path"] = "pg_catalog"
	if o.LocalCommit {
		params["synchronous_commit"] = "local"
	}
	for name, value := range o.Settings {
		params[name] = value
	}
}

// Connect makes one connection and proves the server; see Prove. A statement whose
// answer does not come, though the server must have given it up by then, ends the
// connection with an error.
func Connect(ctx context.Context, o Options, expect *event.Session) (*pgx.Conn, Server, error) {
	conf, err := o.ConnConfig()
	if err != nil {
		return nil, Server{}, err
	}
	conf.Tracer = o.limit()
	conn, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return nil, Server{}, Explain(err)
	}
	server, err := o.prove(ctx, conn, expect)
	if err != nil {
		Close(conn)
		return nil, Server{}, err
	}
	return conn, server, nil
}

// prove is bounded like a connect: a server may accept and never answer.
func (o Options) prove(ctx context.Context, conn *pgx.Conn, expect *event.Session) (Server, error) {
	ctx, cancel := context.WithTimeout(ctx, orDefault(o.ConnectTimeout, DefaultConnectTimeout))
	defer cancel()
	return Prove(ctx, conn, expect)
}

// Close ends a connection. It says goodbye, but does not wait for long when the
// server does not answer.
func Close(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn.Close(ctx) // its error says nothing: the connection is given up
}

// NewPool makes a pool of at most maxConns connections, each proved when it is
// made, and ended as those of Connect are. It does not connect: errors come from
// the pool's methods; pass them through Explain.
func NewPool(ctx context.Context, o Options, expect *event.Session, maxConns int32) (*pgxpool.Pool, error) {
	connConf, err := o.ConnConfig()
	if err != nil {
		return nil, err
	}
	// The parsed configuration is the only way to make one.
	conf, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, errDSN
	}
	connConf.Tracer = o.limit()
	conf.ConnConfig = connConf
	conf.MaxConns = maxConns
	conf.PingTimeout = connConf.ConnectTimeout // of a connection that was idle
	conf.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { return o.setPassword(&c.Config) }
	conf.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := o.prove(ctx, conn, expect)
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, conf)
	if err != nil {
		return nil, Explain(err)
	}
	return pool, nil
}

func orDefault(d, byDefault time.Duration) time.Duration {
	if d == 0 {
		return byDefault
	}
	return d
}

// millis is a duration as a setting in milliseconds; 0 stays 0, which is off.
func millis(d time.Duration) string {
	if d > 0 && d < time.Millisecond {
		d = time.Millisecond
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}
