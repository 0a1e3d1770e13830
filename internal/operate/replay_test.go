package operate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

const oneMinute = time.Minute

// What a wait tells of rows that the relay, the consumer and other people have
// gone on with.
func TestWait(t *testing.T) {
	t.Parallel()
	const again = "send_status = 3, next_attempt_at = 'infinity', error_code = 'TOPIC_DENIED'"
	becomes := []struct{ set, want string }{
		{"send_status = 2, sent_at = now()", "sent SENT"},
		{"send_status = 5, sent_at = now()", "sent CONSUMING"},
		{"send_status = 4, sent_at = now(), finished_at = now()", "sent CONSUMED"},
		{again, "failed_again FAILED TOPIC_DENIED"},
		{"send_status = 3, next_attempt_at = NULL, commit_lsn = NULL, finished_at = now()", "waived FAILED"},
		{"", "not_found"}, // deleted
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		ids := b.insert(t, "a", slices.Repeat([]string{publishFailed}, len(becomes))...)
		results := b.apply(t, Order{Action: Replay, From: failedOnly}, append(slices.Clone(ids), 1<<40)...)
		// All but the first are settled when the wait begins; the first one while
		// it is under way.
		for i, to := range becomes[1:] {
			if to.set == "" {
				b.exec(t, "DELETE FROM outbox WHERE id = $1", ids[i+1])
				continue
			}
			b.exec(t, "UPDATE outbox SET "+to.set+" WHERE id = $1", ids[i+1])
		}
		watcher := db.Conn(t)
		done := make(chan error, 1)
		go func() { done <- b.actions.Wait(t.Context(), results, oneMinute) }()
		pgtest.Eventually(t, "the wait to look at the rows", func() bool {
			var looked bool
			err := watcher.QueryRow(t.Context(), "SELECT query LIKE '%o.\"next_attempt_at\"%' AND state = 'idle' FROM pg_stat_activity WHERE pid = $1", b.conn.PgConn().PID()).Scan(&looked)
			return err == nil && looked
		}, func() string { return "it does not" })
		b.exec(t, "UPDATE outbox SET "+becomes[0].set+" WHERE id = $1", ids[0])
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		var got, want []string
		for i, r := range results {
			text := outcomes(results[i : i+1])[0]
			if r.ErrorCode != "" && r.Outcome == FailedAgain {
				text += " " + r.ErrorCode
			}
			got = append(got, text)
			if i < len(becomes) {
				want = append(want, becomes[i].want)
			}
		}
		want = append(want, "not_found") // it never was there
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
	})
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		ids := b.insert(t, "a", publishFailed, publishFailed)
		results := b.apply(t, Order{Action: Replay, From: failedOnly}, ids...)
		b.exec(t, "UPDATE outbox SET next_attempt_at = 'infinity' WHERE id = $1", ids[1])

		if err := b.actions.Wait(t.Context(), results, 0); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"waiting READY", "waiting READY"}, outcomes(results)); diff != "" {
			t.Errorf("results (-want +got):\n%s", diff)
		}
		if results[0].Detail != "" || !strings.Contains(results[1].Detail, "held behind an earlier event") {
			t.Errorf("details %q, %q", results[0].Detail, results[1].Detail)
		}

		results[0].Outcome = Replayed
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := b.actions.Wait(ctx, results, oneMinute); !errors.Is(err, context.Canceled) {
			t.Errorf("interrupted: %v", err)
		}
	})
}
