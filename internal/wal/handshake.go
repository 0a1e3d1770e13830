package wal

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
)

// headerSize is a message's type byte and its length.
const headerSize = 5

// copyBothResponse is the type of the message after which the stream begins.
const copyBothResponse = 'W'

var errStreaming = errors.New("the connection streams: it is no longer pgconn's to read")

// handshake hands the driver no byte beyond the end of the server's current
// message, so that nothing of the stream is left in the driver's buffers when
// START_REPLICATION has been answered. From then on it refuses to be read:
// the stream is read from the connection beneath.
//
// It may be read by several goroutines: the driver reads in the background
// when a write is slow, and drains a connection that it gives up.
type handshake struct {
	net.Conn

	mu        sync.Mutex
	header    [headerSize]byte
	got       int  // bytes of the header that have been read
	left      int  // bytes of the current message's body that have not
	streaming bool // the current message is the last one of the handshake
}

func (h *handshake) Read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left > 0 {
		n, err := h.Conn.Read(p[:min(len(p), h.left)])
		h.left -= n
		return n, err
	}
	if h.streaming {
		return 0, errStreaming
	}
	n, err := h.Conn.Read(p[:min(len(p), headerSize-h.got)])
	h.got += copy(h.header[h.got:], p[:n])
	if h.got == headerSize {
		h.got = 0
		h.left = max(int(int32(binary.BigEndian.Uint32(h.header[1:])))-4, 0) // the driver refuses lengths under 4
		h.streaming = h.header[0] == copyBothResponse
	}
	return n, err
}
