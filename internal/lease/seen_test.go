package lease

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

func TestSeenAtFollowsRenewals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Lease
		if !l.SeenAt().IsZero() {
			t.Errorf("seen at %v before the first answer", l.SeenAt())
		}
		read := time.Now()
		l.seen.read.Store(&read)
		if !l.SeenAt().Equal(read) {
			t.Errorf("seen at %v, want the time of the look, %v", l.SeenAt(), read)
		}

		<-time.After(time.Second)
		tenure, f := newTenure(t)
		tenure.cfg.Pulse = pulse.NewBoard()
		won := time.Now()
		l.seen.tenure.Store(tenure)
		stop := run(t, tenure, ignore)
		<-time.After(defaults.RenewInterval - time.Nanosecond)
		if !l.SeenAt().Equal(won) {
			t.Errorf("seen at %v, want when the lease was won, %v", l.SeenAt(), won)
		}
		if diff := cmp.Diff([]pulse.Part{{Name: "lease"}}, tenure.cfg.Pulse.Parts()); diff != "" {
			t.Errorf("between two renewals it rests:\n%s", diff)
		}
		<-time.After(time.Nanosecond)
		synctest.Wait()
		if want := won.Add(defaults.RenewInterval); !l.SeenAt().Equal(want) {
			t.Errorf("seen at %v, want the renewal, %v", l.SeenAt(), want)
		}

		f.set(func(f *fakeServer) { f.hang = true })
		<-time.After(defaults.RenewInterval)
		synctest.Wait()
		if want := won.Add(defaults.RenewInterval); !l.SeenAt().Equal(want) {
			t.Errorf("seen at %v, want the last renewal that was answered, %v", l.SeenAt(), want)
		}
		if parts := tenure.cfg.Pulse.Parts(); len(parts) != 1 || !parts[0].Since.Equal(time.Now()) {
			t.Errorf("while it waits for an answer it works: %v", parts)
		}
		f.set(func(f *fakeServer) { f.hang = false })
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if err := tenure.Release(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if !l.SeenAt().Equal(read) || len(tenure.cfg.Pulse.Parts()) != 0 {
			t.Errorf("after the end: seen at %v, parts %v", l.SeenAt(), tenure.cfg.Pulse.Parts())
		}
	})
}

func testStandbyTellsWhenItLooked(t *testing.T, c *cluster) {
	leader := newLease(t, c.quick())
	before := time.Now()
	tenure := acquire(t, leader)
	if leader.SeenAt().Before(before) {
		t.Errorf("the leader saw the lease at %v, before it was won", leader.SeenAt())
	}
	cfg := c.quick()
	cfg.Pulse = pulse.NewBoard()
	standby := newLease(t, cfg)
	ended := make(chan error, 1)
	go func() {
		second, err := standby.Acquire(patient(t), func() {})
		if err == nil {
			second.unlink()
		}
		ended <- err
	}()
	looks := map[time.Time]bool{}
	pgtest.Eventually(t, "three looks at the lease", func() bool {
		looks[standby.SeenAt()] = true
		return len(looks) > 3
	}, func() string { return "" })
	if parts := cfg.Pulse.Parts(); len(parts) != 1 || parts[0].Name != "lease" {
		t.Errorf("parts %v", parts)
	}
	if err := tenure.Release(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("Acquire: %v", err)
	}
}
