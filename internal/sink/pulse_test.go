package sink

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

// A worker that waits for a broker's answer works on it; all others rest.
func TestBeats(t *testing.T) {
	t.Parallel()
	board := pulse.NewBoard()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		sim.script = func(request) response { return response{delay: 5 * time.Second} }
		out := newRecorder()
		p := startSimulated(t, sim, out, func(_ *Config, d *Deps) { d.Pulse = board })
		check := func(when string, want ...pulse.Part) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(want, board.Parts()); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		check("idle", pulse.Part{Name: "topic watcher"})
		p.Publish(numbered("t", 1, 1))
		p.Flush()
		synctest.Wait()
		asked := time.Now()
		pass(t, 4*time.Second)
		check("before the answer", pulse.Part{Name: "partition worker", Since: asked}, pulse.Part{Name: "topic watcher"})
		pass(t, 2*time.Second)
		check("after it", pulse.Part{Name: "partition worker"}, pulse.Part{Name: "topic watcher"})
	})
	if parts := board.Parts(); len(parts) != 0 {
		t.Errorf("after the end: %v", parts)
	}
}
