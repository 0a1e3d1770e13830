package sink

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// While a batch is in flight the next events gather in one batch, however
// often they are flushed; and one batch at a time is in flight.
func TestOneBatchInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		var sizes []int
		sim.script = func(r request) response {
			sim.set(func() { sizes = append(sizes, len(r.ids)) })
			return response{delay: time.Second}
		}
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		events := numbered("t", 10, 1)
		for i := range events {
			p.Publish(events[i : i+1])
			p.Flush()
			synctest.Wait()
		}
		start := time.Now()
		out.settled(t, 10)
		if want := []int{1, 9}; !slices.Equal(sizes, want) {
			t.Errorf("batches of %v, want %v", sizes, want)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("took %v, want 2s: one request after the other", took)
		}
	})
}

// What is not flushed stays, to grow: a worker that gets its answer in the
// middle of a gulp does not take half of it.
func TestNothingGoesBeforeFlush(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		sim.script = func(request) response { return response{delay: time.Second} }
		out := newRecorder()
		p := startSimulated(t, sim, out, nil)
		events := numbered("t", 4, 1)
		p.Publish(events[:1])
		p.Flush()
		synctest.Wait()
		p.Publish(events[1:2])
		pass(t, time.Minute)
		p.Publish(events[2:])
		if got := sim.sent(); got != 1 {
			t.Errorf("%d requests before the second Flush, want 1", got)
		}
		p.Flush()
		out.settled(t, 4)
		if got := sim.sent(); got != 2 {
			t.Errorf("%d requests, want 2", got)
		}
	})
}

// Partitions do not wait for each other, up to the cap on requests.
func TestRequestsInParallel(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		maxRequests int
		want        time.Duration
	}{
		"all at once": {32, time.Second},
		"capped":      {2, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sim := newSimulation(t, 6)
				sim.script = func(request) response { return response{delay: time.Second} }
				out := newRecorder()
				p := startSimulated(t, sim, out, func(c *Config, _ *Deps) { c.MaxRequests = tc.maxRequests })
				synctest.Wait()
				start := time.Now()
				p.Publish(numbered("t", 100, 100))
				p.Flush()
				out.settled(t, 100)
				if took := time.Since(start); took != tc.want {
					t.Errorf("took %v, want %v", took, tc.want)
				}
			})
		})
	}
}

// Batches are closed by count and by size; a record beyond the size goes by
// itself.
func TestBatchLimits(t *testing.T) {
	t.Parallel()
	large := string(make([]byte, 2000))
	for name, tc := range map[string]struct {
		change func(*Config)
		limit  int // of the topic
		values []string
		want   [][]int64
	}{
		"by count": {
			change: func(c *Config) { c.BatchRecords = 2 },
			values: []string{"a", "b", "c", "d", "e"},
			want:   [][]int64{{1, 2}, {3, 4}, {5}},
		},
		"by size": {
			change: func(c *Config) { c.BatchBytes = 5000 },
			values: []string{large, large, large},
			want:   [][]int64{{1, 2}, {3}},
		},
		"by the topic's limit": {
			change: func(*Config) {},
			limit:  5000,
			values: []string{large, large, large},
			want:   [][]int64{{1, 2}, {3}},
		},
		"one beyond the size": {
			change: func(c *Config) { c.BatchBytes = 1000 },
			values: []string{"a", "b", large, "d"},
			want:   [][]int64{{1, 2}, {3}, {4}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sim := newSimulation(t, 1)
				sim.limits["t"] = tc.limit
				var batches [][]int64
				sim.script = func(r request) response {
					sim.set(func() { batches = append(batches, r.ids) })
					return response{}
				}
				out := newRecorder()
				p := startSimulated(t, sim, out, func(c *Config, _ *Deps) { tc.change(c) })
				var events []event.Event
				for i, v := range tc.values {
					events = append(events, testEvent("t", int64(i+1), "k", v))
				}
				p.Publish(events)
				p.Flush()
				out.settled(t, len(events))
				if diff := cmp.Diff(tc.want, batches); diff != "" {
					t.Errorf("batches (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Linger waits for more before the first batch.
func TestLinger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		out := newRecorder()
		p := startSimulated(t, sim, out, func(c *Config, _ *Deps) { c.Linger = 5 * time.Millisecond })
		p.Publish(numbered("t", 1, 1))
		p.Flush()
		synctest.Wait()
		p.Publish(numbered("t", 2, 1)[1:])
		p.Flush()
		start := time.Now()
		out.settled(t, 2)
		if sim.sent() != 1 {
			t.Errorf("%d requests, want 1", sim.sent())
		}
		if took := time.Since(start); took != 5*time.Millisecond {
			t.Errorf("took %v, want the linger", took)
		}
	})
}

// A record beyond the topic's limit is refused without a request while the
// limit is known to be as it was; the others of its batch are published.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 4000)
	for name, bad := range map[string][]int64{
		"first": {1}, "last": {6}, "two adjacent": {3, 4}, "all": ids(1, 6), "none": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sim := newSimulation(t, 1)
				out := newRecorder()
				p := startSimulated(t, sim, out, nil)
				p.Publish([]event.Event{testEvent("t", 100, "k", "v")})
				p.Flush()
				out.settled(t, 1)
				sim.set(func() { sim.limits["t"] = 4000 }) // lowered, and not read yet
				var events []event.Event
				var good []int64
				for id := int64(1); id <= 6; id++ {
					value := "small"
					if slices.Contains(bad, id) {
						value = large
					} else {
						good = append(good, id)
					}
					events = append(events, testEvent("t", id, "k", value))
				}
				p.Publish(events)
				p.Flush()
				out.settled(t, 7)
				if got, want := sim.stored("t", 0), append([]int64{100}, good...); !slices.Equal(got, want) {
					t.Errorf("log %v, want %v", got, want)
				}
				for _, id := range bad {
					if f := out.refusals()[id]; f.Code != "RECORD_TOO_LARGE" || !f.Permanent {
						t.Errorf("event %d: %+v", id, f)
					}
				}
				if len(bad) == 0 {
					return
				}
				synctest.Wait() // the limit is read again after a refusal
				before := sim.sent()
				p.Publish([]event.Event{testEvent("t", 101, "k", large)})
				p.Flush()
				out.settled(t, 8)
				if sent := sim.sent() - before; sent != 0 {
					t.Errorf("%d requests for a record that is known to be too large", sent)
				}
				if f := out.refusals()[101]; !strings.Contains(f.Message, "accepts 4000 (") {
					t.Errorf("message %q does not tell the limit", f.Message)
				}
				synctest.Wait()
				// Raised: the next one passes, although what was read is older.
				sim.set(func() { sim.limits["t"] = 10_000 })
				pass(t, limitFresh)
				p.Publish([]event.Event{testEvent("t", 102, "k", large)})
				p.Flush()
				out.settled(t, 9)
				if f, refused := out.refusals()[102]; refused {
					t.Errorf("refused by an old limit: %+v", f)
				}
			})
		})
	}
}
