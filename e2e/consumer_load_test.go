package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerbed"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
)

// TestPoisonAmongThousandKeys: one key that always fails waits alone.
func TestPoisonAmongThousandKeys(t *testing.T) {
	t.Parallel()
	const keys, partitions = 1000, 4
	b := consumerbed.New(t, consumerbed.Options{Partitions: partitions, Consumer: consumerproc.Config{
		Concurrency: 8, RetryBase: 2 * time.Second}})
	specs := make([]consumerbed.Spec, keys)
	for i := range specs {
		specs[i] = consumerbed.Spec{Partition: i % partitions, Key: fmt.Sprint("key-", i)}
	}
	events := b.Insert(specs...)
	poison := &events[partitions]
	behind := b.Insert(consumerbed.Spec{Key: poison.Key})
	b.Order(consumerproc.Started, *poison, -1, consumerproc.FailLater)
	b.Publish(events)
	b.Publish(behind)
	b.Start()
	b.Wait("all others to be consumed", func() bool {
		return b.Count(`SELECT count(*) FROM public.outbox WHERE send_status = 4`) == keys-1
	})
	b.WaitStatus(check.Sent, behind[0]) // not kept in a claim
	if n := len(b.Steps(consumerproc.Started, behind[0])); n != 0 {
		t.Errorf("the next event of the poison's key was started %d times", n)
	}
	b.Finish(consumerbed.Arranged{Open: []consumerbed.Event{*poison, behind[0]}})
	if at := b.Committed(poison.PartitionName); at != poison.Offset {
		t.Errorf("offset %d is committed, the poison's is %d", at, poison.Offset)
	}
}

// TestConsumersKilledUnderLoad: three consumers are killed at random while ten
// thousand events come through a relay. Each has its effect once.
func TestConsumersKilledUnderLoad(t *testing.T) {
	t.Parallel()
	const events, keys, kills = 10_000, 500, 4
	r, b := behindARelay(t, consumerproc.Config{Concurrency: 4}, nil)
	r.StartStreaming(nil)
	quiet := func(c *consumerproc.Config) { c.Control = "" }
	consumers := []*consumerbed.Process{b.Start(quiet), b.Start(quiet), b.Start(quiet)}
	written := r.Background(func(ctx context.Context) error { return r.Load(events, keys).Run(ctx, r.History) })
	for n := range kills {
		b.Wait("progress before the next kill", func() bool { return r.CountStatus(check.Consumed) > (n+1)*events/(kills+2) })
		victim := rand.IntN(len(consumers))
		consumers[victim].Kill()
		t.Logf("%d were consumed when consumer %d was killed", r.CountStatus(check.Consumed), victim)
		consumers[victim] = b.Start(quiet)
	}
	written()
	b.Wait("all to be consumed", func() bool { return r.CountStatus(check.Consumed) == events })
	r.Finish(harness.Allow{})
	b.Finish(consumerbed.Arranged{})
	t.Logf("%d events were taken over", b.Count(`SELECT count(*) FROM public.outbox WHERE claim_generation > 1`))
}
