package relay

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

// While nobody writes, probes show that the slot delivers; once the slot
// delivers nothing any more, the last sign of life grows old.
func TestProbesShowThatTheSlotDelivers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		board := pulse.NewBoard()
		r := newRelay(t, w, nil, func(c *Config) { c.ProbeEvery, c.Beats = 30*time.Second, board })
		stop := start(r)
		elapse(10*time.Minute + time.Second)
		synctest.Wait()
		if age := time.Since(r.Status().EventAt); age > 31*time.Second {
			t.Errorf("the last sign of life is %v old", age)
		}
		if n := testutil.CollectAndCount(r.m.probeRoundtrip); n != 1 {
			t.Errorf("%d histograms of the probes' round trips", n)
		}
		if diff := cmp.Diff([]pulse.Part{{Name: "line"}, {Name: "relay"}}, board.Parts()); diff != "" {
			t.Errorf("beats (-want +got):\n%s", diff)
		}

		w.deafen()
		before := r.Status().EventAt
		elapse(10 * time.Minute)
		synctest.Wait()
		if got := r.Status().EventAt; got.After(before.Add(time.Minute)) {
			t.Errorf("a sign of life at %v although nothing came after %v", got, before)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if parts := board.Parts(); len(parts) != 0 {
			t.Errorf("beats after the end: %v", parts)
		}
	})
}

func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		r := newRelay(t, w, nil, func(c *Config) { c.InflightEvents = 4 })
		if diff := cmp.Diff(Pace{}, r.Status().Pace); diff != "" {
			t.Errorf("before the first session:\n%s", diff)
		}
		stop := start(r)
		elapse(time.Minute)
		w.silence()
		w.commit(1, 2)
		synctest.Wait()
		begun := time.Now()
		elapse(time.Minute)
		if p := r.Status().Pace; p.InFlight != 2 || p.HeldBack || !p.MovedAt.Equal(begun) || !p.EventAt.Equal(begun) {
			t.Errorf("two events without an answer since %v: %+v", begun, p)
		}
		w.commit(3, 4, 5, 6)
		synctest.Wait()
		came := time.Now()
		elapse(time.Minute)
		if p := r.Status().Pace; p.InFlight != 4 || !p.HeldBack || !p.MovedAt.Equal(begun) || p.EventAt.After(came) {
			t.Errorf("as many as may be: %+v", p)
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(Pace{}, r.Status().Pace); diff != "" {
			t.Errorf("after the session:\n%s", diff)
		}
	})
}
