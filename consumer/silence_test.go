package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/nettest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// The tests of this file are about connections to PostgreSQL that die without a
// word, and renewals while others wait for locks.

// through makes the consumer reach its database by a network that can fail it.
// The test itself keeps its own way.
func (b *bed) through(changes ...func(*pgxpool.Config)) (n *nettest.Network) {
	b.t.Helper()
	b.setPool(func(conf *pgxpool.Config) {
		n = nettest.Postgres(b.t, &conf.ConnConfig.Config)
		for _, change := range changes {
			change(conf)
		}
	})
	return n
}

// noPings keeps the pool from finding out that a connection is dead before the
// statement that is to die on it.
func noPings(conf *pgxpool.Config) {
	conf.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
}

// setPool gives the consumer another pool than the test's.
func (b *bed) setPool(change func(*pgxpool.Config)) {
	b.t.Helper()
	conf := b.pool.Config()
	change(conf)
	pool, err := pgxpool.NewWithConfig(b.t.Context(), conf)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(pool.Close)
	b.c.cfg.DB = pool
}

// watched counts what is told of records and claims.
type watched struct {
	outcomes
	kept, missed atomic.Int64 // renewals of a claim
}

func newWatched() *watched { return &watched{outcomes: outcomes{counts: map[Outcome]int{}}} }

func (w *watched) Renewed(ok bool, n int) {
	if ok {
		w.kept.Add(int64(n))
	} else {
		w.missed.Add(int64(n))
	}
}

// want checks that all that was told of records is this, and that no claim was
// lost.
func (w *watched) want(t *testing.T, want map[Outcome]int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if diff := cmp.Diff(want, w.counts); diff != "" || w.n.Load() != 0 {
		t.Errorf("%d claims lost, outcomes (-want +got):\n%s", w.n.Load(), diff)
	}
}

// awaitRenewals waits until claims have been renewed n times more.
func (b *bed) awaitRenewals(w *watched, n int64) {
	b.t.Helper()
	from := w.kept.Load()
	pgtest.Eventually(b.t, fmt.Sprintf("%d renewals", n), func() bool { return w.kept.Load() >= from+n },
		func() string { return fmt.Sprintf("%d, %d failed; %s", w.kept.Load()-from, w.missed.Load(), b.state()) })
}

// ways are the two places where a claim is kept.
var ways = map[string][]Option{"rows": nil, "receipts": {Receipts("mail"), Horizon(time.Hour)}}

// kept is what is known of an event where its claim is kept.
func (b *bed) kept(id outbox.ID) row {
	b.t.Helper()
	if b.c.opt.purpose == "" {
		return b.row(id)
	}
	return b.receipt(id, b.c.opt.purpose)
}

// TestSilentDeathAtARenewal: all connections die while a handler runs, twice. The
// claim is renewed over a new one in time, so the handler does not
// notice.
func TestSilentDeathAtARenewal(t *testing.T) {
	t.Parallel()
	for name, opts := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, w := newGated(), newWatched()
			b := newBed(t, 18, g.handle, append(slices.Clone(opts), Lease(9*time.Second), Metrics(w))...)
			b.c.opt.statementWait = 2 * time.Minute // longer than the test waits: a ping must find out
			n := b.through()
			defer n.Close()
			id := b.put("a")[0]
			b.start()
			<-g.entered
			b.awaitRenewals(w, 1) // so that there is a connection for them
			for range 2 {
				if n.Silence() < 2 {
					t.Fatal("there are no connections for renewals and for all else")
				}
				b.awaitRenewals(w, 1)
			}
			if diff := cmp.Diff(row{outbox.Consuming, 1, 0, ""}, b.kept(id)); diff != "" {
				t.Errorf("claim (-want +got):\n%s", diff)
			}
			g.leave <- nil
			b.await(1)
			if diff := cmp.Diff(consumed(1), b.kept(id)); diff != "" {
				t.Errorf("event (-want +got):\n%s", diff)
			}
			w.want(t, map[Outcome]int{Consumed: 1})
		})
	}
}

// dying lets the network fail right before a statement is sent.
type dying struct {
	memory
	claim, done atomic.Pointer[func()] // nil: not then
}

func (d *dying) Claim(ctx context.Context, refs []store.Ref) ([]store.Claim, error) {
	once(&d.claim)
	return d.memory.Claim(ctx, refs)
}

func (d *dying) DoneNow(ctx context.Context, held []store.Held) (kept, locked []store.Held, err error) {
	once(&d.done)
	return d.memory.DoneNow(ctx, held)
}

// once calls a function that is there, once.
func once(fail *atomic.Pointer[func()]) {
	if f := fail.Swap(nil); f != nil {
		(*f)()
	}
}

// TestSilentDeathOfAStatement: of the one that claims, or that records the
// outcome, on its way to the server or back. It is repeated over a new
// connection; the handler is called once, and the outcome is recorded once.
func TestSilentDeathOfAStatement(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		at   func(*dying) *atomic.Pointer[func()]
		fail func(*nettest.Network)
		want row
	}{
		{"claim", atClaim, func(n *nettest.Network) { n.Silence() }, consumed(1)},
		// It was won, and is handed back as nobody knows of it.
		{"answer to a claim", atClaim, func(n *nettest.Network) { n.SilenceAnswers() }, consumed(2)},
		{"outcome", atDone, func(n *nettest.Network) { n.Silence() }, consumed(1)},
		{"answer to an outcome", atDone, func(n *nettest.Network) { n.SilenceAnswers() }, consumed(1)},
	} {
		for way, opts := range ways {
			t.Run(tc.name+", "+way, func(t *testing.T) {
				t.Parallel()
				var got calls
				w, d := newWatched(), &dying{}
				b := newBed(t, 18, func(_ context.Context, ev *Event) error {
					got.add(ev)
					return nil
				}, append(slices.Clone(opts), Metrics(w), Ambiguity(Hold))...)
				b.c.opt.statementWait = time.Second
				n := b.through(noPings)
				defer n.Close() // or a statement that hangs would keep the test from ending
				b.swap = func(m memory) memory {
					d.memory = m
					return d
				}
				b.start()
				ids := b.put("before") // makes the connection
				b.await(1)
				fail := func() { tc.fail(n) }
				tc.at(d).Store(&fail)
				ids = append(ids, b.put("then")...)
				b.await(2)
				ids = append(ids, b.put("after")...)
				b.await(3)
				for i, want := range []row{consumed(1), tc.want, consumed(1)} {
					if diff := cmp.Diff(want, b.kept(ids[i])); diff != "" {
						t.Errorf("event %d (-want +got):\n%s", i, diff)
					}
				}
				if diff := cmp.Diff(ids, got.all()); diff != "" {
					t.Errorf("handled (-want +got):\n%s", diff)
				}
				w.want(t, map[Outcome]int{Consumed: 3})
			})
		}
	}
}

func atClaim(d *dying) *atomic.Pointer[func()] { return &d.claim }
func atDone(d *dying) *atomic.Pointer[func()]  { return &d.done }

// TestSilentDeathInATransaction: when it begins, or of the commit of its effect,
// on its way to the server or back. The effect is there once. The server gives
// the transaction up by a time-out of its own.
func TestSilentDeathInATransaction(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name        string
		begin, fail func(*nettest.Network)
	}{
		{name: "begin", begin: func(n *nettest.Network) { n.Silence() }},
		{name: "commit", fail: func(n *nettest.Network) { n.Silence() }},
		{name: "answer to a commit", fail: func(n *nettest.Network) { n.SilenceAnswers() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var (
				n      *nettest.Network
				within atomic.Pointer[func()]
			)
			b := newBed(t, 18, func(context.Context, *Event) error { return nil })
			b.exec("ALTER DATABASE " + b.pool.Config().ConnConfig.Database + " SET idle_in_transaction_session_timeout = '1s'")
			n = b.through(noPings)
			defer n.Close()
			b.inTx(func(ctx context.Context, tx pgx.Tx, ev *Event) error {
				err := insertEffect(ctx, tx, ev)
				once(&within)
				return err
			})
			b.c.opt.statementWait = time.Second
			b.start()
			ids := b.put("before")
			b.await(1)
			if tc.begin != nil {
				tc.begin(n)
			} else {
				fail := func() { tc.fail(n) }
				within.Store(&fail)
			}
			ids = append(ids, b.put("then")...)
			b.await(2)
			for _, id := range ids {
				if r := b.receipt(id, "stock"); r.Status != outbox.Consumed || r.Attempts != 0 {
					t.Errorf("receipt %+v", r)
				}
			}
			if got := b.effects(); got != len(ids) {
				t.Errorf("%d effects of %d events", got, len(ids))
			}
		})
	}
}

// TestNetworkGoesAway: nothing answers, new connections neither, until it is
// back. What was begun meanwhile hangs no longer than it may.
func TestNetworkGoesAway(t *testing.T) {
	t.Parallel()
	g, w := newGated(), newWatched()
	b := newBed(t, 18, g.handle, Lease(3*time.Second), Metrics(w))
	b.c.opt.statementWait = time.Second
	n := b.through()
	defer n.Close()
	id := b.put("a")[0]
	b.start()
	<-g.entered
	b.awaitRenewals(w, 1)
	n.GoAway()
	b.awaitReason(WaitingDatabase) // the handler has ended before its lease, and that cannot be recorded
	n.ComeBack()
	b.awaitRenewals(w, 1) // of another attempt: not only claims and outcomes find their way
	g.leave <- nil
	b.await(1)
	if r := b.row(id); r.Status != outbox.Consumed {
		t.Errorf("row %+v", r)
	}
}

// beside starts another line of the consumer, with the record of one event in
// its log.
func (b *bed) beside(id outbox.ID) (*partition, *records) {
	b.t.Helper()
	log := &records{added: make(chan struct{})}
	log.add(b.record(id, "a"))
	p := newPartition(b.c, group.Assignment{Partition: group.Partition{Topic: "t", Number: 1}}, log)
	stop, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		p.run(nil, stop)
	}()
	b.t.Cleanup(func() {
		close(stop)
		<-gone
	})
	return p, log
}

// TestRenewalsBesideLockedRows: a person holds rows whose outcomes are to be
// recorded, until all connections wait for that. Other handlers keep their
// claims, beyond their leases.
func TestRenewalsBesideLockedRows(t *testing.T) {
	t.Parallel()
	const connections, lines = 2, 6
	var (
		failed atomic.Int32
		w      = newWatched()
		slow   = newGated()
		fast   = make(chan struct{})
	)
	b := newBed(t, 18, func(ctx context.Context, ev *Event) error {
		switch {
		case ev.AggregateID == "slow":
			return slow.handle(ctx, ev)
		case ev.Attempt == 1:
			failed.Add(1)
			select {
			case <-fast:
			case <-ctx.Done():
			}
			return errors.New("not now")
		}
		return nil
	}, Lease(6*time.Second), Metrics(w))
	b.setPool(func(conf *pgxpool.Config) { conf.MaxConns = connections })
	id := b.put("slow")[0]
	b.start()
	ids := b.rows(outbox.Sent, slices.Repeat([]string{"fast"}, lines)...)
	var others []*partition
	for _, id := range ids {
		p, _ := b.beside(id)
		others = append(others, p)
	}
	<-slow.entered
	pgtest.Eventually(t, "all handlers to run", func() bool { return failed.Load() == lines }, b.state)
	person, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer person.Rollback(context.WithoutCancel(t.Context()))
	if _, err := person.Exec(t.Context(), `SELECT FROM outbox WHERE event_id = ANY($1) FOR UPDATE`, ids); err != nil {
		t.Fatal(err)
	}
	close(fast)
	pgtest.Eventually(t, "all connections to wait for locks", func() bool {
		var n int
		err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
		return err == nil && n == connections
	}, b.state)
	b.awaitRenewals(w, 4) // of the slow one alone, for longer than its first lease
	b.want(id, row{outbox.Consuming, 1, 0, ""})
	if err := person.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	slow.leave <- nil
	b.await(1)
	b.want(id, consumed(1))
	for i, id := range ids {
		pgtest.Eventually(t, "the others", func() bool { return others[i].position.Load() == 1 }, b.state)
		b.want(id, row{outbox.Consumed, 2, 1, ""})
	}
	w.want(t, map[Outcome]int{Consumed: 1 + lines, FailedSystem: lines})
}
