package e2e

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// rounds is raised by `make chaos`.
var rounds = flag.Int("rounds", len(steps), "how often TestKilledAtEveryStep kills a relay")

// chaotic is the configuration of relays that lose the slot all the time.
var chaotic = quickTakeover.With(relayproc.Config{"limits.inflight_events": takeoverWindow})

// steps are where a relay can be killed on the line. reach returns when the
// relay is there, and what then undoes how it was kept there.
var steps = []struct {
	name  string
	reach func(t *testing.T, b *harness.Bed, r *harness.Relay) (undo func())
}{
	{"as it has taken the lease", func(_ *testing.T, b *harness.Bed, r *harness.Relay) func() {
		b.Wait("it to lead", func() bool { return leader(b) == r.PID() })
		return func() {}
	}},
	{"as it has got the slot", func(_ *testing.T, b *harness.Bed, _ *harness.Relay) func() {
		b.Wait("a walsender", func() bool { return b.Walsender() != 0 })
		return func() {}
	}},
	{"with events in flight", func(_ *testing.T, b *harness.Bed, r *harness.Relay) func() {
		b.Wait("events in flight", func() bool { return r.Counter("inflight_events") > 0 })
		return func() {}
	}},
	{"between ack and SENT", keepFromSENT},
	{"between SENT and the saved position", func(t *testing.T, b *harness.Bed, r *harness.Relay) func() {
		letWrite := keepFromSENT(t, b, r)
		letSave := lockSlotRow(t, b, "cdc_relay_lease")
		sent := b.CountStatus(check.Sent)
		letWrite()
		b.Wait("SENT", func() bool { return b.CountStatus(check.Sent) > sent })
		return letSave
	}},
	{"between the saved and the confirmed position", func(_ *testing.T, b *harness.Bed, _ *harness.Relay) func() {
		b.Wait("a position that is saved and not confirmed", func() bool {
			return b.Count(`SELECT count(*) FROM cdc_relay_lease l JOIN pg_replication_slots s ON s.slot_name = l.slot
				WHERE s.active AND l.saved_lsn > s.confirmed_flush_lsn`) == 1
		})
		return func() {}
	}},
	{"in full flow", func(_ *testing.T, b *harness.Bed, r *harness.Relay) func() {
		b.Wait("acks", func() bool { return r.Counter("events_acked_total") > 200 })
		return func() {}
	}},
	{"while it stops", func(_ *testing.T, b *harness.Bed, r *harness.Relay) func() {
		b.Wait("acks", func() bool { return r.Counter("events_acked_total") > 0 })
		r.SendTerm()
		return func() {}
	}},
}

// keepFromSENT returns when Kafka has acknowledged events whose rows cannot be
// written.
func keepFromSENT(t *testing.T, b *harness.Bed, r *harness.Relay) (undo func()) {
	t.Helper()
	r.WaitState("streaming")
	undo = lockSlotRow(t, b, "cdc_relay_slot")
	b.Wait("acks that nothing was written for", func() bool { return unwritten(r) > 0 })
	return undo
}

// unwritten is how many events were acknowledged and not settled on their rows
// yet.
func unwritten(r *harness.Relay) (n float64) {
	s := r.Status()
	if s == nil {
		return 0
	}
	n = s.Counters["events_acked_total"]
	for _, result := range []string{"ok", "stale", "gone"} {
		n -= s.Counters[fmt.Sprintf(`status_writes_total{result=%q,to="SENT"}`, result)]
	}
	return n
}

// TestKilledAtEveryStep under load: nothing is lost, nothing out of order, and
// what comes twice was in flight.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: chaotic})
		stop := steadily(b)
		for round := range *rounds {
			step := steps[round%len(steps)]
			relay := b.Start(nil)
			undo := step.reach(t, b, relay)
			relay.Kill()
			undo()
			t.Logf("killed %s, %d events committed by then", step.name, b.History.Len())
		}
		stop()
		b.Start(nil)
		b.Finish(harness.Allow{Duplicates: *rounds * takeoverWindow})
	})
}

// TestTakeoverStorm: five instances under load, and for a minute the one that
// leads is hit again and again. At each moment one of them publishes at most.
func TestTakeoverStorm(t *testing.T) {
	t.Parallel()
	const instances, lasts = 5, time.Minute
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: harness.Shared(t), Config: chaotic})
	watchTerms(b)
	s := newStorm(t, b, instances)
	stop := steadily(b)
	began, takeovers := time.Now(), 0
	for ; time.Since(began) < lasts; takeovers++ {
		s.takeover()
	}
	s.thawAll()
	stop()
	took := time.Since(began)
	b.Settle()
	terms := b.Count(`SELECT max(epoch) FROM term`)
	if n := b.Count(`SELECT count(*) FROM term WHERE taken IS NOT NULL`); n != terms || n <= takeovers {
		t.Errorf("%d terms up to epoch %d, want one for each epoch, and %d or more", n, terms, takeovers+1)
	}
	noOverlaps(t, b)
	t.Logf("%d terms in %v: %v", terms, took.Round(time.Millisecond), s.hits)
	b.Finish(harness.Allow{Duplicates: terms * takeoverWindow})
}

// storm hits the instances of a bed.
type storm struct {
	t      *testing.T
	b      *harness.Bed
	rnd    *rand.Rand
	relays []*harness.Relay
	frozen map[*harness.Relay]bool
	hits   map[string]int
}

func newStorm(t *testing.T, b *harness.Bed, instances int) *storm {
	seed := uint64(time.Now().UnixNano())
	t.Logf("storm of seed %d", seed)
	s := &storm{t: t, b: b, rnd: rand.New(rand.NewPCG(seed, 0)), frozen: map[*harness.Relay]bool{}, hits: map[string]int{}}
	for range instances {
		s.relays = append(s.relays, b.Start(nil))
	}
	b.Wait("a leader", func() bool { return leader(b) != 0 })
	return s
}

// takeover hits the leader, and sometimes another one, until there is a new
// leader. Instances that were frozen move again at any time later.
func (s *storm) takeover() {
	s.t.Helper()
	epoch := s.epoch()
	leading := leader(s.b)
	for i, r := range s.relays {
		if r.PID() == leading || s.rnd.IntN(10) == 0 {
			s.relays[i] = s.hit(r)
		}
	}
	s.b.Wait("another leader", func() bool { return s.epoch() > epoch })
	for r := range s.frozen {
		if len(s.frozen) > 2 || s.rnd.IntN(2) == 0 {
			s.thaw(r)
		}
	}
	if s.rnd.IntN(2) == 0 {
		sent := s.b.CountStatus(check.Sent)
		s.b.Wait("progress", func() bool { return s.b.CountStatus(check.Sent) > sent || s.stalled() })
	}
}

// hit kills, stops or freezes an instance, and returns what takes its place.
func (s *storm) hit(r *harness.Relay) *harness.Relay {
	s.t.Helper()
	how := []string{"killed", "stopped", "frozen"}[s.rnd.IntN(3)]
	s.hits[how]++
	if how == "frozen" {
		freeze(s.t, r)
		s.frozen[r] = true
		return r
	}
	if s.frozen[r] {
		s.thaw(r)
	}
	if how == "killed" {
		r.Kill()
		return s.b.Start(nil)
	}
	s.b.Wait("an instance that can be stopped in order", func() bool { return r.Status() != nil })
	if code, _ := r.Terminate(); code != 0 {
		s.t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	return s.b.Start(nil)
}

// stalled reports whether the leader is frozen, so that only a takeover helps.
func (s *storm) stalled() bool {
	for r := range s.frozen {
		if r.PID() == leader(s.b) {
			return true
		}
	}
	return false
}

func (s *storm) thaw(r *harness.Relay) {
	s.t.Helper()
	thaw(s.t, r)
	delete(s.frozen, r)
}

func (s *storm) thawAll() {
	s.t.Helper()
	for r := range s.frozen {
		s.thaw(r)
	}
}

func (s *storm) epoch() int {
	s.t.Helper()
	return s.b.Count(`SELECT epoch FROM cdc_relay_slot WHERE slot = $1`, s.b.Slot)
}

// leader is the process that leads the slot, or led it last; 0 if none ever
// did.
func leader(b *harness.Bed) (pid int) {
	return b.Count(`SELECT coalesce((SELECT split_part(instance, '/', 2)::int FROM cdc_relay_lease WHERE slot = $1), 0)`, b.Slot)
}
