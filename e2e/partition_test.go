package e2e

import (
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestDeadPartitions: the partitions of a broker that is away are held on
// their rows, the others flow and the slot moves on. When all of them are
// away, the relay just waits.
func TestDeadPartitions(t *testing.T) {
	t.Parallel()
	cluster := harness.StartCluster(t)
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{
		Kafka: cluster.Kafka,
		Config: blocking.With(relayproc.Config{
			"kafka.partition_grace": "1s", "failure.by_type": map[string]string{"user": "continue"},
		}),
	})
	watchAttempts(b)
	b.StartStreaming(nil)
	b.Write(500, 40)
	b.Settle()
	t.Run("one broker away", func(t *testing.T) { halfAway(t, b, cluster) })
	t.Run("both away", func(t *testing.T) { allAway(t, b, cluster) })
	if n := b.Count(`SELECT count(*) FROM attempts_made`); n != 0 {
		t.Errorf("%d attempts were counted for brokers that were away", n)
	}
	loose := map[int64]bool{}
	for _, e := range b.History.Events() {
		if e.Aggregate.Type == "user" {
			loose[e.ID] = true
		}
	}
	b.Finish(harness.Allow{Unordered: loose})
}

// aggregatesAway are enough to have some in every partition.
const aggregatesAway = 24

// insertAway writes two events of each of these aggregates.
func insertAway(b *harness.Bed, prefix string) {
	for range 2 {
		for i := range aggregatesAway {
			b.Insert(harness.Row([]string{"order", "user"}[i%2], fmt.Sprint(prefix, i), "{}"))
		}
	}
}

func halfAway(t *testing.T, b *harness.Bed, cluster *harness.Cluster) {
	before := b.CountStatus(check.Sent)
	cluster.Second.Stop()
	dead := 0
	b.Wait("partitions without leader", func() bool {
		leaders, err := b.Admin.Leaders(t.Context(), b.Topic("order"))
		if err != nil {
			t.Fatal(err)
		}
		dead = 0
		for _, l := range leaders {
			if l == -1 {
				dead++
			}
		}
		return dead > 0
	})
	if dead != harness.Partitions/2 {
		t.Errorf("%d partitions without leader, want %d", dead, harness.Partitions/2)
	}
	insertAway(b, "half-")
	b.Wait("each event to be SENT or parked", func() bool {
		// others must make progress for one partition to be held
		b.Insert(harness.Row("order", "living", "{}"), harness.Row("user", "living too", "{}"), harness.Row("order", "alive", "{}"), harness.Row("user", "lively", "{}"))
		return b.Count(`SELECT count(*) FROM outbox WHERE aggregate_id LIKE 'half-%' AND send_status = 0 AND next_attempt_at IS NULL`) == 0
	})
	b.Settle() // the slot moves on, although its events are not published
	if sent := b.CountStatus(check.Sent) - before; sent == 0 {
		t.Error("nothing was SENT to the partitions that live")
	}
	if n := b.Count(`SELECT count(*) FROM outbox WHERE aggregate_type = 'order' AND send_status = 0 AND next_attempt_at = 'infinity' AND commit_lsn IS NOT NULL`); n == 0 {
		t.Error("no event of the type that blocks is held")
	}
	cluster.Second.Start()
	b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Ready) == 0 })
}

func allAway(t *testing.T, b *harness.Bed, cluster *harness.Cluster) {
	cluster.Second.Stop()
	cluster.First.Kill() // alone it cannot hand its partitions over
	insertAway(b, "all-")
	b.WaitSeconds(4)
	if n := b.Count(`SELECT count(*) FROM outbox WHERE send_status = 0 AND next_attempt_at IS NULL`); n != 2*aggregatesAway {
		t.Errorf("%d events wait in the relay while no partition lives, want %d", n, 2*aggregatesAway)
	}
	cluster.First.Start()
	cluster.Second.Start()
	b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Ready) == 0 })
}
