package sampler

import "math"

// walk goes over a part of the table by primary key, from a mark at and below
// which nothing is of interest any more.
//
// A row with a small id may become visible late, when its transaction commits.
// So what a walk saw nothing of interest in counts only up to bound, an id
// that was seen long enough ago: every transaction that may have taken a
// smaller one has ended.
type walk struct {
	mark    int64
	bound   int64
	horizon int64 // transactions that may have taken an id up to bound are below it
}

func newWalk() walk { return walk{mark: math.MinInt64, bound: math.MinInt64} }

// restart begins anew if the table holds no id up to the mark's any more, as
// after a TRUNCATE that restarts the ids, and raises the mark to a low-water
// id that is kept elsewhere.
func (w *walk) restart(maxID, lowWater int64) {
	if maxID < w.mark {
		*w = newWalk()
	}
	if lowWater <= maxID {
		w.mark = max(w.mark, lowWater)
	}
}

// ended takes the result of a walk that began when transactions below oldest
// had ended: up to clean there was nothing of interest. last is the highest id
// that was seen, and transactions from horizon on had not begun by then.
func (w *walk) ended(clean, last, oldest, horizon int64) {
	if oldest < w.horizon {
		return
	}
	w.mark = max(w.mark, min(clean, w.bound))
	w.bound, w.horizon = last, horizon
}
