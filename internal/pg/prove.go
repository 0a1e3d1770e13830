package pg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// Server is what a server tells about itself.
type Server struct {
	SystemID uint64 // of pg_control_system()
	Timeline uint32
	Version  int // server_version_num, such as 180004
	// NextXID is the first transaction id, 64 bits wide, that is not assigned
	// yet: a 32-bit id from the WAL is widened to the value nearest to it.
	NextXID uint64
}

// Identity is the server as part of a session, without an epoch.
func (s Server) Identity() event.Session {
	return event.Session{SystemID: s.SystemID, Timeline: s.Timeline}
}

// proveSQL asks who the server is and pins what cannot go into the startup
// message: an asynchronous commit would let SENT be lost behind a confirmed
// position, and transaction_timeout is unknown before 17. A statement that waits
// (in somebody's trigger, say) ends soon after its client has died, where the
// server can see that: on Windows it refuses to look. In recovery there is no
// current position to take the timeline from.
const proveSQL = `
SELECT c.system_identifier, r.recovering,
       CASE WHEN r.recovering THEN 0
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END,
       v.num,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
       CASE WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', false) END,
       CASE WHEN v.num >= 170000 THEN set_config('transaction_timeout', '0', false) END,
       CASE WHEN version() !~* 'msvc|visual c|mingw|windows' THEN set_config('client_connection_check_interval', '1s', false) END
  FROM pg_control_system() c,
       (SELECT pg_is_in_recovery() AS recovering) r,
       (SELECT current_setting('server_version_num')::int AS num) v`

// Prove asks the server behind conn who it is, and pins the session settings
// that depend on the answer. A server in recovery is a *fault.Blocked
// (pg.primary). If expect names a system or a timeline and the server is
// another one, the error wraps fault.ErrFenced: what was learnt in that
// session must not be used here.
func Prove(ctx context.Context, conn *pgx.Conn, expect *event.Session) (Server, error) {
	var s Server
	var system, timeline, next int64
	var recovering bool
	var syncCommit, txTimeout, checkInterval *string
	err := conn.QueryRow(ctx, proveSQL).Scan(&system, &recovering, &timeline, &s.Version, &next, &syncCommit, &txTimeout, &checkInterval)
	if err != nil {
		return Server{}, fmt.Errorf("asking PostgreSQL who it is: %w", Explain(err))
	}
	if recovering {
		return Server{}, &fault.Blocked{Reason: "pg.primary",
			What:   fmt.Sprintf("PostgreSQL at %s is a standby, in recovery", address(conn.Config())),
			Remedy: "connect to the primary: correct postgres.dsn, or list all hosts there with target_session_attrs=read-write"}
	}
	s.SystemID, s.Timeline, s.NextXID = uint64(system), uint32(timeline), uint64(next)
	if expect == nil {
		return s, nil
	}
	if expect.SystemID != 0 && expect.SystemID != s.SystemID {
		return Server{}, fmt.Errorf("PostgreSQL has system identifier %d, this session belongs to %d: %w",
			s.SystemID, expect.SystemID, fault.ErrFenced)
	}
	if expect.Timeline != 0 && expect.Timeline != s.Timeline {
		return Server{}, fmt.Errorf("PostgreSQL is on timeline %d, this session belongs to %d: %w",
			s.Timeline, expect.Timeline, fault.ErrFenced)
	}
	return s, nil
}
