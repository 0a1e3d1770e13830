package consumer

import (
	"errors"
	"fmt"
	"time"
)

// Errors of [Claims], [Claim] and of handlers.
var (
	// ErrConsumed: the event has its outcome, CONSUMED or FAILED at a consumer;
	// there is nothing left to do.
	ErrConsumed = errors.New("the event is consumed already")
	// ErrClaimed: another attempt holds the event, see [ClaimedError], or a
	// failed one is to be repeated later.
	ErrClaimed = errors.New("the event is claimed or delayed")
	// ErrNotSent: the relay has not written SENT yet, or has been asked to
	// publish the event again.
	ErrNotSent = errors.New("the event is not SENT yet")
	// ErrFailed: the event is FAILED before it was published, or became so just
	// now, as its attempts end without an outcome.
	ErrFailed = errors.New("the event is FAILED")
	// ErrMissing: there is no such row.
	ErrMissing = errors.New("no row has this id and event id")
	// ErrClaimLost: the lease ran out and somebody else has the event, or had
	// it. What was to be written was not.
	ErrClaimLost = errors.New("the claim is lost")
	// ErrNotStarted is for a handler to return if its context ended before it
	// did anything: the attempt does not count.
	ErrNotStarted = errors.New("the handler did not start")
	// ErrDigestChanged: the effect was begun before with another request.
	ErrDigestChanged = errors.New("an earlier attempt began its effect with another request")
)

// ClaimedError is an [ErrClaimed] with the time until which to wait.
type ClaimedError struct {
	// Left is how long the claim's lease or the delay lasts.
	Left time.Duration
	// Delayed tells a delay from a live claim.
	Delayed bool
}

// Error tells how long to wait.
func (e *ClaimedError) Error() string {
	if e.Delayed {
		return fmt.Sprintf("the event is to be tried again in %v", e.Left.Round(time.Millisecond))
	}
	return fmt.Sprintf("another attempt holds the event for %v", e.Left.Round(time.Millisecond))
}

// Is makes it an ErrClaimed.
func (*ClaimedError) Is(target error) bool { return target == ErrClaimed }

// Verdict is what a handler's error says about the event.
type verdict int

const (
	system    verdict = iota // SENT, with the policy's delay
	data                     // FAILED
	ambiguous                // the policy decides
	delayed                  // SENT, with a delay of the handler's
	doubtful                 // FAILED, as the effect is in doubt
)

// outcomeError carries a verdict.
type outcomeError struct {
	verdict verdict
	code    string        // data
	delay   time.Duration // delayed
	err     error
}

func (e *outcomeError) Error() string { return e.err.Error() }
func (e *outcomeError) Unwrap() error { return e.err }

// DataError says that no repetition will help: the event becomes FAILED and
// waits for a person, later ones go on. The code is the application's, APP_ and
// capital letters, digits or underscores, at most 60 bytes; any other becomes
// CONSUMER_DATA. err goes to the log only.
func DataError(code string, err error) error {
	return &outcomeError{verdict: data, code: code, err: orUnknown(err)}
}

// SystemError says that something the event needs does not work: the event is
// tried again later. Any error that says nothing else is one.
func SystemError(err error) error { return &outcomeError{verdict: system, err: orUnknown(err)} }

// Ambiguous says that the effect may or may not have happened, such as a request
// without an answer: the policy of [Ambiguity] decides.
func Ambiguous(err error) error { return &outcomeError{verdict: ambiguous, err: orUnknown(err)} }

// InDoubt says that the effect is in doubt and no repetition can clear it: the
// event becomes FAILED with CONSUMER_AMBIGUOUS, whatever the policy is.
func InDoubt(err error) error { return &outcomeError{verdict: doubtful, err: orUnknown(err)} }

// Delay says when to try again, such as after a provider's Retry-After.
func Delay(d time.Duration, err error) error {
	return &outcomeError{verdict: delayed, delay: max(d, 0), err: orUnknown(err)}
}

func orUnknown(err error) error {
	if err == nil {
		return errors.New("no reason given")
	}
	return err
}
