// Package fault describes conditions that a person must fix. They never end
// the process: the relay says so, stays alive and tries again slowly.
package fault

import (
	"errors"
	"fmt"
)

// Blocked is an error that only a person can clear.
type Blocked struct {
	// Reason is the id of the doctor check that describes the condition,
	// such as pub.exists; it is stable and a metric label.
	Reason string
	// What is wrong, in one sentence without secrets.
	What string
	// Remedy is what to do about it, in one sentence or command.
	Remedy string
	// Err is the cause, for errors.Is and errors.As; its text is not shown.
	Err error
}

func (b *Blocked) Error() string { return fmt.Sprintf("%s: %s; %s", b.Reason, b.What, b.Remedy) }

func (b *Blocked) Unwrap() error { return b.Err }

// AsBlocked returns the Blocked in err's chain, nil if there is none.
func AsBlocked(err error) *Blocked {
	var b *Blocked
	if errors.As(err, &b) {
		return b
	}
	return nil
}

// ErrFenced says that leadership is gone: another instance took the epoch, or
// the server is not the one this session was made on. Nothing that was learnt
// in the session may be used after it.
var ErrFenced = errors.New("fenced: this instance no longer leads the slot")
