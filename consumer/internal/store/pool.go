package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// pinSQL makes a session what the statements here rely on, whatever a role, a
// database or the application's pool has set. Outcomes must not be lost behind
// a committed offset, so an asynchronous commit becomes a synchronous one; what
// is stricter stays. Plans: one made while a table was empty would be a
// sequential scan until the next ANALYZE, and nested loops over two lists of a
// thousand take half a second, where hashing one takes 10 ms.
// transaction_timeout is unknown before PostgreSQL 17.
const pinSQL = `
SELECT set_config(v.name, v.value, false)
  FROM (VALUES ('search_path', 'pg_catalog'), ('lock_timeout', '5s'), ('statement_timeout', '30s'),
               ('idle_session_timeout', '0'), ('client_min_messages', 'warning'),
               ('default_transaction_isolation', 'read committed'), ('default_transaction_read_only', 'off'),
               ('default_transaction_deferrable', 'off'),
               ('synchronous_commit', CASE WHEN current_setting('synchronous_commit') = 'off' THEN 'on' END),
               ('transaction_timeout', CASE WHEN current_setting('server_version_num')::int >= 170000 THEN '0' END),
               ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'), ('enable_nestloop', 'off')) v(name, value)
 WHERE v.value IS NOT NULL`

// PoolConfig returns a copy of an application's pool configuration for a pool
// of the kit's own: the same server and login, with the session settings
// pinned. Hooks of the application that run at each use of a connection are
// left out; those at its making are kept. A handler's transactions belong on
// the application's own pool: search_path is not what it expects here.
func PoolConfig(from *pgxpool.Config) *pgxpool.Config {
	conf := from.Copy()
	conf.PrepareConn = func(context.Context, *pgx.Conn) (bool, error) { return true, nil } // before BeforeAcquire, if that is set
	conf.AfterRelease = nil
	theirs := conf.AfterConnect
	conf.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
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
