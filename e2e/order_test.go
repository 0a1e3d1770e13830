package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/load"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// blocking: later events wait for a failed one, and all that waits is looked
// at often.
var blocking = soon.With(relayproc.Config{"failure.on_failure": "block", "retry.base": "100ms", "reconcile.interval": "1s"})

// passing lets later events pass a failed one.
var passing = relayproc.Config{"failure.on_failure": "continue"}

// topicLimit is the max.message.bytes of a limited bed's topic order.
const topicLimit = 10_000

// oversize is over topicLimit.
var oversize = strings.Repeat("x", 2*topicLimit)

// limited are the options of a bed on which oversize events of type order are
// refused until raiseLimit.
func limited(kafka harness.Kafka, config relayproc.Config) harness.Options {
	return harness.Options{
		Kafka: kafka, Config: blocking.With(config),
		TopicSettings: map[string]map[string]string{"order": {"max.message.bytes": fmt.Sprint(topicLimit)}},
	}
}

// raiseLimit waits until the relay no longer trusts what it knows of the limit.
func raiseLimit(t *testing.T, b *harness.Bed) {
	t.Helper()
	if err := b.Admin.Set(t.Context(), b.Topic("order"), "max.message.bytes", "1000000"); err != nil {
		t.Fatal(err)
	}
	b.WaitSeconds(3)
}

// replay is what an operator does in psql.
func replay(b *harness.Bed, id int64) {
	b.Exec(`UPDATE outbox SET send_status = 0, next_attempt_at = now(), attempts = 0, error_code = NULL, error_message = NULL
		WHERE id = $1 AND send_status = 3`, id)
}

// skip gives an event up, as an operator does in psql.
func skip(b *harness.Bed, id int64) {
	b.Exec(`UPDATE outbox SET finished_at = now(), next_attempt_at = NULL, commit_lsn = NULL WHERE id = $1 AND send_status = 3`, id)
}

// heldRows is how many rows of an aggregate wait for their release.
func heldRows(b *harness.Bed, aggregate string) int {
	return b.Count(`SELECT count(*) FROM outbox WHERE aggregate_type = 'order' AND aggregate_id = $1 AND send_status = 0
		AND next_attempt_at = 'infinity' AND commit_lsn IS NOT NULL AND attempts = 0`, aggregate)
}

// unsent is how many rows of an aggregate are not SENT.
func unsent(b *harness.Bed, aggregate string) int {
	return b.Count(`SELECT count(*) FROM outbox WHERE aggregate_type = 'order' AND aggregate_id = $1 AND send_status <> 2`, aggregate)
}

// heldBehind is how many rows obstruct leaves held.
const heldBehind = 12

// obstruct writes an aggregate with an oversize event in the middle of one
// transaction and further ones behind it, and returns the id of the oversize
// one once that is FAILED and everything behind it held.
func obstruct(b *harness.Bed, aggregate string) (refused int64) {
	small := func(n int) load.Row { return harness.Row("order", aggregate, fmt.Sprint(n)) }
	before := b.History.Len()
	b.Insert(small(0), small(1), harness.Row("order", aggregate, oversize), small(2), small(3), small(4))
	for i := range heldBehind - 3 {
		b.Insert(small(5 + i))
	}
	refused = b.History.Since(before)[2].ID
	b.Wait("the oversize event of "+aggregate+" to be FAILED", func() bool {
		return b.Count(`SELECT count(*) FROM outbox WHERE id = $1 AND send_status = 3 AND error_code = 'RECORD_TOO_LARGE'
			AND attempts = 1 AND next_attempt_at = 'infinity' AND commit_lsn IS NOT NULL`, refused) == 1
	})
	b.Wait("the events behind it to be held", func() bool { return heldRows(b, aggregate) == heldBehind })
	return refused
}

// TestBlockedAggregates: behind an event that Kafka refuses the later ones of
// its aggregate wait on their rows, in the same batch, in the queue and in
// later transactions, others flow. What a person then does about the event, by
// SQL, lets them out in commit order.
func TestBlockedAggregates(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, limited(harness.Shared(t), nil))
		b.StartStreaming(nil)
		stays, replayed, skipped, deleted, locked, touched := obstruct(b, "stays"), obstruct(b, "replayed"),
			obstruct(b, "skipped"), obstruct(b, "deleted"), obstruct(b, "locked"), obstruct(b, "touched")
		b.Write(500, 20)
		b.Wait("others to be SENT", func() bool { return b.CountStatus(check.Sent) == 500+6*2 })

		raiseLimit(t, b)
		replay(b, replayed)
		b.Insert(harness.Row("order", "replayed", "while it is released"))
		b.Wait("the replayed aggregate to be SENT", func() bool { return unsent(b, "replayed") == 0 })

		skip(b, skipped)
		b.Wait("what was behind the skipped event to be SENT", func() bool { return unsent(b, "skipped") == 1 })

		b.Exec(`DELETE FROM outbox WHERE id = $1`, deleted)
		b.Wait("what was behind the deleted event to be SENT", func() bool { return unsent(b, "deleted") == 0 })

		middle := b.Count(`SELECT id FROM outbox WHERE aggregate_id = 'locked' AND id > $1 ORDER BY id OFFSET 5 LIMIT 1`, locked)
		conn := lockRow(t, b, int64(middle))
		replay(b, locked)
		b.Wait("all but the locked row to be SENT", func() bool { return unsent(b, "locked") == 1 })
		exec(t, conn, "ROLLBACK")
		b.Wait("the locked row to be SENT", func() bool { return unsent(b, "locked") == 0 })

		b.Exec(`UPDATE outbox SET next_attempt_at = now() WHERE aggregate_id = 'touched' AND id > $1`, touched)
		b.Wait("rows that were set to now to be held again", func() bool { return heldRows(b, "touched") == heldBehind })
		replay(b, touched)
		b.Wait("the touched aggregate to be SENT", func() bool { return unsent(b, "touched") == 0 })

		if n := heldRows(b, "stays"); n != heldBehind {
			t.Errorf("%d events are held behind one that nobody has replayed, want %d", n, heldBehind)
		}
		b.Finish(harness.Allow{
			Refused: map[int64]bool{stays: true}, Waived: map[int64]bool{skipped: true, deleted: true},
		})
	})
}

// TestOrderByType: where a type says continue, later events pass those that
// fail among them, each exactly once.
func TestOrderByType(t *testing.T) {
	t.Parallel()
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{
		Kafka: harness.Shared(t), Types: []string{"order", "log"},
		Config: blocking.With(relayproc.Config{"failure.by_type": map[string]string{"log": "continue"}}),
		TopicSettings: map[string]map[string]string{
			"order": {"max.message.bytes": fmt.Sprint(topicLimit)}, "log": {"max.message.bytes": fmt.Sprint(topicLimit)},
		},
	})
	b.StartStreaming(nil)
	refused := obstruct(b, "1")
	passed := map[int64]bool{refused: true}
	const many = 1000
	rows := make([]load.Row, many)
	for i := range rows {
		rows[i] = harness.Row("log", fmt.Sprint(i%3), "{}")
	}
	large := []int{0, many / 2, many/2 + 1, many - 1} // the first, two side by side, the last
	for _, i := range large {
		rows[i].Payload = []byte(oversize)
	}
	before := b.History.Len()
	b.Insert(rows...)
	for i, e := range b.History.Since(before) {
		if slices.Contains(large, i) {
			passed[e.ID] = true
		}
	}
	b.Wait("the others of the type that continues to be SENT", func() bool {
		return b.Count(`SELECT count(*) FROM outbox WHERE aggregate_type = 'log' AND send_status = 2`) == many-len(large)
	})
	if n := heldRows(b, "1"); n != heldBehind {
		t.Errorf("%d events of the type that blocks are held, want %d", n, heldBehind)
	}
	b.Wait("the oversize ones to be FAILED", func() bool { return b.CountStatus(check.Failed) == len(passed) })
	b.Finish(harness.Allow{Refused: passed})
}

// TestKilledAroundARelease kills the relay while events are FAILED and held, of
// which the slot delivers all again; as soon as a failed event is SENT; and in
// the middle of the release of what was behind it.
func TestKilledAroundARelease(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, limited(harness.Shared(t), nil))
		relay := b.StartStreaming(nil)
		const rows = 3000
		yield := refuseSENT(b, "stubborn") // the slot cannot pass it
		b.Insert(harness.Row("user", "stubborn", "{}"))
		head, middle := obstruct(b, "head"), obstruct(b, "0")
		conn := b.Conn()
		if err := (load.Bulk{Table: b.Table, Type: "order", Aggregates: 1, Rows: rows, OneTx: true}).Run(t.Context(), conn, b.History); err != nil {
			t.Fatal(err)
		}
		b.Wait("all to be held", func() bool { return heldRows(b, "0") == rows+heldBehind })

		relay.Kill() // what is parked is in the table, whatever the stream delivers again
		relay = b.StartStreaming(nil)
		if n := heldRows(b, "0") + heldRows(b, "head"); n != rows+2*heldBehind {
			t.Errorf("%d rows are held after a restart, want %d", n, rows+2*heldBehind)
		}
		b.Wait("all that is FAILED or held to be delivered again", func() bool {
			return relay.Counter("duplicates_skipped_total") >= rows+2*heldBehind+2
		})
		yield()

		raiseLimit(t, b)
		replay(b, head)
		b.Wait("the head to be SENT", func() bool { return b.Count(`SELECT send_status FROM outbox WHERE id = $1`, head) == int(check.Sent) })
		relay.Kill()
		allowed := unsent(b, "head")
		relay = b.StartStreaming(nil)
		b.Wait("all behind the head to be SENT", func() bool { return unsent(b, "head") == 0 })

		replay(b, middle)
		b.Wait("a release to be under way", func() bool { return unsent(b, "0") < rows })
		relay.Kill()
		left := unsent(b, "0")
		t.Logf("killed with %d of %d rows to be released", left, rows+heldBehind)
		b.StartStreaming(nil)
		b.Insert(harness.Row("order", "0", "behind what is released"))
		b.Wait("all to be SENT", func() bool { return unsent(b, "0") == 0 })
		b.Finish(harness.Allow{Duplicates: 1 + allowed + left})
	})
}

// refuseSENT lets a trigger refuse that a row of an aggregate is SENT, until
// yield is called.
func refuseSENT(b *harness.Bed, aggregate string) (yield func()) {
	b.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF EXISTS (SELECT FROM public.refusing) THEN RAISE EXCEPTION 'not now'; END IF; RETURN NEW; END $$`)
	b.Exec(`CREATE TABLE refusing AS SELECT 1`)
	b.Exec(`CREATE TRIGGER refuse BEFORE UPDATE OF send_status ON outbox FOR EACH ROW
		WHEN (NEW.aggregate_id = '` + aggregate + `') EXECUTE FUNCTION refuse()`)
	return func() { b.Exec(`DELETE FROM refusing`) }
}

// TestHotAggregate: a long queue behind a failed event comes out in order,
// also while further events keep coming, and others flow meanwhile.
func TestHotAggregate(t *testing.T) {
	t.Parallel()
	const rows, more, others = 20_000, 3000, 1000
	options := limited(harness.Shared(t), nil)
	options.Build = harness.Plain // with the race detector it takes twice as long
	b := harness.NewBed(t, pgtest.New(t, 18), options)
	b.StartStreaming(nil)
	head := b.InsertOne(harness.Row("order", "0", oversize))
	hot := func(rows int, oneTx bool) {
		t.Helper()
		if err := (load.Bulk{Table: b.Table, Type: "order", Aggregates: 1, Rows: rows, OneTx: oneTx}).Run(t.Context(), b.Conn(), b.History); err != nil {
			t.Fatal(err)
		}
	}
	hot(rows, true)
	b.Wait("all to be held", func() bool { return heldRows(b, "0") == rows })
	raiseLimit(t, b)
	replay(b, head)
	conn := b.Conn()
	wait := b.Background(func(ctx context.Context) error {
		return load.Bulk{Table: b.Table, Type: "user", Aggregates: 50, Rows: others}.Run(ctx, conn, b.History)
	})
	hot(more, false)
	wait()
	b.Wait("others to be SENT", func() bool {
		return b.Count(`SELECT count(*) FROM outbox WHERE aggregate_type = 'user' AND send_status = 2`) == others
	})
	t.Logf("others were SENT with %d of the hot aggregate's events left", unsent(b, "0"))
	b.Wait("all of the hot aggregate to be SENT", func() bool { return unsent(b, "0") == 0 })
	b.Finish(harness.Allow{})
}
