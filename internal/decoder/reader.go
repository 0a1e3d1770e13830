package decoder

import (
	"bytes"
	"encoding/binary"
	"errors"
)

var (
	errTruncated = errors.New("the message is shorter than its layout")
	errOverlong  = errors.New("the message is longer than its layout")
)

// microsToUnix is the distance from PostgreSQL's epoch (2000-01-01) to
// the Unix epoch in microseconds.
const microsToUnix = 946_684_800_000_000

// reader takes values off the front of a message. Reading past the end yields
// zeros and sets short, so a layout is read to its end and checked once.
type reader struct {
	rest  []byte
	short bool
}

// take returns the next n bytes, nil and short when there are fewer.
func (r *reader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.rest, r.short = nil, true
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) uint8() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uint16() uint16 {
	if b := r.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (r *reader) uint32() uint32 {
	if b := r.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (r *reader) uint64() uint64 {
	if b := r.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// length reads a signed 32-bit length; a negative one fails the next take.
func (r *reader) length() int { return int(int32(r.uint32())) }

// text reads a string that ends in a zero byte.
func (r *reader) text() []byte {
	end := bytes.IndexByte(r.rest, 0)
	if end < 0 {
		r.rest, r.short = nil, true
		return nil
	}
	s := r.rest[:end:end]
	r.rest = r.rest[end+1:]
	return s
}

// end checks that the message had its layout's length.
func (r *reader) end() error {
	switch {
	case r.short:
		return errTruncated
	case len(r.rest) > 0:
		return errOverlong
	}
	return nil
}

// ignore passes over the rest of a message of which only the beginning
// matters.
func (r *reader) ignore() error {
	if r.short {
		return errTruncated
	}
	return nil
}
