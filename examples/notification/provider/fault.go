package provider

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Action is what a fault does to a request.
type Action string

// Actions. Those with "accept" in their names do it after the message is
// accepted, the others instead of that, except Slow.
const (
	// Refuse resets the connection; nothing is accepted.
	Refuse Action = "refuse"
	// AcceptReset accepts, then resets the connection.
	AcceptReset Action = "accept_reset"
	// AcceptHang accepts, then answers after the wait; without one it never
	// does and lets the client leave.
	AcceptHang Action = "accept_hang"
	// Status answers with Fault.Status; with Fault.AfterAccept it accepts and
	// stores that answer, so that every repetition gets it.
	Status Action = "status"
	// Slow waits, then goes on as usual. Meanwhile the key is running.
	Slow Action = "slow"
	// Throttle answers 429 with the wait as Retry-After, in whole seconds.
	Throttle Action = "throttle"
)

// Fault says which requests to send a message go wrong, and how. Each fault
// counts the requests that match it; the first in the list that is due acts.
type Fault struct {
	// Match is a text that key or body contain; empty matches every request.
	Match string `json:"match,omitempty"`
	// Nth is the first matching request that it acts on, from 1; 0 is 1.
	Nth int `json:"nth,omitempty"`
	// Times is on how many it acts from there; 0 is on all.
	Times int    `json:"times,omitempty"`
	Do    Action `json:"do"`
	// Status is the answer of the action Status, 400 to 599.
	Status      int  `json:"status,omitempty"`
	AfterAccept bool `json:"after_accept,omitempty"`
	// Milliseconds is the wait of AcceptHang, Slow and Throttle.
	Milliseconds int `json:"ms,omitempty"`
}

func (f Fault) wait() time.Duration { return time.Duration(f.Milliseconds) * time.Millisecond }

func (f Fault) validate() error {
	if f.Nth < 0 || f.Times < 0 || f.Milliseconds < 0 {
		return errors.New("nth, times and ms are not negative")
	}
	switch f.Do {
	case Refuse, AcceptReset, AcceptHang:
	case Slow, Throttle:
		if f.Milliseconds == 0 {
			return fmt.Errorf("%s needs ms, the wait", f.Do)
		}
	case Status:
		if f.Status < 400 || f.Status > 599 {
			return fmt.Errorf("status is 400 to 599, not %d", f.Status)
		}
	default:
		return fmt.Errorf("do is one of %s", strings.Join([]string{string(Refuse), string(AcceptReset), string(AcceptHang),
			string(Status), string(Slow), string(Throttle)}, ", "))
	}
	return nil
}

// script is the list of faults and how often each one matched.
type script struct {
	faults  []Fault
	matched []int
}

func newScript(faults []Fault) (script, error) {
	for i, f := range faults {
		if err := f.validate(); err != nil {
			return script{}, fmt.Errorf("fault %d: %w", i+1, err)
		}
	}
	return script{faults, make([]int, len(faults))}, nil
}

// next returns what goes wrong with this request: the zero Fault if nothing does.
func (s *script) next(key string, body []byte) Fault {
	var due Fault
	for i, f := range s.faults {
		if !strings.Contains(key, f.Match) && !strings.Contains(string(body), f.Match) {
			continue
		}
		s.matched[i]++
		first := max(f.Nth, 1)
		acts := s.matched[i] >= first && (f.Times == 0 || s.matched[i] < first+f.Times)
		if acts && due.Do == "" {
			due = f
		}
	}
	return due
}
