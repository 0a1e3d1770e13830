package doctor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestPosition(t *testing.T) {
	t.Parallel()
	at := func(confirmed pglogrepl.LSN) *Slot { return &Slot{Confirmed: confirmed} }
	for name, tc := range map[string]struct {
		slot     *Slot
		saved    pglogrepl.LSN
		switched bool
		want     string // part of what is said, "" for nothing
	}{
		"as it was saved":      {at(0x100), 0x100, false, ""},
		"behind what is saved": {at(0x100), 0x200, false, ""},
		"beyond what is saved": {at(0x200), 0x100, false, "is at 0/200, beyond the saved position 0/100"},
		"never saved":          {at(0x100), 0, false, "no position"},
		"another timeline":     {at(0x100), 0x200, true, "another timeline"},
		"a new slot":           {nil, 0x200, false, "is new"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := Position(tc.slot, tc.saved, tc.switched)
			if (got == nil) != (tc.want == "") {
				t.Fatalf("%v, want %q", got, tc.want)
			}
			if got != nil && (got.Reason != "slot.position" || !strings.Contains(got.What, tc.want)) {
				t.Errorf("%v, want slot.position and %q", got, tc.want)
			}
		})
	}
}

// onPrimary runs a test on a primary of its own that has a standby.
func onPrimary(t *testing.T, test func(t *testing.T, primary, standby *pgtest.Cluster, conn *pgx.Conn, cfg Config)) {
	t.Helper()
	for _, version := range pgtest.ClusterVersions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			primary := pgtest.StartCluster(t, version)
			conn, cfg := fit(t, primary.New(t))
			test(t, primary, primary.StartReplica(t, "wal_retrieve_retry_interval = '100ms'"), conn, cfg)
		})
	}
}

// makeFailover makes the slot one that is copied to standbys.
func makeFailover(t *testing.T, conn *pgx.Conn, slot string) {
	t.Helper()
	exec(t, conn, "SELECT pg_drop_replication_slot('"+slot+"'); SELECT pg_create_logical_replication_slot('"+slot+"', 'pgoutput', failover => true)")
}

// TestFailoverWarning: it is about servers that can copy a slot and have a
// standby to copy it to.
func TestFailoverWarning(t *testing.T) {
	t.Parallel()
	onPrimary(t, func(t *testing.T, primary, standby *pgtest.Cluster, conn *pgx.Conn, cfg Config) {
		expect := func(when string, want ...string) {
			t.Helper()
			facts := look(t, conn, cfg)
			if diff := cmp.Diff(append([]string{}, want...), reasons(facts.Warnings(cfg))); diff != "" || len(facts.Problems(cfg)) > 0 {
				t.Errorf("%s: problems %v, warnings (-want +got):\n%s", when, facts.Problems(cfg), diff)
			}
		}
		if primary.Version < 17 {
			expect("a standby, and no way to copy a slot to it")
			return
		}
		expect("a standby", "slot.failover")
		makeFailover(t, conn, cfg.Slot)
		expect("a slot that is copied")
		exec(t, conn, "SELECT pg_drop_replication_slot('"+cfg.Slot+"')")
		makeSlot(t, conn, cfg.Slot, "pgoutput")
		standby.Stop(t, pgtest.Fast)
		pgtest.Eventually(t, "the standby to be gone", func() bool { return !look(t, conn, cfg).Standbys }, func() string { return "" })
		expect("no standby")
	})
}

// TestStandbySlots: a standby that the server waits for, alive or dead, by the
// names as people write them. The remedy is run as printed.
func TestStandbySlots(t *testing.T) {
	t.Parallel()
	onPrimary(t, func(t *testing.T, primary, standby *pgtest.Cluster, conn *pgx.Conn, cfg Config) {
		if primary.Version < 17 {
			if facts := look(t, conn, cfg); len(facts.StandbySlots) > 0 || facts.Slot.Failover {
				t.Errorf("%+v, want nothing that this version does not have", facts)
			}
			return
		}
		problem := func() *fault.Blocked {
			problems := look(t, conn, cfg).Problems(cfg)
			if len(problems) == 0 {
				return nil
			}
			if diff := cmp.Diff([]string{"pg.standby_slots"}, reasons(problems)); diff != "" {
				t.Fatalf("problems (-want +got):\n%s", diff)
			}
			return problems[0]
		}
		reload := func(setting string) {
			t.Helper()
			primary.Configure(t, "synchronized_standby_slots = '"+setting+"'")
			primary.Stop(t, pgtest.Immediate) // a running server refuses what is not there
			primary.Start(t)
			conn = connect(t, conn.Config().ConnString())
			pgtest.Eventually(t, "the standby to be back", func() bool { return look(t, conn, cfg).Standbys }, func() string { return "" })
		}
		makeFailover(t, conn, cfg.Slot)
		reload(`"replica"`)
		if b := problem(); b != nil {
			t.Errorf("a living standby: %v", b)
		}
		reload(`Replica, ghost, ` + cfg.Slot)
		b := problem()
		if b == nil || !strings.Contains(b.What, "there is no physical slot ghost, there is no physical slot "+cfg.Slot) {
			t.Fatalf("%v, want two slots that are no standbys'", b)
		}
		cure := func(b *fault.Blocked) {
			t.Helper()
			_, sql, _ := strings.Cut(b.Remedy, "run: ")
			for sql := range strings.SplitSeq(sql, "; ") { // ALTER SYSTEM stands alone
				exec(t, conn, sql)
			}
			pgtest.Eventually(t, "the remedy to help", func() bool { return problem() == nil }, func() string { return b.Remedy })
		}
		cure(b)
		if got := look(t, conn, cfg).StandbySlots; len(got) != 1 || got[0].Name != "replica" || !got[0].Active {
			t.Errorf("%+v, want the living standby to be waited for", got)
		}
		standby.Stop(t, pgtest.Immediate)
		pgtest.Eventually(t, "the standby to count as dead", func() bool { b = problem(); return b != nil }, func() string { return fmt.Sprint(look(t, conn, cfg).StandbySlots) })
		if !strings.Contains(b.What, "no standby has used the slot replica for") {
			t.Errorf("%v, want it to name the slot", b)
		}
		cure(b)
	})
}

// TestDeadStandbySlots: what a server shows is long to produce. Only a failover
// slot has to wait.
func TestDeadStandbySlots(t *testing.T) {
	t.Parallel()
	failover := Slot{Plugin: "pgoutput", SameDatabase: true, Failover: true, WALStatus: "reserved"}
	lost, plain := failover, failover
	lost.WALStatus, plain.Failover = "lost", false
	for name, tc := range map[string]struct {
		slot    *Slot
		standby StandbySlot
		want    []string
	}{
		"alive":                        {&failover, StandbySlot{Name: "a", Physical: true, Active: true}, []string{}},
		"away for a moment":            {&failover, StandbySlot{Name: "a", Physical: true, Idle: standbyGrace - 1}, []string{}},
		"away for long":                {&failover, StandbySlot{Name: "a", Physical: true, Idle: standbyGrace}, []string{"pg.standby_slots"}},
		"lost":                         {&failover, StandbySlot{Name: "a", Physical: true, Lost: true}, []string{"pg.standby_slots"}},
		"not there":                    {&failover, StandbySlot{Name: "a"}, []string{"pg.standby_slots"}},
		"not there, a slot of no copy": {&plain, StandbySlot{Name: "a"}, []string{}},
		"not there, a lost slot":       {&lost, StandbySlot{Name: "a"}, []string{}},
		"not there, no slot":           {nil, StandbySlot{Name: "a"}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := checkStandbySlots(Facts{Slot: tc.slot, StandbySlots: []StandbySlot{tc.standby}}, Config{Slot: "s"})
			if diff := cmp.Diff(tc.want, reasons(got)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}
