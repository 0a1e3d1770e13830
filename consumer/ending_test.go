package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// gated is a handler that stays in each event until it is let go.
type gated struct {
	calls
	entered chan *Event
	leave   chan error // one for each event
	// deaf handlers do not hear that their context has ended.
	deaf bool
}

func newGated() *gated {
	return &gated{entered: make(chan *Event, 100), leave: make(chan error, 100)}
}

func (g *gated) handle(ctx context.Context, ev *Event) error {
	g.add(ev)
	g.entered <- ev
	if g.deaf {
		return <-g.leave
	}
	select {
	case err := <-g.leave:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func TestRevokedWithinTheGrace(t *testing.T) {
	t.Parallel()
	g := newGated()
	b := newBed(t, 18, g.handle, RevokeGrace(maxGrace))
	ids := b.put(numbered(3)...)
	b.start()
	<-g.entered
	b.revoke()
	g.leave <- nil
	<-b.gone
	<-b.p.released
	if got := b.p.position.Load(); got != 1 {
		t.Errorf("position %d, want 1: what is behind was not started", got)
	}
	b.want(ids[0], consumed(1))
	for _, id := range ids[1:] {
		if r := b.row(id); r.Status != outbox.Sent || r.Attempts != 0 {
			t.Errorf("row %+v, want SENT without an attempt", r)
		}
	}
}

// TestRevokedOverTheGrace: the group does not wait for a slow handler, which
// runs on under its claim; its offset is for the next owner.
func TestRevokedOverTheGrace(t *testing.T) {
	t.Parallel()
	g := newGated()
	b := newBed(t, 18, g.handle, RevokeGrace(10*time.Millisecond), Lease(3*time.Second))
	id := b.put("a")[0]
	b.start()
	<-g.entered
	b.revoke()
	<-b.p.released
	if got := b.p.position.Load(); got != 0 {
		t.Errorf("position %d, want 0", got)
	}
	// Beyond the lease: the claim is renewed all the same.
	pgtest.Eventually(t, "a renewal after the first lease", func() bool {
		var renewed bool
		err := b.pool.QueryRow(t.Context(), `SELECT lease_until > sent_at + interval '8 seconds' FROM outbox`).Scan(&renewed)
		return err == nil && renewed
	}, b.state)
	b.want(id, row{outbox.Consuming, 1, 0, ""})
	g.leave <- nil
	<-b.gone
	b.want(id, consumed(1))
}

func TestClaimsThatWereNotStartedAreHandedBack(t *testing.T) {
	t.Parallel()
	g := newGated()
	b := newBed(t, 18, g.handle, RevokeGrace(maxGrace))
	b.start()
	first := b.put("a")
	<-g.entered
	g.leave <- nil
	b.await(1) // now it is known how long a handler takes, and more is claimed
	rest := b.put(numbered(20)...)
	<-g.entered
	pgtest.Eventually(t, "claims ahead", func() bool {
		var n int
		err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE send_status = 5`).Scan(&n)
		return err == nil && n > 1
	}, b.state)
	b.revoke()
	g.leave <- nil
	<-b.gone
	b.want(first[0], consumed(1))
	b.want(rest[0], consumed(1))
	for _, id := range rest[1:] {
		if r := b.row(id); r.Status != outbox.Sent || r.Attempts != 0 || r.Code != "" {
			t.Errorf("row %+v, want SENT as if it had never been claimed", r)
		}
	}
}

func TestStopDrains(t *testing.T) {
	t.Parallel()
	g := newGated()
	b := newBed(t, 18, g.handle, Drain(time.Hour))
	ids := b.put("a", "b")
	b.start()
	<-g.entered
	b.stop()
	g.leave <- nil
	<-b.gone
	b.want(ids[0], consumed(1))
	if r := b.row(ids[1]); r.Status != outbox.Sent || r.Attempts != 0 {
		t.Errorf("row %+v, want SENT without an attempt", r)
	}
	if got := b.p.position.Load(); got != 1 {
		t.Errorf("position %d, want 1", got)
	}
}

// TestNothingStartsAtAStop, nor when the partition is revoked: a claim came back at
// the same time. Its handler was started now and then, and a stop waited for it.
func TestNothingStartsAtAStop(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	close(over)
	for name, run := range map[string]func(*partition){
		"stop":   func(p *partition) { p.run(nil, over) },
		"revoke": func(p *partition) { p.run(over, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 50 {
				var got calls
				c, err := New(Config{Brokers: []string{"127.0.0.1:1"}, Group: "g", Topics: []string{"t"}, DB: &pgxpool.Pool{}},
					func(_ context.Context, ev *Event) error { got.add(ev); return ErrNotStarted })
				if err != nil {
					t.Fatal(err)
				}
				s := &silent{mended: true}
				c.memory, c.engine, c.working, c.handling = s, claiming{c}, t.Context(), t.Context()
				p := newPartition(c, group.Assignment{Partition: group.Partition{Topic: "t"}}, &records{added: make(chan struct{})})
				it := c.item(group.Record{Headers: headers("ce_id", outbox.NewID().String())})
				it.lend(acquiring)
				p.window, p.claiming = []*item{it}, true
				c.hold(it, store.Claim{Ref: it.ref(), Generation: 1}, time.Now())
				p.acquired <- []*item{it}
				run(p)
				if len(got.all()) != 0 || len(s.handedBack) != 1 {
					t.Fatalf("%d calls, %d claims handed back", len(got.all()), len(s.handedBack))
				}
			}
		})
	}
}

func TestStopEndsWhatDoesNotDrain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		leave func(context.Context) error
		want  row
	}{
		"an error":    {context.Cause, row{outbox.Sent, 1, 1, "CONSUMER_AMBIGUOUS"}},
		"not started": {func(context.Context) error { return ErrNotStarted }, row{outbox.Sent, 1, 0, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			entered := make(chan struct{})
			b := newBed(t, 18, func(ctx context.Context, _ *Event) error {
				close(entered)
				<-ctx.Done()
				return tc.leave(ctx)
			}, Drain(10*time.Millisecond), RevokeGrace(maxGrace))
			id := b.put("a")[0]
			b.start()
			<-entered
			b.stop()
			<-b.gone
			b.want(id, tc.want)
			if got := b.p.position.Load(); got != 0 {
				t.Errorf("position %d, want 0", got)
			}
		})
	}
}

// TestStaleOwnerChangesNothing: its claim was taken over while it ran.
func TestStaleOwnerChangesNothing(t *testing.T) {
	t.Parallel()
	for name, returns := range map[string]error{
		"success": nil, "system error": errors.New("x"), "data error": DataError("APP_X", errors.New("x")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGated()
			g.deaf = true
			b := newBed(t, 18, g.handle)
			id := b.put("a")[0]
			b.start()
			<-g.entered
			b.exec(`UPDATE outbox SET claim_generation = 2, claimed_by = 'another', lease_until = clock_timestamp() + interval '1 hour'`)
			g.leave <- returns
			b.awaitReason(WaitingClaim)
			b.want(id, row{outbox.Consuming, 2, 0, ""})
			b.exec(`UPDATE outbox SET send_status = 4, finished_at = now(), lease_until = NULL`)
			b.await(1)
			b.want(id, consumed(2))
			if len(g.all()) != 1 {
				t.Errorf("%d calls", len(g.all()))
			}
		})
	}
}

func TestLostClaimEndsTheContext(t *testing.T) {
	t.Parallel()
	g := newGated()
	var lost lostClaims
	b := newBed(t, 18, g.handle, Lease(3*time.Second), Metrics(&lost))
	b.put("a")
	b.start()
	<-g.entered
	b.exec(`UPDATE outbox SET claim_generation = 2, claimed_by = 'another', lease_until = clock_timestamp() + interval '1 hour'`)
	b.awaitReason(WaitingClaim) // the handler has returned: only its context told it to
	if n := lost.n.Load(); n != 1 {
		t.Errorf("one claim was lost, %d were counted", n)
	}
}

// lostClaims counts them.
type lostClaims struct {
	nobody
	n atomic.Int32
}

func (l *lostClaims) ClaimLost() { l.n.Add(1) }

func TestLanes(t *testing.T) {
	t.Parallel()
	const lanes, keys, each = 8, 20, 5
	var (
		mu      sync.Mutex
		running = map[string]int{}
		most    int
		order   = map[string][]outbox.ID{}
		open    sync.Once
		gate    = make(chan struct{})
	)
	b := newBed(t, 18, func(_ context.Context, ev *Event) error {
		mu.Lock()
		running[ev.AggregateID]++
		most = max(most, len(running))
		if running[ev.AggregateID] > 1 {
			t.Errorf("two handlers of key %s at once", ev.AggregateID)
		}
		order[ev.AggregateID] = append(order[ev.AggregateID], ev.ID)
		if len(running) == lanes {
			open.Do(func() { close(gate) })
		}
		mu.Unlock()
		<-gate // until all lanes are in use
		mu.Lock()
		defer mu.Unlock()
		if running[ev.AggregateID]--; running[ev.AggregateID] == 0 {
			delete(running, ev.AggregateID)
		}
		return nil
	}, Concurrency(lanes))
	names := make([]string, 0, keys*each)
	for range each {
		for k := range keys {
			names = append(names, strconv.Itoa(k))
		}
	}
	ids := b.put(names...)
	b.start()
	b.await(int64(len(names)))
	if most != lanes {
		t.Errorf("at most %d handlers ran at once, want %d", most, lanes)
	}
	for k := range keys {
		var want []outbox.ID
		for i := range each {
			want = append(want, ids[i*keys+k])
		}
		if diff := cmp.Diff(want, order[strconv.Itoa(k)]); diff != "" {
			t.Errorf("key %d (-want +got):\n%s", k, diff)
		}
	}
}

// TestHoldClaimsNothingAhead: should the process die, only events that handlers
// have had are in doubt.
func TestHoldClaimsNothingAhead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		concurrency, running int
		keys                 []string
	}{
		{1, 1, []string{"a", "b", "c"}},
		{3, 3, []string{"a", "a", "b", "c", "d"}},
		{4, 2, []string{"a", "a", "b", "b", "b"}},
	} {
		t.Run(fmt.Sprintf("%d of %v", c.concurrency, c.keys), func(t *testing.T) {
			t.Parallel()
			g := newGated()
			b := newBed(t, 18, g.handle, Concurrency(c.concurrency), Ambiguity(Hold))
			known := numbered(8) // it is known by then that handlers are fast
			for range known {
				g.leave <- nil
			}
			b.put(known...)
			b.start()
			b.await(int64(len(known)))
			for range known {
				<-g.entered
			}
			ids := b.rows(outbox.Sent, c.keys...)
			list := make([]group.Record, len(ids))
			for i, id := range ids {
				list[i] = b.record(id, c.keys[i])
			}
			b.log.add(list...)
			for range c.running {
				<-g.entered
			}
			var claimed int
			err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE send_status = 5`).Scan(&claimed)
			if err != nil || claimed != c.running {
				t.Errorf("%d claimed, %v, while %d handlers run", claimed, err, c.running)
			}
			for range ids {
				g.leave <- nil
			}
			b.await(int64(len(known) + len(ids)))
			for _, id := range ids {
				b.want(id, consumed(1)) // none was claimed and handed back
			}
		})
	}
}

// TestOneKeyThatFailsDoesNotHoldUpOthers: it waits, its offset stays, and later
// events of its key wait behind it.
func TestOneKeyThatFailsDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	var got calls
	refused := errors.New("refused")
	var poison outbox.ID
	b := newBed(t, 18, func(_ context.Context, ev *Event) error {
		if ev.ID == poison {
			return refused
		}
		got.add(ev)
		return nil
	}, Concurrency(4), Window(1200))
	keys := append([]string{"bad", "bad"}, numbered(1000)...)
	ids := b.rows(outbox.Sent, keys...)
	poison = ids[0]
	for i, id := range ids {
		b.log.add(b.record(id, keys[i]))
	}
	b.start()
	pgtest.Eventually(t, "all others", func() bool { return len(got.all()) == 1000 }, b.state)
	if slices.Contains(got.all(), ids[1]) {
		t.Error("a later event of the key passed the failed one")
	}
	if p := b.p.position.Load(); p != 0 {
		t.Errorf("position %d, want 0", p)
	}
	pgtest.Eventually(t, "the others' rows", func() bool {
		var n int
		err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE send_status = 4`).Scan(&n)
		return err == nil && n == 1000
	}, b.state)
}

// TestDatabaseAway: nothing is acknowledged, nothing is lost, the line lives.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	g := newGated()
	b := newBed(t, 18, g.handle, Lease(3*time.Second))
	ids := b.put("a", "b")
	b.start()
	<-g.entered
	b.connections(false)
	defer b.connections(true)
	g.leave <- nil
	b.awaitReason(WaitingDatabase) // the lease is over, the outcome unknown
	if p := b.p.position.Load(); p != 0 {
		t.Errorf("position %d while nothing is recorded", p)
	}
	b.connections(true)
	for range 2 {
		g.leave <- nil
	}
	b.await(2)
	for _, id := range ids { // how often each had to be claimed is a matter of timing
		if r := b.row(id); r.Status != outbox.Consumed {
			t.Errorf("row %+v", r)
		}
	}
}

// connections lets the database have connections, or ends all it has.
func (b *bed) connections(allowed bool) {
	b.t.Helper()
	ctx := context.WithoutCancel(b.t.Context())
	admin, err := pgx.Connect(ctx, pgtest.Env(b.t, "CDC_TEST_PG18_DSN"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer admin.Close(ctx)
	name := b.pool.Config().ConnConfig.Database
	if _, err := admin.Exec(ctx, fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS %v", name, allowed)); err != nil {
		b.t.Fatal(err)
	}
	if !allowed {
		if _, err := admin.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, name); err != nil {
			b.t.Fatal(err)
		}
	}
}

func TestEffectBesideTheClaimedRow(t *testing.T) {
	t.Parallel()
	for name, commit := range map[string]bool{"committed": true, "rolled back": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var b *bed
			done := false
			b = newBed(t, 18, func(ctx context.Context, ev *Event) error {
				tx, err := b.pool.Begin(ctx)
				if err != nil {
					return err
				}
				defer tx.Rollback(context.WithoutCancel(ctx))
				if _, err := tx.Exec(ctx, `INSERT INTO effect VALUES ($1)`, ev.ID); err != nil {
					return err
				}
				if err := ev.Claim.ConsumedTx(ctx, tx); err != nil {
					return err
				}
				if !commit && !done {
					done = true
					return nil // forgot to commit
				}
				return tx.Commit(ctx)
			})
			b.exec(`CREATE TABLE effect (id uuid PRIMARY KEY)`)
			id := b.put("a")[0]
			b.start()
			b.await(1)
			want := consumed(1)
			if !commit {
				want = row{outbox.Consumed, 2, 1, ""}
			}
			got := b.row(id)
			got.Attempts, want.Attempts = min(got.Attempts, 1), min(want.Attempts, 1)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("row (-want +got):\n%s", diff)
			}
			var n int
			if err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM effect`).Scan(&n); err != nil || n != 1 {
				t.Errorf("%d effects, %v", n, err)
			}
		})
	}
}
