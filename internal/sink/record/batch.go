package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"slices"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// HeaderSize is what a batch takes before its first record, in bytes, as the
// broker counts it against max.message.bytes.
const HeaderSize = 61

// Record is one Kafka record before it has a place in a batch. Its slices are
// views into the event and the encoder that made it.
type Record struct {
	Key         []byte
	Value       []byte
	Null        bool   // a tombstone: no value, not an empty one
	Headers     []byte // the record's headers in wire form, without their count
	HeaderCount int
	Timestamp   int64 // milliseconds since the Unix epoch
}

// Batch is a run of records for one partition, encoded as they come: records
// keep their place and their order. The zero value is an empty batch. Not safe
// for concurrent use.
type Batch struct {
	refs    []event.Ref
	records []byte // wire form, not compressed
	base    int64  // timestamp of the first record, milliseconds
	latest  int64  // the largest timestamp
}

// Len is the number of records.
func (b *Batch) Len() int { return len(b.refs) }

// Refs are the events of the records, in order. The slice belongs to the batch.
func (b *Batch) Refs() []event.Ref { return b.refs }

// Size is what the batch takes without compression, in bytes.
func (b *Batch) Size() int { return HeaderSize + len(b.records) }

// Cap is what the batch holds on to, in bytes, filled or not.
func (b *Batch) Cap() int { return cap(b.records) }

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() {
	b.refs, b.records = b.refs[:0], b.records[:0]
	b.base, b.latest = 0, 0
}

// Grown is the Size that the batch would have with r added.
func (b *Batch) Grown(r *Record) int {
	body := r.bodySize(b.delta(r), len(b.refs))
	return b.Size() + varintSize(int64(body)) + body
}

// Add appends r, the record of the event ref. It copies everything.
func (b *Batch) Add(r *Record, ref event.Ref) {
	if len(b.refs) == 0 {
		b.base, b.latest = r.Timestamp, r.Timestamp
	}
	delta, index := b.delta(r), len(b.refs)
	b.latest = max(b.latest, r.Timestamp)
	b.refs = append(b.refs, ref)

	body := r.bodySize(delta, index)
	buf := slices.Grow(b.records, body+binary.MaxVarintLen64)
	buf = binary.AppendVarint(buf, int64(body))
	buf = append(buf, 0) // record attributes: none are defined
	buf = binary.AppendVarint(buf, delta)
	buf = binary.AppendVarint(buf, int64(index))
	buf = appendBytes(buf, r.Key)
	if r.Null {
		buf = binary.AppendVarint(buf, -1)
	} else {
		buf = appendBytes(buf, r.Value)
	}
	buf = binary.AppendVarint(buf, int64(r.HeaderCount))
	b.records = append(buf, r.Headers...)
}

func (b *Batch) delta(r *Record) int64 {
	if len(b.refs) == 0 {
		return 0
	}
	return r.Timestamp - b.base
}

// bodySize is the record's size after its length field.
func (r *Record) bodySize(delta int64, index int) int {
	n := 1 + varintSize(delta) + varintSize(int64(index))
	n += varintSize(int64(len(r.Key))) + len(r.Key)
	if r.Null {
		n++
	} else {
		n += varintSize(int64(len(r.Value))) + len(r.Value)
	}
	return n + varintSize(int64(r.HeaderCount)) + len(r.Headers)
}

// Subset returns a new batch of those records whose index keep accepts, in
// order, with the timestamps they had. It only reads b.
func (b *Batch) Subset(keep func(index int) bool) *Batch {
	out := new(Batch)
	rest := b.records
	for i, ref := range b.refs {
		var body []byte
		body, rest = cutRecord(rest)
		if keep(i) {
			out.addEncoded(body, b.base, ref)
		}
	}
	return out
}

// addEncoded appends a record of another batch, whose timestamp delta counts
// from base. All but the two deltas stays as it is.
func (b *Batch) addEncoded(body []byte, base int64, ref event.Ref) {
	delta, n := binary.Varint(body[1:])
	_, m := binary.Varint(body[1+n:])
	tail := body[1+n+m:]
	timestamp := base + delta
	if len(b.refs) == 0 {
		b.base, b.latest = timestamp, timestamp
	}
	delta = timestamp - b.base
	b.latest = max(b.latest, timestamp)
	index := int64(len(b.refs))
	size := 1 + varintSize(delta) + varintSize(index) + len(tail)

	b.refs = append(b.refs, ref)
	b.records = binary.AppendVarint(b.records, int64(size))
	b.records = append(b.records, body[0])
	b.records = binary.AppendVarint(b.records, delta)
	b.records = binary.AppendVarint(b.records, index)
	b.records = append(b.records, tail...)
}

// cutRecord splits the first record's body from what follows it.
func cutRecord(records []byte) (body, rest []byte) {
	size, n := binary.Varint(records)
	return records[n : n+int(size)], records[n+int(size):]
}

// Producer is the identity that a batch is published under. With ID -1 the
// broker neither knows duplicates nor checks the sequence.
type Producer struct {
	ID       int64
	Epoch    int16
	Sequence int32 // of the batch's first record
}

// NoProducer is no identity.
var NoProducer = Producer{ID: -1, Epoch: -1, Sequence: -1}

// Sealed is a batch ready to be sent, as often as it takes: its bytes never
// change. It shares them with the Batch it was made from when nothing was
// compressed.
type Sealed struct {
	prefix [4 + HeaderSize]byte // the size of the batch, then the batch's header
	body   []byte
}

// Seal finishes the batch under an identity. The batch must not change as
// long as the result may still be read.
func (b *Batch) Seal(c Compression, p Producer) (*Sealed, error) {
	body, err := c.compress(b.records)
	if err != nil {
		return nil, fmt.Errorf("compressing a batch: %w", err)
	}
	s := &Sealed{body: body}
	binary.BigEndian.PutUint32(s.prefix[0:], uint32(s.Size()))
	h := s.prefix[4:]
	be := binary.BigEndian
	be.PutUint64(h[0:], 0) // base offset: the broker assigns it
	be.PutUint32(h[8:], uint32(s.Size()-12))
	be.PutUint32(h[12:], ^uint32(0)) // leader epoch: the broker assigns it
	h[16] = 2                        // format version
	be.PutUint16(h[21:], uint16(c))
	be.PutUint32(h[23:], uint32(b.Len()-1))
	be.PutUint64(h[27:], uint64(b.base))
	be.PutUint64(h[35:], uint64(b.latest))
	be.PutUint64(h[43:], uint64(p.ID))
	be.PutUint16(h[51:], uint16(p.Epoch))
	be.PutUint32(h[53:], uint32(p.Sequence))
	be.PutUint32(h[57:], uint32(b.Len()))
	sum := crc32.Update(crc32.Checksum(h[21:], castagnoli), castagnoli, body)
	be.PutUint32(h[17:], sum)
	return s, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Size is what the broker counts against max.message.bytes.
func (s *Sealed) Size() int { return HeaderSize + len(s.body) }

// Reader returns a new reader of the batch with its size in front, as a
// produce request carries it.
func (s *Sealed) Reader() io.Reader { return &sealedReader{s: s} }

// sealedReader reads the prefix and then the body of a sealed batch.
type sealedReader struct {
	s   *Sealed
	off int
}

func (r *sealedReader) Read(p []byte) (int, error) {
	rest := r.rest()
	if len(rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, rest)
	r.off += n
	return n, nil
}

// WriteTo spares the copier a buffer of its own.
func (r *sealedReader) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for rest := r.rest(); len(rest) > 0; rest = r.rest() {
		n, err := w.Write(rest)
		r.off += n
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

func (r *sealedReader) rest() []byte {
	if n := len(r.s.prefix); r.off >= n {
		return r.s.body[r.off-n:]
	}
	return r.s.prefix[r.off:]
}

// appendBytes appends the length of p and p.
func appendBytes(buf, p []byte) []byte {
	buf = binary.AppendVarint(buf, int64(len(p)))
	return append(buf, p...)
}

func appendString(buf []byte, s string) []byte {
	buf = binary.AppendVarint(buf, int64(len(s)))
	return append(buf, s...)
}

// varintSize is the length of x as a zigzag varint.
func varintSize(x int64) int {
	n := 1
	for u := uint64(x<<1) ^ uint64(x>>63); u >= 0x80; u >>= 7 {
		n++
	}
	return n
}
