package group

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/segmentio/kafka-go/compress"
)

// Places in a record batch, and bits of its attributes.
const (
	lengthAt      = 8 // bytes after this field
	magicAt       = 16
	crcAt         = 17
	attributesAt  = 21
	lastDeltaAt   = 23
	firstTimeAt   = 27
	maxTimeAt     = 35
	countAt       = 57
	recordsAt     = 61
	codecBits     = 7
	appendTimeBit = 1 << 3
	controlBit    = 1 << 5
	prefixSize    = magicAt + 1

	// largestBatch bounds what a compressed batch may become.
	largestBatch = 1 << 28
	// readAhead is about how much one read yields, whatever the batches of an
	// answer become; the rest comes with the next.
	readAhead = 4 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// decode returns the records of a partition from an offset on, up to the first
// batch that cannot be read, or so many as are enough for one read. If that is the first of all, the error is an
// *UndecodableError. end is the high watermark.
func decode(p Partition, from, end int64, data []byte) (Batch, error) {
	out := Batch{Next: from, End: end}
	size := 0 // of the records
	for {
		if size >= readAhead {
			return out, nil
		}
		one, rest, ok := cutBatch(data)
		if !ok {
			// The answer is cut at the size asked for, yet never within its first
			// batch. Waiting would not bring the rest.
			if len(data) > 0 && out.Next == from {
				return out, errors.New("the broker's answer ends within its first batch")
			}
			return out, nil
		}
		data = rest
		last := lastOffset(one)
		records, err := decodeBatch(p, one)
		if err != nil {
			if out.Next > from {
				return out, nil // it is the first next time
			}
			return out, &UndecodableError{Partition: p, From: from, To: undecodableTo(from, last, end, rest), Err: err}
		}
		for _, r := range records {
			if r.Offset >= from {
				out.Records = append(out.Records, r)
				size += r.Size()
			}
		}
		// A batch keeps its last offset when compaction takes its records away.
		out.Next = max(out.Next, last+1)
	}
}

// undecodableTo is the last offset of a batch that cannot be read: what it says,
// if that is not wrong too. No good record may be skipped with it, so that it
// ends before the batch that follows, or with the log.
func undecodableTo(from, says, end int64, rest []byte) int64 {
	bound := end - 1
	if len(rest) >= 8 {
		if next := int64(binary.BigEndian.Uint64(rest)); next > from {
			bound = min(bound, next-1)
		}
	}
	return max(from, min(says, bound))
}

// cutBatch cuts the first batch off, if all of it is there.
func cutBatch(data []byte) (one, rest []byte, ok bool) {
	if len(data) < prefixSize {
		return nil, nil, false
	}
	length := int64(int32(binary.BigEndian.Uint32(data[lengthAt:])))
	end := lengthAt + 4 + length
	if end < prefixSize || end > int64(len(data)) {
		return nil, nil, false
	}
	return data[:end], data[end:], true
}

// lastOffset is that of the batch's last record, be it still there or not.
func lastOffset(one []byte) int64 {
	base := int64(binary.BigEndian.Uint64(one))
	if one[magicAt] < 2 || len(one) < recordsAt {
		return base // which the old formats have in its place
	}
	return base + int64(binary.BigEndian.Uint32(one[lastDeltaAt:]))
}

// decodeBatch returns the records of one batch; none if it is a control batch,
// as transactions leave them.
func decodeBatch(p Partition, one []byte) ([]Record, error) {
	if magic := one[magicAt]; magic != 2 {
		return nil, fmt.Errorf("it has message format %d, not 2, which Kafka 0.11 brought", magic)
	}
	if len(one) < recordsAt {
		return nil, errors.New("it is too short")
	}
	if want, got := binary.BigEndian.Uint32(one[crcAt:]), crc32.Checksum(one[attributesAt:], castagnoli); want != got {
		return nil, fmt.Errorf("its checksum is %08x, not %08x", got, want)
	}
	attributes := binary.BigEndian.Uint16(one[attributesAt:])
	if attributes&controlBit != 0 {
		return nil, nil
	}
	payload, err := decompress(attributes&codecBits, one[recordsAt:])
	if err != nil {
		return nil, err
	}
	count := int(int32(binary.BigEndian.Uint32(one[countAt:])))
	if count < 0 || count > len(payload) {
		return nil, fmt.Errorf("it says it has %d records in %d bytes", count, len(payload))
	}
	d := batchDecoder{partition: p, one: one, appendTime: attributes&appendTimeBit != 0, names: map[string]string{}}
	return d.records(fields{rest: payload}, count)
}

func decompress(codec uint16, data []byte) ([]byte, error) {
	if codec == 0 {
		return data, nil
	}
	if int(codec) >= len(compress.Codecs) {
		return nil, fmt.Errorf("it is compressed by codec %d, which is unknown here", codec)
	}
	r := compress.Codecs[codec].NewReader(bytes.NewReader(data))
	defer r.Close()
	payload, err := io.ReadAll(io.LimitReader(r, largestBatch+1))
	if err != nil {
		return nil, fmt.Errorf("decompressing it: %w", err)
	}
	if len(payload) > largestBatch {
		return nil, fmt.Errorf("it is larger than %d bytes when decompressed", largestBatch)
	}
	return payload, nil
}

// batchDecoder has what the records of a batch share.
type batchDecoder struct {
	partition  Partition
	one        []byte
	appendTime bool              // the broker's time counts, one for all
	names      map[string]string // of headers: a batch has few, again and again
}

func (d *batchDecoder) records(f fields, count int) ([]Record, error) {
	records := make([]Record, 0, count)
	for len(records) < count {
		// A copy for each record: whoever keeps one shall not keep the batch.
		body := bytes.Clone(f.bytes())
		if f.short || body == nil {
			return nil, fmt.Errorf("its record %d is cut short", len(records))
		}
		r, err := d.record(fields{rest: body})
		if err != nil {
			return nil, fmt.Errorf("its record %d: %w", len(records), err)
		}
		records = append(records, r)
	}
	if len(f.rest) > 0 {
		return nil, fmt.Errorf("it has %d bytes behind its last record", len(f.rest))
	}
	return records, nil
}

func (d *batchDecoder) record(f fields) (Record, error) {
	f.take(1) // attributes, none yet
	sinceFirst := f.varint()
	r := Record{
		Partition: d.partition,
		Time:      d.time(sinceFirst),
		Offset:    int64(binary.BigEndian.Uint64(d.one)) + f.varint(),
		Key:       f.bytes(),
		Value:     f.bytes(),
	}
	n := f.varint()
	if n < 0 || n > int64(len(f.rest)) {
		return Record{}, fmt.Errorf("it says it has %d headers", n)
	}
	if n > 0 {
		r.Headers = make([]Header, 0, n)
	}
	for range n {
		r.Headers = append(r.Headers, Header{Name: d.name(f.bytes()), Value: f.bytes()})
	}
	if f.short || len(f.rest) > 0 {
		return Record{}, errors.New("its fields do not fill it")
	}
	return r, nil
}

func (d *batchDecoder) time(sinceFirst int64) time.Time {
	if d.appendTime {
		return time.UnixMilli(int64(binary.BigEndian.Uint64(d.one[maxTimeAt:]))).UTC()
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(d.one[firstTimeAt:])) + sinceFirst).UTC()
}

func (d *batchDecoder) name(b []byte) string {
	name, ok := d.names[string(b)]
	if !ok {
		name = string(b)
		d.names[name] = name
	}
	return name
}
