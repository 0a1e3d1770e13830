package consumer

import (
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// item is a record on its way through a partition's line. It belongs to the
// line's goroutine; while its claim is asked for, its handler runs or its
// outcome is recorded it belongs to the goroutine that does so, except for the
// fields marked as the line's.
type item struct {
	rec   group.Record
	ev    *Event  // the line reads its id only
	bad   *defect // decoding, or the table, found the record unusable
	lane  uint64
	phase phase // the line's
	then  phase // phase once it comes back to the line
	// asked is the row of the quarantine that a person wants to be retried; 0
	// for a record of the log.
	asked int64

	due    time.Time // waiting, or ended and not recorded as the row is locked: until then
	lent   time.Time // to whoever works on it
	reason Reason    // of the wait; "" for one too short to speak of

	claim  *Claim // ready to settling; nil in transactional mode
	live   *tenure
	unsure bool          // a statement that may have claimed the event had no answer
	out    outcome       // the line's when ended
	took   time.Duration // of its handler
	// repeated: recording the outcome has been tried before.
	repeated bool

	tries     int         // looks at the row since the reason of the wait changed
	looking   store.Kind  // what those looks found
	since     time.Time   // of the first of them
	behind    []store.Ref // the next events of the window, for one that is missing
	countedAs Outcome     // told to the Observer, so that waiting counts once
}

// phase is where an item is in its life.
type phase int

const (
	fresh     phase = iota // wants a claim
	acquiring              // its claim is asked for
	ready                  // may start
	running                // its handler runs
	ended                  // its outcome is to be recorded
	settling               // its outcome is being recorded
	waiting                // until due, then fresh or unusable
	unusable               // wants a quarantine row
	rejecting              // its quarantine row is being written
	done                   // durable outcome
)

// ref names the event to the store.
func (it *item) ref() store.Ref { return store.Ref{RowID: it.ev.OutboxID, EventID: it.ev.ID} }

// lend hands an item to another goroutine in a phase.
func (it *item) lend(ph phase) { it.phase, it.then, it.lent = ph, ph, time.Now() }

// asksDatabase reports whether a statement about it is on its way.
func (it *item) asksDatabase() bool {
	return it.phase == acquiring || it.phase == settling || it.phase == rejecting
}

// back takes it again.
func (it *item) back() { it.phase = it.then }

// wait puts an item aside.
func (it *item) wait(d time.Duration, why Reason) {
	it.then, it.due, it.reason = waiting, time.Now().Add(d), why
}

// locked puts aside an outcome that could not be recorded, as somebody has
// locked the row.
func (it *item) locked() { it.then, it.due = ended, time.Now().Add(lockedWait) }

// claimedElsewhere is the reason of a wait for another's claim or lock, which
// is mostly too short to speak of.
func (it *item) claimedElsewhere() Reason {
	if it.tries <= 3 {
		return ""
	}
	return WaitingClaim
}

// reject sends it to the quarantine.
func (it *item) reject(reason, message string) {
	it.then, it.bad = unusable, &defect{reason, message}
}

// look counts how often in a row the item was found in a state, and returns for
// how long it has been.
func (it *item) look(kind store.Kind) time.Duration {
	if it.tries == 0 || it.looking != kind {
		it.looking, it.tries, it.since = kind, 0, time.Now()
	}
	it.tries++
	return time.Since(it.since)
}

// outcome is how an attempt ended.
type outcome struct {
	end     end
	code    string
	message string // safe
	delay   time.Duration
	counted Outcome
}

// end is what is to be written for an attempt.
type end int

const (
	succeed  end = iota // done
	proved              // the handler ended the claim in its own transaction, or says so
	fail                // FAILED
	release             // SENT, with a delay
	handBack            // SENT, no attempt
	put                 // transactional mode: nothing to write, to be looked at again
)

// final reports whether later events of the same key may pass.
func (e end) final() bool { return e == succeed || e == fail }
