package e2e

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// The topics of TestUnwritableTopicIsNotPassed.
const (
	away  = "away"  // its only replica is on a broker that is stopped
	alive = "alive" // on the other one
)

// TestUnwritableTopicIsNotPassed: a topic cannot be written to for now; a later
// event, of another topic, is published. A relay that then confirms what it got
// an answer for has passed the first event, and a crash loses that. The slot
// may pass it only once it is held on its row.
func TestUnwritableTopicIsNotPassed(t *testing.T) {
	t.Parallel()
	cluster := harness.StartCluster(t)
	waits := newUnwritable(t, cluster, "1h")
	isHeld := newUnwritable(t, cluster, "1s")
	cluster.Second.Kill()
	for _, u := range []*unwritable{waits, isHeld} {
		waitLeaderless(t, u.Bed)
		u.overtake()
	}
	isHeld.Wait("the first event to be held", func() bool {
		isHeld.Insert(harness.Row(alive, "b", "{}")) // others must make progress
		return isHeld.held()
	})
	isHeld.Wait("the slot to pass it", isHeld.passed)
	waits.WaitSeconds(1)
	for _, u := range []*unwritable{waits, isHeld} {
		u.Wait("all of the other topic to be SENT", func() bool {
			return u.Count(`SELECT count(*) FROM outbox WHERE aggregate_type = $1 AND send_status = 0`, alive) == 0
		})
		u.relay.Kill()
	}
	if waits.passed() || waits.held() {
		t.Errorf("with a long grace the first event is passed by the slot: %t, held on its row: %t; want neither", waits.passed(), waits.held())
	}
	if !isHeld.held() {
		t.Error("the slot has passed the first event, which is not held on its row")
	}

	cluster.Second.Start()
	for _, u := range []*unwritable{waits, isHeld} {
		u.StartStreaming(nil)
		u.Wait("all to be SENT", func() bool { return u.CountStatus(check.Ready) == 0 })
		u.Finish(harness.Allow{})
	}
}

// unwritable is a bed with both topics, and its relay.
type unwritable struct {
	*harness.Bed
	relay *harness.Relay
	first int64 // the event that cannot be published
}

// newUnwritable starts a relay that gives a partition so long to answer.
func newUnwritable(t *testing.T, cluster *harness.Cluster, grace string) *unwritable {
	t.Helper()
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{
		Kafka: cluster.Kafka, Types: []string{away, alive}, Config: blocking.With(relayproc.Config{"kafka.partition_grace": grace}),
	})
	for typ, broker := range map[string]int32{alive: 1, away: 2} {
		if err := b.Admin.Move(t.Context(), b.Topic(typ), broker); err != nil {
			t.Fatal(err)
		}
	}
	relay := b.StartStreaming(nil)
	b.Insert(harness.Row(away, "known", "{}"), harness.Row(alive, "known", "{}"))
	b.Settle()
	return &unwritable{Bed: b, relay: relay}
}

// overtake writes the event that cannot be published and a later one that can,
// and waits until that is SENT.
func (u *unwritable) overtake() {
	u.first = u.InsertOne(harness.Row(away, "a", "{}"))
	later := u.InsertOne(harness.Row(alive, "b", "{}"))
	u.Wait("the later event to be SENT", func() bool {
		return u.Count(`SELECT send_status FROM outbox WHERE id = $1`, later) == int(check.Sent)
	})
}

// passed reports whether the slot has passed the first event's commit.
func (u *unwritable) passed() bool {
	return len(u.History.Passed([]int64{u.first}, u.Confirmed())) > 0
}

func (u *unwritable) held() bool {
	return u.Count(`SELECT count(*) FROM outbox WHERE id = $1 AND send_status = 0 AND next_attempt_at = 'infinity' AND commit_lsn IS NOT NULL`, u.first) == 1
}

func waitLeaderless(t *testing.T, b *harness.Bed) {
	t.Helper()
	b.Wait("the topic to have no leader", func() bool {
		leaders, err := b.Admin.Leaders(t.Context(), b.Topic(away))
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range leaders {
			if l != -1 {
				return false
			}
		}
		return true
	})
}
