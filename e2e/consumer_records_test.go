package e2e

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/consumerbed"
	"github.com/cdc-relay/cdc-relay/e2e/consumerproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// once is what is known of an event that went through at the first attempt.
var once = consumerbed.Facts{Status: check.Consumed, Generation: 1, Accepted: 1, Received: 1}

// TestRecordsWithoutIdentity are kept, byte for byte, before their offset is
// passed, and stop nobody.
func TestRecordsWithoutIdentity(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		b := consumerbed.New(t, consumerbed.Options{Consumer: consumerproc.Config{Mode: mode}})
		good := b.Insert(make([]consumerbed.Spec, 2)...)
		bad := map[string]*kgo.Record{}
		for name, change := range map[string]func(*kgo.Record){
			"NO_EVENT_ID":             func(r *kgo.Record) { r.Headers = nil },
			"BAD_HEADERS of a word":   func(r *kgo.Record) { consumerbed.SetHeader(r, "ce_id", "not a \x00\xff UUID") },
			"BAD_HEADERS of a number": func(r *kgo.Record) { consumerbed.SetHeader(r, "cdcr-id", "-7") },
		} {
			r := good[0].Record()
			r.Key, r.Value = []byte{0, 255, 'k'}, []byte("value \x00 "+name)
			change(r)
			bad[name] = r
		}
		b.Publish(good[:1])
		refused := consumerbed.Reasons{}
		for name, r := range bad {
			b.Produce(r)
			refused[b.Place(r)] = name[:len("BAD_HEADERS")]
		}
		b.Publish(good[1:])
		b.Start()
		b.Finish(consumerbed.Arranged{Refused: refused})
		for name, r := range bad {
			b.WantStored(name, r)
		}
		for _, ev := range good {
			b.Want("beside them", ev, once)
		}
	})
}

// TestRepeatedRecords: copies of a record, next to each other or not, are
// recognised, also within one statement that claims.
func TestRepeatedRecords(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		b := consumerbed.New(t, consumerbed.Options{Partitions: 2, Consumer: consumerproc.Config{Mode: mode, Concurrency: 4}})
		events := b.Insert(consumerbed.Spec{}, consumerbed.Spec{Partition: 1}, consumerbed.Spec{Partition: 1})
		a, b1, b2 := events[0], events[1], events[2]
		b.Produce(a.Record(), a.Record(), b1.Record(), b2.Record(), b1.Record())
		p := b.Start()
		b.Finish(consumerbed.Arranged{})
		p.WantRecords(consumerbed.Counts{consumer.Consumed: 3, consumer.Duplicate: 2})
		for _, ev := range events {
			b.Want("event "+ev.Key, ev, once)
		}
	})
}

// TestEmptyValueAndTombstone are told apart.
func TestEmptyValueAndTombstone(t *testing.T) {
	t.Parallel()
	b := consumerbed.New(t, consumerbed.Options{Consumer: consumerproc.Config{Raw: true}})
	events := b.Insert(make([]consumerbed.Spec, 2)...)
	empty, null := events[0].Record(), events[1].Record()
	empty.Value, null.Value = []byte{}, nil
	consumerbed.SetHeader(null, "cdcr-tombstone", "1")
	b.Produce(empty, null)
	b.Start()
	b.Finish(consumerbed.Arranged{})
	for i, tombstone := range []bool{false, true} {
		b.Want("event "+events[i].Key, events[i], once)
		for _, s := range b.Steps(consumerproc.Started, events[i]) {
			if s.Tombstone != tombstone || s.Bytes != 0 {
				t.Errorf("the handler of event %d got %d bytes, tombstone %t, want tombstone %t", i, s.Bytes, s.Tombstone, tombstone)
			}
		}
	}
}

// TestGroupReset: a group that starts over from the beginning does nothing
// again.
func TestGroupReset(t *testing.T) {
	t.Parallel()
	eachClaim(t, func(t *testing.T, mode consumerproc.Mode) {
		b := consumerbed.New(t, consumerbed.Options{Consumer: consumerproc.Config{Mode: mode}})
		events := b.Put(make([]consumerbed.Spec, 5)...)
		first := b.Start()
		b.WaitCommitted(events[len(events)-1])
		first.Terminate()
		b.Seek(b.Partition(0), 0)
		second := b.Start()
		second.WantRecords(consumerbed.Counts{consumer.Duplicate: len(events)})
		b.Finish(consumerbed.Arranged{})
		for _, ev := range events {
			b.Want("event "+ev.Key, ev, once)
		}
	})
}

// TestGroupResetBeyondTheHorizon: a record whose receipt may be gone already
// would look new. It goes to the quarantine.
func TestGroupResetBeyondTheHorizon(t *testing.T) {
	t.Parallel()
	const horizon, day = time.Hour, 24 * time.Hour
	b := consumerbed.New(t, consumerbed.Options{Consumer: consumerproc.Config{Mode: consumerproc.Receipts, Horizon: day}})
	events := b.Insert(make([]consumerbed.Spec, 2)...)
	old, young := &events[0], &events[1]
	record := old.Record()
	record.Timestamp = time.Now().Add(-2 * horizon)
	b.Produce(record)
	old.Place = b.Place(record)
	b.Publish(events[1:])
	first := b.Start()
	b.WaitCommitted(*young)
	b.Want("before the purge", *old, once)
	first.Terminate()
	b.Exec(`UPDATE public.outbox_receipt SET created_at = created_at - interval '2 hours' WHERE event_id = $1`, old.ID)
	if n, err := consumer.PurgeReceipts(t.Context(), b.Pool, consumer.PurgeOptions{OlderThan: 90 * time.Minute, Horizon: horizon}); err != nil || n != 1 {
		t.Fatalf("purging receipts: %d of them, %v", n, err)
	}

	b.Seek(b.Partition(0), 0)
	second := b.Start(func(c *consumerproc.Config) { c.Horizon = horizon })
	b.Finish(consumerbed.Arranged{Refused: consumerbed.Reasons{old.Place: "BEYOND_HORIZON"}})
	second.WantRecords(consumerbed.Counts{consumer.Quarantined: 1, consumer.Duplicate: 1, consumer.Consumed: 0})
	b.Want("purged", *old, consumerbed.Facts{Status: consumerbed.NoReceipt, Accepted: 1, Received: 1})
	b.Want("kept", *young, once)
}

// TestWrongDatabase: where no record has a row it is not the records that are
// wrong.
func TestWrongDatabase(t *testing.T) {
	t.Parallel()
	other := pgtest.New(t, 18)
	other.Migrate(t, "public")
	b := consumerbed.New(t, consumerbed.Options{})
	events := b.Put(make([]consumerbed.Spec, 25)...)
	p := b.Start(func(c *consumerproc.Config) { c.DSN = other.DSN })
	p.WaitReason(b.Partition(0), consumer.BlockedWrongDatabase)
	b.WantStays("in the wrong database", events[0])
	conn := other.Conn(t)
	if n := queryInt(t, conn, `SELECT count(*) FROM public.outbox_quarantine`); n != 0 {
		t.Errorf("%d records are in the quarantine, want none", n)
	}
	for _, ev := range events {
		b.Want("in the right database", ev, consumerbed.Facts{Status: check.Sent})
	}
	p.Terminate()
	b.Start()
	b.Finish(consumerbed.Arranged{})
}

// queryInt asks a query with one number as its answer.
func queryInt(t *testing.T, conn *pgx.Conn, sql string) (n int) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), sql).Scan(&n); err != nil {
		t.Fatalf("asking %q: %v", sql, err)
	}
	return n
}
