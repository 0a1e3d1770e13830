package wal

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/jackc/pglogrepl"
)

// progress is what the reader saw and others ask for. It is safe for
// concurrent use.
type progress struct {
	receivedNanos atomic.Int64 // when something was last received, Unix time
	serverEnd     atomic.Uint64
	// reply holds a token while the server waits for a status.
	reply chan struct{}
}

func newProgress() *progress { return &progress{reply: make(chan struct{}, 1)} }

func (p *progress) received(now time.Time) { p.receivedNanos.Store(now.UnixNano()) }

// receivedAt is the zero time before anything was received.
func (p *progress) receivedAt() time.Time {
	nanos := p.receivedNanos.Load()
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// keepalive takes note of a primary keepalive: the server's position (8
// bytes), its clock (8) and whether it wants a reply (1). A malformed one is
// the decoder's to refuse.
func (p *progress) keepalive(body []byte) {
	if len(body) < 17 {
		return
	}
	p.serverEnd.Store(binary.BigEndian.Uint64(body))
	if body[16] != 0 {
		select {
		case p.reply <- struct{}{}:
		default: // it is wanted already
		}
	}
}

func (p *progress) end() pglogrepl.LSN { return pglogrepl.LSN(p.serverEnd.Load()) }
