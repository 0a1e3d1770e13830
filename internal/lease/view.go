package lease

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// view is leadership of the slot as one statement saw it. Times are told by
// the database's clock.
type view struct {
	fenceEpoch int64 // in cdc_relay_slot

	// The lease row. Pointers are nil where the row has NULL.
	epoch     *int64
	owner     *[16]byte
	renewedAt *time.Time
	instance  string
	systemID  *uint64
	timeline  *uint32 // on which saved was saved
	saved     pglogrepl.LSN

	released   bool          // nobody holds the lease
	expired    bool          // it has run out
	age        time.Duration // since it was last renewed
	slotActive bool          // somebody streams from the slot
}

// free reports whether owner me may take the lease now.
func (v view) free(me [16]byte, takeoverAfter time.Duration) bool {
	switch {
	case v.released, v.expired:
		return true
	case v.owner != nil && *v.owner == me:
		// An earlier tenure of this process, which ended without a release.
		return true
	default:
		return !v.slotActive && v.age >= takeoverAfter
	}
}

// nextEpoch is higher than any epoch known. The two rows differ only if a
// person changed one of them.
func (v view) nextEpoch() int64 {
	next := v.fenceEpoch
	if v.epoch != nil {
		next = max(next, *v.epoch)
	}
	return next + 1
}
