package e2e

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// These tests hold row locks for long, which every creation of a slot in the
// same cluster has to wait for: hence clusters of their own.

// TestConsumerIsNotOverwritten: a consumer that was faster than the write-back
// keeps its claim when SENT comes late.
func TestConsumerIsNotOverwritten(t *testing.T) {
	t.Parallel()
	eachCluster(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		firstRun(b)
		id := b.InsertOne(harness.Row("order", "order-1", "{}"))
		consumer := lockRow(t, b, id)
		relay := b.StartStreaming(nil)
		b.Wait("the ack", func() bool { return relay.Counter("events_acked_total") == 1 })
		claim(t, consumer, id)
		b.Wait("the late write-back", func() bool { return relay.Counter(`status_writes_total{result="stale",to="SENT"}`) == 1 })
		report := b.Finish(harness.Allow{})
		if report.Statuses[check.Consuming] != 1 {
			t.Errorf("rows by status %v, want one CONSUMING", report.Statuses)
		}
		if n := b.Count(`SELECT claim_generation FROM outbox WHERE id = $1`, id); n != 1 {
			t.Errorf("the claim has generation %d, want 1", n)
		}
	})
}

// firstRun lets a relay save a position and stop. Without one, the next start
// would publish from the table first.
func firstRun(b *harness.Bed) {
	relay := b.StartStreaming(nil)
	b.Write(100, 20)
	b.Settle()
	relay.Terminate()
}

// lockRow locks a row in a transaction that the caller ends.
func lockRow(t *testing.T, b *harness.Bed, id int64) *pgx.Conn {
	t.Helper()
	conn := b.Conn()
	exec(t, conn, `BEGIN`)
	exec(t, conn, `SELECT FROM outbox WHERE id = $1 FOR UPDATE`, id)
	return conn
}

// claim takes a row as a consumer does, and ends the transaction.
func claim(t *testing.T, conn *pgx.Conn, id int64) {
	t.Helper()
	exec(t, conn, `UPDATE outbox SET send_status = 5, claim_generation = claim_generation + 1, claimed_by = 'consumer',
		lease_until = clock_timestamp() + interval '1 hour' WHERE id = $1`, id)
	exec(t, conn, `COMMIT`)
}

func exec(t *testing.T, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("executing %q: %v", sql, err)
	}
}

// TestStaleEpochWritesNothing moves the epoch under a relay whose write-back
// is under way. That has to wait for the statement, and afterwards the event,
// acknowledged under the old epoch, is not written as SENT but published again
// under a new one. Renewals are rare here, and one has just been made when the
// slot is at the end: the next one would see the new epoch too, and end the
// session before the write-back is tried again.
func TestStaleEpochWritesNothing(t *testing.T) {
	t.Parallel()
	eachCluster(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		relay := b.StartStreaming(relayproc.Config{
			"lease.renew_interval": "20s", "lease.publish_within": "60s", "lease.takeover_after": "120s", "lease.ttl": "240s",
		})
		b.Write(100, 10)
		b.Settle()
		release, thief := holdBackSENT(t, b), b.Conn()
		b.Insert(harness.Row("order", "order-1", "{}"))
		b.Wait("a write-back to hold the fence", func() bool { return fenceIsHeld(t, thief) })
		exec(t, thief, `UPDATE cdc_relay_slot SET epoch = epoch + 1, owner = gen_random_uuid() WHERE slot = $1`, b.Slot)
		b.Wait("the write-back to be fenced", func() bool { return relay.Counter(`fenced_total{by="epoch"}`) > 0 })
		release()
		relay.Terminate()
		b.Exec(`UPDATE cdc_relay_lease SET lease_until = now() WHERE slot = $1`, b.Slot)
		b.Start(nil)
		report := b.Finish(harness.Allow{Duplicates: 1})
		if report.Duplicates != 1 {
			t.Error("the event was not published again: the stale epoch wrote SENT")
		}
	})
}

// TestKilledWhileItsWriteBackHangs: what a dead relay has asked of the server
// ends soon after it, whatever it waits for, so that another one can lead.
func TestKilledWhileItsWriteBackHangs(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: relayproc.Config{"postgres.statement_timeout": "10m"}})
		first := b.StartStreaming(nil)
		b.Write(100, 10)
		b.Settle()
		second := b.Start(nil)
		second.WaitState("standby")
		b.Exec(`CREATE TABLE hang ()`)
		b.Exec(`CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			LOOP PERFORM FROM public.hang; EXIT WHEN NOT FOUND; PERFORM pg_catalog.pg_sleep(0.05); END LOOP; RETURN NEW; END $$`)
		b.Exec(`CREATE TRIGGER hang BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION hang()`)
		b.Exec(`INSERT INTO hang DEFAULT VALUES`)
		b.Insert(harness.Row("order", "order-1", "{}"))
		other := b.Conn()
		b.Wait("a write-back to hold the fence", func() bool { return fenceIsHeld(t, other) })
		first.Kill()
		second.WaitState("streaming")
		b.Exec(`DELETE FROM hang`)
		b.Finish(harness.Allow{Duplicates: 1})
	})
}

// holdBackSENT lets every update of an outbox row wait until release is called.
func holdBackSENT(t *testing.T, b *harness.Bed) (release func()) {
	t.Helper()
	b.Exec(`CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(4711); RETURN NEW; END $$`)
	b.Exec(`CREATE TRIGGER wait BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION wait()`)
	holder := b.Conn()
	exec(t, holder, `SELECT pg_advisory_lock(4711)`)
	return func() { exec(t, holder, `SELECT pg_advisory_unlock(4711)`) }
}

// fenceIsHeld reports whether whoever wants the fence now has to wait.
func fenceIsHeld(t *testing.T, conn *pgx.Conn) bool {
	t.Helper()
	_, err := conn.Exec(t.Context(), `SELECT FROM cdc_relay_slot FOR UPDATE NOWAIT`)
	var refused *pgconn.PgError
	if err != nil && !(errors.As(err, &refused) && refused.Code == "55P03") {
		t.Fatalf("trying the fence: %v", err)
	}
	return err != nil
}

// TestRowLockedForLong: one locked row stops nobody but the slot.
func TestRowLockedForLong(t *testing.T) {
	t.Parallel()
	eachCluster(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		firstRun(b) // so that the lock is met in the stream
		othersFlow(t, b)
	})
}

// TestRowLockedInTheFirstPass: the pass goes on to the stream without it.
func TestRowLockedInTheFirstPass(t *testing.T) {
	t.Parallel()
	b := harness.NewBed(t, pgtest.StartCluster(t, 18).New(t), harness.Options{Kafka: harness.Shared(t)})
	othersFlow(t, b)
}

// othersFlow starts a relay while one of the rows that wait for it is locked.
func othersFlow(t *testing.T, b *harness.Bed) {
	t.Helper()
	const before, after = 500, 300
	known := b.CountStatus(check.Sent)
	b.Write(before-1, 20)
	id := b.InsertOne(harness.Row("order", "order-1", "{}"))
	lock := lockRow(t, b, id)
	b.StartStreaming(nil)
	b.Write(after, 20)
	sent := func() int { return b.CountStatus(check.Sent) - known }
	b.Wait("all other rows to be SENT", func() bool { return sent() == before+after-1 })
	b.WaitSeconds(20)
	if n := sent(); n != before+after-1 {
		t.Errorf("%d rows are SENT while one is locked, want all but that one of %d", n, before+after)
	}
	exec(t, lock, `COMMIT`)
	b.Finish(harness.Allow{})
}
