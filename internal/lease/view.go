package lease

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// view is leadership of the slot as one statement saw it. Times are told by
// the database's clock, until wait.
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

// renewedSince reports whether somebody has renewed or taken the lease, or given it
// up, since an earlier view.
func (v view) renewedSince(before view) bool {
	at, was := v.renewedAt, before.renewedAt
	return v.released != before.released || (at == nil) != (was == nil) || at != nil && !at.Equal(*was)
}

// wait takes note that nobody has renewed the lease for so long while it was
// watched. The database's clock may have been set back since it was renewed, or be
// another server's by now, and would make it last for as long as that.
func (v *view) wait(watched, ttl time.Duration) {
	v.age = max(v.age, watched)
	v.expired = v.expired || watched >= ttl
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
