package lease

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func testStaleLeaderIsFenced(t *testing.T, c *cluster) {
	for name, usurp := range map[string]func(*testing.T, *cluster){
		"another instance took over": func(t *testing.T, c *cluster) {
			c.setLease(t, "lease_until = NULL")
			acquire(t, newLease(t, c.quick()))
		},
		"the epoch was raised": func(t *testing.T, c *cluster) {
			c.exec(t, "UPDATE cdc_relay_slot SET epoch = epoch + 1 WHERE slot = $1", c.slot)
		},
		"the rows were deleted": func(t *testing.T, c *cluster) {
			c.exec(t, "DELETE FROM cdc_relay_lease WHERE slot = $1", c.slot)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := c.other(t, name)
			old := acquire(t, newLease(t, c.quick()))
			usurp(t, c)
			old.Offer(99)
			err := old.Run(patient(t), func(lsn pglogrepl.LSN) { t.Errorf("saved %v", lsn) })
			if !errors.Is(err, fault.ErrFenced) {
				t.Errorf("Run: %v, want ErrFenced", err)
			}
			if err := old.Permit(t.Context()); !errors.Is(err, fault.ErrFenced) {
				t.Errorf("Permit: %v, want ErrFenced", err)
			}
		})
	}
}

func testSavedPositionOnlyRises(t *testing.T, c *cluster) {
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
	// The next tenure starts again with what the slot repeats.
	if held, err := tenure.link.renew(t.Context(), 1, tenure.Session().Timeline, 0x50); err != nil || !held {
		t.Errorf("renewing: held %v, %v", held, err)
	}
	if r := c.row(t); r.Saved != "0/200" {
		t.Errorf("saved %s after a renewal with 0/50, want 0/200", r.Saved)
	}
	if err := tenure.Release(t.Context(), 0x180); err != nil {
		t.Errorf("Release: %v", err)
	}
	want := row{Epoch: 1, LeaseEpoch: 1, SameOwner: true, Released: true, Saved: "0/200", Timeline: int32(tenure.Session().Timeline)}
	if diff := cmp.Diff(want, c.row(t)); diff != "" {
		t.Errorf("rows after the release (-want +got):\n%s", diff)
	}
}

// The timeline changes together with the position: a crash right after a
// failover must not hide the failover.
func testTimelineOfTheSavedPosition(t *testing.T, c *cluster) {
	l := newLease(t, c.quick())
	if err := acquire(t, l).Release(t.Context(), 0x100); err != nil {
		t.Fatal(err)
	}
	c.setLease(t, "timeline = 77")
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
}

func testTenureSurvivesALostConnection(t *testing.T, c *cluster) {
	tenure := acquire(t, newLease(t, c.quick()))
	saved := make(chan pglogrepl.LSN)
	stop := start(t, tenure, func(lsn pglogrepl.LSN) { saved <- lsn })
	for _, lsn := range []pglogrepl.LSN{0x100, 0x200, 0x300} {
		tenure.Offer(lsn)
		<-saved
		// Run out as well: nobody took it.
		c.setLease(t, "lease_until = now() - interval '1 day'")
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
}

// A session that locks the lease row keeps renewals waiting; publishing goes
// on when it lets go. Renewals that were given up do not go on waiting in the
// server, a connection each.
func testLockedLeaseRow(t *testing.T, c *cluster) {
	cfg := c.quick()
	cfg.PublishWithin = 200 * time.Millisecond
	var connects atomic.Int32
	cfg.Connect = func(ctx context.Context, expect *event.Session) (*pgx.Conn, pg.Server, error) {
		connects.Add(1)
		return c.connect(ctx, expect)
	}
	tenure := acquire(t, newLease(t, cfg))
	tx, err := c.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM cdc_relay_lease WHERE slot = $1 FOR UPDATE", c.slot); err != nil {
		t.Fatal(err)
	}
	stop := start(t, tenure, ignore)
	pgtest.Eventually(t, "publishing to pause", func() bool { return !tenure.fresh() }, func() string { return "fresh" })
	var waiting int
	watch := c.Conn(t)
	pgtest.Eventually(t, "five connections, at most one of them still waiting", func() bool {
		err := watch.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND state = 'active'",
			"lease/"+c.slot).Scan(&waiting)
		return err == nil && waiting <= 1 && connects.Load() >= 5
	}, func() string { return fmt.Sprintf("%d connects, %d waiting", connects.Load(), waiting) })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := tenure.Permit(t.Context()); err != nil {
		t.Errorf("Permit: %v", err)
	}
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}
