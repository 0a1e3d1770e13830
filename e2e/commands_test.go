package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestCommandsOnFailedEvents: what a person does with failed events, by the
// commands and with a relay that runs.
func TestCommandsOnFailedEvents(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, limited(harness.Shared(t), nil))
		b.StartStreaming(nil)
		run := func(code int, args ...string) string {
			t.Helper()
			output, got := b.Command(nil, args...)
			if got != code {
				t.Fatalf("cdc-relay %s: exit code %d, want %d\n%s", strings.Join(args, " "), got, code, output)
			}
			return output
		}
		skipped, replayed := obstruct(b, "a"), obstruct(b, "b")
		list := run(0, "failed", "list")
		for _, want := range []string{fmt.Sprint(skipped), fmt.Sprint(replayed), "RECORD_TOO_LARGE", fmt.Sprint(heldBehind)} {
			if !strings.Contains(list, want) {
				t.Errorf("failed list does not say %q:\n%s", want, list)
			}
		}
		run(0, "skip", fmt.Sprint(skipped), "--reason", "a test")
		b.Wait("what was behind the skipped event", func() bool { return unsent(b, "a") == 1 })
		run(5, "replay", "--error-code", "RECORD_TOO_LARGE")
		if heldRows(b, "b") != heldBehind {
			t.Error("a dry run has let held events go")
		}
		raiseLimit(t, b)
		run(0, "replay", "--error-code", "RECORD_TOO_LARGE", "--confirm", "1", "--reason", "the limit is raised", "--wait", "60s")
		b.Wait("what was behind the replayed event", func() bool { return unsent(b, "b") == 0 })
		if n := b.Count(`SELECT count(*) FROM cdc_relay_audit WHERE id IN ($1, $2) AND action IN ('skip', 'replay')`, skipped, replayed); n != 2 {
			t.Errorf("%d entries in the audit, want 2", n)
		}
		show := run(0, "events", "show", fmt.Sprint(replayed), "--locate")
		if !strings.Contains(show, "topic "+b.Topic("order")) || !strings.Contains(show, "offset ") {
			t.Errorf("events show --locate does not say where it is:\n%s", show)
		}
		b.Finish(harness.Allow{Waived: map[int64]bool{skipped: true}})
	})
}
