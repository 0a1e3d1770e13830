package statusback_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
	"github.com/cdc-relay/cdc-relay/internal/statusback"
)

// The recorder works while a statement of it waits, and rests when idle.
func TestBeat(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		board := pulse.NewBoard()
		f := setup(t, db, patient, func(c *statusback.Config) { c.Pulse = board })
		rests := func() bool { return cmp.Equal([]pulse.Part{{Name: "write-back"}}, board.Parts()) }
		state := func() string { return fmt.Sprint(board.Parts()) }
		pgtest.Eventually(t, "rest before there is anything to do", rests, state)

		refs := f.insert(t, 1)
		lock := f.begin(t, "SELECT FROM outbox WHERE id = $1 FOR UPDATE", refs[0].ID)
		f.Sent(refs)
		f.waits(t)
		if parts := board.Parts(); len(parts) != 1 || parts[0].Since.IsZero() {
			t.Errorf("while a statement waits: %v", parts)
		}
		if err := lock.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		pgtest.Eventually(t, "rest after the statement", rests, state)
		if err := f.end(t); err != nil || len(board.Parts()) != 0 {
			t.Errorf("Run: %v; after its end: %v", err, board.Parts())
		}
	})
}
