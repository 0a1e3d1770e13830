package store_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/nettest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestSettingsArePinned: whatever a database, a login or the application's own
// hook has set.
func TestSettingsArePinned(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, commit, want string }{
		{"asynchronous becomes synchronous", "off", "on"},
		{"stricter stays", "remote_apply", "remote_apply"},
		{"local stays", "local", "local"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				settings := []string{
					"client_min_messages = debug1", "default_transaction_isolation = serializable",
					"default_transaction_read_only = on", "default_transaction_deferrable = on", "statement_timeout = '1h'",
					"lock_timeout = '1h'", "idle_session_timeout = '1h'", "synchronous_commit = " + test.commit,
				}
				if db.Version >= 17 {
					settings = append(settings, "transaction_timeout = '1h'")
				}
				for i, s := range settings {
					settings[i] = "ALTER DATABASE " + db.Name + " SET " + s
				}
				db.Exec(t, strings.Join(settings, ";"))
				conf, err := pgxpool.ParseConfig(db.DSN)
				if err != nil {
					t.Fatal(err)
				}
				conf.ConnConfig.RuntimeParams["application_name"] = "shop"
				conf.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
					_, err := conn.Exec(ctx, "SET search_path = evil")
					return err
				}
				pool, err := pgxpool.NewWithConfig(t.Context(), store.PoolConfig(conf))
				if err != nil {
					t.Fatal(err)
				}
				defer pool.Close()
				want := map[string]string{
					"search_path": "pg_catalog", "lock_timeout": "5s", "statement_timeout": "30s", "idle_session_timeout": "0",
					"client_min_messages": "warning", "default_transaction_isolation": "read committed",
					"default_transaction_read_only": "off", "default_transaction_deferrable": "off",
					"synchronous_commit": test.want, "application_name": "shop", "enable_seqscan": "off",
					"client_connection_check_interval": "1s",
				}
				if db.Version >= 17 {
					want["transaction_timeout"] = "0"
				}
				got := map[string]string{}
				for name := range want {
					var value string
					if err := pool.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value); err != nil {
						t.Fatal(err)
					}
					got[name] = value
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestHooksOfTheApplication: those that make a connection are kept, those that
// use one are not; its own configuration stays as it is.
func TestHooksOfTheApplication(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, pgtest.Versions[0])
	conf, err := pgxpool.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	var called []string
	say := func(what string) { called = append(called, what) }
	conf.MaxConns = 1
	conf.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { say("BeforeConnect"); return nil }
	conf.AfterConnect = func(context.Context, *pgx.Conn) error { say("AfterConnect"); return nil }
	conf.BeforeAcquire = func(context.Context, *pgx.Conn) bool { say("BeforeAcquire"); return true } //lint:ignore SA1019 applications use it
	conf.AfterRelease = func(*pgx.Conn) bool { say("AfterRelease"); return true }
	ours := store.PoolConfig(conf)
	pool, err := pgxpool.NewWithConfig(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := pool.Exec(t.Context(), "SELECT"); err != nil {
			t.Fatal(err)
		}
	}
	pool.Close()
	if diff := cmp.Diff([]string{"BeforeConnect", "AfterConnect"}, called); diff != "" {
		t.Errorf("called (-want +got):\n%s", diff)
	}
	if conf.AfterRelease == nil || conf.PrepareConn != nil {
		t.Error("the application's configuration was changed")
	}
}

// TestAHookThatFails: its error is the pool's.
func TestAHookThatFails(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, pgtest.Versions[0])
	conf, err := pgxpool.ParseConfig(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	conf.AfterConnect = func(context.Context, *pgx.Conn) error { return fmt.Errorf("hook: %w", boom) }
	pool, err := pgxpool.NewWithConfig(t.Context(), store.PoolConfig(conf))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), "SELECT"); !errors.Is(err, boom) {
		t.Errorf("%v", err)
	}
}

// TestConnectionThatDiesAtItsMaking, between the hook of the application and the
// settings: nobody waits for it without end.
func TestConnectionThatDiesAtItsMaking(t *testing.T) {
	t.Parallel()
	conf, err := pgxpool.ParseConfig(pgtest.New(t, pgtest.Versions[0]).DSN)
	if err != nil {
		t.Fatal(err)
	}
	n := nettest.Postgres(t, &conf.ConnConfig.Config)
	conf.AfterConnect = func(context.Context, *pgx.Conn) error { n.Silence(); return nil }
	pool, err := pgxpool.NewWithConfig(t.Context(), store.PoolConfig(conf))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	defer n.Close() // before that: the driver wants to end what runs on the server
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := pool.Exec(ctx, "SELECT"); err == nil || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
}

// TestRenewalConfig: there is always time for another connection.
func TestRenewalConfig(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		set                 time.Duration // connect_timeout, by the application
		every               time.Duration
		ping, connect, main time.Duration
	}{
		"longest lease":       {0, time.Hour, 2 * time.Second, 5 * time.Second, 5 * time.Second},
		"shortest lease":      {0, time.Second, 500 * time.Millisecond, time.Second, 5 * time.Second},
		"the application has": {time.Minute, 10 * time.Second, 2 * time.Second, 10 * time.Second, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conf, err := pgxpool.ParseConfig("host=localhost pool_min_conns=3 pool_min_idle_conns=3 pool_max_conns=7")
			if err != nil {
				t.Fatal(err)
			}
			conf.ConnConfig.ConnectTimeout = tc.set
			r := store.RenewalConfig(conf, tc.every)
			if r.MinConns != 0 || r.MinIdleConns != 0 || r.MaxConns != 2 || !r.ShouldPing(t.Context(), pgxpool.ShouldPingParams{}) {
				t.Errorf("%d to %d connections, %d idle ones", r.MinConns, r.MaxConns, r.MinIdleConns)
			}
			if main := store.PoolConfig(conf).ConnConfig.ConnectTimeout; main != tc.main {
				t.Errorf("connecting for all else may take %v, want %v", main, tc.main)
			}
			if r.PingTimeout != tc.ping || r.ConnConfig.ConnectTimeout != tc.connect {
				t.Errorf("a ping may take %v, connecting %v", r.PingTimeout, r.ConnConfig.ConnectTimeout)
			}
		})
	}
}
