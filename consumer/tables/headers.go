package tables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Header is a header of a record.
type Header struct {
	Name string
	// Value nil is a null, which Kafka tells from an empty one.
	Value []byte
}

// null stands for the length of a value that is null.
const null = math.MaxUint32

// EncodeHeaders makes the bytes of the column record_headers. They keep what
// text and jsonb refuse: zero bytes, and what is not UTF-8.
func EncodeHeaders(headers []Header) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(len(headers)))
	for _, h := range headers {
		b = binary.BigEndian.AppendUint32(b, uint32(len(h.Name)))
		b = append(b, h.Name...)
		if h.Value == nil {
			b = binary.BigEndian.AppendUint32(b, null)
			continue
		}
		b = binary.BigEndian.AppendUint32(b, uint32(len(h.Value)))
		b = append(b, h.Value...)
	}
	return b
}

var errShort = errors.New("the bytes end too early")

// DecodeHeaders is the reverse of [EncodeHeaders]: nil for no headers. The
// values are copies.
func DecodeHeaders(b []byte) ([]Header, error) {
	headers, rest, err := decodeHeaders(b)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes are left", len(rest))
	}
	if err != nil {
		return nil, fmt.Errorf("decoding the headers of a quarantined record: %w", err)
	}
	return headers, nil
}

func decodeHeaders(b []byte) (headers []Header, rest []byte, err error) {
	count, b, err := cutNumber(b)
	if err != nil {
		return nil, nil, err
	}
	for range count { // not allocated by count, which may be anything
		var h Header
		if h, b, err = cutHeader(b); err != nil {
			return nil, nil, err
		}
		headers = append(headers, h)
	}
	return headers, b, nil
}

func cutHeader(b []byte) (Header, []byte, error) {
	name, b, err := cutBytes(b)
	if err != nil {
		return Header{}, nil, err
	}
	if name == nil {
		return Header{}, nil, errors.New("a name is null")
	}
	value, b, err := cutBytes(b)
	return Header{Name: string(name), Value: value}, b, err
}

// cutBytes returns nil for a null.
func cutBytes(b []byte) (value, rest []byte, err error) {
	n, b, err := cutNumber(b)
	switch {
	case err != nil:
		return nil, nil, err
	case n == null:
		return nil, b, nil
	case uint64(n) > uint64(len(b)):
		return nil, nil, errShort
	}
	return append([]byte{}, b[:n]...), b[n:], nil
}

func cutNumber(b []byte) (uint32, []byte, error) {
	if len(b) < 4 {
		return 0, nil, errShort
	}
	return binary.BigEndian.Uint32(b), b[4:], nil
}
