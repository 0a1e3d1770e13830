package statusback_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/internal/statusback"
)

// TestConnectionKilled in the middle of a statement.
func TestConnectionKilled(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, patient)
		refs, parked := f.insert(t, 50), f.insert(t, 2)
		lock := f.begin(t, "SELECT FROM outbox WHERE id = $1 FOR UPDATE", refs[20].ID)
		f.Sent(refs)
		for range 3 {
			f.exec(t, "SELECT pg_terminate_backend($1)", f.waits(t))
		}
		f.Park(parksOf(parked, event.ParkRetry))
		commit(t, lock)
		f.out.waitResolved(t, refs, parked)
		if n := f.count(t, isSent); n != len(refs) {
			t.Errorf("%d rows are SENT, want %d", n, len(refs))
		}
		if n := f.count(t, "attempts = 1"); n != len(parked) {
			t.Errorf("%d rows have one attempt, want %d", n, len(parked))
		}
	})
}

// throughProxy makes a recorder whose connection can lose answers. A first row
// is SENT, so the connection is there.
func throughProxy(t *testing.T, db *pgtest.DB) (p *proxy, f *fixture, first []event.Ref) {
	t.Helper()
	server, err := url.Parse(db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	p = newProxy(t, server.Host)
	f = setup(t, db, func(c *statusback.Config) { c.Database.DSN = strings.Replace(db.DSN, server.Host, p.address(), 1) })
	first = f.insert(t, 1)
	f.Sent(first)
	f.out.waitResolved(t, first)
	return p, f, first
}

// TestLostAnswer: the statement is committed, its answer is lost, and before
// it is repeated the row is replayed, or fails at its consumer. Both survive.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		p, f, first := throughProxy(t, db)
		p.swallow()
		refs := f.insert(t, 3)
		f.Sent(refs)
		pgtest.Eventually(t, "the rows to be SENT", func() bool { return f.count(t, isSent) == 4 }, func() string { return "they are not" })
		f.exec(t, "UPDATE outbox SET send_status = 0, next_attempt_at = now(), sent_at = NULL WHERE id = $1", refs[0].ID)
		f.exec(t, "UPDATE outbox SET send_status = 3, next_attempt_at = 'infinity', error_code = 'CONSUMER_DATA' WHERE id = $1", refs[1].ID)
		before := f.rows(t)
		p.cut()
		f.out.waitResolved(t, first, refs)
		for i, row := range f.rows(t) {
			if row != before[i] {
				t.Errorf("the row became %s, was %s", row, before[i])
			}
		}
	})
}

// raise makes updates of some rows fail.
func (f *fixture) raise(t *testing.T, condition, action string) {
	t.Helper()
	f.exec(t, `CREATE FUNCTION user_trigger() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN IF `+condition+` THEN `+action+`; END IF; RETURN NEW; END $$`)
	f.exec(t, "CREATE TRIGGER user_trigger BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION user_trigger()")
}

// TestRefusedRow: a user's trigger fails on one row; the others go on.
func TestRefusedRow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 200)
		f.raise(t, "NEW.id IN ("+id(refs[77])+","+id(refs[78])+")", "RAISE 'planted-secret'")
		f.Sent(refs)
		b := f.out.waitTrouble(t, "table.triggers")
		if !strings.Contains(b.What, "row "+id(refs[77])+" (SQLSTATE P0001)") || strings.Contains(b.Error(), "planted") {
			t.Errorf("trouble: %v", b)
		}
		bad := []int64{refs[77].ID, refs[78].ID}
		f.out.waitResolved(t, without(bad, refs))
		f.exec(t, "DROP TRIGGER user_trigger ON outbox")
		f.out.waitResolved(t, refs)
		f.out.waitTrouble(t, "")
	})
}

// TestRefusedAtCommit: the statement answers with its rows and fails after
// that. Nothing of it is written, so nothing may be reported.
func TestRefusedAtCommit(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 40)
		f.exec(t, `CREATE FUNCTION at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN IF NEW.id = `+id(refs[9])+` THEN RAISE 'no'; END IF; RETURN NULL; END $$`)
		f.exec(t, `CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE ON outbox DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW EXECUTE FUNCTION at_commit()`)
		f.Sent(refs)
		f.out.waitTrouble(t, "table.triggers")
		f.out.waitResolved(t, without([]int64{refs[9].ID}, refs))
		if n := f.count(t, isSent); n != len(refs)-1 {
			t.Errorf("%d rows are SENT, want %d", n, len(refs)-1)
		}
		f.exec(t, "DROP TRIGGER at_commit ON outbox")
		f.out.waitResolved(t, refs)
	})
}

// TestEveryRowRefused: the search for the rows at fault is bounded.
func TestEveryRowRefused(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 3000)
		f.raise(t, "true", "RAISE 'no'")
		f.exec(t, "SELECT pg_stat_reset()")
		f.Sent(refs)
		f.out.waitTrouble(t, "table.triggers")
		var rolledBack int
		if err := f.conn.QueryRow(t.Context(), "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()").
			Scan(&rolledBack); err != nil || rolledBack > 500 {
			t.Errorf("%d statements failed, %v", rolledBack, err)
		}
		f.exec(t, "DROP TRIGGER user_trigger ON outbox")
		f.out.waitResolved(t, refs)
		f.out.waitTrouble(t, "")
	})
}

// TestSuppressedRow: a trigger that returns NULL changes nothing and raises
// nothing.
func TestSuppressedRow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 20)
		f.raise(t, "NEW.id = "+id(refs[7]), "RETURN NULL")
		f.Sent(refs)
		f.out.waitTrouble(t, "table.triggers")
		f.out.waitResolved(t, without([]int64{refs[7].ID}, refs))
		f.exec(t, "DROP TRIGGER user_trigger ON outbox")
		f.out.waitResolved(t, refs)
		f.out.waitTrouble(t, "")
	})
}

// TestTableRenamed is for a person; when it is back, writing goes on.
func TestTableRenamed(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 5)
		f.exec(t, "ALTER TABLE outbox RENAME TO elsewhere")
		f.Sent(refs)
		f.out.waitTrouble(t, "table.columns")
		f.exec(t, "ALTER TABLE elsewhere RENAME TO outbox")
		f.out.waitResolved(t, refs)
		f.out.waitTrouble(t, "")
	})
}
