package consumer

import (
	"testing"
	"time"
)

func TestRetryDelay(t *testing.T) {
	t.Parallel()
	s := time.Second
	p := RetryPolicy{Base: s, Max: 60 * s}
	for i, want := range []time.Duration{s, 2 * s, 4 * s, 8 * s, 16 * s, 32 * s, 60 * s, 60 * s} {
		if got := p.delay(i + 1); got != want {
			t.Errorf("attempt %d: %v, want %v", i+1, got, want)
		}
	}
	if got := p.delay(1_000_000); got != 60*s {
		t.Errorf("attempt 1,000,000: %v", got)
	}
	if got := (RetryPolicy{Base: s, Max: s}).delay(5); got != s {
		t.Errorf("a constant delay: %v", got)
	}
}

func TestRetryDelaySpreads(t *testing.T) {
	t.Parallel()
	p := RetryPolicy{Base: time.Second, Max: time.Minute, Jitter: 0.2}
	seen := map[time.Duration]bool{}
	for range 1000 {
		d := p.delay(2)
		if d < 1600*time.Millisecond || d > 2400*time.Millisecond {
			t.Fatalf("%v is not 2 s more or less by a fifth", d)
		}
		seen[d] = true
	}
	if len(seen) < 100 {
		t.Errorf("only %d different delays in 1000", len(seen))
	}
}
