package retrysched

import (
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Policy is the schedule of retries: base × 2^min(attempt, 3), at most
// base × 10, plus or minus jitter. A base of 5 s without jitter waits 5, 10,
// 20, 40, 40, ... seconds.
type Policy struct {
	Base   time.Duration
	Jitter float64 // share of the delay, 0 to 0.5
	// MaxAttempts of a record's own failures, after which it is FAILED.
	MaxAttempts int32
	// TopicMaxAttempts of failures of its topic; 0 never gives up.
	TopicMaxAttempts int32
	// Random returns a number in [0, 1).
	Random func() float64
}

// Next returns the delay before the next attempt, or failed = true when the
// budget is used up or the failure is permanent. attempts counts the failures
// before this one.
func (p Policy) Next(attempts int32, f event.Failure) (delay time.Duration, failed bool) {
	budget := p.MaxAttempts
	if f.Class == event.ClassTopic {
		budget = p.TopicMaxAttempts
	}
	if f.Permanent || (budget > 0 && attempts+1 >= budget) {
		return 0, true
	}
	delay = min(p.Base<<min(attempts, 3), p.Base*10)
	spread := (2*p.Random() - 1) * p.Jitter
	return delay + time.Duration(spread*float64(delay)), false
}

// Policies are the policies of aggregate types. They do not change, so they
// are safe for concurrent use.
type Policies struct {
	byType map[string]uint8
	list   []TypePolicy // the first one is for all types that are not named
}

// TypePolicy is what happens to failed events of an aggregate type.
type TypePolicy struct {
	Policy
	// Block lets later events of an aggregate wait for a parked one.
	Block bool
}

// maxTypes is how many types may have a policy of their own.
const maxTypes = 255

// NewPolicies returns the policies of the named types and of all others.
func NewPolicies(others TypePolicy, byType map[string]TypePolicy) (*Policies, error) {
	if len(byType) > maxTypes {
		return nil, fmt.Errorf("policies for %d aggregate types, at most %d may have one", len(byType), maxTypes)
	}
	p := &Policies{list: []TypePolicy{others}, byType: map[string]uint8{}}
	for name, policy := range byType {
		p.byType[name] = uint8(len(p.list))
		p.list = append(p.list, policy)
	}
	return p, nil
}

// Of returns the number of the policy for a type, and whether later events of
// an aggregate of that type wait for a parked one.
func (p *Policies) Of(aggregateType []byte) (kind uint8, block bool) {
	if len(p.byType) > 0 {
		kind = p.byType[string(aggregateType)]
	}
	return kind, p.list[kind].Block
}

// Next is Policy.Next of the policy with that number.
func (p *Policies) Next(kind uint8, attempts int32, f event.Failure) (delay time.Duration, failed bool) {
	return p.list[kind].Next(attempts, f)
}
