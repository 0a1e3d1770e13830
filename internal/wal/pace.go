package wal

import "time"

// The walsender costs half as much per event while its socket is full, since
// it then gathers messages into large sends. The reader produces that state:
// with a small receive window it reads on without a pause while the server
// has a backlog, and pauses when it has caught up with a sustained rate, so
// that the window closes again. It keeps to that until several pauses in a row
// have brought little: small reads make small sends, which slow the server down
// and so would last, and on a busy machine one pause may bring nothing. At a
// low rate, or after a single burst, it waits in read and takes every message
// as it comes.
const (
	receiveWindow  = 64 << 10              // SO_RCVBUF, set before connect
	backlogRead    = 32 << 10              // bytes: a read of so much shows a backlog
	sustainedBytes = 64 << 10              // within rateWindow: a sustained rate
	rateWindow     = 10 * time.Millisecond // of the rate
	pauseTime      = 10 * time.Millisecond // of the reader that has caught up
	poorPauses     = 3                     // in a row, with less than backlogRead each, end the pausing
)

// pace decides on the pauses between reads. Its rate is a sliding window,
// estimated from the bytes of this window and the part of the one before that
// it still covers.
type pace struct {
	last          int // bytes of the last read
	start         time.Time
	bytes, before int  // of the window since start, and of the one before
	pausing       bool // it pauses whenever it has caught up
	since         int  // bytes since the last pause
	poor          int  // pauses in a row that brought little
}

// caughtUp reports whether the last read shows no backlog.
func (p *pace) caughtUp() bool { return p.last < backlogRead }

// pause returns how long to wait before the next read.
func (p *pace) pause(now time.Time) time.Duration {
	if !p.caughtUp() {
		return 0
	}
	p.poor++
	if p.since >= backlogRead {
		p.poor = 0
	}
	p.since = 0
	p.pausing = p.sustained(now) || p.pausing && p.poor < poorPauses
	if p.pausing {
		return pauseTime
	}
	return 0
}

func (p *pace) sustained(now time.Time) bool {
	p.roll(now)
	covered := float64(rateWindow-now.Sub(p.start)) / float64(rateWindow)
	return float64(p.bytes)+covered*float64(p.before) >= sustainedBytes
}

// read takes note of a read of n bytes.
func (p *pace) read(n int, now time.Time) {
	p.roll(now)
	p.last = n
	p.bytes += n
	p.since += n
}

// roll moves the window on to now.
func (p *pace) roll(now time.Time) {
	switch age := now.Sub(p.start); {
	case age < rateWindow:
	case age < 2*rateWindow:
		p.start, p.before, p.bytes = p.start.Add(rateWindow), p.bytes, 0
	default:
		p.start, p.before, p.bytes = now, 0, 0
	}
}
