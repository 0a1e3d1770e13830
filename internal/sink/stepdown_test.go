package sink

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/segmentio/kafka-go"
)

// What the brokers do not permit or cannot have is given up step by step, once
// for all, with a warning a step. What passes is waited for.
func TestFencedStepsDown(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		noFenced, noIDs error
		after           time.Duration // until there is an identity
		want            Identity
		warned          int
		trouble         string
	}{
		"no right to the transactional id":         {noFenced: kafka.TransactionalIDAuthorizationFailed, want: Idempotent, warned: 1},
		"no right to the cluster":                  {noFenced: kafka.ClusterAuthorizationFailed, want: Idempotent, warned: 1},
		"no right to anything":                     {noFenced: kafka.TransactionalIDAuthorizationFailed, noIDs: kafka.ClusterAuthorizationFailed, want: None, warned: 2},
		"no coordinator can be":                    {noFenced: kafka.NotCoordinatorForGroup, after: 30 * time.Second, want: Idempotent, warned: 1},
		"no coordinator is there":                  {noFenced: kafka.GroupCoordinatorNotAvailable, after: 30 * time.Second, want: Idempotent, warned: 1},
		"coordinator loads":                        {noFenced: kafka.GroupLoadInProgress, after: 3 * time.Minute, want: Fenced, trouble: "kafka.identity"},
		"coordinator has something else to finish": {noFenced: kafka.ConcurrentTransactions, after: 3 * time.Minute, want: Fenced, trouble: "kafka.identity"},
		"time-out not allowed":                     {noFenced: kafka.InvalidTransactionTimeout, after: 3 * time.Minute, want: Fenced, trouble: "kafka.identity"},
		"broker away":                              {noFenced: io.EOF, after: 3 * time.Minute, want: Fenced},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sim := newSimulation(t, 1)
				sim.noFenced, sim.noIDs = tc.noFenced, tc.noIDs
				sent := sim.noting(scripted())
				log, warned := warnings()
				metrics := testMetrics(t)
				l := lead(t, sim, func(c *Config, d *Deps) {
					d.Log, d.Metrics = log, metrics
					c.BackoffMin, c.BackoffMax = 50*time.Millisecond, 5*time.Second // as configured by default
				})
				l.send(to("t", 1), to("u", 2))
				if tc.after > 0 {
					pass(t, tc.after-time.Second)
					if n := len(sent()); n != 0 {
						t.Errorf("%d batches before there was an identity", n)
					}
					if got := l.out.troubles(); len(got) > 0 != (tc.trouble != "") || len(got) > 0 && got[0] != tc.trouble {
						t.Errorf("troubles %q, want %q", got, tc.trouble)
					}
				}
				if tc.want == Fenced {
					sim.set(func() { sim.noFenced = nil })
				}
				l.out.settled(t, 2)
				synctest.Wait()
				if got := testutil.ToFloat64(metrics.identity.WithLabelValues(map[Identity]string{Fenced: "fenced", Idempotent: "idempotent", None: "none"}[tc.want])); got != 1 {
					t.Errorf("the metric does not show identity %d", tc.want)
				}
				if n := warned("msg=\"no right to") + warned("msg=\"the cluster has no coordinator"); n != tc.warned {
					t.Errorf("%d warnings of a step down, want %d", n, tc.warned)
				}
				if n := warned("cannot be had"); n > 1 {
					t.Errorf("%d warnings of the same wait", n)
				}
				for _, b := range sent() {
					if named := b.Producer >= 0; named != (tc.want != None) {
						t.Errorf("published as %+v", b)
					}
				}
			})
		})
	}
}

// A renewal that is refused for good steps down too: the partitions go over to
// what there is, and what was published under the old identity stays.
func TestRenewalStepsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const every = time.Minute
		sim := newSimulation(t, 1)
		sent := sim.noting(scripted())
		l := leadRenewing(t, sim, every, nil)
		l.send(to("t", 1))
		l.out.settled(t, 1)
		sim.set(func() { sim.noFenced = kafka.TransactionalIDAuthorizationFailed })
		pass(t, every+time.Second)
		l.send(to("t", 2))
		l.out.settled(t, 2)
		pass(t, 3*every)
		l.send(to("t", 3))
		l.out.settled(t, 3)
		want := []sentAs{{"t", 1, 1, 0, 0}, {"t", 2, 2, 0, 0}, {"t", 3, 2, 0, 1}}
		if diff := cmp.Diff(want, sent()); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
	})
}

// A coordinator that is away when the identity is to be renewed is waited for,
// however long: what there is can be published under meanwhile.
func TestRenewalWithoutCoordinator(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const every = time.Minute
		sim := newSimulation(t, 1)
		sent := sim.noting(scripted())
		l := leadRenewing(t, sim, every, nil)
		l.send(to("t", 1))
		l.out.settled(t, 1)
		sim.set(func() { sim.noFenced = kafka.NotCoordinatorForGroup })
		pass(t, every+3*time.Minute)
		l.send(to("t", 2))
		l.out.settled(t, 2)
		sim.set(func() { sim.noFenced = nil })
		pass(t, time.Second)
		l.send(to("t", 3))
		l.out.settled(t, 3)
		want := []sentAs{{"t", 1, 1, 0, 0}, {"t", 2, 1, 0, 1}, {"t", 3, 1, 1, 0}}
		if diff := cmp.Diff(want, sent()); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
		if got := l.out.troubles(); len(got) > 0 {
			t.Errorf("troubles %q, want none: everything flows", got)
		}
	})
}

// What only a person can change about the identity is told with what to do.
func TestIdentityTrouble(t *testing.T) {
	t.Parallel()
	for code, remedy := range map[kafka.Error]string{
		kafka.InvalidTransactionTimeout: "transaction.max.timeout.ms",
		kafka.GroupLoadInProgress:       "__transaction_state",
		kafka.NotCoordinatorForGroup:    "__transaction_state",
		kafka.InvalidTransactionState:   "kafka.identity",
	} {
		b := batchTrouble(classify(code), "t", code)
		if b.Reason != "kafka.identity" || !strings.Contains(b.Remedy, remedy) {
			t.Errorf("code %d: %v, want kafka.identity with %s", code, b, remedy)
		}
	}
}

// warnings returns a logger and how many warnings that went there hold a text.
func warnings() (log *slog.Logger, count func(text string) int) {
	var written bytes.Buffer // the handler writes one at a time
	log = slog.New(slog.NewTextHandler(&written, &slog.HandlerOptions{Level: slog.LevelWarn}))
	return log, func(text string) int { return strings.Count(written.String(), text) }
}
