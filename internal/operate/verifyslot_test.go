package operate

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestJudgeSlot: each state of slot and lease.
func TestJudgeSlot(t *testing.T) {
	t.Parallel()
	streaming := positions{exists: true, active: true, walStatus: "reserved", confirmed: "0/20", catalogXmin: "7",
		ever: true, instance: "relay-1", leads: true, saved: "0/20", vouched: true}
	tests := []struct {
		name   string
		change func(*positions)
		want   []string
		detail string // of the last one
		notes  int
	}{
		{"streaming", func(*positions) {}, nil, "", 0},
		{"no slot", func(p *positions) { *p = positions{ever: true, instance: "relay-1"} }, []string{"slot_missing 1"}, "", 0},
		{"nothing at all", func(p *positions) { *p = positions{} }, []string{"slot_missing 1"}, "", 0},
		{"lost", func(p *positions) { p.active, p.leads, p.walStatus = false, false, "lost" }, []string{"slot_lost 1"}, "", 0},
		{"invalidated", func(p *positions) { p.active, p.invalidation = false, "idle_timeout" }, []string{"slot_lost 1"}, "idle_timeout", 0},
		{"nobody", func(p *positions) { p.active, p.leads = false, false }, []string{"slot_inactive 1"}, "last led by relay-1", 0},
		{"nobody ever", func(p *positions) { *p = positions{exists: true} }, []string{"slot_inactive 1"}, "no relay has ever led it", 0},
		{"a leader that does not stream", func(p *positions) { p.active = false }, nil, "", 1},
		{"a leader at its READY-first pass", func(p *positions) { p.active, p.vouched, p.saved = false, false, "" }, nil, "", 1},
		{"nobody, and moved on by hand", func(p *positions) { p.active, p.leads, p.vouched, p.saved = false, false, false, "0/10" },
			[]string{"slot_inactive 1", "slot_position 1"}, "confirmed 0/20, saved 0/10", 0},
		{"nobody, and adopted", func(p *positions) { p.active, p.leads, p.vouched, p.saved = false, false, false, "" },
			[]string{"slot_inactive 1", "slot_position 1"}, "confirmed 0/20, nothing saved", 0},
		{"streaming from beyond", func(p *positions) { p.vouched, p.saved = false, "0/10" }, []string{"slot_position 1"}, "confirmed 0/20, saved 0/10", 0},
		{"another timeline", func(p *positions) { p.otherTime = true }, []string{"slot_position 1"}, "another timeline", 0},
		{"a stranger streams", func(p *positions) { p.stranger = "pg_recvlogical" }, []string{"slot_held 1"}, "pg_recvlogical", 0},
		{"a stranger streams, and nobody leads", func(p *positions) { p.stranger, p.leads = "x", false }, []string{"slot_held 1"}, "x", 0},
		{"a copy without its slot", func(p *positions) { *p = positions{otherSystem: true, ever: true} }, []string{"other_system 1", "slot_missing 1"}, "", 0},
		{"a copy with one", func(p *positions) { p.otherSystem, p.active, p.leads, p.vouched = true, false, false, false },
			[]string{"other_system 1", "slot_inactive 1"}, "last led by relay-1", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := &verification{t: &Table{}, report: &Report{}, positions: streaming}
			tt.change(&v.positions)
			v.judgeSlot()
			if diff := cmp.Diff(tt.want, foundIn(v.report)); diff != "" || len(v.report.Notes) != tt.notes {
				t.Errorf("notes %q, found (-want +got):\n%s", v.report.Notes, diff)
			}
			if n := len(v.report.Findings); n > 0 && v.report.Findings[n-1].Detail != tt.detail {
				t.Errorf("detail %q, want %q", v.report.Findings[n-1].Detail, tt.detail)
			}
		})
	}
}

// TestJudgeSuspects: what nobody has touched is stuck only if a relay could have
// done so, and is not at work through many.
func TestJudgeSuspects(t *testing.T) {
	t.Parallel()
	one := seenRows{ids: []int64{7}, xmins: []string{"1"}}
	many := seenRows{ids: make([]int64, manyReleases+1)}
	streaming := positions{exists: true, active: true, vouched: true, passed: true}
	behind, away := streaming, streaming
	behind.passed, away.active = false, false
	tests := []struct {
		name      string
		positions positions
		suspects  suspects
		want      []string
		notes     int
	}{
		{"nothing", streaming, suspects{}, nil, 0},
		{"both", streaming, suspects{overdue: one, unreleased: one}, []string{"unreleased 1 [7]", "overdue 1 [7]"}, 0},
		{"while others were released", streaming, suspects{unreleased: one, released: 5}, []string{"unreleased 1 [7]"}, 0},
		{"many at work", streaming, suspects{unreleased: many, overdue: one, released: 5}, []string{"overdue 1 [7]"}, 1},
		{"many, and none released", streaming, suspects{unreleased: many}, []string{"unreleased 2001 [0 0 0 0 0 0 0 0 0 0]"}, 0},
		{"in flight, perhaps", behind, suspects{overdue: one, unreleased: one}, nil, 1},
		{"without a relay", away, suspects{overdue: one}, nil, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := &verification{t: &Table{}, report: &Report{}, positions: tt.positions, suspects: tt.suspects}
			v.judgeSuspects()
			if diff := cmp.Diff(tt.want, foundIn(v.report)); diff != "" || len(v.report.Notes) != tt.notes {
				t.Errorf("notes %q, found (-want +got):\n%s", v.report.Notes, diff)
			}
		})
	}
}

// TestVerifyLooksAtTheSlot of real servers, one state after the other.
func TestVerifyLooksAtTheSlot(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newVerified(t, db)
		const wait = 100 * time.Millisecond
		expect := func(name string, notes int, onTheWay int64, want ...string) {
			t.Helper()
			got := v.verify(t, Filter{}, wait)
			if diff := cmp.Diff(want, foundIn(got)); diff != "" || len(got.Notes) != notes || got.Rows.OnTheWay != onTheWay {
				t.Errorf("%s: %d on the way, notes %q, found (-want +got):\n%s", name, got.Rows.OnTheWay, got.Notes, diff)
			}
		}
		expect("nothing", 0, 0, "slot_missing 1")
		v.exec(t, "SELECT pg_create_logical_replication_slot($1, 'test_decoding')", v.slot)
		expect("a slot of another plugin", 0, 0, "slot_missing 1")
		v.exec(t, "SELECT pg_drop_replication_slot($1)", v.slot)

		db.Exec(t, rowSQL("", "(1, 'order', 'a', 'x', 0, NULL, NULL)"))
		v.createSlot(t)
		v.movePast(t, 1)
		expect("never led", 1, 1, "slot_inactive 1")
		v.lead(t)
		v.exec(t, "UPDATE cdc_relay_lease SET lease_until = now()")
		db.Exec(t, rowSQL("", "(2, 'order', 'a', 'x', 0, NULL, NULL)"))
		expect("a row before the slot is missing, one behind it is not", 0, 1, "slot_inactive 1", "missing 1 [1]")
		v.exec(t, "SELECT pg_replication_slot_advance($1, pg_current_wal_insert_lsn())", v.slot)
		expect("moved on by hand", 1, 2, "slot_inactive 1", "slot_position 1")
		v.exec(t, "UPDATE cdc_relay_lease SET lease_until = now() + interval '1 hour', saved_lsn = NULL")
		expect("a READY-first pass", 2, 2)
		v.exec(t, "UPDATE cdc_relay_lease SET saved_lsn = (SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = $1), timeline = timeline + 1, lease_until = NULL", v.slot)
		expect("another timeline", 1, 2, "slot_inactive 1", "slot_position 1")
		v.exec(t, "UPDATE cdc_relay_lease SET timeline = timeline - 1, system_identifier = -5")
		expect("another system", 1, 2, "other_system 1", "slot_inactive 1")
	})
}

// Somebody else's stream kept the relay from the slot and confirmed what no relay
// had published, and verify said that all was fine.
func TestVerifyWhileAStrangerStreams(t *testing.T) {
	t.Parallel()
	for application, want := range map[string][]string{
		"verifying":         nil, // as the relay of this configuration
		"another-name/%s":   nil, // a relay of another configuration
		"pg_recvlogical":    {"slot_held 1"},
		"relay/of_slot_two": {"slot_held 1"},
	} {
		t.Run(application, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				v := newVerified(t, db)
				conn := v.stream(t, strings.ReplaceAll(application, "%s", v.slot))
				t.Cleanup(func() { conn.Close(context.Background()) })
				if diff := cmp.Diff(want, foundIn(v.verify(t, Filter{}, 100*time.Millisecond))); diff != "" {
					t.Errorf("found (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// movePast moves the slot on until it does not have to decode the transaction of
// a row any more. Transactions and slots of other tests may delay that.
func (v *verified) movePast(t *testing.T, id int64) {
	t.Helper()
	pgtest.Eventually(t, "a slot past the row", func() bool {
		v.exec(t, "CHECKPOINT") // tells in the WAL which transactions run
		v.exec(t, "SELECT pg_replication_slot_advance($1, pg_current_wal_insert_lsn())", v.slot)
		var past bool
		err := v.conn.QueryRow(t.Context(), `SELECT age(o.xmin) > age(s.catalog_xmin) FROM outbox o, pg_replication_slots s
			WHERE o.id = $1 AND s.slot_name = $2`, id, v.slot).Scan(&past)
		if err != nil {
			t.Fatal(err)
		}
		return past
	}, func() string { return "an old transaction is open" })
}

// TestVerifyWhileTheSlotIsBehind: rows that the slot has not passed are on their
// way, whatever the patience; they are stalled if it does not move for long.
func TestVerifyWhileTheSlotIsBehind(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newVerified(t, db)
		v.relay(t, true)
		db.Exec(t, rowSQL("", "(1, 'order', 'a', 'x', 0, NULL, NULL), (2, 'order', 'a', 'x', 0, NULL, NULL)"))
		var said []string
		cfg := VerifyConfig{Server: v.server, Wait: time.Second, quiet: time.Millisecond, Waiting: func(what string) { said = append(said, what) }}
		got, err := v.table.Verify(t.Context(), Filter{Limit: 10}, cfg)
		if err != nil || len(got.Findings) > 0 || got.Rows.OnTheWay != 2 {
			t.Errorf("%+v, %v", got, err)
		}
		if diff := cmp.Diff([]string{"2 READY rows may be in flight: the slot has not passed them"}, said); diff != "" {
			t.Errorf("said (-want +got):\n%s", diff)
		}
		cfg.still = 500 * time.Millisecond
		got, err = v.table.Verify(t.Context(), Filter{Limit: 10}, cfg)
		if diff := cmp.Diff([]string{"stalled 2 [1 2]"}, foundIn(got)); diff != "" || err != nil {
			t.Errorf("%v, found (-want +got):\n%s", err, diff)
		}
	})
}

// TestVerifySuspectsThatAreDealtWith meanwhile are none any more.
func TestVerifySuspectsThatAreDealtWith(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newVerified(t, db)
		v.relay(t, false)
		db.Exec(t, rowSQL("", `(1, 'order', 'a', 'x', 0, 'infinity', '0/5'), (2, 'order', 'b', 'x', 0, 'infinity', '0/5'),
			(3, 'order', 'c', 'x', 0, now() - interval '1 hour', NULL), (4, 'order', 'd', 'x', 0, now() - interval '1 hour', NULL)`))
		touch := func(string) { // as a requeue and a release do
			v.exec(t, "UPDATE outbox SET next_attempt_at = next_attempt_at WHERE id = 3")
			v.exec(t, "UPDATE outbox SET send_status = 2, next_attempt_at = NULL, commit_lsn = NULL WHERE id = 1")
		}
		got, err := v.table.Verify(t.Context(), Filter{Limit: 10}, VerifyConfig{Server: v.server, Wait: 2 * time.Second, quiet: time.Millisecond, Waiting: touch})
		if diff := cmp.Diff([]string{"unreleased 1 [2]", "overdue 1 [4]"}, foundIn(got)); diff != "" || err != nil {
			t.Errorf("%v, found (-want +got):\n%s", err, diff)
		}
	})
}

// TestVerifyLockedRows: what a person has locked is not missing, but stuck.
func TestVerifyLockedRows(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newVerified(t, db)
		v.relay(t, false)
		db.Exec(t, rowSQL("", "(1, 'order', 'a', 'x', 0, NULL, NULL), (2, 'order', 'a', 'x', 0, NULL, NULL), (3, 'order', 'b', 'x', 0, NULL, NULL)"))
		for id, name := range map[int64]string{1: "psql", 3: "verifying"} { // the latter is what the relay is called
			locker := db.Conn(t)
			if _, err := locker.Exec(t.Context(), "SET application_name = '"+name+"'"); err != nil {
				t.Fatal(err)
			}
			tx, err := locker.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { tx.Rollback(context.Background()) })
			if _, err := tx.Exec(t.Context(), "SELECT FROM outbox WHERE id = $1 FOR UPDATE", id); err != nil {
				t.Fatal(err)
			}
		}
		got := v.verify(t, Filter{}, 10*time.Second)
		if diff := cmp.Diff([]string{"missing 2 [2 3]", "locked 1 [1]"}, foundIn(got)); diff != "" {
			t.Errorf("found (-want +got):\n%s", diff)
		}
	})
}

// TestVerifyChangesNothing, whatever it should come to do.
func TestVerifyChangesNothing(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newVerified(t, db)
		v.verify(t, Filter{}, 0)
		for _, sql := range []string{"UPDATE public.outbox SET attempts = 1", "INSERT INTO public.cdc_relay_audit (actor, action) VALUES ('a', 'b')"} {
			if _, err := v.table.conn.Exec(t.Context(), sql); err == nil {
				t.Errorf("%s was carried out", sql)
			}
		}
	})
}
