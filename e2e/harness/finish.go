package harness

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/load"
)

// Wait asks for a condition until it holds. It fails the test, with all that
// is known, when that takes too long or when a relay ends that nobody ended.
func (b *Bed) Wait(what string, condition func() bool) {
	b.t.Helper()
	poll(b.t, what, func() bool {
		for _, r := range b.relays {
			if r.unexpectedEnd() {
				b.t.Fatalf("the relay ended while the test waited for %s", what)
			}
		}
		return condition()
	}, b.state)
}

// Settle waits until every row is resolved and the slot has reached the end of
// the WAL of then.
func (b *Bed) Settle() {
	b.t.Helper()
	b.Wait("no row left READY and unparked", func() bool {
		return b.Count(fmt.Sprintf(`SELECT count(*) FROM (SELECT 1 FROM %s WHERE send_status = 0 AND next_attempt_at IS NULL LIMIT 1) r`, b.Table)) == 0
	})
	end := b.lsn(`SELECT pg_current_wal_flush_lsn()::text`)
	b.Wait("the slot to confirm "+end.String(), func() bool { return b.Confirmed() >= end })
}

// Confirmed is the slot's confirmed_flush_lsn.
func (b *Bed) Confirmed() pglogrepl.LSN {
	b.t.Helper()
	return b.lsn(`SELECT coalesce((SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1), '0/0')::text`, b.Slot)
}

func (b *Bed) lsn(sql string, args ...any) pglogrepl.LSN {
	b.t.Helper()
	conn, err := b.Pool.Acquire(b.t.Context())
	if err != nil {
		b.t.Fatalf("getting a connection: %v", err)
	}
	defer conn.Release()
	pos, err := lsn(b.t.Context(), conn.Conn(), sql, args...)
	if err != nil {
		b.t.Fatalf("asking %q: %v", sql, err)
	}
	return pos
}

// Allow is what a test may leave behind besides a clean run.
type Allow struct {
	Duplicates int            // at most
	Refused    map[int64]bool // rows that Kafka had to refuse
	Waived     map[int64]bool // rows that the test skipped or deleted
	Unordered  map[int64]bool // rows that may come at any place
	Repeated   map[int64]bool // rows that may come more than once
}

// Finish ends a test: it waits until all is settled and lets the checker
// compare what was committed with table, topics and positions.
func (b *Bed) Finish(allow Allow) *check.Report {
	b.t.Helper()
	b.Settle()
	report := b.Check(allow)
	b.t.Log(report)
	if err := report.Err(); err != nil {
		b.t.Error(err)
	}
	return report
}

// Check runs the checker on what is there now.
func (b *Bed) Check(allow Allow) *check.Report {
	b.t.Helper()
	run := check.Run{Events: b.History.Events(), MaxDuplicates: allow.Duplicates, Refused: allow.Refused,
		Block: b.blocking(), Waived: allow.Waived, Unordered: allow.Unordered, Repeated: allow.Repeated}
	if b.sampler != nil {
		if run.Samples = b.sampler.stop(); len(run.Samples) == 0 {
			b.t.Error("no position was sampled")
		}
		b.sampler = nil
	}
	rows, err := load.ReadTable(b.t.Context(), b.Pool, b.Table, b.PayloadBytes)
	if err != nil {
		b.t.Fatal(err)
	}
	run.Rows = rows
	records, err := b.Admin.Read(b.t.Context(), b.Topics()...)
	if err != nil {
		b.t.Fatal(err)
	}
	run.Records = slices.DeleteFunc(append(records, b.deleted...), func(r check.Record) bool { return b.forgotten[r.EventID] })
	return run.Check()
}

// blocking are the aggregate types whose events wait for a failed one.
func (b *Bed) blocking() map[string]bool {
	block := map[string]bool{}
	byType, _ := b.config["failure.by_type"].(map[string]string)
	for _, typ := range b.types {
		mode, ok := byType[typ]
		if !ok {
			mode, _ = b.config["failure.on_failure"].(string)
		}
		block[typ] = mode != "continue"
	}
	return block
}

// state is all that helps to understand why a wait did not end.
func (b *Bed) state() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d events committed\n", b.History.Len())
	for _, q := range []struct{ what, sql string }{
		{"slots", `SELECT coalesce(json_agg(s), '[]') FROM (SELECT slot_name, active, active_pid, restart_lsn, confirmed_flush_lsn, wal_status, pg_current_wal_lsn() AS now FROM pg_replication_slots WHERE database = current_database()) s`},
		{"lease", `SELECT coalesce(json_agg(l), '[]') FROM public.cdc_relay_lease l`},
		{"rows", fmt.Sprintf(`SELECT coalesce(json_agg(r), '[]') FROM (SELECT send_status, next_attempt_at IS NOT NULL AS parked, error_code, count(*), min(id), max(id) FROM %s GROUP BY 1, 2, 3) r`, b.Table)},
	} {
		var text string
		if err := b.Pool.QueryRow(b.t.Context(), q.sql).Scan(&text); err != nil {
			text = err.Error()
		}
		fmt.Fprintf(&s, "%s: %s\n", q.what, text)
	}
	for _, r := range b.relays {
		if r.Exited() {
			continue
		}
		status, _ := json.Marshal(r.Status()) // of plain strings and numbers
		fmt.Fprintf(&s, "relay %d: %s\n%s\n", r.PID(), status, r.Tail(30))
	}
	return s.String()
}
