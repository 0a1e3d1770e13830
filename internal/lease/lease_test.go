package lease

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is the database of a test with the relay's tables in it.
type cluster struct {
	*pgtest.DB
	slot string
	conn *pgx.Conn // of the test itself
}

func setup(t *testing.T, db *pgtest.DB) *cluster {
	t.Helper()
	db.Migrate(t, "public")
	return &cluster{DB: db, slot: "slot_" + db.Name, conn: db.Conn(t)}
}

// quick is patient enough for a busy machine where a test does not wait for
// the time-out itself.
func (c *cluster) quick() Config {
	return Config{
		Connect:       c.connect,
		Schema:        "public",
		Slot:          c.slot,
		Instance:      "test",
		TTL:           time.Hour,
		RenewInterval: 10 * time.Millisecond,
		PublishWithin: 10 * time.Second,
		TakeoverAfter: 30 * time.Minute,
	}
}

func (c *cluster) connect(ctx context.Context, expect *event.Session) (*pgx.Conn, pg.Server, error) {
	return pg.Connect(ctx, pg.Options{DSN: c.DSN, LocalCommit: true, ApplicationName: "lease/" + c.slot}, expect)
}

func newLease(t *testing.T, cfg Config) *Lease {
	t.Helper()
	l, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// acquire takes a lease that must be free and closes its connection at the end
// of the test, without a release.
func acquire(t *testing.T, l *Lease) *Tenure {
	t.Helper()
	tenure, err := l.Acquire(t.Context(), func() { t.Error("has to stand by") })
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	t.Cleanup(tenure.unlink)
	return tenure
}

// row is what other parts of the relay and people read.
type row struct {
	Epoch, LeaseEpoch int64
	SameOwner         bool
	Released          bool
	Saved             string
	Timeline          int32
}

func (c *cluster) row(t *testing.T) row {
	t.Helper()
	var r row
	err := c.conn.QueryRow(t.Context(), `
		SELECT f.epoch, l.epoch, f.owner = l.owner, l.lease_until IS NULL, coalesce(saved_lsn::text, ''), coalesce(timeline, 0)
		  FROM cdc_relay_slot f JOIN cdc_relay_lease l USING (slot) WHERE slot = $1`, c.slot).
		Scan(&r.Epoch, &r.LeaseEpoch, &r.SameOwner, &r.Released, &r.Saved, &r.Timeline)
	if err != nil {
		t.Fatalf("reading the rows of the slot: %v", err)
	}
	return r
}

func (c *cluster) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := c.conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// start runs a tenure and returns how to stop it.
func start(t *testing.T, tenure *Tenure, saved func(pglogrepl.LSN)) (stop func() error) {
	t.Helper()
	stop = sync.OnceValue(run(t, tenure, saved))
	t.Cleanup(func() { _ = stop() }) // a second call in most tests
	return stop
}

func TestFirstAcquisition(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		tenure := acquire(t, newLease(t, c.quick()))
		if diff := cmp.Diff(row{Epoch: 1, LeaseEpoch: 1, SameOwner: true}, c.row(t)); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
		var want event.Session
		var system, timeline int64
		err := c.conn.QueryRow(t.Context(), "SELECT c.system_identifier, p.timeline_id FROM pg_control_system() c, pg_control_checkpoint() p").
			Scan(&system, &timeline)
		if err != nil {
			t.Fatal(err)
		}
		want = event.Session{SystemID: uint64(system), Timeline: uint32(timeline), Epoch: 1}
		if diff := cmp.Diff(want, tenure.Session()); diff != "" {
			t.Errorf("session (-want +got):\n%s", diff)
		}
		var owner [16]byte
		if err := c.conn.QueryRow(t.Context(), "SELECT owner FROM cdc_relay_slot").Scan(&owner); err != nil {
			t.Fatal(err)
		}
		if owner != tenure.Owner() {
			t.Errorf("owner in the table %x, of the tenure %x", owner, tenure.Owner())
		}
		if tenure.SavedLSN() != 0 || tenure.TimelineSwitched() {
			t.Errorf("saved %v, timeline switched %v; want none", tenure.SavedLSN(), tenure.TimelineSwitched())
		}
		if err := tenure.Permit(t.Context()); err != nil {
			t.Errorf("Permit: %v", err)
		}
	})
}

func TestStandbyTakesOverAfterARelease(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		first := acquire(t, newLease(t, c.quick()))

		standing := make(chan struct{})
		second := make(chan *Tenure)
		standby := newLease(t, c.quick())
		go func() {
			tenure, err := standby.Acquire(t.Context(), func() { close(standing) })
			if err != nil {
				t.Errorf("the standby's Acquire: %v", err)
			}
			second <- tenure
		}()
		<-standing
		if err := first.Release(t.Context(), 0x123456); err != nil {
			t.Fatalf("Release: %v", err)
		}
		tenure := <-second
		t.Cleanup(tenure.unlink)
		if got := tenure.Session().Epoch; got != 2 {
			t.Errorf("epoch after the takeover = %d, want 2", got)
		}
		if got := tenure.SavedLSN(); got != 0x123456 {
			t.Errorf("saved position found = %v, want 0/123456", got)
		}
	})
}

// A crashed leader is one that stops renewing; its slot becomes inactive.
func TestStandbyTakesOverAfterACrash(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		streaming bool // a frozen leader: its slot stays active
		change    func(*Config)
	}{
		"crashed: after TakeoverAfter": {false, func(cfg *Config) { cfg.TakeoverAfter = 300 * time.Millisecond }},
		"frozen: after the TTL": {true, func(cfg *Config) {
			cfg.TTL, cfg.TakeoverAfter = 600*time.Millisecond, 300*time.Millisecond
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				c := setup(t, db)
				cfg := c.quick()
				cfg.PublishWithin = 150 * time.Millisecond
				tc.change(&cfg)
				if tc.streaming {
					c.stream(t)
				}
				acquire(t, newLease(t, cfg))
				waited := false
				tenure, err := newLease(t, cfg).Acquire(t.Context(), func() { waited = true })
				if err != nil {
					t.Fatalf("Acquire: %v", err)
				}
				t.Cleanup(tenure.unlink)
				if !waited {
					t.Error("took over at once")
				}
				if got := tenure.Session().Epoch; got != 2 {
					t.Errorf("epoch = %d, want 2", got)
				}
			})
		})
	}
}

// While somebody streams from the slot, a neglected lease is not taken before
// it has run out.
func TestActiveSlotKeepsANeglectedLease(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		c.stream(t)
		acquire(t, newLease(t, c.quick()))
		c.exec(t, "UPDATE cdc_relay_lease SET renewed_at = now() - interval '50 minutes'")
		l := newLease(t, c.quick())
		conn, _, err := l.open(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.close()
		v, err := conn.observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if v.free(l.owner, l.cfg.TakeoverAfter) {
			t.Errorf("the lease is free: %+v", v)
		}
		if v.age < 49*time.Minute || !v.slotActive {
			t.Errorf("age %v, slot active %v; want 50m and true", v.age, v.slotActive)
		}
		c.exec(t, "UPDATE cdc_relay_lease SET lease_until = now()")
		tenure, err := l.Acquire(t.Context(), func() {})
		if err != nil {
			t.Fatalf("Acquire after the lease ran out: %v", err)
		}
		tenure.unlink()
	})
}

// stream makes the slot and keeps it active until the end of the test.
func (c *cluster) stream(t *testing.T) {
	t.Helper()
	c.exec(t, "CREATE PUBLICATION p")
	c.exec(t, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", c.slot)
	conf, err := pg.Options{DSN: c.DSN}.ReplicationConfig()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgconn.ConnectConfig(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	err = pglogrepl.StartReplication(t.Context(), conn, c.slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'p'"}})
	if err != nil {
		t.Fatalf("starting to stream: %v", err)
	}
}

func TestOneOfManyWins(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const instances, rounds = 5, 20
		c := setup(t, db)
		var group sync.WaitGroup
		var leading atomic.Int32
		var round atomic.Int64
		for range instances {
			l := newLease(t, c.quick())
			group.Go(func() {
				for round.Load() < rounds {
					tenure, err := l.Acquire(t.Context(), func() {})
					if err != nil {
						t.Errorf("Acquire: %v", err)
						return
					}
					if n := leading.Add(1); n > 1 {
						t.Errorf("%d instances lead", n)
					}
					if got, want := tenure.Session().Epoch, round.Add(1); got != want {
						t.Errorf("epoch = %d, want %d: one for each round", got, want)
					}
					held, err := tenure.link.renew(t.Context(), tenure.session.Epoch, tenure.session.Timeline, 0)
					if err != nil || !held {
						t.Errorf("the winner renews: held %v, %v", held, err)
					}
					leading.Add(-1)
					if err := tenure.Release(t.Context(), 0); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		}
		group.Wait()
		if r := c.row(t); r.Epoch != round.Load() || r.LeaseEpoch != r.Epoch || !r.Released {
			t.Errorf("rows after %d rounds: %+v", round.Load(), r)
		}
	})
}

func TestStaleLeaderIsFenced(t *testing.T) {
	t.Parallel()
	for name, usurp := range map[string]func(*testing.T, *cluster){
		"another instance took over": func(t *testing.T, c *cluster) {
			c.exec(t, "UPDATE cdc_relay_lease SET lease_until = NULL")
			acquire(t, newLease(t, c.quick()))
		},
		"the epoch was raised": func(t *testing.T, c *cluster) {
			c.exec(t, "UPDATE cdc_relay_slot SET epoch = epoch + 1")
		},
		"the rows were deleted": func(t *testing.T, c *cluster) {
			c.exec(t, "DELETE FROM cdc_relay_lease")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				c := setup(t, db)
				old := acquire(t, newLease(t, c.quick()))
				usurp(t, c)
				old.Offer(99)
				err := old.Run(t.Context(), func(lsn pglogrepl.LSN) { t.Errorf("saved %v", lsn) })
				if !errors.Is(err, fault.ErrFenced) {
					t.Errorf("Run: %v, want ErrFenced", err)
				}
				if err := old.Permit(t.Context()); !errors.Is(err, fault.ErrFenced) {
					t.Errorf("Permit: %v, want ErrFenced", err)
				}
			})
		})
	}
}

// After a session that ended without a release the same process need not wait
// for itself.
func TestAcquireAgain(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		l := newLease(t, c.quick())
		acquire(t, l)
		if got := acquire(t, l).Session().Epoch; got != 2 {
			t.Errorf("epoch = %d, want 2", got)
		}
	})
}

func TestSavedPositionOnlyRises(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		tenure := acquire(t, newLease(t, c.quick()))
		if r := c.row(t); r.Timeline != 0 {
			t.Errorf("timeline %d is in the row before any position is", r.Timeline)
		}
		saved := make(chan pglogrepl.LSN)
		stop := start(t, tenure, func(lsn pglogrepl.LSN) { saved <- lsn })
		for _, lsn := range []pglogrepl.LSN{0x100, 0x200} {
			tenure.Offer(lsn)
			if got := <-saved; got != lsn {
				t.Errorf("saved %v, want %v", got, lsn)
			}
			if r := c.row(t); r.Saved != lsn.String() || r.Timeline != int32(tenure.Session().Timeline) {
				t.Errorf("in the row: %+v, want %v on timeline %d", r, lsn, tenure.Session().Timeline)
			}
		}
		tenure.Offer(0x150)
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := tenure.Release(t.Context(), 0x180); err != nil {
			t.Errorf("Release: %v", err)
		}
		want := row{Epoch: 1, LeaseEpoch: 1, SameOwner: true, Released: true, Saved: "0/200", Timeline: int32(tenure.Session().Timeline)}
		if diff := cmp.Diff(want, c.row(t)); diff != "" {
			t.Errorf("rows after the release (-want +got):\n%s", diff)
		}
	})
}

// The timeline changes together with the position: a crash right after a
// failover must not hide the failover.
func TestTimelineOfTheSavedPosition(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		l := newLease(t, c.quick())
		if err := acquire(t, l).Release(t.Context(), 0x100); err != nil {
			t.Fatal(err)
		}
		c.exec(t, "UPDATE cdc_relay_lease SET timeline = 77")
		for range 2 { // the first one saves nothing
			if tenure := acquire(t, l); !tenure.TimelineSwitched() || tenure.SavedLSN() != 0x100 {
				t.Errorf("timeline switched %v, saved %v; want true and 0/100", tenure.TimelineSwitched(), tenure.SavedLSN())
			}
		}
		if err := acquire(t, l).Release(t.Context(), 0x200); err != nil {
			t.Fatal(err)
		}
		if acquire(t, l).TimelineSwitched() {
			t.Error("the timeline still counts as switched after a position was saved on it")
		}
	})
}

func TestTenureSurvivesALostConnection(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		tenure := acquire(t, newLease(t, c.quick()))
		saved := make(chan pglogrepl.LSN)
		stop := start(t, tenure, func(lsn pglogrepl.LSN) { saved <- lsn })
		for _, lsn := range []pglogrepl.LSN{0x100, 0x200, 0x300} {
			tenure.Offer(lsn)
			<-saved
			// Run out as well: nobody took it.
			c.exec(t, "UPDATE cdc_relay_lease SET lease_until = now() - interval '1 day'")
			var killed int
			err := c.conn.QueryRow(t.Context(), `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
				WHERE application_name = $1`, "lease/"+c.slot).Scan(&killed)
			if err != nil || killed != 1 {
				t.Fatalf("killed %d connections of the lease, want 1: %v", killed, err)
			}
		}
		tenure.Offer(0x400)
		<-saved
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if r := c.row(t); r.Epoch != 1 || r.LeaseEpoch != 1 || r.Saved != "0/400" {
			t.Errorf("rows %+v, want epoch 1 and 0/400", r)
		}
	})
}

// A session that locks the lease row keeps renewals waiting; publishing goes
// on when it lets go.
func TestLockedLeaseRow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		cfg := c.quick()
		cfg.PublishWithin = 200 * time.Millisecond
		tenure := acquire(t, newLease(t, cfg))
		tx, err := c.conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "SELECT FROM cdc_relay_lease FOR UPDATE"); err != nil {
			t.Fatal(err)
		}
		stop := start(t, tenure, ignore)
		pgtest.Eventually(t, "publishing to pause", func() bool { return !tenure.fresh() }, func() string { return "fresh" })
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := tenure.Permit(t.Context()); err != nil {
			t.Errorf("Permit: %v", err)
		}
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func TestCopyOfTheDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		if err := acquire(t, newLease(t, c.quick())).Release(t.Context(), 0x100); err != nil {
			t.Fatal(err)
		}
		c.exec(t, "UPDATE cdc_relay_lease SET system_identifier = system_identifier + 1")
		l := newLease(t, c.quick())
		_, err := l.Acquire(t.Context(), func() {})
		b := fault.AsBlocked(err)
		if b == nil || b.Reason != "slot.system" {
			t.Fatalf("Acquire: %v, want blocked by slot.system", err)
		}
		// The remedy works as printed.
		_, sql, found := strings.Cut(b.Remedy, "run: ")
		if !found {
			t.Fatalf("no SQL in the remedy %q", b.Remedy)
		}
		c.exec(t, sql)
		if tenure := acquire(t, l); tenure.SavedLSN() != 0 {
			t.Errorf("the other system's position %v is kept", tenure.SavedLSN())
		}
	})
}

func TestLoginWithoutTheTables(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		cfg := c.quick()
		cfg.Schema = "elsewhere"
		_, err := newLease(t, cfg).Acquire(t.Context(), func() {})
		if b := fault.AsBlocked(err); b == nil || b.Reason != "table.schema_version" {
			t.Errorf("Acquire: %v, want blocked by table.schema_version", err)
		}
	})
}

// The login that writes status columns has no other rights than these, and
// its role may have been set up with hostile settings.
func TestLeastPrivilege(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		login := db.Name // roles are shared by the tests on a server
		c.exec(t, "CREATE ROLE "+login+" LOGIN")
		t.Cleanup(func() {
			ctx := context.Background()
			conn, err := pgx.Connect(ctx, db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(ctx)
			if _, err := conn.Exec(ctx, "DROP OWNED BY "+login); err != nil {
				t.Error(err)
			}
			if _, err := conn.Exec(ctx, "DROP ROLE "+login); err != nil {
				t.Error(err)
			}
		})
		for _, setting := range []string{"search_path = nowhere", "default_transaction_read_only = on",
			"default_transaction_isolation = 'serializable'", "synchronous_commit = off", "statement_timeout = '1ms'",
			"DateStyle = 'German'", "IntervalStyle = 'sql_standard'", "TimeZone = 'Asia/Kathmandu'"} {
			c.exec(t, "ALTER ROLE "+login+" SET "+setting)
		}
		c.exec(t, "GRANT USAGE ON SCHEMA public TO "+login)
		cfg := c.quick()
		cfg.Connect = func(ctx context.Context, expect *event.Session) (*pgx.Conn, pg.Server, error) {
			dsn := strings.Replace(db.DSN, "postgres@", login+"@", 1)
			return pg.Connect(ctx, pg.Options{DSN: dsn, LocalCommit: true}, expect)
		}
		_, err := newLease(t, cfg).Acquire(t.Context(), func() {})
		if b := fault.AsBlocked(err); b == nil || b.Reason != "grants.status" {
			t.Fatalf("Acquire: %v, want blocked by grants.status", err)
		}
		c.exec(t, "GRANT SELECT, INSERT, UPDATE ON cdc_relay_slot, cdc_relay_lease TO "+login)
		tenure := acquire(t, newLease(t, cfg))
		saved := make(chan pglogrepl.LSN)
		stop := start(t, tenure, func(lsn pglogrepl.LSN) { saved <- lsn })
		tenure.Offer(0x100)
		<-saved
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := tenure.Release(t.Context(), 0x200); err != nil {
			t.Errorf("Release: %v", err)
		}
	})
}

// While another instance leads, a lost connection is made again.
func TestStandbyReconnects(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		first := acquire(t, newLease(t, c.quick()))
		cfg := c.quick()
		standing := make(chan struct{})
		fail := 3 // connects after the first one
		reconnected := make(chan struct{})
		connects := 0
		cfg.Connect = func(ctx context.Context, expect *event.Session) (*pgx.Conn, pg.Server, error) {
			connects++
			switch {
			case connects == 1:
				conn, server, err := c.connect(ctx, expect)
				return conn, server, err
			case connects <= 1+fail:
				return nil, pg.Server{}, errCut
			}
			if connects == 2+fail {
				close(reconnected)
			}
			return c.connect(ctx, expect)
		}
		won := make(chan *Tenure)
		l := newLease(t, cfg)
		go func() {
			tenure, err := l.Acquire(t.Context(), func() { close(standing) })
			if err != nil {
				t.Errorf("Acquire: %v", err)
			}
			won <- tenure
		}()
		<-standing
		c.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1 AND pid <> $2`,
			"lease/"+c.slot, first.link.(*conn).db.PgConn().PID())
		<-reconnected
		if err := first.Release(t.Context(), 0); err != nil {
			t.Fatalf("Release: %v", err)
		}
		(<-won).unlink()
	})
}

func TestAcquireEndsWithItsContext(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		c := setup(t, db)
		acquire(t, newLease(t, c.quick()))
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := newLease(t, c.quick()).Acquire(ctx, cancel); !errors.Is(err, context.Canceled) {
			t.Errorf("Acquire: %v, want context.Canceled", err)
		}
	})
}

func TestNewValidates(t *testing.T) {
	t.Parallel()
	valid := defaults
	valid.Schema = "public"
	valid.Connect = func(context.Context, *event.Session) (*pgx.Conn, pg.Server, error) { return nil, pg.Server{}, errCut }
	for name, tc := range map[string]struct {
		change func(*Config)
		ok     bool
	}{
		"defaults":               {func(*Config) {}, true},
		"no connect":             {func(c *Config) { c.Connect = nil }, false},
		"no slot":                {func(c *Config) { c.Slot = "" }, false},
		"renewals too rare":      {func(c *Config) { c.RenewInterval = 501 * time.Millisecond }, false},
		"no renewal interval":    {func(c *Config) { c.RenewInterval = 0 }, false},
		"publishing too long":    {func(c *Config) { c.PublishWithin = 1501 * time.Millisecond }, false},
		"takeover after the TTL": {func(c *Config) { c.TakeoverAfter = 11 * time.Second }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := valid
			tc.change(&cfg)
			_, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
			if (err == nil) != tc.ok {
				t.Errorf("New: %v, want ok %v", err, tc.ok)
			}
		})
	}
}
