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

// committed is what is known of an event whose effect and receipt were
// committed at the first attempt. There is no claim.
var committed = consumerbed.Facts{Status: check.Consumed}

// holdCommit lets the commit with an event's effect wait until the test releases
// it.
func holdCommit(t *testing.T, b *consumerbed.Bed, ev consumerbed.Event) (wait, release func()) {
	t.Helper()
	b.Exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$`)
	b.Exec(`CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON public.effect DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (NEW.event_id = '` + ev.ID.String() + `') EXECUTE FUNCTION wait()`)
	holder := b.DB.Conn(t)
	exec(t, holder, `SELECT pg_advisory_lock(4711)`)
	return func() { b.Wait("the commit to wait", func() bool { return b.Count(waitingForAdvisory) == 1 }) },
		func() { exec(t, holder, `SELECT pg_advisory_unlock(4711)`) }
}

// TestTransactionKilled: an effect in the database and its receipt are there
// together, or neither is.
func TestTransactionKilled(t *testing.T) {
	t.Parallel()
	b := consumerbed.New(t, consumerbed.Options{Partitions: 2, Consumer: consumerproc.Config{Mode: consumerproc.Transaction}})
	events := b.Insert(inPartitions(2)...)
	inside, after := &events[0], &events[1]
	wait, release := holdCommit(t, b, *after)
	held := b.Hold(consumerproc.Recorded, *inside)
	b.Publish(events)
	first := b.Start()
	held.Wait()
	wait()
	first.Freeze()
	release() // so it commits, and nobody gets to know
	b.WaitStatus(check.Consumed, *after)
	first.Kill()
	b.Want("killed inside the transaction", *inside, consumerbed.Facts{Status: consumerbed.NoReceipt})
	b.Want("killed after the commit", *after, committed)
	b.WantStays("killed after the commit", *after)

	second := b.Start()
	b.Finish(consumerbed.Arranged{})
	b.Want("killed inside the transaction", *inside, committed)
	second.WantRecords(consumerbed.Counts{consumer.Consumed: 1, consumer.Duplicate: 1})
}

// TestTransactionFails: what a handler did before it failed is rolled back. The
// failure is recorded beside that.
func TestTransactionFails(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, 18)
	wire, through := harness.StartWire(t, db.DSN)
	b := consumerbed.New(t, consumerbed.Options{DB: db, Partitions: 4, Consumer: consumerproc.Config{
		Mode: consumerproc.Transaction, DSN: through, RetryBase: 200 * time.Millisecond}})
	events := b.Insert(inPartitions(4)...)
	later, panics, bad, doubtful := &events[0], &events[1], &events[2], &events[3]
	failing := b.Order(consumerproc.Recorded, *later, -1, consumerproc.FailLater)
	panicking := b.Order(consumerproc.Recorded, *panics, -1, consumerproc.Panic)
	b.Order(consumerproc.Recorded, *bad, -1, consumerproc.FailData)
	b.Publish(events[:3])
	p := b.Start()
	for ev, code := range map[*consumerbed.Event]string{later: "CONSUMER_SYSTEM", panics: "CONSUMER_PANIC"} {
		b.Wait("several attempts", func() bool { return b.Facts(*ev).Attempts > 1 })
		if facts := b.Facts(*ev); facts.Status != check.Sent || facts.Code != code {
			t.Errorf("after failed attempts %+v, want code %s", facts, code)
		}
		b.WantStays("after failed attempts", *ev)
	}
	b.WaitCommitted(*bad)
	failing.Lift()
	panicking.Lift()
	b.WaitCommitted(*later)
	b.WaitCommitted(*panics)

	wait, release := holdCommit(t, b, *doubtful)
	b.Publish(events[3:])
	wait()
	wire.Cut()
	release()
	b.WaitStatus(check.Consumed, *doubtful)
	p.WaitReason(doubtful.PartitionName, consumer.WaitingDatabase)
	b.WantStays("without an answer to the commit", *doubtful)
	wire.Mend()
	b.Finish(consumerbed.Arranged{Failed: consumerbed.Codes{bad.ID: "APP_TEST"}})
	b.Want("bad data", *bad, consumerbed.Facts{Status: check.Failed, Attempts: 1, Code: "APP_TEST"})
	b.Want("without an answer to the commit", *doubtful, committed)
}

// TestRebalanceInTransactions: a second consumer joins while handlers are inside
// their transactions. Whoever has the partition now waits for them.
func TestRebalanceInTransactions(t *testing.T) {
	t.Parallel()
	b, events, held, first := heldInTwoPartitions(t, consumerproc.Config{Mode: consumerproc.Transaction, RevokeGrace: time.Second})
	second := b.Start()
	b.WaitMoved(first, second)
	b.Wait("the new owner to wait for the receipt", func() bool {
		return b.Count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	})
	for _, ev := range events {
		b.Want("inside its transaction", ev, consumerbed.Facts{Status: consumerbed.NoReceipt})
		b.WantStays("inside its transaction", ev)
	}
	for _, h := range held {
		h.Release(consumerproc.GoOn)
	}
	b.Finish(consumerbed.Arranged{})
	for _, ev := range events {
		b.Want("at the end", ev, committed)
		if n := len(b.Steps(consumerproc.Recorded, ev)); n != 1 {
			t.Errorf("%d handlers ran to the end, want 1", n)
		}
	}
}

// TestRepeatedRecordsInTransactions: copies of a record are recognised by the
// receipt.
func TestRepeatedRecordsInTransactions(t *testing.T) {
	t.Parallel()
	b := consumerbed.New(t, consumerbed.Options{Consumer: consumerproc.Config{Mode: consumerproc.Transaction, Concurrency: 4}})
	ev := b.Insert(consumerbed.Spec{})[0]
	b.Produce(ev.Record(), ev.Record(), ev.Record())
	first := b.Start()
	first.WantRecords(consumerbed.Counts{consumer.Consumed: 1, consumer.Duplicate: 2})
	b.Wait("the offset", func() bool { return b.Committed(b.Partition(0)) == 3 })
	first.Terminate()
	b.Seek(b.Partition(0), 0)
	second := b.Start()
	second.WantRecords(consumerbed.Counts{consumer.Consumed: 0, consumer.Duplicate: 3})
	b.Finish(consumerbed.Arranged{})
	b.Want("three copies", ev, committed)
}
