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

// WatchSilence watches how long the walsender has been without a status of the
// relay. The returned function ends the watch and tells the longest time.
func (b *Bed) WatchSilence() (longest func() time.Duration) {
	conn := b.Conn()
	ctx, cancel := context.WithCancel(b.t.Context())
	most := make(chan time.Duration, 1)
	go func() {
		var longest time.Duration
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			var now time.Duration
			err := conn.QueryRow(ctx, `SELECT coalesce(max(clock_timestamp() - reply_time), '0')
				FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid WHERE s.slot_name = $1`, b.Slot).Scan(&now)
			if err == nil {
				longest = max(longest, now)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		most <- longest
	}()
	return func() time.Duration {
		cancel()
		return <-most
	}
}
