package sink

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

const testTransactionalID = "cdc-relay/1/app/test"

// leader is a publisher with a fenced identity and how it ends.
type leader struct {
	*Publisher
	out  *recorder
	done chan error
}

// lead runs a publisher with a fenced identity on s until the bubble's test
// ends or it ends by itself.
func lead(t *testing.T, s *simulation, change func(*Config, *Deps)) *leader {
	t.Helper()
	return leadRenewing(t, s, renewEvery, change)
}

func leadRenewing(t *testing.T, s *simulation, every time.Duration, change func(*Config, *Deps)) *leader {
	t.Helper()
	l := &leader{out: newRecorder(), done: make(chan error, 1)}
	cfg, deps := testConfig("simulated"), testDeps(t, l.out)
	cfg.Identity, cfg.TransactionalID = Fenced, testTransactionalID
	if change != nil {
		change(&cfg, &deps)
	}
	p, err := assemble(cfg, deps, s, s, func() {})
	if err != nil {
		t.Fatal(err)
	}
	p.sender.identities.renewEvery = every
	l.Publisher = p
	l.start(t)
	return l
}

func (l *leader) start(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.done <- l.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-ended })
}

// ended waits for what the publisher ends with by itself.
func (l *leader) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-l.done:
		return err
	case <-time.After(patience):
		t.Fatal("still waiting for the publisher to end")
		return nil
	}
}

// send publishes events at once.
func (l *leader) send(events ...event.Event) {
	l.Publish(events)
	l.Flush()
}

// to makes an event for a topic with one partition.
func to(topic string, id int64) event.Event { return testEvent(topic, id, "key", "v") }

// sentAs is under what a batch was sent.
type sentAs struct {
	Topic    string
	First    int64 // id of its first record
	Producer int64
	Epoch    int16
	Sequence int32
}

// noting answers by script and notes under what each batch is sent.
func (s *simulation) noting(script func(request) response) (sent func() []sentAs) {
	var all []sentAs
	s.set(func() {
		s.script = func(r request) response {
			s.set(func() { all = append(all, sentAs{r.topic, r.ids[0], r.producer, r.epoch, r.sequence}) })
			return script(r)
		}
	})
	return func() (batches []sentAs) {
		s.set(func() { batches = append(batches, all...) })
		return batches
	}
}

// asked is the number of requests for a producer id so far.
func (s *simulation) asked() (n int) {
	s.set(func() { n = s.inits })
	return n
}

// Leadership is told to the brokers at once, not with the first event, and by
// ordinary batches that carry the id and its epoch from sequence 0 on.
func TestFencedTakesOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		sent := sim.noting(scripted())
		first := lead(t, sim, nil)
		synctest.Wait()
		if n := sim.asked(); n != 1 {
			t.Fatalf("%d requests for a producer id before the first event, want 1", n)
		}
		first.send(to("t", 1), to("t", 2))
		first.out.settled(t, 2)
		second := lead(t, sim, nil)
		synctest.Wait()
		second.send(to("t", 3))
		second.out.settled(t, 1)
		second.send(to("t", 4))
		second.out.settled(t, 2)
		want := []sentAs{{"t", 1, 1, 0, 0}, {"t", 3, 1, 1, 0}, {"t", 4, 1, 1, 1}}
		if diff := cmp.Diff(want, sent()); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
		if n := sim.asked(); n != 2 {
			t.Errorf("%d requests for a producer id, want one a leader", n)
		}
	})
}

// What plain idempotence answers with a new producer id is answered with a new
// epoch of the same one.
func TestFencedAnswers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script  []response
		wantLog []int64
		epoch   int16 // of the last batch
	}{
		"accepted":                 {wantLog: ids(1, 4)},
		"answer lost":              {script: []response{{err: io.EOF, lost: true, append: true}}, wantLog: ids(1, 4)},
		"out of order, once":       {script: []response{{err: kafka.OutOfOrderSequenceNumber}}, wantLog: ids(1, 4), epoch: 1},
		"id unknown, then order":   {script: []response{{err: kafka.UnknownProducerId}, {err: kafka.OutOfOrderSequenceNumber}}, wantLog: ids(1, 4), epoch: 2},
		"refused":                  {script: []response{{err: kafka.InvalidRecord, index: []int{0, 1}}}, wantLog: ids(3, 4)},
		"in doubt, then refused":   {script: []response{{err: io.EOF, lost: true, append: true}, {err: kafka.InvalidRecord, index: []int{0, 1}}}, wantLog: ids(1, 4), epoch: 1},
		"late, then refused":       {script: []response{{err: kafka.RequestTimedOut, append: true}, {err: kafka.MessageSizeTooLarge}, {err: kafka.MessageSizeTooLarge}, {err: kafka.MessageSizeTooLarge}}, wantLog: ids(1, 4), epoch: 1},
		"unsent, then refused":     {script: []response{{err: kafka.NotEnoughReplicas}, {err: kafka.InvalidRecord, index: []int{0, 1}}}, wantLog: ids(3, 4)},
		"other transaction states": {script: []response{{err: kafka.InvalidTransactionState}}, wantLog: ids(1, 4)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sim := newSimulation(t, 1)
				sent := sim.noting(scripted(tc.script...))
				l := lead(t, sim, nil)
				l.send(to("t", 1), to("t", 2))
				l.out.settled(t, 2)
				synctest.Wait()
				l.send(to("t", 3), to("t", 4)) // as many: under the same numbers it would pass for the first batch
				l.out.settled(t, 4)
				if diff := cmp.Diff(tc.wantLog, sim.stored("t", 0)); diff != "" {
					t.Errorf("log (-want +got):\n%s", diff)
				}
				batches := sent()
				if last := batches[len(batches)-1]; last.Producer != 1 || last.Epoch != tc.epoch {
					t.Errorf("the last batch came from %d/%d, want 1/%d", last.Producer, last.Epoch, tc.epoch)
				}
			})
		})
	}
}

// A newer epoch ends the session, whether a batch meets it, or whoever asks for
// a new epoch, when one is called for or due.
// Nothing is stored any more. If the lease is lost, somebody else leads; if it
// is not, somebody else has the same transactional id.
func TestSuperseded(t *testing.T) {
	t.Parallel()
	const every = time.Minute
	for name, tc := range map[string]struct {
		leaseLost bool
		meet      func(t *testing.T, old *leader)
		code      kafka.Error
	}{
		"a batch, lease lost":     {true, func(_ *testing.T, old *leader) { old.send(to("t", 3)) }, kafka.InvalidProducerEpoch},
		"a batch, lease held":     {false, func(_ *testing.T, old *leader) { old.send(to("t", 3)) }, kafka.InvalidProducerEpoch},
		"a new epoch, lease lost": {true, func(_ *testing.T, old *leader) { old.send(to("t", 4)) }, kafka.ProducerFenced},
		"a new epoch, lease held": {false, func(_ *testing.T, old *leader) { old.send(to("t", 4)) }, kafka.ProducerFenced},
		"a renewal, lease lost":   {true, func(t *testing.T, _ *leader) { pass(t, every) }, kafka.ProducerFenced},
		"a renewal, lease held":   {false, func(t *testing.T, _ *leader) { pass(t, every) }, kafka.ProducerFenced},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				sim := newSimulation(t, 1)
				var lost atomic.Bool // by the old leader, while a request of it is on its way
				sent := sim.noting(func(r request) response {
					if r.ids[0] == 3 {
						lost.Store(tc.leaseLost)
					}
					if r.ids[0] == 4 {
						return response{err: kafka.OutOfOrderSequenceNumber} // a new epoch is called for
					}
					return response{}
				})
				sim.onInit = func(own record.Producer) {
					if own.ID >= 0 && own.Epoch == 0 {
						lost.Store(tc.leaseLost)
					}
				}
				metrics := testMetrics(t)
				old := leadRenewing(t, sim, every, func(_ *Config, d *Deps) {
					d.Metrics = metrics
					d.Permit = func(context.Context) error {
						if lost.Load() {
							return fault.ErrFenced
						}
						return nil
					}
				})
				old.send(to("t", 1))
				old.out.settled(t, 1)
				next := lead(t, sim, nil)
				next.send(to("t", 2))
				next.out.settled(t, 1)

				tc.meet(t, old)
				err := old.ended(t)
				b := fault.AsBlocked(err)
				if tc.leaseLost && (b != nil || !errors.Is(err, fault.ErrFenced)) {
					t.Errorf("Run = %v, want fault.ErrFenced", err)
				}
				if !tc.leaseLost && (b == nil || b.Reason != "kafka.txid_shared" || !strings.Contains(b.What, testTransactionalID) || !strings.Contains(b.Remedy, "kafka.transactional_id")) {
					t.Errorf("Run = %v, want kafka.txid_shared with the id and the key", err)
				}
				if !tc.leaseLost && !errors.Is(err, tc.code) {
					t.Errorf("Run = %v, which does not tell %v", err, tc.code)
				}
				if got := sim.stored("t", 0); !slices.Equal(got, ids(1, 2)) {
					t.Errorf("log %v, want what the old leader sent before and what the new one sent", got)
				}
				if got := old.out.ackedIDs(); !slices.Equal(got, ids(1, 1)) {
					t.Errorf("the old leader has acks for %v, want for 1", got)
				}
				if n := testutil.ToFloat64(metrics.fenced); n != 1 {
					t.Errorf("fenced_total{by=producer} is %v, want 1", n)
				}
				if n := len(sent()); n > 3 {
					t.Errorf("%d batches, want none after the refused one", n)
				}
			})
		})
	}
}

// Several partitions meet the newer epoch while the lease is asked about it:
// leadership is lost once.
func TestSupersededInSeveralPartitions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulation(t, 1)
		metrics := testMetrics(t)
		var refused atomic.Int64
		old := lead(t, sim, func(_ *Config, d *Deps) {
			d.Metrics = metrics
			d.Permit = func(ctx context.Context) error {
				if refused.Load() == 3 && ctx.Err() == nil {
					return sleep(ctx, time.Second)
				}
				return nil
			}
		})
		synctest.Wait()
		sim.noting(func(request) response {
			refused.Add(1)
			return response{err: kafka.InvalidProducerEpoch, delay: time.Second}
		})
		old.send(to("t", 1), to("u", 2), to("v", 3))
		if err := old.ended(t); fault.AsBlocked(err) == nil {
			t.Errorf("Run = %v, want it to be blocked", err)
		}
		if n := refused.Load(); n != 3 {
			t.Errorf("%d batches were refused, want 3", n)
		}
		if n := testutil.ToFloat64(metrics.fenced); n != 1 {
			t.Errorf("fenced_total{by=producer} is %v, want 1", n)
		}
	})
}

// Taking an identity over makes another leader stop, so it needs the lease.
func TestTakeoverNeedsPermit(t *testing.T) {
	t.Parallel()
	t.Run("waits for it", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim := newSimulation(t, 1)
			renewed := make(chan struct{})
			l := lead(t, sim, func(_ *Config, d *Deps) {
				d.Permit = func(ctx context.Context) error {
					select {
					case <-renewed:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				}
			})
			l.send(to("t", 1))
			pass(t, time.Minute)
			if n := sim.asked(); n != 0 {
				t.Errorf("%d requests for a producer id without a permit", n)
			}
			close(renewed)
			l.out.wait(t, "the takeover", func() bool { return sim.asked() == 1 || len(l.out.acked) > 0 })
		})
	})
	t.Run("the lease is lost", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			sim := newSimulation(t, 1)
			l := lead(t, sim, func(_ *Config, d *Deps) { d.Permit = func(context.Context) error { return fault.ErrFenced } })
			if err := l.ended(t); !errors.Is(err, fault.ErrFenced) {
				t.Errorf("Run = %v, want fault.ErrFenced", err)
			}
			if n := sim.asked(); n != 0 {
				t.Errorf("%d requests for a producer id without a permit", n)
			}
		})
	})
}

// A renewed epoch is used in each partition from its next new batch on. A batch
// that is in doubt is sent again as it was.
func TestRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const every = time.Minute
		sim := newSimulation(t, 1)
		var doubtful, torn atomic.Bool
		doubtful.Store(true)
		sent := sim.noting(func(r request) response {
			switch {
			case r.topic == "doubt" && r.ids[0] == 2 && doubtful.Load():
				return response{err: io.EOF, lost: true, append: true}
			case torn.CompareAndSwap(true, false):
				return response{err: kafka.InvalidMessage} // its bytes are to be made anew
			}
			return response{}
		})
		l := leadRenewing(t, sim, every, nil)
		l.send(to("doubt", 1), to("idle", 11), to("busy", 21))
		l.out.settled(t, 3)
		l.send(to("doubt", 2))
		pass(t, every+time.Second) // renewed
		l.send(to("busy", 22), to("doubt", 3))
		l.out.settled(t, 4)
		torn.Store(true)
		doubtful.Store(false)
		l.out.settled(t, 6)
		pass(t, every) // and again
		l.send(to("idle", 12))
		l.out.settled(t, 7)

		batches := map[int64]sentAs{} // as sent last
		for _, b := range sent() {
			if before, again := batches[b.First]; again && before != b {
				t.Errorf("a batch in doubt was sent as %v, then as %v", before, b)
			}
			batches[b.First] = b
		}
		want := map[int64]sentAs{
			1: {"doubt", 1, 1, 0, 0}, 2: {"doubt", 2, 1, 0, 1}, 3: {"doubt", 3, 1, 1, 0},
			11: {"idle", 11, 1, 0, 0}, 12: {"idle", 12, 1, 2, 0},
			21: {"busy", 21, 1, 0, 0}, 22: {"busy", 22, 1, 1, 0},
		}
		if diff := cmp.Diff(want, batches); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
		if torn.Load() {
			t.Error("no bytes were torn")
		}
		if got := sim.stored("doubt", 0); !slices.Equal(got, ids(1, 3)) {
			t.Errorf("log %v, want each once", got)
		}
	})
}

// An answer about the identity that gets lost is asked for again: a takeover
// takes over once more, a renewal gets the same epoch.
func TestIdentityAnswersLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const every = time.Minute
		sim := newSimulation(t, 1)
		sim.deafInits = 2
		sent := sim.noting(scripted())
		l := leadRenewing(t, sim, every, nil)
		l.send(to("t", 1))
		l.out.settled(t, 1)
		sim.set(func() { sim.deafInits = 2 })
		pass(t, every+time.Second)
		l.send(to("t", 2))
		l.out.settled(t, 2)
		want := []sentAs{{"t", 1, 1, 2, 0}, {"t", 2, 1, 3, 0}}
		if diff := cmp.Diff(want, sent()); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
	})
}

// The brokers forgot the transactional id: it has another producer id then,
// which is told, and which every partition goes over to.
func TestIdentityForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const every = time.Minute
		sim := newSimulation(t, 1)
		sent := sim.noting(scripted())
		log, warned := warnings()
		l := leadRenewing(t, sim, every, func(_ *Config, d *Deps) { d.Log = log })
		l.send(to("t", 1))
		l.out.settled(t, 1)
		sim.set(func() { clear(sim.fenced) })
		pass(t, every+time.Second)
		l.send(to("t", 2))
		l.out.settled(t, 2)
		want := []sentAs{{"t", 1, 1, 0, 0}, {"t", 2, 2, 0, 0}}
		if diff := cmp.Diff(want, sent()); diff != "" {
			t.Errorf("batches (-want +got):\n%s", diff)
		}
		if n := warned("has a new id"); n != 1 {
			t.Errorf("%d warnings of a new id, want 1", n)
		}
	})
}
