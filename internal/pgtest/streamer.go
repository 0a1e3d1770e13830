package pgtest

import (
	"context"
	"strings"
	"testing"
)

// Streamer makes a login that may stream and has no other right, and returns
// its name and DSN. It goes with the test.
func (db *DB) Streamer(t testing.TB) (login, dsn string) {
	t.Helper()
	login = db.Name + "_stream" // roles belong to the whole server
	db.Exec(t, "CREATE ROLE "+login+" LOGIN REPLICATION")
	t.Cleanup(func() {
		conn := connect(t, db.DSN)
		defer conn.Close(context.Background())
		if _, err := conn.Exec(context.Background(), "DROP ROLE "+login); err != nil {
			t.Errorf("removing the login that streams: %v", err)
		}
	})
	dsn = strings.Replace(db.DSN, "postgres@", login+"@", 1)
	if dsn == db.DSN {
		t.Fatal("the test server's DSN does not log in as postgres without a password")
	}
	return login, dsn
}
