package retrysched

import (
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
