package consumerbed

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
)

// Control hears of each step of each consumer, and lets it wait. Its methods
// are safe for concurrent use.
type Control struct {
	t   testing.TB
	url string
	end chan struct{} // closed when the test ends

	mu    sync.Mutex
	rules []*Hold
	steps []consumerproc.Step
}

func startControl(t testing.TB) *Control {
	c := &Control{t: t, end: make(chan struct{})}
	server := httptest.NewServer(c)
	c.url = server.URL
	t.Cleanup(server.Close)
	return c
}

// open lets everything go on.
func (c *Control) open() { close(c.end) }

// ServeHTTP takes a step and answers with the order.
func (c *Control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var step consumerproc.Step
	if err := json.NewDecoder(r.Body).Decode(&step); err != nil {
		http.Error(w, "no step", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	c.steps = append(c.steps, step)
	var rule *Hold
	if i := slices.IndexFunc(c.rules, func(h *Hold) bool { return h.takes(step) }); i >= 0 {
		rule = c.rules[i]
	}
	c.mu.Unlock()
	if rule == nil {
		return
	}
	rule.arrived <- step
	select {
	case <-rule.released:
		w.Write([]byte(rule.order))
	case <-r.Context().Done(): // the process died, or gave up
		rule.gone <- step
	case <-c.end:
	}
}

// Steps are those of an event that have come so far.
func (c *Control) Steps(at consumerproc.At, ev Event) (steps []consumerproc.Step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.steps {
		if s.At == at && s.Event == ev.ID.String() {
			steps = append(steps, s)
		}
	}
	return steps
}

// Hold keeps attempts waiting at a step.
type Hold struct {
	c       *Control
	at      consumerproc.At
	event   string
	process string // empty: any
	left    int    // how many more; negative: all

	arrived  chan consumerproc.Step
	gone     chan consumerproc.Step
	released chan struct{}
	order    consumerproc.Order
}

// takes counts a step that is held, under the lock of the Control.
func (h *Hold) takes(s consumerproc.Step) bool {
	if h.left == 0 || s.At != h.at || s.Event != h.event || h.process != "" && s.Process != h.process {
		return false
	}
	h.left--
	return true
}

// Hold holds the next attempt of an event at a step. Later holds of the same
// step come after it.
func (c *Control) Hold(at consumerproc.At, ev Event) *Hold { return c.rule(at, ev, 1) }

// Order answers the next n attempts at a step; all if n is negative.
func (c *Control) Order(at consumerproc.At, ev Event, n int, order consumerproc.Order) *Hold {
	h := c.rule(at, ev, n)
	h.Release(order)
	return h
}

func (c *Control) rule(at consumerproc.At, ev Event, n int) *Hold {
	const most = 1000 // attempts that a test holds or orders
	h := &Hold{
		c: c, at: at, event: ev.ID.String(), left: n, released: make(chan struct{}),
		arrived: make(chan consumerproc.Step, most), gone: make(chan consumerproc.Step, most),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rules = append(c.rules, h)
	return h
}

// Lift ends the rule for attempts that have not come yet.
func (h *Hold) Lift() {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	h.left = 0
}

// Wait waits until an attempt is held and returns its step.
func (h *Hold) Wait() consumerproc.Step {
	h.c.t.Helper()
	return h.receive(h.arrived, "arrive at")
}

// WaitGone waits until an attempt that was held is not any more, although the
// test did not release it: its process died or its context ended.
func (h *Hold) WaitGone() consumerproc.Step {
	h.c.t.Helper()
	return h.receive(h.gone, "give up at")
}

func (h *Hold) receive(from chan consumerproc.Step, what string) consumerproc.Step {
	h.c.t.Helper()
	const patience = 60 * time.Second
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	select {
	case s := <-from:
		return s
	case <-deadline.C:
		h.c.t.Fatalf("waited %v for an attempt of event %s to %s step %s", patience, h.event, what, h.at)
		return consumerproc.Step{}
	}
}

// Arrived reports whether an attempt is or was held.
func (h *Hold) Arrived() bool { return len(h.arrived) > 0 }

// Release lets what is held go on under an order, and what comes later.
func (h *Hold) Release(order consumerproc.Order) {
	h.order = order
	close(h.released)
}
