package harness

import (
	"context"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
)

// Gauges holds the highest values that were seen of some gauges.
type Gauges struct {
	mu  sync.Mutex
	max map[string]float64
}

// Max is the highest value seen so far.
func (g *Gauges) Max(name string) float64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.max[name]
}

// Watch reads gauges of a relay's /statusz again and again until the test ends.
func (b *Bed) Watch(r *Relay, names ...string) *Gauges {
	g := &Gauges{max: map[string]float64{}}
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if s, err := relayproc.ReadStatus(ctx, r.addr); err == nil {
				g.note(s.Counters, names)
			}
		}
	}()
	b.t.Cleanup(func() {
		cancel()
		<-done
	})
	return g
}

func (g *Gauges) note(values map[string]float64, names []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, n := range names {
		g.max[n] = max(g.max[n], values[n])
	}
}
