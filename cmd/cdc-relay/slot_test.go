package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// slotBed is a database with an outbox, and commands that stream under a login
// of its own, as is recommended.
type slotBed struct {
	database
	conn *pgx.Conn
}

func newSlotBed(t *testing.T, db *pgtest.DB) *slotBed {
	t.Helper()
	b := &slotBed{newDatabase(db), db.Conn(t)}
	db.Migrate(t, "public")
	_, dsn := db.Streamer(t)
	b.environ = append(b.environ, "CDC_RELAY_POSTGRES__REPLICATION_DSN="+dsn)
	return b
}

func (b *slotBed) exec(t *testing.T, sql string) {
	t.Helper()
	b.DB.Exec(t, withSlot(sql, b.slot))
}

func (b *slotBed) text(t *testing.T, sql string) (text string) {
	t.Helper()
	if err := b.conn.QueryRow(t.Context(), withSlot(sql, b.slot)).Scan(&text); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return text
}

// run runs `slot ...` with --json and returns the answer's fields.
func (b *slotBed) run(t *testing.T, args ...string) (map[string]any, result) {
	t.Helper()
	got := runCommand(t, b.environ, append([]string{"slot", "--json"}, args...)...)
	var answer map[string]any
	if got.stdout != "" {
		if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil {
			t.Fatalf("slot %v: %v: %+v", args, err, got)
		}
	}
	return answer, got
}

const (
	makeSlotSQL = `SELECT pg_create_logical_replication_slot('%s', 'pgoutput')`
	auditedSQL  = `SELECT coalesce(string_agg(concat_ws('|', action, reason, filter), ' ' ORDER BY audit_id), '') FROM cdc_relay_audit`
	identitySQL = `SELECT coalesce((SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '%s'), 'none')`
	systemSQL   = `SELECT system_identifier::text FROM pg_control_system()`
)

func TestSlotShow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newSlotBed(t, db)
		if _, got := b.run(t, "show"); got.code != exitNotFound || !strings.Contains(got.stderr, "slot create") {
			t.Errorf("no slot: %+v", got)
		}
		b.exec(t, makeSlotSQL)
		b.exec(t, `INSERT INTO cdc_relay_slot VALUES ('%s', 7, '6ba7b810-9dad-41d1-80b4-00c04fd430c8');
			INSERT INTO cdc_relay_lease (slot, epoch, lease_until, saved_lsn, system_identifier, timeline)
			VALUES ('%s', 7, '2026-01-02 03:04:05Z', '0/1234', -1, 3)`)
		answer, got := b.run(t, "show")
		for name, want := range map[string]any{
			"name": b.slot, "plugin": "pgoutput", "active": false, "active_pid": nil, "application_name": nil,
			"confirmed": b.text(t, identitySQL), "saved": "0/1234", "wal_status": "reserved", "invalidation_reason": nil,
			"system_identifier": "18446744073709551615", "timeline": 3.0, "epoch": 7.0,
			"owner": "6ba7b810-9dad-41d1-80b4-00c04fd430c8", "lease_until": "2026-01-02T03:04:05Z",
			"server_system_identifier": b.text(t, systemSQL), "server_timeline": 1.0,
		} {
			if value, there := answer[name]; !there || value != want {
				t.Errorf("%s is %v (there: %t), want %v", name, value, there, want)
			}
		}
		if failover := answer["failover"]; db.Version >= 17 && failover != false || db.Version < 17 && failover != nil {
			t.Errorf("failover is %v", failover)
		}
		if n, ok := answer["retained_bytes"].(float64); !ok || n < 0 {
			t.Errorf("retained_bytes is %v", answer["retained_bytes"])
		}
		shown := runCommand(t, b.environ, "slot", "show")
		if !strings.Contains(shown.stdout, "\nsaved                     0/1234\n") || strings.Contains(shown.stdout, "active_pid") || got.code+shown.code != 0 {
			t.Errorf("for people: %+v", shown)
		}
	})
}

func TestSlotCreate(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newSlotBed(t, db)
		answer, got := b.run(t, "create", "--reason", "first")
		if at := b.text(t, identitySQL); got.code != 0 || answer["result"] != slotCreated || answer["consistent_point"] != at {
			t.Errorf("%v, %+v, want created at %s", answer, got, at)
		}
		if _, got := b.run(t, "create"); got.code != exitRefused || !strings.Contains(got.stderr, "exists") {
			t.Errorf("again: %+v", got)
		}
		if diff := cmp.Diff(withSlot("create|first|slot %s", b.slot), b.text(t, auditedSQL)); diff != "" {
			t.Errorf("audit (-want +got):\n%s", diff)
		}
	})
}

// stream streams from the slot under a name until the test ends.
func (b *slotBed) stream(t *testing.T, application string) {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), b.DSN+"&replication=database&application_name="+application)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	b.exec(t, "CREATE PUBLICATION cdc_relay FOR TABLE outbox WITH (publish = 'insert')")
	err = pglogrepl.StartReplication(t.Context(), conn, b.slot, 0, pglogrepl.StartReplicationOptions{
		PluginArgs: []string{"proto_version '1'", "publication_names 'cdc_relay'"}})
	if err != nil {
		t.Fatal(err)
	}
}

// refusal is a command that changes nothing.
type refusal struct {
	args string // %s is the slot
	code int
	want string
}

// TestSlotRefusals: what is not confirmed, or not the relay's, stays as it is.
func TestSlotRefusals(t *testing.T) {
	t.Parallel()
	const recreate, advance = "recreate --confirm %s", "advance-guard --to current --apply"
	both := func(code int, want string) []refusal { return []refusal{{recreate, code, want}, {advance, code, want}} }
	for _, tc := range []struct {
		name     string
		make     func(*testing.T, *slotBed)
		refusals []refusal
	}{
		{"not there", func(*testing.T, *slotBed) {}, both(exitNotFound, "slot create")},
		{"another plugin", slotOfOther, both(exitRefused, "does not use the plugin pgoutput")},
		{"another database", slotElsewhere, both(exitRefused, "belongs to another database")},
		{"in use", slotInUse, both(exitRefused, `application "somebody"; stop the relay first`)},
		{"well", slotByLogin, []refusal{
			{"recreate", exitRefused, "cdc-relay slot recreate --confirm %s"},
			{"recreate --confirm other", exitRefused, "the slot is %s, not other"},
			{recreate + " --dry-run", 0, ""},
			{"advance-guard --apply --to 0/1", exitRefused, "cannot be moved back"},
			{"advance-guard --apply --to FFFFFFFF/0", exitRefused, "beyond the end of WAL"},
			{"advance-guard --apply --to here", exitUsage, "--to takes a position"},
			// What only begins like a position is none: a slot was moved to 1F/FFFFFFFF.
			{"advance-guard --apply --to 0/1here", exitUsage, "--to takes a position"},
			{"advance-guard --apply --to 0/1FFFFFFFFF", exitUsage, "--to takes a position"},
			{"advance-guard --apply --to 1FFFFFFFF/1", exitUsage, "--to takes a position"},
			{"advance-guard --apply", exitUsage, "--to takes a position"},
			{"advance-guard --to current", 0, ""},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
				b := newSlotBed(t, db)
				tc.make(t, b)
				before := b.text(t, identitySQL)
				for _, r := range tc.refusals {
					want := withSlot(r.want, b.slot)
					_, got := b.run(t, strings.Fields(withSlot(r.args, b.slot))...)
					if got.code != r.code || !strings.Contains(got.stderr, want) || strings.Count(got.stderr, "\n") > 1 {
						t.Errorf("slot %s: want code %d and %q: %+v", r.args, r.code, want, got)
					}
				}
				if now := b.text(t, identitySQL); now != before {
					t.Errorf("the slot was at %s and is at %s", before, now)
				}
				if audit := b.text(t, auditedSQL); audit != "" {
					t.Errorf("in the audit trail: %s", audit)
				}
			})
		})
	}
}

func slotByLogin(t *testing.T, b *slotBed) {
	b.exec(t, makeSlotSQL)
	b.exec(t, "SELECT pg_switch_wal()") // so that there is something to move on to
}

func slotOfOther(t *testing.T, b *slotBed) {
	b.exec(t, `SELECT pg_create_logical_replication_slot('%s', 'test_decoding')`)
}

func slotElsewhere(t *testing.T, b *slotBed) {
	pgtest.New(t, b.Version).Exec(t, withSlot(makeSlotSQL, b.slot))
}

func slotInUse(t *testing.T, b *slotBed) {
	b.exec(t, makeSlotSQL)
	b.stream(t, "somebody")
}

func TestSlotRecreate(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newSlotBed(t, db)
		slotByLogin(t, b)
		before := b.text(t, identitySQL)
		answer, got := b.run(t, "recreate", "--confirm", b.slot, "--reason", "too young a publication")
		at := b.text(t, identitySQL)
		if got.code != 0 || answer["result"] != slotRecreated || answer["consistent_point"] != at || at == before {
			t.Errorf("%v, %+v, want recreated at %s, not %s", answer, got, at, before)
		}
		want := fmt.Sprintf("recreate|too young a publication|slot %s: confirmed %s", b.slot, before)
		if diff := cmp.Diff(want, b.text(t, auditedSQL)); diff != "" {
			t.Errorf("audit (-want +got):\n%s", diff)
		}
		if db.Version >= 17 {
			b.environ = append(b.environ, "CDC_RELAY_SLOT__FAILOVER=true")
			_, got := b.run(t, "recreate", "--confirm", b.slot)
			if failover := b.text(t, `SELECT failover::text FROM pg_replication_slots WHERE slot_name = '%s'`); failover != "true" {
				t.Errorf("failover is %s: %+v", failover, got)
			}
		}
	})
}

func TestSlotAdvance(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newSlotBed(t, db)
		b.exec(t, makeSlotSQL)
		b.exec(t, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, send_status, next_attempt_at)
			SELECT 'order', i::text, 'e', CASE i WHEN 1 THEN 2 ELSE 0 END, CASE i WHEN 2 THEN now() + interval '1 hour' END FROM generate_series(1, 5) i`)
		before := b.text(t, identitySQL)
		answer, got := b.run(t, "advance-guard", "--to", "current", "--apply", "--reason", "r")
		at := b.text(t, identitySQL)
		want := map[string]any{"result": slotAdvanced, "name": b.slot, "confirmed": before, "to": at, "ready_rows": 3.0, "v": 1.0, "pipeline": b.slot}
		delete(answer, "at")
		if diff := cmp.Diff(want, answer); diff != "" || got.code != 0 || at == before {
			t.Errorf("%+v, answer (-want +got):\n%s", got, diff)
		}
		if audit := b.text(t, auditedSQL); !strings.HasPrefix(audit, fmt.Sprintf("advance|r|slot %s: %s -> ", b.slot, before)) {
			t.Errorf("audit: %s", audit)
		}
		answer, got = b.run(t, "advance-guard", "--to", at)
		if answer["result"] != slotNothingToDo || got.code != 0 {
			t.Errorf("to where it is: %v, %+v", answer, got)
		}
	})
}

// TestSlotAdopt: parked rows keep their order, before all that will be.
func TestSlotAdopt(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newSlotBed(t, db)
		own := b.text(t, systemSQL)
		adopt := func(args ...string) (map[string]any, result) {
			t.Helper()
			return b.run(t, append([]string{"adopt", "--reason", "restored"}, args...)...)
		}
		if answer, got := adopt("--confirm", b.slot); got.code != 0 || answer["result"] != slotNothingToDo {
			t.Errorf("never led: %v, %+v", answer, got)
		}
		b.exec(t, `INSERT INTO cdc_relay_lease (slot, epoch, saved_lsn, system_identifier, timeline, low_water_id)
			VALUES ('%s', 7, 'F/0', 42, 9, 3), ('other', 1, 'F/0', 42, 9, 3)`)
		b.exec(t, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, send_status, next_attempt_at, commit_lsn)
			VALUES ('order', 'a', 'e', 0, 'infinity', 'A/9'), ('order', 'a', 'e', 0, 'infinity', 'A/1'), ('order', 'a', 'e', 3, 'infinity', 'A/1'),
			('order', 'a', 'e', 0, NULL, NULL), ('order', 'b', 'e', 3, 'infinity', NULL)`)
		const lease = `SELECT concat_ws(' ', system_identifier, timeline, coalesce(saved_lsn::text, 'none'), coalesce(low_water_id::text, 'none')) FROM cdc_relay_lease WHERE slot = `
		const positions = `SELECT string_agg(coalesce(commit_lsn::text, 'none'), ' ' ORDER BY id) FROM outbox`
		for _, args := range [][]string{nil, {"--confirm", "other"}, {"--confirm", b.slot, "--dry-run"}} {
			answer, got := adopt(args...)
			if code := got.code; code != exitRefused && len(args) < 3 || code != 0 && len(args) == 3 {
				t.Errorf("adopt %v: %+v", args, got)
			}
			if answer != nil && (answer["result"] != slotAdoptable || answer["parked_rows"] != 3.0 || answer["original_system_identifier"] != "42") {
				t.Errorf("adopt %v: %v", args, answer)
			}
		}
		if got := b.text(t, lease+"'%s'") + b.text(t, positions); got != "42 9 F/0 3"+"A/9 A/1 A/1 none none" {
			t.Fatalf("changed without confirmation: %s", got)
		}
		answer, got := adopt("--confirm", b.slot)
		want := map[string]any{"v": 1.0, "pipeline": b.slot, "name": b.slot, "result": slotAdopted,
			"original_system_identifier": "42", "system_identifier": own, "parked_rows": 3.0}
		delete(answer, "at")
		if diff := cmp.Diff(want, answer); diff != "" || got.code != 0 {
			t.Errorf("%+v, answer (-want +got):\n%s", got, diff)
		}
		for _, tc := range []struct{ what, sql, want string }{
			{"lease", lease + "'%s'", own + " 1 none none"},
			{"another slot's lease", lease + "'other'", "42 9 F/0 3"},
			{"positions", positions, "0/3 0/1 0/2 none none"},
			{"audit", auditedSQL, fmt.Sprintf("adopt|restored|slot %s: system 42 -> %s, 3 parked rows", b.slot, own)},
		} {
			if got := b.text(t, tc.sql); got != tc.want {
				t.Errorf("%s: %s, want %s", tc.what, got, tc.want)
			}
		}
		if answer, got := adopt("--confirm", b.slot); got.code != 0 || answer["result"] != slotNothingToDo {
			t.Errorf("again: %v, %+v", answer, got)
		}
	})
}
