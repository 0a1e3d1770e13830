package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
)

// insertWith writes a row with further columns, given in SQL, and returns its
// id. No other load may run on its aggregate.
func insertWith(t *testing.T, b *harness.Bed, aggregateType, aggregateID, columns, values string) int64 {
	t.Helper()
	e := check.Event{Aggregate: check.Aggregate{Type: aggregateType, ID: aggregateID}}
	asked := time.Now()
	err := b.Pool.QueryRow(t.Context(), fmt.Sprintf(`INSERT INTO %s (aggregate_type, aggregate_id, event_type, %s)
		VALUES ($1, $2, 'changed', %s) RETURNING id, event_id`, b.Table, columns, values), aggregateType, aggregateID).Scan(&e.ID, &e.EventID)
	if err != nil {
		t.Fatalf("inserting a row with %s: %v", columns, err)
	}
	b.History.Add([]check.Event{e}, 0, asked)
	return e.ID
}

// watchRequeues lets the server note, in the table requeues, each row that the
// scheduler touches: with the transaction, which is one batch, and in order.
func watchRequeues(b *harness.Bed) {
	b.Exec(`CREATE TABLE requeues (seq bigserial, tx xid8, id bigint, at timestamptz DEFAULT clock_timestamp())`)
	b.Exec(`CREATE FUNCTION note_requeue() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.requeues (tx, id) VALUES (pg_current_xact_id(), NEW.id); RETURN NULL; END $$`)
	b.Exec(`CREATE TRIGGER note_requeue AFTER UPDATE OF next_attempt_at ON outbox FOR EACH ROW
		WHEN (NEW.send_status = 0 AND NEW.next_attempt_at = OLD.next_attempt_at AND NEW.next_attempt_at < 'infinity')
		EXECUTE FUNCTION note_requeue()`)
}

// largestRequeue is how many rows one batch of the scheduler had at most.
func largestRequeue(b *harness.Bed) int {
	return b.Count(`SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM requeues GROUP BY tx) s`)
}

// watchAttempts lets the server note, in the table attempts_made, each change
// of a row's attempts, and whether the row was due by then: a held one when it
// was the first of its aggregate.
func watchAttempts(b *harness.Bed) {
	b.Exec(`CREATE TABLE attempts_made (seq bigserial, id bigint, before int, after int, due boolean)`)
	b.Exec(`CREATE FUNCTION note_attempt() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		INSERT INTO public.attempts_made (id, before, after, due)
		VALUES (NEW.id, OLD.attempts, NEW.attempts, coalesce(OLD.next_attempt_at, '-infinity') <= clock_timestamp()
			OR OLD.next_attempt_at = 'infinity' AND NOT EXISTS (SELECT FROM public.outbox p
				WHERE p.aggregate_type = OLD.aggregate_type AND p.aggregate_id = OLD.aggregate_id AND p.next_attempt_at IS NOT NULL
					AND (p.commit_lsn, p.id) < (OLD.commit_lsn, OLD.id))); RETURN NULL; END $$`)
	b.Exec(`CREATE TRIGGER note_attempt AFTER UPDATE OF attempts ON outbox FOR EACH ROW
		WHEN (NEW.attempts <> OLD.attempts AND NEW.send_status IN (0, 3)) EXECUTE FUNCTION note_attempt()`)
}

// attemptsAreCounted fails the test if an attempt was counted twice, or before
// the row was due.
func attemptsAreCounted(t *testing.T, b *harness.Bed) {
	t.Helper()
	if n := b.Count(`SELECT count(*) FROM attempts_made WHERE after <> before + 1 OR NOT due`); n != 0 {
		t.Errorf("%d of %d attempts were counted wrongly", n, b.Count(`SELECT count(*) FROM attempts_made`))
	}
}
