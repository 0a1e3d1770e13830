package pg_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/nettest"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const planted = "s3cr3t-planted"

// hostile is what a database may have set behind one's back. The setting of
// synchronous_commit comes from the test.
func hostile(t *testing.T, db *pgtest.DB, syncCommit string) {
	t.Helper()
	list := []string{
		"client_min_messages = debug1", "default_transaction_isolation = serializable",
		"default_transaction_read_only = on", "statement_timeout = '1ms'", "lock_timeout = '1ms'",
		"idle_in_transaction_session_timeout = '1ms'", "idle_session_timeout = '1ms'", "search_path = evil",
		"synchronous_commit = " + syncCommit,
	}
	if db.Version >= 17 {
		list = append(list, "transaction_timeout = '5s'")
	}
	var all strings.Builder // at once: they hold for the next session already
	for _, setting := range list {
		fmt.Fprintf(&all, "ALTER DATABASE %s SET %s;", db.Name, setting)
	}
	db.Exec(t, all.String())
}

func TestSettingsArePinned(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, syncCommit string
		local            bool
		want             string
	}{
		{"asynchronous becomes synchronous", "off", false, "on"},
		{"remote_apply stays", "remote_apply", false, "remote_apply"},
		{"local stays", "local", false, "local"},
		{"local when asked", "remote_apply", true, "local"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				hostile(t, db, test.syncCommit)
				options := pg.Options{DSN: db.DSN, ApplicationName: "cdc-relay/test", LocalCommit: test.local,
					LockTimeout: 500 * time.Millisecond, Settings: map[string]string{"enable_seqscan": "off"}}
				conn, _, err := pg.Connect(t.Context(), options, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close(context.Background())
				want := map[string]string{
					"application_name": "cdc-relay/test", "client_min_messages": "warning",
					"transaction_isolation": "read committed", "transaction_read_only": "off",
					"statement_timeout": "30s", "lock_timeout": "500ms", "idle_in_transaction_session_timeout": "1min",
					"idle_session_timeout": "0", "search_path": "pg_catalog", "enable_seqscan": "off",
					"synchronous_commit": test.want, "client_connection_check_interval": "1s",
				}
				if db.Version >= 17 {
					want["transaction_timeout"] = "0"
				}
				if diff := cmp.Diff(want, settings(t, conn, want)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

func settings(t *testing.T, conn *pgx.Conn, names map[string]string) map[string]string {
	t.Helper()
	got := make(map[string]string)
	for name := range names {
		var value string
		if err := conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value); err != nil {
			t.Fatal(err)
		}
		got[name] = value
	}
	return got
}

func TestReplicationConnection(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		hostile(t, db, "off")
		conf, err := pg.Options{DSN: db.DSN, ApplicationName: "cdc-relay/test"}.ReplicationConfig()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := pgconn.ConnectConfig(t.Context(), conf)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if got := simple(t, conn, "IDENTIFY_SYSTEM"); len(got) != 4 || got[3] != db.Name {
			t.Errorf("IDENTIFY_SYSTEM: %q", got)
		}
		for name, want := range map[string]string{
			"statement_timeout": "0", "lock_timeout": "0", "idle_in_transaction_session_timeout": "0",
			"idle_session_timeout": "0", "client_min_messages": "warning", "search_path": "pg_catalog",
			"application_name": "cdc-relay/test",
		} {
			if got := simple(t, conn, "SHOW "+name); !slices.Equal(got, []string{want}) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	})
}

// simple runs a command of the simple protocol and returns its row.
func simple(t *testing.T, conn *pgconn.PgConn, command string) []string {
	t.Helper()
	results, err := conn.Exec(t.Context(), command).ReadAll()
	if err != nil || len(results) != 1 || len(results[0].Rows) != 1 {
		t.Fatalf("%s: %v, %v", command, results, err)
	}
	var row []string
	for _, value := range results[0].Rows[0] {
		row = append(row, string(value))
	}
	return row
}

func TestProve(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		options := pg.Options{DSN: db.DSN}
		conn, server, err := pg.Connect(t.Context(), options, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if server.SystemID == 0 || server.Timeline != 1 || server.Version/10000 != db.Version || server.NextXID == 0 {
			t.Errorf("server: %+v", server)
		}
		for _, test := range []struct {
			name   string
			expect event.Session
			fenced bool
		}{
			{"same", server.Identity(), false},
			{"nothing known yet", event.Session{Epoch: 7}, false},
			{"another system", event.Session{SystemID: server.SystemID + 1, Timeline: 1}, true},
			{"another timeline", event.Session{SystemID: server.SystemID, Timeline: 2}, true},
		} {
			if _, err := pg.Prove(t.Context(), conn, &test.expect); errors.Is(err, fault.ErrFenced) != test.fenced {
				t.Errorf("%s: %v", test.name, err)
			}
			pool, err := pg.NewPool(t.Context(), options, &test.expect, 2)
			if err != nil {
				t.Fatal(err)
			}
			_, err = pool.Exec(t.Context(), "SELECT 1")
			pool.Close()
			if errors.Is(err, fault.ErrFenced) != test.fenced || !test.fenced && err != nil {
				t.Errorf("%s, in a pool: %v", test.name, err)
			}
		}
	})
}

// TestSilentDeath: what is sent over a connection vanishes, and nobody is told,
// while other connections live. Who asked over it waited for as long as the kernel
// repeats what it has sent, a quarter of an hour, or for ever where something between
// acknowledges it.
func TestSilentDeath(t *testing.T) {
	t.Parallel()
	for name, ask := range map[string]func(context.Context, *pgxpool.Pool) error{
		"of a statement": func(ctx context.Context, pool *pgxpool.Pool) error {
			_, err := pool.Exec(ctx, "SELECT 1")
			return err
		},
		"of a query": func(ctx context.Context, pool *pgxpool.Pool) error {
			return pool.QueryRow(ctx, "SELECT 1").Scan(nil)
		},
		"of a batch": func(ctx context.Context, pool *pgxpool.Pool) error {
			var batch pgx.Batch
			batch.Queue("SELECT 1")
			return pool.SendBatch(ctx, &batch).Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				conf, err := pgconn.ParseConfig(db.DSN)
				if err != nil {
					t.Fatal(err)
				}
				network := nettest.Postgres(t, conf)
				options := pg.Options{StatementTimeout: 2 * time.Second,
					DSN: fmt.Sprintf("host=%s port=%d user=%s dbname=%s sslmode=disable", conf.Host, conf.Port, conf.User, conf.Database)}
				pool, err := pg.NewPool(t.Context(), options, nil, 2) // the dead one counts until the driver has given it up
				if err != nil {
					t.Fatal(err)
				}
				defer pool.Close()
				defer network.Close() // so that closing need not wait for who is silent
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := ask(ctx, pool); err != nil {
					t.Fatal(err)
				}
				if network.Silence() != 1 {
					t.Fatal("want one connection")
				}
				if err := ask(ctx, pool); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
					t.Errorf("over a dead connection: %v; after a minute: %v", err, ctx.Err())
				}
				if err := ask(ctx, pool); err != nil {
					t.Errorf("over a new connection: %v", err)
				}
			})
		})
	}
}

// TestStandby: a server in recovery is for a person, not an accident.
func TestStandby(t *testing.T) {
	t.Parallel()
	cluster := pgtest.StartCluster(t, 18)
	cluster.Stop(t, pgtest.Fast)
	cluster.Standby(t)
	cluster.Start(t)
	_, _, err := pg.Connect(t.Context(), pg.Options{DSN: cluster.DSN("postgres")}, nil)
	if b := fault.AsBlocked(err); b == nil || b.Reason != "pg.primary" {
		t.Errorf("connecting to a standby: %v", err)
	}
}

func TestRefusedLogins(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const user = "cdc_password_user" // the development servers ask this one for a password
		db.Exec(t, "DO $$ BEGIN CREATE ROLE "+user+" LOGIN PASSWORD 'right'; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
		login := strings.Replace(db.DSN, "postgres@", user+":"+planted+"@", 1)
		right := func() (string, error) { return "right", nil }
		for _, test := range []struct {
			name    string
			options pg.Options
			want    string // the reason, "" for an ordinary error
		}{
			{"wrong password in the DSN", pg.Options{DSN: login}, "pg.connect"},
			{"wrong password from its function", pg.Options{DSN: db.DSN + "&user=" + user,
				Password: func() (string, error) { return planted, nil }}, "pg.connect"},
			{"no such database", pg.Options{DSN: strings.Replace(login, db.Name, "nowhere", 1), Password: right}, "pg.connect"},
			{"password that cannot be read", pg.Options{DSN: login,
				Password: func() (string, error) { return "", errors.New("no such file") }}, ""},
			{"nobody listens", pg.Options{DSN: "postgres://u:" + planted + "@127.0.0.1:1/d"}, ""},
			{"no such host", pg.Options{DSN: "postgres://u:" + planted + "@host.invalid/d"}, ""},
			{"several hosts", pg.Options{DSN: "host=127.0.0.1,localhost port=1,1 user=u password=" + planted}, ""},
		} {
			t.Run(test.name, func(t *testing.T) {
				t.Parallel()
				conn, _, err := pg.Connect(t.Context(), test.options, nil)
				if err == nil {
					conn.Close(context.Background())
					t.Fatal("connected")
				}
				checkError(t, err, test.want)
			})
		}
		conn, _, err := pg.Connect(t.Context(), pg.Options{DSN: login, Password: right}, nil)
		if err != nil {
			t.Fatalf("right password: %v", err)
		}
		conn.Close(context.Background())
	})
}

// TestBadDSN: not even the user is repeated, for what is malformed may be
// anything.
func TestBadDSN(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://somebody:" + planted + "@[::1/d?x=%zz",
		"user=somebody password='" + planted,
		"postgres://somebody:x/" + planted + "@h:p/d",
	} {
		o := pg.Options{DSN: dsn}
		_, sqlErr := o.ConnConfig()
		_, replicationErr := o.ReplicationConfig()
		_, poolErr := pg.NewPool(t.Context(), o, nil, 1)
		for _, err := range []error{sqlErr, replicationErr, poolErr} {
			if err == nil {
				t.Fatal("accepted")
			}
			checkError(t, err, "")
			if strings.Contains(err.Error(), "somebody") {
				t.Errorf("the DSN is in: %v", err)
			}
		}
	}
}

// TestOptionsDoNotPrint their secret, whoever logs them.
func TestOptionsDoNotPrint(t *testing.T) {
	t.Parallel()
	o := pg.Options{DSN: "postgres://u:" + planted + "@h/d"}
	holder := struct{ Database pg.Options }{o}
	for _, text := range []string{fmt.Sprint(o), fmt.Sprintf("%+v", holder), fmt.Sprintf("%#v", holder), fmt.Sprintf("%v", &o)} {
		if strings.Contains(text, planted) {
			t.Errorf("the password is in: %s", text)
		}
	}
}

func checkError(t *testing.T, err error, reason string) {
	t.Helper()
	b := fault.AsBlocked(err)
	if reason == "" && b != nil || reason != "" && (b == nil || b.Reason != reason) {
		t.Errorf("want reason %q: %v", reason, err)
	}
	if pg.Explain(err) != err {
		t.Error("explained a second time")
	}
	var logged strings.Builder
	slog.New(slog.NewJSONHandler(&logged, nil)).Error("connecting", "err", err)
	for _, text := range []string{err.Error(), fmt.Sprintf("%+v", err), logged.String()} {
		if strings.Contains(text, planted) {
			t.Errorf("the password is in: %s", text)
		}
		if strings.Contains(strings.TrimSpace(text), "\n") {
			t.Errorf("more than one line: %s", text)
		}
	}
}
