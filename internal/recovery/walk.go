package recovery

import "time"

const (
	// lowWaterAge is how old a mark must be before a walk may begin behind
	// it: ids come from sequences, and a session may have taken some long
	// before it inserts under them.
	lowWaterAge = time.Hour
	// wholeWalkEvery is the time between two walks from the first row on. They
	// find what somebody has changed below the mark.
	wholeWalkEvery = 24 * time.Hour
)

// walk is where a search by primary key stands: no index knows send_status. It
// goes from a low-water mark to the last row, and then again.
//
// The low-water mark is an id below which no row is open, which is what keeps
// the search from leaving a row behind for good. It may rise to an id that was
// the highest one when every transaction of that time has ended, that was long
// ago, and a walk since has found nothing open below it.
type walk struct {
	lowWaterAge time.Duration
	underway    bool
	after       int64     // walked over up to this id
	low         int64     // the mark as it is saved
	clear       int64     // nothing open up to this id
	met         bool      // something open: clear stays
	rising      mark      // what low may rise to at the end of this walk; zero: nothing
	candidate   mark      // waits to be old enough
	wholeAt     time.Time // when to begin with the first row
}

// mark is the highest id and the next transaction id of a time.
type mark struct {
	id   int64
	xmax int64
	at   time.Time
}

// restart makes the next walk begin with the first row.
func (w *walk) restart() {
	w.underway = false
	w.wholeAt = time.Now()
}

// begin starts a walk, given the saved mark, the mark of now and the oldest
// transaction that has not ended. It reports whether the walk begins with the
// first row.
func (w *walk) begin(low int64, now mark, xmin int64) (whole bool) {
	w.underway, w.met = true, false
	w.low, w.after = low, low
	if w.wholeAt.IsZero() {
		w.wholeAt = now.at.Add(w.lowWaterAge)
	} else if !now.at.Before(w.wholeAt) {
		whole, w.after = true, 0
		w.wholeAt = now.at.Add(wholeWalkEvery)
	}
	w.clear = w.after
	w.rising = mark{}
	switch {
	case w.candidate.at.IsZero():
		w.candidate = now
	case now.at.Sub(w.candidate.at) >= w.lowWaterAge && xmin >= w.candidate.xmax:
		w.rising, w.candidate = w.candidate, now
	}
	return whole
}

// skip leaves out all rows up to an id. Nothing is known of them: the mark does
// not rise.
func (w *walk) skip(upto int64) {
	if upto > w.after {
		w.after, w.met = upto, true
	}
}

// pass notes a page: the id of its first open row, 0 if there is none, and the
// last id walked over.
func (w *walk) pass(open, last int64) {
	w.after = last
	if w.met {
		return
	}
	w.clear = last
	if open != 0 {
		w.met, w.clear = true, open-1
	}
}

// raised is the mark after a walk that came to its end.
func (w *walk) raised() int64 { return max(w.low, min(w.clear, w.rising.id)) }
