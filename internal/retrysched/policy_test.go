package retrysched

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

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

// Whatever the policy: the delay doubles three times and stays within its
// jitter, and an event fails when its budget is used up, not before, and for
// good.
func TestPolicy(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		random := rapid.Float64Range(0, 1).Draw(t, "random")
		p := Policy{
			Base:             time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "base")),
			Jitter:           rapid.Float64Range(0, 0.5).Draw(t, "jitter"),
			MaxAttempts:      rapid.Int32Range(1, 20).Draw(t, "attempts"),
			TopicMaxAttempts: rapid.Int32Range(0, 20).Draw(t, "topic attempts"),
			Random:           func() float64 { return random },
		}
		f := event.Failure{
			Class:     rapid.SampledFrom([]event.Class{event.ClassRecord, event.ClassTopic}).Draw(t, "class"),
			Permanent: rapid.Bool().Draw(t, "permanent"),
		}
		budget := p.MaxAttempts
		if f.Class == event.ClassTopic {
			budget = p.TopicMaxAttempts
		}
		exact := p.Base
		for before := range int32(25) {
			delay, failed := p.Next(before, f)
			if want := f.Permanent || budget != 0 && before+1 >= budget; failed != want {
				t.Fatalf("failure %d of %d: failed = %t, want %t", before+1, budget, failed, want)
			}
			spread := time.Duration(p.Jitter*float64(exact)) + 1
			if !failed && (delay < exact-spread || delay > exact+spread) {
				t.Fatalf("failure %d: %v, want %v ± %v", before+1, delay, exact, spread)
			}
			if before < 3 {
				exact *= 2
			}
		}
	})
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	policy := func(base time.Duration, attempts int32) Policy {
		return Policy{Base: base, MaxAttempts: attempts, TopicMaxAttempts: 100, Random: func() float64 { return 0 }}
	}
	p, err := NewPolicies(TypePolicy{policy(5*time.Second, 10), true}, map[string]TypePolicy{
		"audit": {policy(time.Second, 3), false},
		"order": {policy(time.Minute, 5), true},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		aggregateType string
		block         bool
		delay         time.Duration // after the first failure
		failedAfter   int32         // failures
	}{
		{"audit", false, time.Second, 3},
		{"order", true, time.Minute, 5},
		{"customer", true, 5 * time.Second, 10},
		{"Audit", true, 5 * time.Second, 10},
		{"", true, 5 * time.Second, 10},
	} {
		t.Run("type "+test.aggregateType, func(t *testing.T) {
			t.Parallel()
			kind, block := p.Of([]byte(test.aggregateType))
			if block != test.block {
				t.Errorf("block = %t, want %t", block, test.block)
			}
			record := event.Failure{Class: event.ClassRecord}
			if delay, failed := p.Next(kind, 0, record); delay != test.delay || failed {
				t.Errorf("first failure: %v, failed = %t; want %v", delay, failed, test.delay)
			}
			for before := range test.failedAfter + 2 {
				if _, failed := p.Next(kind, before, record); failed != (before+1 >= test.failedAfter) {
					t.Errorf("failure %d: failed = %t", before+1, failed)
				}
			}
			if _, failed := p.Next(kind, 98, event.Failure{Class: event.ClassTopic}); failed {
				t.Error("99 failures of the topic use up a budget of 100")
			}
		})
	}
}

func TestPoliciesAreForSoManyTypes(t *testing.T) {
	t.Parallel()
	byType := map[string]TypePolicy{}
	for i := range maxTypes {
		byType[fmt.Sprint(i)] = TypePolicy{Policy: Policy{MaxAttempts: int32(i + 2), Random: rand.Float64}, Block: i%2 == 0}
	}
	p, err := NewPolicies(TypePolicy{Policy: Policy{MaxAttempts: 1}}, byType)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maxTypes {
		kind, block := p.Of([]byte(fmt.Sprint(i)))
		if _, failed := p.Next(kind, int32(i+1), event.Failure{}); !failed || block != (i%2 == 0) || p.list[kind].MaxAttempts != int32(i+2) {
			t.Fatalf("type %d has policy %d: %+v", i, kind, p.list[kind])
		}
	}
	byType["one more"] = TypePolicy{}
	if _, err := NewPolicies(TypePolicy{}, byType); err == nil {
		t.Errorf("%d types are accepted", len(byType))
	}
}

// The line asks for the policy of each event.
func TestPolicyOfDoesNotAllocate(t *testing.T) {
	p, err := NewPolicies(TypePolicy{}, map[string]TypePolicy{"order": {}})
	if err != nil {
		t.Fatal(err)
	}
	name := []byte("customer")
	if n := testing.AllocsPerRun(100, func() { p.Of(name) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
