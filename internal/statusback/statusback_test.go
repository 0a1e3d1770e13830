package statusback_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestSent(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db)
		refs := f.insert(t, 2000)
		f.Sent(refs)
		f.out.waitResolved(t, refs)
		const sent = "send_status = 2 AND sent_at IS NOT NULL AND attempts = 0 AND next_attempt_at IS NULL AND commit_lsn IS NULL"
		if n := f.count(t, sent); n != len(refs) {
			t.Errorf("%d rows are SENT, want %d", n, len(refs))
		}
		if n := f.writes(t, "SENT", "ok"); n != float64(len(refs)) {
			t.Errorf("counted %v rows, want %d", n, len(refs))
		}
	})
}
