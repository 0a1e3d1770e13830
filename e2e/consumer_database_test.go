package e2e

import (
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerbed"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestDatabaseAway while an event is to be claimed, one to be FAILED and one to
// be quarantined: nothing is acknowledged until it is written, and the process
// lives.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		db := pgtest.New(t, 18)
		wire, through := harness.StartWire(t, db.DSN)
		b := consumerbed.New(t, consumerbed.Options{DB: db, Partitions: 3, Consumer: consumerproc.Config{Mode: mode, DSN: through}})
		events := b.Insert(inPartitions(3)...)
		failing, early := &events[0], &events[1]
		held := b.Hold(consumerproc.Started, *failing)
		b.Order(consumerproc.Started, *failing, -1, consumerproc.FailData)
		b.Publish(events[:1])
		p := b.Start()
		held.Wait()
		wire.Cut()
		b.Publish(events[1:2])
		nameless := events[2].Record()
		nameless.Headers = nil
		b.Produce(nameless)
		b.Exec(`DELETE FROM public.outbox WHERE id = $1`, events[2].RowID) // nobody can know whose record it is
		held.Release(consumerproc.FailData)
		for i := range 3 {
			p.WaitReason(b.Partition(i), consumer.WaitingDatabase)
		}
		b.Want("to be FAILED", *failing, consumerbed.Facts{Status: check.Consuming, Generation: 1})
		b.Want("to be claimed", *early, untouched(mode))
		b.WantStays("to be FAILED", *failing)
		b.WantStays("to be claimed", *early)
		if at := b.Committed(b.Partition(2)); at > 0 {
			t.Errorf("to be quarantined: offset %d is committed", at)
		}

		wire.Mend()
		b.Finish(consumerbed.Arranged{
			Failed:  consumerbed.Codes{failing.ID: "APP_TEST"},
			Refused: consumerbed.Reasons{b.Place(nameless): "NO_EVENT_ID"},
		})
		b.WantStored("to be quarantined", nameless)
		b.Want("to be FAILED", *failing, consumerbed.Facts{Status: check.Failed, Generation: 1, Attempts: 1, Code: "APP_TEST"})
		b.Want("to be claimed", *early, once)
	})
}

// TestDatabaseAwayPastTheLease: an outcome that could not be recorded in time
// is found out by another attempt, and a handler ends before its lease does.
func TestDatabaseAwayPastTheLease(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		db := pgtest.New(t, 18)
		wire, through := harness.StartWire(t, db.DSN)
		b := consumerbed.New(t, consumerbed.Options{DB: db, Partitions: 2, Consumer: consumerproc.Config{Mode: mode, DSN: through, Lease: 6 * time.Second}})
		events := b.Insert(inPartitions(2)...)
		answered, running := &events[0], &events[1]
		atAnswer, atCall := b.Hold(consumerproc.Received, *answered), b.Hold(consumerproc.Call, *running)
		b.Publish(events)
		b.Start()
		atAnswer.Wait()
		atCall.Wait()
		wire.Cut()
		atAnswer.Release(consumerproc.GoOn)
		atCall.WaitGone()
		if b.LeaseOver(*running) {
			t.Error("the handler was left to run until its lease was over")
		}
		b.Wait("both leases to run out", func() bool { return b.LeaseOver(*answered) && b.LeaseOver(*running) })
		b.Want("answered", *answered, consumerbed.Facts{Status: check.Consuming, Generation: 1, Accepted: 1, Received: 1})
		b.Want("running", *running, consumerbed.Facts{Status: check.Consuming, Generation: 1})
		for _, ev := range events {
			b.WantStays("past the lease", ev)
		}

		wire.Mend()
		b.Finish(consumerbed.Arranged{})
		b.Want("answered", *answered, consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1, Accepted: 2, Received: 2})
		b.Want("running", *running, consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1, Accepted: 1, Received: 1})
	})
}

// TestClocksApart: the database's clock is an hour ahead of the consumer's, or
// behind it. Leases, delays and the age of an event are the database's to tell.
func TestClocksApart(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := harness.StartClusterWithClock(t, off)
			eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
				b := consumerbed.New(t, consumerbed.Options{DB: cluster.New(t), Partitions: 3, Consumer: consumerproc.Config{
					Mode: mode, RetryBase: time.Second, KeyTTL: 30 * time.Minute, Horizon: 30 * time.Minute}})
				if apart := b.Ahead(); (off - apart).Abs() > time.Minute {
					t.Fatalf("the database's clock is %v ahead, want %v", apart, off)
				}
				events := b.Insert(inPartitions(3)...)
				plain, failing, killed := &events[0], &events[1], &events[2]
				b.Order(consumerproc.Started, *failing, 1, consumerproc.FailLater)
				next := b.Hold(consumerproc.Started, *failing)
				held := b.Hold(consumerproc.Received, *killed)
				b.Publish(events)
				p := b.Start()
				held.Wait()
				next.Wait()
				if !b.DelayOver(*failing) {
					t.Error("the next attempt began before next_attempt_at")
				}
				next.Release(consumerproc.GoOn)
				b.WaitCommitted(*failing)
				b.WaitCommitted(*plain)
				p.Kill()
				b.Start()
				b.Finish(consumerbed.Arranged{})
				b.Want("plain", *plain, once)
				b.Want("failed once", *failing, consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1, Accepted: 1, Received: 1})
				b.Want("killed", *killed, consumerbed.Facts{Status: check.Consumed, Generation: 2, Attempts: 1, Accepted: 2, Received: 2})
			})
		})
	}
}
