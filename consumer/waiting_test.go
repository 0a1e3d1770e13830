package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// awaitReason waits until the partition tells why it does not move.
func (b *bed) awaitReason(want Reason) {
	b.t.Helper()
	pgtest.Eventually(b.t, "reason "+string(want), func() bool { return b.p.status.read().Reason == want }, b.state)
}

func (b *bed) exec(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.pool.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// failing is a handler that refuses an event while told to, and notes all calls.
type failing struct {
	calls
	refuse atomic.Pointer[outbox.ID]
	with   error
}

func (f *failing) handle(_ context.Context, ev *Event) error {
	f.add(ev)
	if id := f.refuse.Load(); id != nil && *id == ev.ID {
		return f.with
	}
	return nil
}

func TestSystemErrorHoldsUpThePartition(t *testing.T) {
	t.Parallel()
	f := failing{with: errors.New("no route to the provider")}
	b := newBed(t, 18, f.handle)
	ids := b.put("a", "b", "c")
	f.refuse.Store(&ids[1])
	b.start()
	pgtest.Eventually(t, "a third attempt", func() bool { return len(f.all()) >= 4 }, b.state)
	if got := b.p.position.Load(); got != 1 {
		t.Errorf("position %d, want 1", got)
	}
	b.awaitReason(WaitingDelay)
	f.refuse.Store(nil)
	b.await(3)
	got := f.all()
	want := []outbox.ID{ids[0]}
	for range len(got) - 2 {
		want = append(want, ids[1])
	}
	if diff := cmp.Diff(append(want, ids[2]), got); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
	if r := b.row(ids[1]); r.Status != outbox.Consumed || r.Attempts != len(got)-3 || r.Code != "" {
		t.Errorf("row %+v after %d calls", r, len(got)-2)
	}
}

func TestDataErrorLetsTheNextGo(t *testing.T) {
	t.Parallel()
	f := failing{with: DataError("APP_PAYLOAD", errors.New("no JSON"))}
	b := newBed(t, 18, f.handle)
	ids := b.put("a", "a", "b")
	f.refuse.Store(&ids[0])
	b.start()
	b.await(3)
	b.want(ids[0], row{outbox.Failed, 1, 1, "APP_PAYLOAD"})
	b.want(ids[1], consumed(1))
	b.want(ids[2], consumed(1))
	if len(f.all()) != 3 {
		t.Errorf("%d calls", len(f.all()))
	}
}

func TestMaxAttempts(t *testing.T) {
	t.Parallel()
	f := failing{with: errors.New("down")}
	b := newBed(t, 18, f.handle, MaxAttempts(3))
	ids := b.put("a", "b")
	f.refuse.Store(&ids[0])
	b.start()
	b.await(2)
	b.want(ids[0], row{outbox.Failed, 3, 3, "CONSUMER_SYSTEM"})
	b.want(ids[1], consumed(1))
}

func TestRecordBeforeSENTIsWaitedForWithoutLimit(t *testing.T) {
	t.Parallel()
	var got calls
	b := newBed(t, 18, func(_ context.Context, ev *Event) error {
		got.add(ev)
		return nil
	}, NotSentWait(50*time.Millisecond))
	id := b.rows(outbox.Ready, "a")[0]
	b.log.add(b.record(id, "a"))
	b.start()
	b.awaitReason(WaitingNotSent)
	b.want(id, row{Status: outbox.Ready})
	b.exec("UPDATE outbox SET send_status = 2, sent_at = now()")
	b.await(1)
	b.want(id, consumed(1))
	if len(got.all()) != 1 {
		t.Errorf("%d calls", len(got.all()))
	}
}

func TestClaimOfAnotherIsWaitedForThenTakenOver(t *testing.T) {
	t.Parallel()
	var ambiguous atomic.Bool
	b := newBed(t, 18, func(_ context.Context, ev *Event) error {
		ambiguous.Store(ev.Ambiguous && ev.Attempt == 2)
		return nil
	})
	id := b.put("a")[0]
	b.exec(`UPDATE outbox SET send_status = 5, claim_generation = 1, claimed_by = 'another', lease_until = clock_timestamp() + interval '1 second'`)
	b.start()
	b.awaitReason(WaitingClaim)
	b.await(1)
	b.want(id, row{outbox.Consumed, 2, 1, ""})
	if !ambiguous.Load() {
		t.Error("the second attempt was not told that the first may have had its effect")
	}
}

func TestEventThatKillsItsProcessesIsParked(t *testing.T) {
	t.Parallel()
	var got calls
	b := newBed(t, 18, func(_ context.Context, ev *Event) error {
		got.add(ev)
		return nil
	})
	ids := b.put("a", "b")
	b.exec(`UPDATE outbox SET send_status = 5, claim_generation = 5, claimed_by = 'dead', lease_until = clock_timestamp(), attempts = 4,
		error_code = 'CONSUMER_ABANDONED' WHERE event_id = $1`, ids[0])
	b.start()
	b.await(2)
	if r := b.row(ids[0]); r.Status != outbox.Failed || r.Attempts != 5 || r.Code != "CONSUMER_ABANDONED" {
		t.Errorf("row %+v", r)
	}
	if diff := cmp.Diff(ids[1:], got.all()); diff != "" {
		t.Errorf("handled (-want +got):\n%s", diff)
	}
}

func TestDuplicateRecords(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]int{"A A": {0, 0}, "A B A": {0, 1, 0}, "A A A B B": {0, 0, 0, 1, 1}} {
		for _, lanes := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, %d lanes", name, lanes), func(t *testing.T) {
				t.Parallel()
				var got calls
				b := newBed(t, 18, func(_ context.Context, ev *Event) error {
					got.add(ev)
					return nil
				}, Concurrency(lanes))
				ids := b.rows(outbox.Sent, "a", "b")
				for _, i := range order {
					b.log.add(b.record(ids[i], "a"))
				}
				b.start()
				b.await(int64(len(order)))
				want := ids[:len(got.all())]
				if diff := cmp.Diff(want, got.all()); diff != "" {
					t.Errorf("handled (-want +got):\n%s", diff)
				}
				for _, id := range want {
					b.want(id, consumed(1))
				}
			})
		}
	}
}

func TestUndecodableRecordIsQuarantined(t *testing.T) {
	t.Parallel()
	b := newBed(t, 18, func(context.Context, *Event) error { return nil })
	bad := group.Record{Key: []byte("k\x00"), Value: []byte("v\xff"), Headers: headers("x", "\x00\xff")}
	b.log.add(bad)
	ids := b.put("a")
	b.start()
	b.await(2)
	b.want(ids[0], consumed(1))
	var consumerName, topic, reason, key, value string
	var offset int64
	err := b.pool.QueryRow(t.Context(), `SELECT consumer, topic, "offset", reason, encode(record_key, 'hex'), encode(record_value, 'hex')
		FROM outbox_quarantine WHERE resolved_at IS NULL`).Scan(&consumerName, &topic, &offset, &reason, &key, &value)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(consumerName, " ", topic, " ", offset, " ", reason, " ", key, " ", value)
	if got != "g t 0 NO_EVENT_ID 6b00 76ff" {
		t.Errorf("the quarantine has %q", got)
	}
}

// quarantined counts the rows of the quarantine by reason.
func (b *bed) quarantined() map[string]int {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), `SELECT reason, count(*) FROM outbox_quarantine GROUP BY reason`)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var reason string
		var n int
		if err := rows.Scan(&reason, &n); err != nil {
			b.t.Fatal(err)
		}
		counts[reason] = n
	}
	return counts
}

func (b *bed) quick() *bed {
	b.c.opt.missingWait = 200 * time.Millisecond
	return b
}

func TestMissingAndUnpublishedAreQuarantined(t *testing.T) {
	t.Parallel()
	b := newBed(t, 18, func(context.Context, *Event) error { return nil }).quick()
	b.log.add(group.Record{Key: []byte("a"), Headers: headers("ce_id", outbox.NewID().String(), "cdcr-id", "4711")})
	id := b.rows(outbox.Ready, "b")[0]
	b.exec(`UPDATE outbox SET send_status = 3, next_attempt_at = 'infinity', error_code = 'RECORD_TOO_LARGE'`)
	b.log.add(b.record(id, "b"))
	last := b.put("c")[0]
	b.start()
	b.await(3)
	if diff := cmp.Diff(map[string]int{"MISSING": 1, "STATE_CONFLICT": 1}, b.quarantined()); diff != "" {
		t.Errorf("quarantine (-want +got):\n%s", diff)
	}
	b.want(id, row{Status: outbox.Failed, Code: "RECORD_TOO_LARGE"})
	b.want(last, consumed(1))
}

// TestWrongDatabaseQuarantinesNothing: many records in a row without a row mean
// that this is not their database.
func TestWrongDatabaseQuarantinesNothing(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d lanes", lanes), func(t *testing.T) {
			t.Parallel()
			b := newBed(t, 18, func(context.Context, *Event) error { return nil }, Concurrency(lanes)).quick()
			for range missLimit + 1 {
				id := outbox.NewID()
				b.log.add(group.Record{Key: id[:], Headers: headers("ce_id", id.String(), "cdcr-id", "4711")})
			}
			b.start()
			b.awaitReason(BlockedWrongDatabase)
			if got := b.quarantined(); len(got) != 0 || b.p.position.Load() != 0 {
				t.Errorf("quarantine %v, position %d", got, b.p.position.Load())
			}
		})
	}
}

func TestFloodOfBadRecordsBlocks(t *testing.T) {
	t.Parallel()
	b := newBed(t, 18, func(context.Context, *Event) error { return nil }, QuarantineLimit(3, time.Hour))
	for range 5 {
		b.log.add(group.Record{Key: []byte("a")})
	}
	b.start()
	b.awaitReason(BlockedFlood)
	if diff := cmp.Diff(map[string]int{"NO_EVENT_ID": 3}, b.quarantined()); diff != "" || b.p.position.Load() != 3 {
		t.Errorf("position %d, quarantine (-want +got):\n%s", b.p.position.Load(), diff)
	}
}

func TestQuarantinedRecordIsRetriedWhenAskedFor(t *testing.T) {
	t.Parallel()
	var got calls
	b := newBed(t, 18, func(_ context.Context, ev *Event) error {
		got.add(ev)
		return nil
	}).quick()
	id := outbox.NewID()
	b.log.add(group.Record{Key: []byte("a"), Headers: headers("ce_id", id.String())}, group.Record{Key: []byte("b")})
	b.start()
	b.await(2)
	// The row was not there: a restore that came late. What is no event stays open.
	b.exec(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload, send_status, sent_at)
		VALUES ($1, 'user', 'a', 'made', '{}', 2, clock_timestamp())`, id)
	b.exec(`UPDATE outbox_quarantine SET resolution = 'retry', resolved_by = 'somebody'`)
	var open, retried int
	pgtest.Eventually(t, "the retries to be over", func() bool {
		err := b.pool.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE resolved_at IS NULL AND resolution IS NULL),
			count(*) FILTER (WHERE resolved_at IS NOT NULL AND resolution = 'retried') FROM outbox_quarantine`).Scan(&open, &retried)
		return err == nil && open == 1 && retried == 1
	}, func() string { return fmt.Sprintf("%d open, %d retried", open, retried) })
	b.want(id, consumed(1))
	if len(got.all()) != 1 {
		t.Errorf("%d calls", len(got.all()))
	}
}

func TestUnreadablePartitionSaysWhy(t *testing.T) {
	t.Parallel()
	p := group.Partition{Topic: "t"}
	for name, tc := range map[string]struct {
		err  error
		want Reason
	}{
		"lost":        {&group.OffsetError{Partition: p, Offset: 5, Start: 7, End: 9}, BlockedOffsetLost},
		"ahead":       {&group.OffsetError{Partition: p, Offset: 5, Start: 0, End: 2}, BlockedOffsetAhead},
		"undecodable": {&group.UndecodableError{Partition: p, From: 5, To: 7, Err: errors.New("crc")}, BlockedUndecodable},
		"broker":      {errors.New("connection refused"), WaitingKafka},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, 18, func(context.Context, *Event) error { return nil })
			b.log.fail = tc.err
			b.start()
			b.awaitReason(tc.want)
			b.log.mu.Lock()
			b.log.fail = nil
			b.log.mu.Unlock()
			id := b.put("a")[0]
			b.await(1)
			b.want(id, consumed(1))
		})
	}
}

func TestReadsOnWhereToldTo(t *testing.T) {
	t.Parallel()
	p := group.Partition{Topic: "t"}
	for name, tc := range map[string]struct {
		err    error
		opt    Option
		skips  map[string]int
		starts int64
	}{
		"at the start": {&group.OffsetError{Partition: p, Offset: 0, Start: 1, End: 2}, ResumeAtStart(), map[string]int{}, 1},
		"behind a batch": {&group.UndecodableError{Partition: p, From: 0, To: 0, Err: errors.New("crc")}, SkipUndecodable(),
			map[string]int{"SKIPPED_RANGE": 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, 18, func(context.Context, *Event) error { return nil }, tc.opt)
			b.start()
			from, why := b.p.readTrouble(t.Context(), tc.err, 0)
			if from != tc.starts || why == "" {
				t.Errorf("from %d, reason %q", from, why)
			}
			if diff := cmp.Diff(tc.skips, b.quarantined()); diff != "" {
				t.Errorf("quarantine (-want +got):\n%s", diff)
			}
		})
	}
}

// TestLockedRowIsWaitedForAlone: somebody looks at a row FOR UPDATE; the other
// keys go on.
func TestLockedRowIsWaitedForAlone(t *testing.T) {
	t.Parallel()
	b := newBed(t, 18, func(context.Context, *Event) error { return nil }, Concurrency(4))
	ids := b.put("a", "b", "c")
	tx, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), `SELECT FROM outbox WHERE event_id = $1 FOR UPDATE`, ids[0]); err != nil {
		t.Fatal(err)
	}
	b.start()
	pgtest.Eventually(t, "the others", func() bool {
		return b.row(ids[1]).Status == outbox.Consumed && b.row(ids[2]).Status == outbox.Consumed
	}, b.state)
	b.awaitReason(WaitingClaim)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.await(3)
	b.want(ids[0], consumed(1))
}

// lockedRow makes statements that end the claim of an event give up on its lock,
// as PostgreSQL does after lock_timeout, a number of times.
type lockedRow struct {
	memory
	id    outbox.ID
	times atomic.Int32
}

// keepLocked wraps what keeps the claims.
func keepLocked(id outbox.ID, times int32) (*lockedRow, func(memory) memory) {
	l := &lockedRow{id: id}
	l.times.Store(times)
	return l, func(m memory) memory {
		l.memory = m
		return l
	}
}

func (l *lockedRow) DoneNow(ctx context.Context, held []store.Held) (kept, locked []store.Held, err error) {
	var rest []store.Held
	for _, h := range held {
		if h.EventID == l.id && l.times.Add(-1) >= 0 {
			locked = append(locked, h)
		} else {
			rest = append(rest, h)
		}
	}
	kept, more, err := l.memory.DoneNow(ctx, rest)
	return kept, append(locked, more...), err
}

// TestLockedRowKeepsOnlyItsOwnOutcome: the batch that it is in goes one by one.
func TestLockedRowKeepsOnlyItsOwnOutcome(t *testing.T) {
	t.Parallel()
	const n = 20
	gate := make(chan struct{})
	b := newBed(t, 18, func(context.Context, *Event) error {
		<-gate
		return nil
	}, Concurrency(n))
	ids := b.put(numbered(n)...)
	_, b.swap = keepLocked(ids[0], 2)
	b.start()
	close(gate)
	b.await(n)
	for _, id := range ids {
		b.want(id, consumed(1))
	}
}
