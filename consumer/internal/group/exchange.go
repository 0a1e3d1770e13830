package group

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

// exchange is a fetch request for one partition whose answer is taken as it is
// on the wire. The library's own reading of it hides what must be known here: a
// batch that cannot be read looks like the end of the log if another one comes
// before it, or costs the connection if none does; a record that cannot be read
// ends its batch without a word; and where a batch ends that has lost records
// to compaction is not told.
type exchange struct {
	fetch.Request
	clientID string
	version  int16
}

var (
	_ protocol.PreparedMessage = (*exchange)(nil)
	_ protocol.RawExchanger    = (*exchange)(nil)
	_ protocol.BrokerMessage   = (*exchange)(nil)
)

// answer is what a broker says about the partition.
type answer struct {
	code          int16
	highWatermark int64
	records       []byte // batches, the last one perhaps cut short
}

// ApiKey makes it a protocol.Message.
func (*answer) ApiKey() protocol.ApiKey { return protocol.Fetch }

const (
	// correlationID is the same for all, as a connection has one request at a
	// time.
	correlationID = 1
	// oldestFetch came with today's record batches, in Kafka 0.11.
	oldestFetch = 4
	// largestAnswer is beyond what any broker is configured for: more means that
	// what is read is no answer.
	largestAnswer = 1 << 28
)

// Prepare is told the version that both sides know.
func (e *exchange) Prepare(version int16) { e.version = version }

// Required says that RawExchange is to be called.
func (*exchange) Required(map[protocol.ApiKey]int16) bool { return true }

// RawExchange sends the request and reads the answer.
func (e *exchange) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if e.version < oldestFetch {
		return nil, fmt.Errorf("the broker knows fetch requests up to version %d only: Kafka 0.11 is needed at least", e.version)
	}
	if err := protocol.WriteRequest(rw, e.version, correlationID, e.clientID, &e.Request); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(rw, head[:]); err != nil {
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(head[:])) - 4
	if id := binary.BigEndian.Uint32(head[4:]); id != correlationID || size < 0 || size > largestAnswer {
		return nil, fmt.Errorf("not an answer to the request: id %d, %d bytes", id, size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(rw, body); err != nil {
		return nil, err
	}
	return parseAnswer(body, e.version)
}

// parseAnswer reads an answer about one partition.
func parseAnswer(body []byte, version int16) (*answer, error) {
	f := fields{rest: body}
	f.take(4) // throttled for
	var ans answer
	if version >= 7 {
		ans.code = int16(f.uint16())
		f.take(4) // session
	}
	if f.uint32() != 1 { // topics
		return &ans, errorsOf(ans, "no topic")
	}
	f.take(int(f.uint16())) // its name
	if f.uint32() != 1 {
		return &ans, errorsOf(ans, "no partition")
	}
	f.take(4) // its number
	if code := int16(f.uint16()); code != 0 {
		ans.code = code
	}
	ans.highWatermark = int64(f.uint64())
	f.take(8) // last stable offset
	if version >= 5 {
		f.take(8) // start of the log
	}
	if n := int32(f.uint32()); n > 0 {
		f.take(int(n) * 16) // aborted transactions
	}
	if version >= 11 {
		f.take(4) // replica to read from
	}
	if n := int32(f.uint32()); n > 0 {
		ans.records = f.take(int(n))
	}
	if f.short {
		return nil, errors.New("the answer is cut short")
	}
	return &ans, nil
}

// errorsOf is nil if the answer has a code that explains it.
func errorsOf(ans answer, what string) error {
	if ans.code != 0 {
		return nil
	}
	return fmt.Errorf("the answer has %s, or several", what)
}

// fields takes fields off a message. What is missing is zero and noted.
type fields struct {
	rest  []byte
	short bool
}

func (f *fields) take(n int) []byte {
	if n < 0 || n > len(f.rest) {
		f.short = true
		f.rest = nil
		return nil
	}
	taken := f.rest[:n]
	f.rest = f.rest[n:]
	return taken
}

func (f *fields) uint16() uint16 {
	if b := f.take(2); b != nil {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (f *fields) uint32() uint32 {
	if b := f.take(4); b != nil {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (f *fields) uint64() uint64 {
	if b := f.take(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// varint is the zigzag form that record batches use.
func (f *fields) varint() int64 {
	n, size := binary.Varint(f.rest)
	if size <= 0 {
		f.take(len(f.rest) + 1)
		return 0
	}
	f.rest = f.rest[size:]
	return n
}

// bytes is a length and as many bytes; nil for null.
func (f *fields) bytes() []byte {
	n := f.varint()
	if n < 0 {
		return nil
	}
	if n > int64(len(f.rest)) {
		n = -1
	}
	b := f.take(int(n))
	return b[:len(b):len(b)]
}
