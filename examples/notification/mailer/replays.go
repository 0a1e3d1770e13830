package mailer

import (
	"sync"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// maxReplays is how often the provider may answer with the same stored error
// before a person is asked: it will not change its mind, and the e-mail may or
// may not have been sent.
const maxReplays = 3

// maxRemembered bounds the events that are remembered. A consumer has far fewer
// in retry; some remain that went on to another one.
const maxRemembered = 10_000

// replays counts stored errors by event. Its zero value is ready; it is safe for
// concurrent use. It is in memory only: after a restart the count begins anew.
type replays struct {
	mu   sync.Mutex
	seen map[outbox.ID]replay
}

type replay struct{ status, n int }

// add returns how often the event has met this stored error.
func (r *replays) add(id outbox.ID, status int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen == nil {
		r.seen = map[outbox.ID]replay{}
	}
	e, ok := r.seen[id]
	if !ok && len(r.seen) >= maxRemembered {
		clear(r.seen)
	}
	if e.status != status {
		e = replay{status: status}
	}
	e.n++
	r.seen[id] = e
	return e.n
}

func (r *replays) forget(id outbox.ID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, id)
}
