package e2e

import (
	"fmt"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/load"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// restore copies a database of the Debian server, whose programs can, by a
// dump.
func restore(t *testing.T, from, to *pgtest.DB) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dump.sql")
	for _, cmd := range []*osexec.Cmd{
		osexec.Command(filepath.Join(pgtest.Env(t, "CDC_TEST_PG15_BIN"), "pg_dump"), "--no-owner", "--file", file, from.DSN),
		osexec.Command(pgtest.Env(t, "CDC_TEST_PSQL"), "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--file", file, to.DSN),
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", filepath.Base(cmd.Path), err, out)
		}
	}
}

// moveTo lets the rest of the test work on another database. No relay may run.
func moveTo(t *testing.T, b *harness.Bed, db *pgtest.DB) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b.DB, b.Pool = db, pool
}

// TestRestoredDump: a copy on the same server, or on another one, publishes
// nothing by accident. Once a person has adopted it, it goes on where the
// original was when it was dumped: READY rows go out, what is parked keeps its
// order.
func TestRestoredDump(t *testing.T) {
	t.Parallel()
	const ready = 20
	b := newGhostBed(t, pgtest.New(t, 15), blocking)
	original := b.DB
	relay := b.StartStreaming(nil)
	b.Insert(harness.Row("order", "sent", "{}"))
	b.Insert(harness.Row(ghost, "g", "{}"))
	b.Wait("an attempt", func() bool { return b.Count(`SELECT count(*) FROM outbox WHERE attempts > 0`) == 1 })
	insertAcross(t, b, harness.Row(ghost, "g", `{"held":2}`), harness.Row(ghost, "g", `{"held":1}`))
	b.Wait("rows to be held", func() bool { return b.Count(`SELECT count(*) FROM outbox WHERE next_attempt_at = 'infinity'`) == 2 })
	relay.Terminate()
	b.Unwatch()
	for i := range ready {
		b.Insert(harness.Row("order", fmt.Sprint(i), "{}"))
	}

	neighbour, elsewhere := pgtest.New(t, 15), pgtest.New(t, 18)
	restore(t, original, neighbour)
	restore(t, original, elsewhere)
	moveTo(t, b, elsewhere)
	relay = b.Start(relayproc.Config{"postgres.dsn": neighbour.DSN})
	relay.WaitBlocked("slot.database")
	relay.Terminate()
	here := relayproc.Config{"postgres.dsn": elsewhere.DSN}
	relay = b.Start(here)
	remedy := "cdc-relay slot adopt --confirm " + b.Slot
	if status := relay.WaitBlocked("slot.system"); !strings.HasSuffix(status.Remedy, remedy) {
		t.Fatalf("remedy %q, want %q at its end", status.Remedy, remedy)
	}
	orders := slices.DeleteFunc(b.History.Events(), func(e check.Event) bool { return e.Aggregate.Type == ghost })
	if n := b.Published(orders); n != 1 {
		t.Errorf("%d events were published, want only the one before the dump", n)
	}
	if n := b.CountStatus(check.Ready); n != ready+3 {
		t.Errorf("%d rows are READY, want %d", n, ready+3)
	}

	if output, code := b.Command(here, strings.Fields(remedy)[1:]...); code != 0 {
		t.Fatalf("%s: code %d\n%s", remedy, code, output)
	}
	b.Wait("the READY rows to be SENT", func() bool { return b.CountStatus(check.Sent) == ready+1 })
	createGhost(t, b)
	b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == ready+4 })
	onlyPositions(t, b)
}

// insertAcross commits two rows in the order of their arguments and not of their
// ids.
func insertAcross(t *testing.T, b *harness.Bed, first, second load.Row) {
	t.Helper()
	tx, err := load.Begin(t.Context(), b.Conn(), b.Table)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Insert(t.Context(), []load.Row{second}); err != nil {
		t.Fatal(err)
	}
	b.Insert(first)
	if err := tx.Commit(t.Context(), b.History); err != nil {
		t.Fatal(err)
	}
}
