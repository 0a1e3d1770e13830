package retrysched

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

func TestScheduleWithoutJitter(t *testing.T) {
	t.Parallel()
	p := Policy{Base: 5 * time.Second, MaxAttempts: 100, Random: func() float64 { return 0 }}
	var got []time.Duration
	for attempts := range int32(6) {
		d, failed := p.Next(attempts, event.Failure{Class: event.ClassRecord})
		if failed {
			t.Fatalf("failed after %d attempts of 100", attempts)
		}
		got = append(got, d)
	}
	const s = time.Second
	if diff := cmp.Diff([]time.Duration{5 * s, 10 * s, 20 * s, 40 * s, 40 * s, 40 * s}, got); diff != "" {
		t.Error(diff)
	}
}

func TestBudget(t *testing.T) {
	t.Parallel()
	p := Policy{Base: time.Second, MaxAttempts: 3, TopicMaxAttempts: 5, Random: func() float64 { return 0 }}
	endless := p
	endless.TopicMaxAttempts = 0
	for _, c := range []struct {
		name     string
		policy   Policy
		attempts int32
		failure  event.Failure
		failed   bool
	}{
		{"second failure of three", p, 1, event.Failure{Class: event.ClassRecord}, false},
		{"third failure of three", p, 2, event.Failure{Class: event.ClassRecord}, true},
		{"permanent at once", p, 0, event.Failure{Class: event.ClassRecord, Permanent: true}, true},
		{"fourth topic failure of five", p, 3, event.Failure{Class: event.ClassTopic}, false},
		{"fifth topic failure of five", p, 4, event.Failure{Class: event.ClassTopic}, true},
		{"topic without a budget", endless, 1 << 30, event.Failure{Class: event.ClassTopic}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if _, failed := c.policy.Next(c.attempts, c.failure); failed != c.failed {
				t.Errorf("failed = %t, want %t", failed, c.failed)
			}
		})
	}
}

func TestJitterStaysInItsShare(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		random float64
		want   time.Duration
	}{{0, 8 * time.Second}, {0.5, 10 * time.Second}, {1, 12 * time.Second}} {
		p := Policy{Base: 10 * time.Second, Jitter: 0.2, MaxAttempts: 10, Random: func() float64 { return c.random }}
		if got, _ := p.Next(0, event.Failure{Class: event.ClassRecord}); got != c.want {
			t.Errorf("random %v: %v, want %v", c.random, got, c.want)
		}
	}
}
