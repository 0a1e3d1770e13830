package doctor

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/migrations"
)

// oldestVersion is the oldest server_version_num that the relay works with.
const oldestVersion = 140000

// SlotMissing is the reason of a slot that does not exist. It is the last of
// all checks: with it alone, everything else is as it must be.
const SlotMissing = "slot.exists"

// The reasons of a slot that can never be streamed from again. As with
// SlotMissing, everything else is as it must be.
const (
	SlotLost        = "slot.wal_status"
	SlotInvalidated = "slot.invalidation"
)

// report collects the problems of one group of checks.
type report []*fault.Blocked

func (r *report) add(reason, what, remedy string) {
	*r = append(*r, &fault.Blocked{Reason: reason, What: what, Remedy: remedy})
}

func checkServer(f Facts, cfg Config) []*fault.Blocked {
	var r report
	if f.Version < oldestVersion {
		r.add("pg.version", fmt.Sprintf("PostgreSQL %d is too old", f.Version/10000), "upgrade the server to 14 or newer")
	}
	if f.WALLevel != "logical" {
		r.add("pg.wal_level", fmt.Sprintf("wal_level is %s", f.WALLevel),
			"set wal_level = logical and restart PostgreSQL; managed services have a switch of their own for it")
	}
	if syncStandby(f.SyncStandbyNames, cfg.ApplicationName) {
		r.add("pg.sync_standby",
			fmt.Sprintf("synchronous_standby_names matches the relay (%q): every commit would wait for the relay, and the relay for itself", cfg.ApplicationName),
			"name the physical standbys in synchronous_standby_names instead of *, or change postgres.application_name")
	}
	return r
}

func checkTable(f Facts, cfg Config) []*fault.Blocked {
	var r report
	if b := fault.AsBlocked(migrations.Accepted(f.SchemaVersion)); b != nil && !f.SchemaHidden {
		r = append(r, b)
	}
	if f.Table == nil {
		r.add("table.columns", fmt.Sprintf("there is no table %s", cfg.Table), "correct outbox.table, or run: cdc-relay migrate up")
		return r
	}
	if !f.Table.Ordinary {
		r.add("table.columns", fmt.Sprintf("%s is not a table", cfg.Table), "name the table itself in outbox.table")
		return r
	}
	if problems := columnProblems(f.Table.Columns, cfg); len(problems) > 0 {
		r.add("table.columns", fmt.Sprintf("the table %s does not fit: %s", cfg.Table, strings.Join(problems, ", ")),
			"alter the table, or map other columns in outbox.columns")
	}
	if f.Table.Unlogged {
		r.add("table.logged", fmt.Sprintf("the table %s is UNLOGGED: its rows never reach the WAL", cfg.Table),
			fmt.Sprintf("run: ALTER TABLE %s SET LOGGED", cfg.Table.Ident()))
	}
	if f.Table.HiddenRows {
		r.add("table.rls", fmt.Sprintf("row security of %s hides all rows from %q", cfg.Table, f.Login),
			fmt.Sprintf("run: CREATE POLICY cdc_relay ON %s TO %s USING (true)", cfg.Table.Ident(), pgx.Identifier{f.Login}.Sanitize()))
	}
	return r
}

// checkTrigger: without the trigger nothing that was parked comes back.
func checkTrigger(f Facts, cfg Config) []*fault.Blocked {
	if f.Table == nil || !f.Table.Ordinary {
		return nil
	}
	want := "cdc-relay/" + cfg.Table.String()
	var r report
	wrong := "is missing"
	remedy := fmt.Sprintf("run: CREATE TRIGGER outbox_requeue AFTER UPDATE OF %[1]s ON %[2]s FOR EACH ROW"+
		" WHEN (NEW.%[3]s = 0 AND NEW.%[1]s <= clock_timestamp()) EXECUTE FUNCTION %[4]s('%[5]s');"+
		" ALTER TABLE %[2]s ENABLE ALWAYS TRIGGER outbox_requeue",
		pgx.Identifier{cfg.column("next_attempt_at")}.Sanitize(), cfg.Table.Ident(),
		pgx.Identifier{cfg.column("send_status")}.Sanitize(), cfg.Table.Sibling("cdc_relay_requeue").Ident(),
		strings.ReplaceAll(want, "'", "''"))
	for _, t := range f.Table.Triggers {
		prefix, _, _ := bytes.Cut(t.Args, []byte{0})
		switch {
		case !t.OnEach || string(prefix) != want:
			wrong = fmt.Sprintf("%s does not emit messages with the prefix %s after each update", t.Name, want)
			remedy = fmt.Sprintf("drop the trigger %s and %s", t.Name, remedy)
		case t.Enabled != "A":
			wrong = fmt.Sprintf("%s is not enabled ALWAYS", t.Name)
			remedy = fmt.Sprintf("run: ALTER TABLE %s ENABLE ALWAYS TRIGGER %s", cfg.Table.Ident(), pgx.Identifier{t.Name}.Sanitize())
		default:
			return nil
		}
	}
	r.add("table.trigger", fmt.Sprintf("the requeue trigger of %s %s", cfg.Table, wrong), remedy)
	return r
}

func checkGrants(f Facts, cfg Config) []*fault.Blocked {
	var r report
	if len(f.MissingGrants) > 0 {
		r.add("grants.status", fmt.Sprintf("the login %q lacks privileges in the schema %s", f.Login, cfg.Table.Schema),
			"run: "+strings.Join(f.MissingGrants, "; "))
	}
	return r
}

func checkPublication(f Facts, cfg Config) []*fault.Blocked {
	var r report
	name := pgx.Identifier{cfg.Publication}.Sanitize()
	p := f.Publication
	if p == nil {
		r.add("pub.exists", fmt.Sprintf("there is no publication %s: the server would let events pass", name),
			fmt.Sprintf("run cdc-relay init --apply, or: CREATE PUBLICATION %s FOR TABLE %s WITH (publish = 'insert')", name, cfg.Table.Ident()))
		return r
	}
	alter := "run: ALTER PUBLICATION " + name + " "
	if p.AllTables {
		r.add("pub.all_tables", fmt.Sprintf("the publication %s publishes all tables", name),
			"name another one in slot.publication and run cdc-relay init --apply")
		return r
	}
	if !p.Inserts || p.Others {
		r.add("pub.ops", fmt.Sprintf("the publication %s must publish inserts and nothing else", name), alter+"SET (publish = 'insert')")
	}
	if f.Table != nil && f.Table.Partitioned && !p.ViaRoot {
		r.add("pub.root", fmt.Sprintf("the publication %s names partitions instead of the table", name),
			alter+"SET (publish_via_partition_root = true)")
		return r // what it lists for the table is not to be seen before
	}
	if !p.Listed {
		r.add("pub.table", fmt.Sprintf("the publication %s does not contain %s: its inserts are lost to the slot", name, cfg.Table),
			alter+"ADD TABLE "+cfg.Table.Ident())
		return r
	}
	if !harmlessFilter(p.Filter, cfg) {
		r.add("pub.filter", fmt.Sprintf("the publication %s has a row filter on %s", name, cfg.Table), alter+"SET TABLE "+cfg.Table.Ident())
	}
	if f.Table != nil && p.Columns != nil {
		if missing := unpublished(p.Columns, f.Table.Columns, cfg); len(missing) > 0 {
			r.add("pub.columns", fmt.Sprintf("the publication %s leaves out columns that the relay reads: %s", name, strings.Join(missing, ", ")),
				alter+"SET TABLE "+cfg.Table.Ident())
		}
	}
	return r
}

// harmlessFilter: a filter on READY hides only rows that are not events.
func harmlessFilter(filter string, cfg Config) bool {
	bare := strings.NewReplacer("(", "", ")", "", " ", "", `"`, "").Replace(filter)
	return bare == "" || bare == cfg.column("send_status")+"=0"
}

func checkSlot(f Facts, cfg Config) []*fault.Blocked {
	var r report
	s := f.Slot
	if s == nil {
		r.add(SlotMissing, fmt.Sprintf("there is no replication slot %s", cfg.Slot), "run: cdc-relay slot create, or set slot.create to true")
		return r
	}
	const another = "name another one in slot.name"
	if s.Plugin != "pgoutput" {
		r.add("slot.plugin", fmt.Sprintf("the slot %s does not use the plugin pgoutput", cfg.Slot), another)
	}
	if s.Plugin != "" && !s.SameDatabase {
		r.add("slot.database", fmt.Sprintf("the slot %s belongs to another database", cfg.Slot), another)
	}
	if s.Temporary {
		r.add("slot.temporary", fmt.Sprintf("the slot %s is temporary", cfg.Slot), another)
	}
	again := fmt.Sprintf("run: cdc-relay slot recreate --confirm %s, or set slot.recreate_if_lost to true: what is READY is then published from the table", cfg.Slot)
	switch {
	case !s.Lost():
	case s.Invalidated != "":
		r.add(SlotInvalidated, fmt.Sprintf("the slot %s was invalidated (%s)", cfg.Slot, s.Invalidated), again)
	default:
		r.add(SlotLost, fmt.Sprintf("the slot %s has lost WAL that it needs", cfg.Slot), again)
	}
	return r
}
