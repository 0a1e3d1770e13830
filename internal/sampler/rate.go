package sampler

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// rateWindow is how far back the rate of WAL looks.
const rateWindow = 5 * time.Minute

// rate measures how fast the end of WAL moves.
type rate struct {
	points []point // oldest first
}

type point struct {
	at  time.Time
	end pglogrepl.LSN
}

// add takes a new end of WAL and returns the rate in bytes a second from the
// oldest point that is needed to look back a whole window; ok is false for the
// first point. An end that lies before the last one is another server's, and
// the measuring starts anew.
func (r *rate) add(at time.Time, end pglogrepl.LSN) (perSecond float64, ok bool) {
	if n := len(r.points); n > 0 && end < r.points[n-1].end {
		r.points = r.points[:0]
	}
	r.points = append(r.points, point{at, end})
	for len(r.points) > 2 && at.Sub(r.points[1].at) >= rateWindow {
		r.points = r.points[1:]
	}
	first := r.points[0]
	elapsed := at.Sub(first.at).Seconds()
	if elapsed <= 0 {
		return 0, false
	}
	return float64(end-first.end) / elapsed, true
}
