package statusback

import (
	"cmp"
	"slices"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// write is one row to be written.
type write struct {
	event.Ref
	park  *event.Park // nil: SENT
	why   reason      // of the last try that did not settle it
	tries uint16      // that ended for this reason, one after the other
}

// reason is why a write has to be tried again.
type reason uint8

const (
	whyNew       reason = iota
	whyInvisible        // the row's transaction is not visible yet
	whyUnchanged        // nothing speaks against it, but the row was not changed
	whyLocked           // somebody holds a lock on the row
	whyFailed           // the statement failed
)

// form is the kind of a statement.
type form uint8

const (
	formSent     form = iota // SENT of what came from the stream
	formRequeued             // SENT of what was parked before
	formRetry                // parked until a time, with an attempt
	formFail                 // parked as FAILED
	formHeld                 // parked for its release
	formLater                // parked until a time, without an attempt
	formKept                 // held already, as last seen: the kind that needs no statement
	forms        = iota
)

func (w *write) form() form {
	if w.park == nil {
		if w.Due.IsNull() {
			return formSent
		}
		return formRequeued
	}
	switch w.park.Action {
	case event.ParkFailed:
		return formFail
	case event.ParkLater:
		return formLater
	case event.ParkHeld:
		if w.Due.IsInfinity() {
			return formKept
		}
		return formHeld
	}
	return formRetry
}

// parks says that this kind parks a row.
func (f form) parks() bool { return f != formSent && f != formRequeued }

// locked says that the row was locked when it was last tried: it must not be
// waited for again.
func (w *write) locked() bool { return w.why == whyLocked }

// order sorts by kind of statement, then by id: ids in order give all
// statements one order of locking.
func order(writes []write) {
	slices.SortFunc(writes, func(a, b write) int {
		if a.locked() != b.locked() {
			if a.locked() {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(a.form(), b.form()), cmp.Compare(a.ID, b.ID))
	})
}

func refsOf(writes []write) []event.Ref {
	refs := make([]event.Ref, len(writes))
	for i := range writes {
		refs[i] = writes[i].Ref
	}
	return refs
}

// split walks writes, which are ordered by id, and tells of each whether its
// id is among changed.
func split(writes []write, changed []int64, each func(w write, done bool)) {
	slices.Sort(changed)
	for _, w := range writes {
		for len(changed) > 0 && changed[0] < w.ID {
			changed = changed[1:]
		}
		each(w, len(changed) > 0 && changed[0] == w.ID)
	}
}

// delay is how long to wait before the next try, after tries of them.
func (why reason) delay(tries uint16) time.Duration {
	switch why {
	case whyLocked:
		return time.Second
	case whyFailed:
		return min(100*time.Millisecond<<min(tries, 6), 5*time.Second)
	}
	return time.Millisecond << min(tries, 10)
}
