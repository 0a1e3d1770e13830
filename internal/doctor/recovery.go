package doctor

import (
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// FailoverSlots is the first server_version_num that copies slots to standbys.
const FailoverSlots = 170000

// Position says why the table may hold READY rows that a slot will not show,
// so that they must go out first; nil if it cannot. What lies before the slot's
// position is resolved only up to the saved one, and that only on the timeline
// where it was saved. Nobody need act on it.
func Position(s *Slot, saved pglogrepl.LSN, timelineSwitched bool) *fault.Blocked {
	var why string
	switch {
	case s == nil:
		why = "the slot is new"
	case saved == 0:
		why = "no position of the slot was ever saved"
	case timelineSwitched:
		why = "the position was saved on another timeline: a failover, a promoted copy or a point-in-time recovery"
	case s.Confirmed > saved:
		why = fmt.Sprintf("the slot is at %s, beyond the saved position %s", s.Confirmed, saved)
	default:
		return nil
	}
	return &fault.Blocked{Reason: "slot.position", What: why + ": what it does not show may be READY in the table",
		Remedy: "nothing to do: the relay publishes READY rows first"}
}

// Warnings are about what works, and will cost something once a server is lost.
func (f Facts) Warnings(cfg Config) []*fault.Blocked {
	var r report
	if s := f.Slot; s != nil && f.Version >= FailoverSlots && f.Standbys && !s.Failover {
		r.add("slot.failover",
			fmt.Sprintf("the slot %s is not copied to standbys: after a failover it is made anew, and READY rows go out first, some of them again", cfg.Slot),
			fmt.Sprintf("set slot.failover to true, stop the relay and run: cdc-relay slot recreate --confirm %s", cfg.Slot))
	}
	return r
}
