package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// StandbySlot is one that synchronized_standby_slots names: a failover slot
// shows nothing that this one has not confirmed.
type StandbySlot struct {
	Name     string
	Physical bool          // there is one of that name, and it is for a standby
	Lost     bool          // it can never be used again
	Active   bool          // a standby uses it
	Idle     time.Duration // since when none does, 0 if one does
}

// standbyGrace is how long a standby may be away before it counts as dead: one
// that restarts is back sooner.
const standbyGrace = 10 * time.Second

// dead says why the slot will not confirm anything, "" if it will.
func (s *StandbySlot) dead() string {
	switch {
	case !s.Physical:
		return "there is no physical slot " + s.Name
	case s.Lost:
		return fmt.Sprintf("the slot %s is lost", s.Name)
	case !s.Active && s.Idle >= standbyGrace:
		return fmt.Sprintf("no standby has used the slot %s for %s", s.Name, s.Idle.Round(time.Second))
	}
	return ""
}

// readStandbySlots folds names as the server does, which has slots of small
// letters, digits and underscores only. Older servers do not know the setting.
func readStandbySlots(ctx context.Context, conn *pgx.Conn, _ Config, f *Facts) error {
	rows, err := conn.Query(ctx, `
		SELECT n.name, coalesce(s.slot_type = 'physical', false), coalesce(s.wal_status = 'lost', false), coalesce(s.active, false),
		       coalesce(extract(epoch FROM clock_timestamp() - (to_jsonb(s) ->> 'inactive_since')::timestamptz), 0)::float8
		  FROM unnest(string_to_array(lower(translate(current_setting('synchronized_standby_slots', true), E' \t"', '')), ','))
		       WITH ORDINALITY n (name, place)
		  LEFT JOIN pg_replication_slots s ON s.slot_name = n.name
		 ORDER BY n.place`)
	if err != nil {
		return err
	}
	var s StandbySlot
	var idle float64
	_, err = pgx.ForEachRow(rows, []any{&s.Name, &s.Physical, &s.Lost, &s.Active, &idle}, func() error {
		s.Idle = time.Duration(idle * float64(time.Second))
		f.StandbySlots = append(f.StandbySlots, s)
		return nil
	})
	return err
}

// checkStandbySlots: the server holds back all that the slot would show while
// a standby that it is told to wait for is dead. It tells nobody but its log:
// the stream lives, and stays empty.
func checkStandbySlots(f Facts, cfg Config) []*fault.Blocked {
	if f.Slot == nil || !f.Slot.Failover || f.Slot.Lost() {
		return nil
	}
	var alive, dead []string
	for _, s := range f.StandbySlots {
		if why := s.dead(); why != "" {
			dead = append(dead, why)
		} else {
			alive = append(alive, s.Name)
		}
	}
	var r report
	if len(dead) > 0 {
		r.add("pg.standby_slots",
			fmt.Sprintf("the server shows nothing of the slot %s before the standbys in synchronized_standby_slots have it: %s", cfg.Slot, strings.Join(dead, ", ")),
			fmt.Sprintf("bring the standby back, or give it up and run: ALTER SYSTEM SET synchronized_standby_slots = '%s'; SELECT pg_reload_conf()",
				strings.Join(alive, ", ")))
	}
	return r
}
