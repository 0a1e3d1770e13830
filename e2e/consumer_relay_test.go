package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerbed"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// behindARelay makes beds of a relay and of a consumer behind it.
func behindARelay(t *testing.T, cfg consumerproc.Config, relay relayproc.Config) (*harness.Bed, *consumerbed.Bed) {
	t.Helper()
	r := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: harness.Shared(t), Types: []string{"user"}, Config: relay})
	cfg.Raw = true
	return r, consumerbed.New(t, consumerbed.Options{Relay: r, Consumer: cfg})
}

// TestRecordBeforeSENT: a record whose row is not SENT yet is waited for, and
// neither acknowledged nor claimed.
func TestRecordBeforeSENT(t *testing.T) {
	t.Parallel()
	b := consumerbed.New(t, consumerbed.Options{Consumer: consumerproc.Config{NotSentWait: 300 * time.Millisecond}})
	events := b.Insert(consumerbed.Spec{Unsent: true})
	b.Publish(events)
	p := b.Start()
	p.WaitReason(b.Partition(0), consumer.WaitingNotSent)
	b.Want("before SENT", events[0], consumerbed.Facts{Status: check.Ready})
	b.WantStays("before SENT", events[0])
	b.Exec(`UPDATE public.outbox SET send_status = 2, sent_at = clock_timestamp() WHERE id = $1`, events[0].RowID)
	b.Finish(consumerbed.Arranged{})
	b.Want("after SENT", events[0], once)
}

// TestRelayDeadBeforeSENT: the relay dies between the ack and SENT. The record
// waits for the next one, which publishes it again.
func TestRelayDeadBeforeSENT(t *testing.T) {
	t.Parallel()
	r, b := behindARelay(t, consumerproc.Config{NotSentWait: 300 * time.Millisecond}, nil)
	relay := r.StartStreaming(nil)
	release := holdBackSENT(t, r)
	id := r.InsertOne(harness.Row("user", "u", "hello"))
	b.Wait("the write-back", func() bool { return b.Count(waitingForAdvisory) == 1 })
	relay.Kill()
	b.Exec(`SELECT pg_terminate_backend(pid) FROM (` + advisoryWaiters + `) w`)
	b.Wait("the end of the write-back", func() bool { return b.Count(waitingForAdvisory) == 0 })
	release()
	ev := b.Find(id)
	p := b.Start()
	p.WaitReason(ev.PartitionName, consumer.WaitingNotSent)
	b.Want("without a relay", ev, consumerbed.Facts{Status: check.Ready})
	b.WantStays("without a relay", ev)
	r.Start(nil)
	b.Finish(consumerbed.Arranged{})
	b.Want("with a relay", ev, once)
	p.WantRecords(consumerbed.Counts{consumer.Consumed: 1, consumer.Duplicate: 1})
	r.Finish(harness.Allow{Duplicates: 1})
}

// Sessions that wait for an advisory lock, and how many there are.
const (
	advisoryWaiters = `SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	waitingForAdvisory = `SELECT count(*) FROM (` + advisoryWaiters + `) w`
)

// TestReplayedWhileItsOldRecordComesAgain: a FAILED event is replayed, and its
// group starts over: it is handled once.
func TestReplayedWhileItsOldRecordComesAgain(t *testing.T) {
	t.Parallel()
	r, b := behindARelay(t, consumerproc.Config{}, nil)
	r.StartStreaming(nil)
	id := r.InsertOne(harness.Row("user", "u", "hello"))
	b.Wait("the record", func() bool { return b.Records() == 1 })
	ev := b.Find(id)
	b.Order(consumerproc.Started, ev, 1, consumerproc.FailData)
	first := b.Start()
	b.WaitCommitted(ev)
	b.Want("before the replay", ev, consumerbed.Facts{Status: check.Failed, Generation: 1, Attempts: 1, Code: "APP_TEST"})
	first.Terminate()
	if output, code := r.Command(nil, "replay", "--id", fmt.Sprint(id), "--reason", "mended"); code != 0 {
		t.Fatalf("replay: exit code %d\n%s", code, output)
	}
	b.Wait("the second record", func() bool { return b.Records() == 2 })
	b.WaitStatus(check.Sent, ev)
	b.Seek(ev.PartitionName, 0)
	second := b.Start()
	b.Finish(consumerbed.Arranged{})
	b.Want("after the replay", ev, consumerbed.Facts{Status: check.Consumed, Generation: 2, Accepted: 1, Received: 1})
	second.WantRecords(consumerbed.Counts{consumer.Consumed: 1, consumer.Duplicate: 1})
	r.Finish(harness.Allow{Duplicates: 1})
}

// TestUnreadRecordsDeleted: retention deletes what a group has not read. The
// partition is blocked until a person has the rows published again.
func TestUnreadRecordsDeleted(t *testing.T) {
	t.Parallel()
	const lost = 3
	r, b := behindARelay(t, consumerproc.Config{}, nil)
	r.StartStreaming(nil)
	read := r.InsertOne(harness.Row("user", "u", "read"))
	first := b.Start()
	b.Wait("the first event to be consumed", func() bool { return r.CountStatus(check.Consumed) == 1 })
	b.WaitCommitted(b.Find(read))
	first.Terminate()
	var events []consumerbed.Event
	for i := range lost {
		events = append(events, b.Event(r.InsertOne(harness.Row("user", "u", fmt.Sprintf("unread %d", i)))))
	}
	b.Wait("their records", func() bool { return b.Records() == 1+lost })
	b.WaitStatus(check.Sent, events...)
	partition := b.Find(read).PartitionName
	committed := b.Committed(partition)
	if err := b.Admin.Trim(t.Context(), partition, 1+lost); err != nil {
		t.Fatal(err)
	}
	second := b.Start()
	second.WaitReason(partition, consumer.BlockedOffsetLost)
	for _, ev := range events {
		b.Want("deleted", ev, consumerbed.Facts{Status: check.Sent})
	}
	if at := b.Committed(partition); at != committed {
		t.Errorf("offset %d is committed, before it was %d", at, committed)
	}

	if output, code := r.Command(nil, "replay", "--status", "sent", "--confirm", fmt.Sprint(lost), "--reason", "deleted unread"); code != 0 {
		t.Fatalf("replay: exit code %d\n%s", code, output)
	}
	b.Wait("their records, again", func() bool { return b.Records() == lost })
	second.Terminate()
	b.Start(func(c *consumerproc.Config) { c.ResumeAtStart = true })
	b.Finish(consumerbed.Arranged{})
	for _, ev := range events {
		b.Want("requeued", ev, once)
	}
}

// TestOffsetPastAClaim: an offset is set past an event whose consumer died. The
// relay's leader finds the claim and publishes the event again.
func TestOffsetPastAClaim(t *testing.T) {
	t.Parallel()
	r, b := behindARelay(t, consumerproc.Config{}, relayproc.Config{"reconcile.interval": "300ms", "reconcile.sweep_after": "1s"})
	r.StartStreaming(nil)
	id := r.InsertOne(harness.Row("user", "u", "hello"))
	ev := b.Event(id)
	held := b.Hold(consumerproc.Call, ev)
	first := b.Start()
	held.Wait()
	first.Kill()
	b.Seek(b.Find(id).PartitionName, 1)
	b.Start()
	b.Wait("the second record", func() bool { return b.Records() == 2 })
	b.Finish(consumerbed.Arranged{})
	b.Want("swept", ev, consumerbed.Facts{Status: check.Consumed, Generation: 2, Accepted: 1, Received: 1})
	if s := b.Steps(consumerproc.Started, ev); len(s) != 2 || !s[1].Ambiguous {
		t.Errorf("the attempts were %+v, want the second one to be ambiguous", s)
	}
	r.Finish(harness.Allow{Duplicates: 1})
}

// TestRecordsWithoutARow: a record whose row is not there, or says that it was
// never published, is quarantined; a person has it tried again, or drops it.
func TestRecordsWithoutARow(t *testing.T) {
	t.Parallel()
	r, b := behindARelay(t, consumerproc.Config{}, nil)
	events := b.Insert(consumerbed.Spec{}, consumerbed.Spec{Partition: 1}, consumerbed.Spec{Key: "next"}, consumerbed.Spec{Partition: 1, Key: "next"})
	missing, conflict := &events[0], &events[1]
	b.Exec(`CREATE TABLE public.away AS SELECT * FROM public.outbox WHERE id = $1`, missing.RowID)
	b.Exec(`DELETE FROM public.outbox WHERE id = $1`, missing.RowID)
	b.Exec(`UPDATE public.outbox SET send_status = 3, sent_at = NULL, next_attempt_at = 'infinity' WHERE id = $1`, conflict.RowID)
	b.Publish(events)
	p := b.Start()
	p.WaitReason(missing.PartitionName, consumer.WaitingMissing)
	b.WantStays("while the row may come", *missing)
	b.Finish(consumerbed.Arranged{Refused: consumerbed.Reasons{missing.Place: "MISSING", conflict.Place: "STATE_CONFLICT"}})

	b.Exec(`INSERT INTO public.outbox OVERRIDING SYSTEM VALUE SELECT * FROM public.away`)
	for _, command := range [][]string{
		{"quarantine", "retry", "--error-code", "MISSING", "--confirm", "1"},
		{"quarantine", "drop", "--error-code", "STATE_CONFLICT", "--confirm", "1", "--reason", "published by hand"},
	} {
		if output, code := r.Command(nil, command...); code != 0 {
			t.Fatalf("%v: exit code %d\n%s", command, code, output)
		}
	}
	b.WaitStatus(check.Consumed, *missing)
	b.Finish(consumerbed.Arranged{})
	for _, ev := range []consumerbed.Event{events[0], events[2], events[3]} {
		b.Want("event "+ev.Key, ev, once)
	}
}
