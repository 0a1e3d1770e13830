package load

import (
	"slices"

	"github.com/cdc-relay/cdc-relay/e2e/check"
)

// Forget takes back the events that the database has forgotten: after a
// failover or a restore it does not know what was committed last, and may give
// the ids to others. It returns them.
func (h *History) Forget(known map[[16]byte]bool) (forgotten []check.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = slices.DeleteFunc(h.events, func(e check.Event) bool {
		if known[e.EventID] {
			return false
		}
		forgotten = append(forgotten, e)
		delete(h.past, e.ID)
		delete(h.asked, e.ID)
		return true
	})
	return forgotten
}
