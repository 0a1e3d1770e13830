package wal

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

// Types of the server's messages while it streams.
const (
	copyData        = 'd'
	copyDone        = 'c'
	commandComplete = 'C'
	readyForQuery   = 'Z'
	errorResponse   = 'E'
	noticeResponse  = 'N'
	parameterStatus = 'S'
)

// reader cuts what the server sends into gulps of whole CopyData messages.
// buf.data[:whole] holds such messages, [whole:filled] the beginning of the
// next one.
type reader struct {
	conn     io.Reader
	caughtUp func() bool // the reads so far took all that has come
	seen     *progress
	free     chan *buffer
	gulps    chan<- event.Gulp // has room for a gulp of each buffer
	beat     *pulse.Beat

	buf           *buffer
	whole, filled int
	need          int // size of the message at whole, 0 when not yet known
}

// run reads until the connection or ctx ends; then it discards what still
// comes, so that the server can end its side. quit ends its waits for a
// buffer.
func (r *reader) run(ctx, quit context.Context) error {
	r.buf = <-r.free // nobody else has any yet
	for {
		r.beat.Rest() // how long the server is silent, progress tells
		n, err := r.conn.Read(r.buf.data[r.filled:])
		r.beat.Work()
		if ctx.Err() != nil {
			r.discard(err)
			return nil
		}
		if err != nil {
			return lost(err)
		}
		r.seen.received(time.Now())
		r.filled += n
		if err := r.cut(); err != nil {
			return err
		}
		if !r.handOver(quit) {
			r.discard(nil)
			return nil
		}
	}
}

func (r *reader) discard(err error) {
	scratch := make([]byte, readRoom)
	for err == nil {
		_, err = r.conn.Read(scratch)
	}
}

// cut moves whole over the messages that are complete. Those that are not
// CopyData are taken out.
func (r *reader) cut() error {
	data := r.buf.data
	for {
		r.need = 0
		rest := data[r.whole:r.filled]
		if len(rest) < headerSize {
			return nil
		}
		length := int(binary.BigEndian.Uint32(rest[1:]))
		if length < 4 || length > maxMessage {
			return fmt.Errorf("reading the stream: a message of type %q has the impossible length %d", rest[0], length)
		}
		size := 1 + length
		if len(rest) < size {
			r.need = size
			return nil
		}
		body := rest[headerSize:size]
		if rest[0] != copyData {
			if err := control(rest[0], body); err != nil {
				return err
			}
			r.filled -= size
			copy(data[r.whole:], rest[size:])
			continue
		}
		if len(body) > 0 && body[0] == pglogrepl.PrimaryKeepaliveMessageByteID {
			r.seen.keepalive(body[1:])
		}
		r.whole += size
	}
}

// handOver passes on what has been collected, if the server has nothing more
// at the moment or the buffer has no room for another read. It reports false
// when quit has ended.
func (r *reader) handOver(quit context.Context) bool {
	caughtUp := r.caughtUp()
	full := len(r.buf.data)-r.filled < readRoom
	switch {
	case r.whole > 0 && !caughtUp && !full:
		return true // collect more
	case r.whole == 0 && !full && r.need <= len(r.buf.data):
		return true // read the message to its end
	}
	tail := r.buf.data[r.whole:r.filled]
	if r.whole > 0 {
		r.gulps <- event.Gulp{Frames: r.buf.data[:r.whole:r.whole], Paused: caughtUp, Release: r.buf.release}
		r.beat.Rest()
		select {
		case r.buf = <-r.free:
		case <-quit.Done():
			return false
		}
	}
	r.buf.grow(r.need, tail)
	r.whole, r.filled = 0, len(tail)
	return true
}

// control handles a message of the server that is not part of the stream.
func control(kind byte, body []byte) error {
	switch kind {
	case parameterStatus:
		return nil
	case noticeResponse:
		return notice(body)
	case errorResponse:
		var answer pgproto3.ErrorResponse
		if err := answer.Decode(body); err != nil {
			return fmt.Errorf("reading an error of the server: %w", err)
		}
		return streamError(&answer)
	case copyDone, commandComplete, readyForQuery:
		return errEnded
	}
	return fmt.Errorf("reading the stream: the server sent a message of unexpected type %q", kind)
}
