package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pinSQL makes a session what the statements here rely on, whatever a role, a
// database or the application's pool has set. Outcomes must not be lost behind
// a committed offset, so an asynchronous commit becomes a synchronous one; what
// is stricter stays. Plans: one made while a table was empty would be a
// sequential scan until the next ANALYZE, and nested loops over two lists of a
// thousand take half a second, where hashing one takes 10 ms.
// transaction_timeout is unknown before PostgreSQL 17. A statement that waits ends
// soon after its client is gone, where the server can see that: on Windows it
// refuses to look.
const pinSQL = `
SELECT set_config(v.name, v.value, false)
  FROM (VALUES ('search_path', 'pg_catalog'), ('lock_timeout', '5s'), ('statement_timeout', '30s'),
               ('idle_session_timeout', '0'), ('client_min_messages', 'warning'),
               ('default_transaction_isolation', 'read committed'), ('default_transaction_read_only', 'off'),
               ('default_transaction_deferrable', 'off'),
               ('synchronous_commit', CASE WHEN current_setting('synchronous_commit') = 'off' THEN 'on' END),
               ('transaction_timeout', CASE WHEN current_setting('server_version_num')::int >= 170000 THEN '0' END),
               ('client_connection_check_interval', CASE WHEN version() !~* 'msvc|visual c|mingw|windows' THEN '1s' END),
               ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_nestloop', 'off')) v(name, value)
 WHERE v.value IS NOT NULL`

// Without these a connection that has died silently, and one that is never
// answered, would be waited for as long as the statement may take, or for two
// minutes.
const (
	pingTimeout    = 2 * time.Second // of a connection that was idle
	connectTimeout = 5 * time.Second // unless the application has set one; and for the hooks of a new connection
)

// PoolConfig returns a copy of an application's pool configuration for a pool
// of the kit's own: the same server and login, with the session settings
// pinned. Hooks of the application that run at each use of a connection are
// left out; those at its making are kept. A handler's transactions belong on
// the application's own pool: search_path is not what it expects here.
func PoolConfig(from *pgxpool.Config) *pgxpool.Config {
	conf := from.Copy()
	conf.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return true, nil } // before BeforeAcquire, if that is set
	conf.AfterRelease = nil
	conf.PingTimeout = pingTimeout
	if conf.ConnConfig.ConnectTimeout <= 0 {
		conf.ConnConfig.ConnectTimeout = connectTimeout
	}
	conf.ConnConfig.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &hangUp{pgconn.DeadlineContextWatcherHandler{Conn: conn.Conn()}}
	}
	theirs := conf.AfterConnect
	conf.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		if theirs != nil {
			if err := theirs(ctx, conn); err != nil {
				return err
			}
		}
		if _, err := conn.Exec(ctx, pinSQL); err != nil {
			return fmt.Errorf("pinning the settings of the consumer's session: %w", err)
		}
		return nil
	}
	return conf
}

// RenewalConfig is PoolConfig for a connection that is used every so often, by
// statements that may each take as long as that. If it has died meanwhile, half
// of that is left to make another one.
func RenewalConfig(from *pgxpool.Config, every time.Duration) *pgxpool.Config {
	conf := PoolConfig(from)
	conf.MinConns, conf.MinIdleConns = 0, 0
	conf.MaxConns = 2 // the dead one counts until it is cleaned up
	conf.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return true }
	conf.PingTimeout = min(pingTimeout, every/2)
	conf.ConnConfig.ConnectTimeout = min(conf.ConnConfig.ConnectTimeout, every)
	return conf
}

// hangUp closes a connection whose statement was given up. The driver alone
// would wait up to 15 s for the server to do so, if it is silent, and the pool
// would not replace it before.
type hangUp struct {
	pgconn.DeadlineContextWatcherHandler
}

// HandleUnwatchAfterCancel is called when the statement has returned.
func (h *hangUp) HandleUnwatchAfterCancel() { _ = h.Conn.Close() }
