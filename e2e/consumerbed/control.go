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

// control hears of each step of each consumer, and lets it wait. Its methods
// are safe for concurrent use.
type control struct {
	t   testing.TB
	url string
	end chan struct{} // closed when the test ends

	mu    sync.Mutex
	rules []*Hold
	steps []consumerproc.Step
}

func startControl(t testing.TB) *control {
	c := &control{t: t, end: make(chan struct{})}
	server := httptest.NewServer(c)
	c.url = server.URL
	t.Cleanup(server.Close)
	return c
}

// open lets everything go on.
func (c *control) open() { close(c.end) }

// ServeHTTP takes a step and answers with the order.
func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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

// Steps are those of an event that the bed's consumers have come to so far.
func (b *Bed) Steps(at consumerproc.At, ev Event) (steps []consumerproc.Step) {
	b.control.mu.Lock()
	defer b.control.mu.Unlock()
	for _, s := range b.control.steps {
		if s.At == at && s.Event == ev.ID.String() && s.Group == b.Group {
			steps = append(steps, s)
		}
	}
	return steps
}

// Hold keeps attempts waiting at a step.
type Hold struct {
	c            *control
	at           consumerproc.At
	event, group string
	left         int // how many more; negative: all

	arrived  chan consumerproc.Step
	gone     chan consumerproc.Step
	released chan struct{}
	order    consumerproc.Order
}

// takes counts a step that is held, under the lock of the control.
func (h *Hold) takes(s consumerproc.Step) bool {
	if h.left == 0 || s.At != h.at || s.Event != h.event || s.Group != h.group {
		return false
	}
	h.left--
	return true
}

// Hold holds the next attempt of an event at a step. Later holds of the same
// step come after it.
func (b *Bed) Hold(at consumerproc.At, ev Event) *Hold { return b.rule(at, ev, 1) }

// Order answers the next n attempts at a step; all if n is negative.
func (b *Bed) Order(at consumerproc.At, ev Event, n int, order consumerproc.Order) *Hold {
	h := b.rule(at, ev, n)
	h.Release(order)
	return h
}

func (b *Bed) rule(at consumerproc.At, ev Event, n int) *Hold {
	const most = 1000 // attempts that a test holds or orders
	h := &Hold{
		c: b.control, at: at, event: ev.ID.String(), group: b.Group, left: n, released: make(chan struct{}),
		arrived: make(chan consumerproc.Step, most), gone: make(chan consumerproc.Step, most),
	}
	b.control.mu.Lock()
	defer b.control.mu.Unlock()
	b.control.rules = append(b.control.rules, h)
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

// Release lets what is held go on under an order, and what comes later.
func (h *Hold) Release(order consumerproc.Order) {
	h.order = order
	close(h.released)
}
