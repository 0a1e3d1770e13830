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
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestOnServers runs each test under a slot of its own, in one database.
func TestOnServers(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		c := &cluster{DB: db, slot: db.Name}
		for name, test := range map[string]func(*testing.T, *cluster){
			"first acquisition":                          testFirstAcquisition,
			"standby takes over after a release":         testStandbyTakesOverAfterARelease,
			"standby takes over after a crash":           testStandbyTakesOverAfterACrash,
			"a lease from the future":                    testLeaseFromTheFuture,
			"an active slot keeps a neglected lease":     testActiveSlotKeepsANeglectedLease,
			"only what was seen is taken":                testOnlyWhatWasSeenIsTaken,
			"one of many wins":                           testOneOfManyWins,
			"frozen in the middle of a take":             testFrozenInTheMiddleOfATake,
			"acquire again":                              testAcquireAgain,
			"a copy of the database is refused":          testCopyOfTheDatabaseIsRefused,
			"an old primary is refused":                  testOldPrimaryIsRefused,
			"a login without the tables":                 testLoginWithoutTheTables,
			"least privilege":                            testLeastPrivilege,
			"standby reconnects":                         testStandbyReconnects,
			"standby tells when it looked":               testStandbyTellsWhenItLooked,
			"acquire ends with its context":              testAcquireEndsWithItsContext,
			"a stale leader is fenced":                   testStaleLeaderIsFenced,
			"the saved position only rises":              testSavedPositionOnlyRises,
			"the timeline is that of the saved position": testTimelineOfTheSavedPosition,
			"a tenure survives a lost connection":        testTenureSurvivesALostConnection,
			"a locked lease row pauses publishing":       testLockedLeaseRow,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, c.other(t, name))
			})
		}
	})
}

func testFirstAcquisition(t *testing.T, c *cluster) {
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
	if err := c.conn.QueryRow(t.Context(), "SELECT owner FROM cdc_relay_slot WHERE slot = $1", c.slot).Scan(&owner); err != nil {
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
}

func testStandbyTakesOverAfterARelease(t *testing.T, c *cluster) {
	first := acquire(t, newLease(t, c.quick()))

	standing := make(chan struct{})
	second := make(chan *Tenure)
	standby := newLease(t, c.quick())
	go func() {
		tenure, err := standby.Acquire(patient(t), func() { close(standing) })
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
}

// A crashed leader is one that stops renewing; its slot becomes inactive. The
// slot of a frozen one stays active.
func testStandbyTakesOverAfterACrash(t *testing.T, c *cluster) {
	const takeoverAfter, ttl = 300 * time.Millisecond, 600 * time.Millisecond
	for name, tc := range map[string]struct {
		streaming bool
		ttl       time.Duration
		after     time.Duration
	}{
		"crashed": {false, time.Hour, takeoverAfter},
		"frozen":  {true, ttl, ttl},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := c.other(t, t.Name())
			cfg := c.quick()
			cfg.PublishWithin, cfg.TakeoverAfter, cfg.TTL = takeoverAfter/2, takeoverAfter, tc.ttl
			if tc.streaming {
				c.stream(t)
			}
			acquire(t, newLease(t, cfg))
			renewed := c.renewedAt(t)
			tenure, err := newLease(t, cfg).Acquire(patient(t), func() {})
			if err != nil {
				t.Fatalf("Acquire: %v", err)
			}
			t.Cleanup(tenure.unlink)
			if got := tenure.Session().Epoch; got != 2 {
				t.Errorf("epoch = %d, want 2", got)
			}
			if waited := c.renewedAt(t).Sub(renewed); waited < tc.after {
				t.Errorf("took over %v after the last renewal, want %v or more", waited, tc.after)
			}
		})
	}
}

// The database's clock was set back, or it is that of a standby that was promoted:
// the lease of a leader that died with the old server ran for as long as the clocks
// differ.
func testLeaseFromTheFuture(t *testing.T, c *cluster) {
	for name, streaming := range map[string]bool{"crashed": false, "frozen": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := c.other(t, t.Name())
			cfg := c.quick()
			cfg.PublishWithin, cfg.TakeoverAfter, cfg.TTL = 150*time.Millisecond, 300*time.Millisecond, 600*time.Millisecond
			if streaming {
				c.stream(t)
			}
			acquire(t, newLease(t, cfg))
			c.setLease(t, "renewed_at = renewed_at + interval '1 day', lease_until = lease_until + interval '1 day'")
			tenure, err := newLease(t, cfg).Acquire(patient(t), func() {})
			if err != nil {
				t.Fatalf("Acquire: %v", err)
			}
			tenure.unlink()
		})
	}
}

// While somebody streams from the slot, a neglected lease is not taken before
// it has run out.
func testActiveSlotKeepsANeglectedLease(t *testing.T, c *cluster) {
	c.stream(t)
	acquire(t, newLease(t, c.quick()))
	c.setLease(t, "renewed_at = now() - interval '50 minutes'")
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
	c.setLease(t, "lease_until = now()")
	tenure, err := l.Acquire(patient(t), func() {})
	if err != nil {
		t.Fatalf("Acquire after the lease ran out: %v", err)
	}
	tenure.unlink()
}

// What has changed since it was seen is not taken, and nothing is left half
// done.
func testOnlyWhatWasSeenIsTaken(t *testing.T, c *cluster) {
	for name, change := range map[string]func(*testing.T, *cluster, *Tenure){
		"the leader has renewed": func(t *testing.T, _ *cluster, leader *Tenure) {
			if held, err := leader.link.renew(t.Context(), 1, 1, 0); err != nil || !held {
				t.Errorf("renewing: held %v, %v", held, err)
			}
		},
		"another one has taken it": func(t *testing.T, c *cluster, _ *Tenure) {
			c.setLease(t, "lease_until = NULL")
			acquire(t, newLease(t, c.quick()))
		},
		"the fence was raised": func(t *testing.T, c *cluster, _ *Tenure) {
			c.exec(t, "UPDATE cdc_relay_slot SET epoch = 7 WHERE slot = $1", c.slot)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := c.other(t, name)
			leader := acquire(t, newLease(t, c.quick()))
			conn, server, err := newLease(t, c.quick()).open(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.close()
			seen, err := conn.observe(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			change(t, c, leader)
			before, renewed := c.row(t), c.renewedAt(t)
			if won, err := conn.take(t.Context(), seen, server); err != nil || won {
				t.Errorf("take: won %v, %v", won, err)
			}
			if diff := cmp.Diff(before, c.row(t)); diff != "" || !c.renewedAt(t).Equal(renewed) {
				t.Errorf("the rows changed (-want +got):\n%s", diff)
			}
		})
	}
}

func testOneOfManyWins(t *testing.T, c *cluster) {
	const instances, rounds = 5, 20
	var group sync.WaitGroup
	var leading atomic.Int32
	var round atomic.Int64
	for range instances {
		l := newLease(t, c.quick())
		group.Go(func() {
			for round.Load() < rounds {
				tenure, err := l.Acquire(patient(t), func() {})
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
}

// An instance that is frozen while it takes the lease keeps the others from it
// for a moment only.
func testFrozenInTheMiddleOfATake(t *testing.T, c *cluster) {
	freezer := &freezer{at: "cdc_relay_slot\" SET epoch", frozen: make(chan struct{}), thaw: make(chan struct{})}
	cfg := c.quick()
	cfg.Connect = func(ctx context.Context, expect *event.Session) (*pgx.Conn, pg.Server, error) {
		return c.connectTraced(ctx, expect, freezer)
	}
	ctx, cancel := context.WithCancel(patient(t))
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := newLease(t, cfg).Acquire(ctx, cancel) // stands by once it is thawed
		ended <- err
	}()
	<-freezer.frozen
	tenure, err := newLease(t, c.quick()).Acquire(patient(t), func() {})
	close(freezer.thaw)
	if err != nil {
		t.Fatalf("Acquire while another instance is frozen: %v", err)
	}
	t.Cleanup(tenure.unlink)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the thawed instance: %v, want that it had to stand by", err)
	}
	if diff := cmp.Diff(row{Epoch: 1, LeaseEpoch: 1, SameOwner: true}, c.row(t)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// freezer stops the client, once, before it sends a statement.
type freezer struct {
	at           string // part of the statement
	once         sync.Once
	frozen, thaw chan struct{}
}

func (f *freezer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, f.at) {
		f.once.Do(func() {
			close(f.frozen)
			<-f.thaw
		})
	}
	return ctx
}

func (*freezer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// After a session that ended without a release the same process need not wait
// for itself.
func testAcquireAgain(t *testing.T, c *cluster) {
	l := newLease(t, c.quick())
	acquire(t, l)
	if got := acquire(t, l).Session().Epoch; got != 2 {
		t.Errorf("epoch = %d, want 2", got)
	}
}

func testCopyOfTheDatabaseIsRefused(t *testing.T, c *cluster) {
	if err := acquire(t, newLease(t, c.quick())).Release(t.Context(), 0x100); err != nil {
		t.Fatal(err)
	}
	c.setLease(t, "system_identifier = system_identifier + 1")
	l := newLease(t, c.quick())
	_, err := l.Acquire(patient(t), func() {})
	b := fault.AsBlocked(err)
	if b == nil || b.Reason != "slot.system" {
		t.Fatalf("Acquire: %v, want blocked by slot.system", err)
	}
	if want := "cdc-relay slot adopt --confirm " + l.cfg.Slot; !strings.HasSuffix(b.Remedy, want) {
		t.Errorf("remedy %q, want it to end in %q", b.Remedy, want)
	}
	c.setLease(t, "system_identifier = system_identifier - 1, saved_lsn = NULL") // as an adoption does
	if tenure := acquire(t, l); tenure.SavedLSN() != 0 {
		t.Errorf("the other system's position %v is kept", tenure.SavedLSN())
	}
}

func testOldPrimaryIsRefused(t *testing.T, c *cluster) {
	for _, tc := range []struct {
		name     string
		system   uint64 // added to the server's
		timeline uint32
		refused  bool
	}{
		{"the same one again", 0, 5, false},
		{"after another failover", 0, 6, false},
		{"the old primary", 0, 4, true},
		{"another system", 1, 4, false},
	} {
		led := pg.Server{Timeline: 5}
		cfg := c.quick()
		cfg.Connect = func(ctx context.Context, expect *event.Session) (*pgx.Conn, pg.Server, error) {
			conn, server, err := c.connect(ctx, expect)
			server.SystemID, server.Timeline = server.SystemID+led.SystemID, led.Timeline
			return conn, server, err
		}
		l := newLease(t, cfg)
		if err := acquire(t, l).Release(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		led = pg.Server{SystemID: tc.system, Timeline: tc.timeline}
		c.setLease(t, "system_identifier = NULL")
		tenure, err := l.Acquire(patient(t), func() {})
		if b := fault.AsBlocked(err); (b != nil) != tc.refused || b != nil && b.Reason != "pg.primary" {
			t.Errorf("%s: %v, want it to be refused: %t", tc.name, err, tc.refused)
		}
		if tenure == nil {
			continue
		}
		if err := tenure.Release(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		c.setLease(t, "system_identifier = NULL")
	}
}

func testLoginWithoutTheTables(t *testing.T, c *cluster) {
	cfg := c.quick()
	cfg.Schema = "elsewhere"
	_, err := newLease(t, cfg).Acquire(patient(t), func() {})
	if b := fault.AsBlocked(err); b == nil || b.Reason != "table.schema_version" {
		t.Errorf("Acquire: %v, want blocked by table.schema_version", err)
	}
}

// The login that writes status columns has no other rights than these, and
// its role may have been set up with hostile settings.
func testLeastPrivilege(t *testing.T, c *cluster) {
	login := c.slot // roles are shared by the tests on a server
	c.exec(t, "CREATE ROLE "+login+" LOGIN")
	t.Cleanup(func() {
		ctx := context.Background()
		conn, err := pgx.Connect(ctx, c.DSN)
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
		dsn := strings.Replace(c.DSN, "postgres@", login+"@", 1)
		return pg.Connect(ctx, pg.Options{DSN: dsn, LocalCommit: true}, expect)
	}
	_, err := newLease(t, cfg).Acquire(patient(t), func() {})
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
}

// While another instance leads, a lost connection is made again.
func testStandbyReconnects(t *testing.T, c *cluster) {
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
		tenure, err := l.Acquire(patient(t), func() { close(standing) })
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
}

func testAcquireEndsWithItsContext(t *testing.T, c *cluster) {
	acquire(t, newLease(t, c.quick()))
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := newLease(t, c.quick()).Acquire(ctx, cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire: %v, want context.Canceled", err)
	}
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
