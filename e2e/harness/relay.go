package harness

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
)

// Relay is a running `cdc-relay run` of a bed. Unless the test ended it, its
// end fails the test, and so does a data race, a panic or a trace at any time.
type Relay struct {
	*relayproc.Process
	bed      *Bed
	addr     string
	expected bool // the test asked for its end
}

// Start starts a relay. config is added to the bed's.
func (b *Bed) Start(config relayproc.Config) *Relay {
	b.t.Helper()
	if b.sampler == nil {
		b.startSampler()
	}
	addr := freeAddr(b.t)
	r := &Relay{bed: b, addr: addr}
	r.Process = b.launch(relayproc.Config{"http.listen": addr}.With(config), "run")
	b.relays = append(b.relays, r)
	b.t.Cleanup(r.finish)
	return r
}

// StartStreaming starts a relay and waits until it streams.
func (b *Bed) StartStreaming(config relayproc.Config) *Relay {
	b.t.Helper()
	r := b.Start(config)
	r.WaitState("streaming")
	return r
}

// WaitState waits until /statusz shows a state. A relay that is degraded streams.
func (r *Relay) WaitState(state string) {
	r.bed.t.Helper()
	r.bed.Wait("state "+state, func() bool {
		s := r.Status()
		return s != nil && (s.State == state || state == "streaming" && s.State == "degraded")
	})
}

// WaitDegraded waits until the relay streams and names what a person should
// look at.
func (r *Relay) WaitDegraded(reason string) {
	r.bed.t.Helper()
	r.bed.Wait("state degraded: "+reason, func() bool {
		s := r.Status()
		return s != nil && s.State == "degraded" && s.Reason == reason
	})
}

// WaitBlocked waits until the relay is blocked for a reason and returns what
// /statusz then says.
func (r *Relay) WaitBlocked(reason string) *relayproc.Status {
	r.bed.t.Helper()
	var s *relayproc.Status
	r.bed.Wait("state blocked: "+reason, func() bool {
		s = r.Status()
		return s != nil && s.State == "blocked" && s.Reason == reason
	})
	return s
}

// Status is what /statusz says, nil while it does not answer.
func (r *Relay) Status() *relayproc.Status {
	ctx, cancel := context.WithTimeout(r.bed.t.Context(), 5*time.Second)
	defer cancel()
	s, err := relayproc.ReadStatus(ctx, r.addr)
	if err != nil {
		return nil
	}
	return s
}

// Counter is a counter or gauge of /statusz, 0 while it does not answer. All
// of them are there from the start.
func (r *Relay) Counter(name string) float64 {
	r.bed.t.Helper()
	s := r.Status()
	if s == nil {
		return 0
	}
	value, ok := s.Counters[name]
	if !ok {
		r.bed.t.Fatalf("/statusz has no %s", name)
	}
	return value
}

// PeakMemory is the most memory that was resident at a time, in bytes.
func (r *Relay) PeakMemory() int64 {
	r.bed.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.PID()))
	if err != nil {
		r.bed.t.Fatalf("reading the relay's memory: %v", err)
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(rest + " ?")[0], 10, 64)
	if err != nil {
		r.bed.t.Fatalf("reading the relay's memory: %v", err)
	}
	return kib << 10
}

// Kill ends the relay by SIGKILL.
func (r *Relay) Kill() {
	r.bed.t.Helper()
	r.expected = true
	if err := r.Process.Kill(); err != nil {
		r.bed.t.Fatal(err)
	}
}

// Terminate sends SIGTERM, waits for the end and returns the exit code and how
// long it took.
func (r *Relay) Terminate() (code int, took time.Duration) {
	r.bed.t.Helper()
	start := time.Now()
	r.SendTerm()
	return r.WaitExit(), time.Since(start)
}

// SendTerm sends SIGTERM.
func (r *Relay) SendTerm() {
	r.bed.t.Helper()
	r.expected = true
	if err := r.Signal(syscall.SIGTERM); err != nil {
		r.bed.t.Fatal(err)
	}
}

// WaitExit waits until the relay has ended by itself and returns its exit code.
func (r *Relay) WaitExit() int {
	r.bed.t.Helper()
	r.expected = true
	ctx, cancel := context.WithTimeout(r.bed.t.Context(), patience)
	defer cancel()
	code, err := r.Wait(ctx)
	if err != nil {
		r.bed.t.Fatalf("%v\n%s", err, r.Tail(40))
	}
	return code
}

// unexpectedEnd reports whether the relay is gone although nobody asked.
func (r *Relay) unexpectedEnd() bool { return r.Exited() && !r.expected }

// finish ends the relay and looks at what it wrote.
func (r *Relay) finish() {
	if r.unexpectedEnd() {
		r.bed.t.Errorf("the relay ended unexpectedly")
	}
	if err := r.Process.Stop(30 * time.Second); err != nil {
		r.bed.t.Errorf("ending the relay: %v", err)
	}
	if trace := relayproc.Crash(r.Output()); trace != "" {
		r.bed.t.Errorf("the relay crashed or raced:\n%s", trace)
	}
	if r.bed.t.Failed() {
		r.bed.t.Logf("last lines of relay %d:\n%s", r.PID(), r.Tail(60))
	}
}
