package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// verify runs `cdc-relay verify` and returns what it found, as name and count.
func verify(t *testing.T, b *harness.Bed, args ...string) (found []string) {
	t.Helper()
	output, code := b.Command(nil, append([]string{"verify", "--json", "--timeout", "60s"}, args...)...)
	var answer struct {
		Fine     *bool
		Findings []struct {
			Finding string
			Count   int
			Lesser  bool
		}
	}
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "{") {
			if err := json.Unmarshal([]byte(line), &answer); err != nil {
				t.Fatalf("%v\n%s", err, output)
			}
		}
	}
	wrong := false
	for _, f := range answer.Findings {
		wrong = wrong || !f.Lesser
		found = append(found, fmt.Sprintf("%s %d", f.Finding, f.Count))
	}
	if answer.Fine == nil || *answer.Fine == wrong || (code == 0) != *answer.Fine || code != 0 && code != 3 {
		t.Fatalf("cdc-relay verify: exit code %d\n%s", code, output)
	}
	return found
}

// TestVerifyBesideARelayAtWork: under load, with attempts that fail and events
// held behind them, nothing is found; then what is planted, and once the relay
// has mended that, nothing again.
func TestVerifyBesideARelayAtWork(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newGhostBed(t, db, relayproc.Config{"failure.on_failure": "block"})
		relay := b.StartStreaming(nil)
		for i := range 50 {
			b.Insert(harness.Row(ghost, fmt.Sprint(i%5), "{}"))
		}
		expect := func(when string, want []string, args ...string) {
			t.Helper()
			if diff := cmp.Diff(want, verify(t, b, args...)); diff != "" {
				t.Errorf("%s, found (-want +got):\n%s", when, diff)
			}
		}
		end := make(chan struct{})
		written := b.Background(func(ctx context.Context) error {
			for {
				spec := b.Load(200, 50)
				spec.Pace = 20 * time.Millisecond
				select {
				case <-end:
					return nil
				default:
				}
				if err := spec.Run(ctx, b.History); err != nil {
					return err
				}
			}
		})
		b.Wait("progress", func() bool { return b.CountStatus(check.Sent) > 100 })
		for range 2 {
			expect("under load", nil, "--topic-scan")
		}
		close(end)
		written()
		createGhost(t, b)
		expect("while held events follow", nil)
		b.Wait("them to be SENT", func() bool { return b.CountStatus(check.Ready) == 0 })
		b.Finish(harness.Allow{}) // and ends the watch over positions, which come to be wrong now

		again := b.Count(`SELECT min(id) FROM outbox`)
		b.Exec(`UPDATE outbox SET send_status = 0, sent_at = NULL WHERE id = $1`, again)
		expect("a row that no message tells of", []string{"missing 1"}, "--id", fmt.Sprint(again))
		relay.Terminate()
		b.Insert(harness.Row("order", "late", "{}"))
		b.Exec(`SELECT pg_replication_slot_advance($1, pg_current_wal_insert_lsn())`, b.Slot)
		expect("a slot that was moved on", []string{"slot_inactive 1", "slot_position 1"}, "--wait", "0s")
		b.StartStreaming(nil)
		b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Ready) == 0 })
		expect("after the READY-first pass", nil)
		const row = `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload, next_attempt_at, created_at) VALUES ('order', 'delayed', 'changed', '{}', $1, $2)`
		b.Exec(row, time.Now().Add(2*time.Second), time.Now())
		b.Exec(row, nil, time.Now().Add(2*time.Minute))
		b.Wait("the delayed one to be SENT", func() bool { return b.CountStatus(check.Ready) == 0 })
		expect("a delayed event", []string{"delayed_or_out_of_order 1"}, "--topic-scan")
		b.Exec(`DELETE FROM outbox WHERE id = $1`, again+1)
		expect("a row that is gone", []string{"no_row 1", "delayed_or_out_of_order 1"}, "--topic-scan")
	})
}
