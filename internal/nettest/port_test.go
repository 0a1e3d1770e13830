package nettest

import (
	"sync"
	"testing"
)

// TestFreePortsDiffer: with 1,500 of 10,000 a repetition is certain unless it is
// prevented.
func TestFreePortsDiffer(t *testing.T) {
	t.Parallel()
	const workers, each = 4, 375
	var mu sync.Mutex
	seen := map[int]bool{}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				port, err := FreePort()
				mu.Lock()
				if err != nil || seen[port] || port < 10000 || port >= 20000 {
					t.Errorf("port %d, seen %v: %v", port, seen[port], err)
				}
				seen[port] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}
