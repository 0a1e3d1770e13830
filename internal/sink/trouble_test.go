package sink

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// That no broker answers is for a person after 30 seconds; a refused login or
// certificate at once.
func TestConnectionTrouble(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		err    error
		after  time.Duration
		remedy string
	}{
		"nobody there":   {errors.New("connection refused"), 30 * time.Second, "kafka.brokers"},
		"wrong password": {kafka.SASLAuthenticationFailed, 0, "kafka.sasl"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sim := newSimulation(t, 1)
				sim.down = tc.err
				out := newRecorder()
				startSimulated(t, sim, out, nil)
				if tc.after > 0 {
					pass(t, tc.after-time.Second)
					if got := out.troubles(); len(got) > 0 {
						t.Fatalf("troubles %v before %v", got, tc.after)
					}
					pass(t, 2*time.Second)
				}
				synctest.Wait()
				if diff := cmp.Diff([]string{"kafka.connect"}, out.troubles()); diff != "" {
					t.Fatalf("troubles (-want +got):\n%s", diff)
				}
				if got := out.trouble[0].Remedy; !strings.Contains(got, tc.remedy) {
					t.Errorf("remedy %q does not name %s", got, tc.remedy)
				}
				sim.set(func() { sim.down = nil })
				pass(t, time.Second)
				synctest.Wait()
				if diff := cmp.Diff([]string{"kafka.connect", ""}, out.troubles()); diff != "" {
					t.Errorf("troubles (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// An answer that only a person can change is reported and tried again; the
// first success ends the trouble.
func TestBatchTrouble(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		code  kafka.Error
		tries int // before it is reported
		want  string
	}{
		"no right to the cluster": {kafka.ClusterAuthorizationFailed, 1, "kafka.acl"},
		"request refused":         {kafka.InvalidRequest, 1, "kafka.connect"},
		"torn three times":        {kafka.InvalidMessage, 3, "kafka.connect"},
		"unknown, persistent":     {kafka.Unknown, 10, "kafka.connect"},
		"transaction state":       {kafka.InvalidTransactionState, 1, "kafka.identity"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sim := newSimulation(t, 1)
				out := newRecorder()
				sim.script = func(r request) response {
					if got := out.troubles(); r.n < tc.tries && len(got) > 0 {
						t.Errorf("reported after %d tries, want %d", r.n, tc.tries)
					}
					if r.n <= tc.tries {
						return response{err: tc.code}
					}
					return response{}
				}
				p := startSimulated(t, sim, out, nil)
				p.Publish(numbered("t", 1, 1))
				p.Flush()
				out.settled(t, 1)
				if diff := cmp.Diff([]string{tc.want, ""}, out.troubles()); diff != "" {
					t.Errorf("troubles (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The oldest of several troubles stands until it is over.
func TestSeveralTroubles(t *testing.T) {
	t.Parallel()
	out := newRecorder()
	tr := &troubles{outcomes: out}
	first := &fault.Blocked{Reason: "kafka.acl", What: "a", Remedy: "b"}
	second := &fault.Blocked{Reason: "kafka.partitions", What: "a", Remedy: "b"}
	tr.clear("one")
	tr.set("one", first)
	tr.set("two", second)
	tr.set("one", first) // said already
	tr.clear("one")
	tr.clear("one")
	tr.clear("two")
	if diff := cmp.Diff([]string{"kafka.acl", "kafka.partitions", ""}, out.troubles()); diff != "" {
		t.Errorf("troubles (-want +got):\n%s", diff)
	}
}
