package lease

import (
	"sync/atomic"
	"time"
)

// seen is when this process last knew who leads.
type seen struct {
	read   atomic.Pointer[time.Time] // when the lease was last read while competing for it
	tenure atomic.Pointer[Tenure]    // the last one
}

// SeenAt is when this process last asked about the lease and was answered: when
// the last successful renewal was sent, or the lease last read by an instance
// that waits for it. It is zero before the first answer, and safe for concurrent
// use.
func (l *Lease) SeenAt() time.Time {
	var at time.Time
	if read := l.seen.read.Load(); read != nil {
		at = *read
	}
	if t := l.seen.tenure.Load(); t != nil && t.RenewedAt().After(at) {
		at = t.RenewedAt()
	}
	return at
}

// RenewedAt is when the last successful renewal was sent, zero after the end of
// the tenure.
func (t *Tenure) RenewedAt() time.Time {
	renewed := t.renewed.Load()
	if renewed == never {
		return time.Time{}
	}
	return t.start.Add(time.Duration(renewed))
}
