package group

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go/protocol"
	"pgregory.net/rapid"
)

var somewhere = Partition{"t", 3}

// encode makes a batch with the library's own writer.
func encode(t interface{ Fatalf(string, ...any) }, base int64, attributes protocol.Attributes, records []Record) []byte {
	var rs []protocol.Record
	for _, r := range records {
		p := protocol.Record{Time: r.Time, Key: protocol.NewBytes(r.Key), Value: protocol.NewBytes(r.Value)}
		for _, h := range r.Headers {
			p.Headers = append(p.Headers, protocol.Header{Key: h.Name, Value: h.Value})
		}
		rs = append(rs, p)
	}
	var b bytes.Buffer
	set := protocol.RecordSet{Version: 2, Attributes: attributes, Records: protocol.NewRecordReader(rs...)}
	if _, err := set.WriteTo(&b); err != nil {
		t.Fatalf("encoding: %v", err)
	}
	one := b.Bytes()[4:] // the size of the set
	binary.BigEndian.PutUint64(one, uint64(base))
	return one
}

// sealed gives a batch that was changed its checksum.
func sealed(one []byte) []byte {
	binary.BigEndian.PutUint32(one[crcAt:], crc32.Checksum(one[attributesAt:], castagnoli))
	return one
}

// three is a batch of the offsets 10, 11, 12, changed as wanted.
func three(t *testing.T, change func(one []byte)) []byte {
	t.Helper()
	at := time.UnixMilli(1767323045678).UTC()
	one := encode(t, 10, 0, []Record{{Time: at, Value: []byte("a")}, {Time: at, Value: []byte("b")}, {Time: at, Value: []byte("c")}})
	change(one)
	return sealed(one)
}

func TestDecodeReadsWhatIsWritten(t *testing.T) {
	t.Parallel()
	maybe := rapid.Custom(func(t *rapid.T) []byte {
		if rapid.Bool().Draw(t, "null") {
			return nil
		}
		return rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "bytes")
	})
	header := rapid.Custom(func(t *rapid.T) Header {
		return Header{rapid.StringN(0, 5, 20).Draw(t, "name"), maybe.Draw(t, "value")}
	})
	record := rapid.Custom(func(t *rapid.T) Record {
		r := Record{
			Partition: somewhere, Time: time.UnixMilli(rapid.Int64Range(1, 1<<42).Draw(t, "time")).UTC(),
			Key: maybe.Draw(t, "key"), Value: maybe.Draw(t, "value"),
		}
		if hs := rapid.SliceOfN(header, 0, 4).Draw(t, "headers"); len(hs) > 0 {
			r.Headers = hs
		}
		return r
	})
	rapid.Check(t, func(t *rapid.T) {
		var data []byte
		var all []Record
		next := rapid.Int64Range(0, 1<<40).Draw(t, "base")
		first := next
		for range rapid.IntRange(1, 3).Draw(t, "batches") {
			rs := rapid.SliceOfN(record, 1, 20).Draw(t, "records")
			data = append(data, encode(t, next, protocol.Attributes(rapid.IntRange(0, 4).Draw(t, "codec")), rs)...)
			for i := range rs {
				rs[i].Offset = next + int64(i)
			}
			all, next = append(all, rs...), next+int64(len(rs))
		}
		from := rapid.Int64Range(first, next-1).Draw(t, "from")
		got, err := decode(somewhere, from, next, data)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(Batch{Records: all[from-first:], Next: next, End: next}, got); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	})
}

func TestDecodeStepsOverWhatIsGone(t *testing.T) {
	t.Parallel()
	whole := three(t, func([]byte) {})
	for name, tc := range map[string]struct {
		data []byte
		from int64
		want string // values
		next int64
	}{
		"all":                   {whole, 10, "a b c", 13},
		"from within":           {whole, 12, "c", 13},
		"nothing":               {nil, 10, "", 10},
		"a tail is gone":        {three(t, func(b []byte) { putInt32(b, lastDeltaAt, 9) }), 10, "a b c", 20},
		"in a tail that's gone": {three(t, func(b []byte) { putInt32(b, lastDeltaAt, 9) }), 15, "", 20},
		"all are gone":          {emptied(t), 10, "", 13},
		"before and after":      {append(emptied(t), three(t, func(b []byte) { b[7] = 20 })...), 10, "a b c", 23},
		"a control batch":       {three(t, func(b []byte) { putInt16(b, attributesAt, controlBit) }), 10, "", 13},
		"cut in the second":     {append(bytes.Clone(whole), whole[:40]...), 10, "a b c", 13},
		"cut in its prefix":     {append(bytes.Clone(whole), whole[:5]...), 10, "a b c", 13},
		"an old batch first":    {append(three(t, func(b []byte) { b[7] = 2 }), whole...), 10, "a b c", 13},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := decode(somewhere, tc.from, 100, tc.data)
			if err != nil {
				t.Fatal(err)
			}
			if values := strings.Join(valuesOf(got.Records), " "); values != tc.want || got.Next != tc.next {
				t.Errorf("values %q, next %d, want %q, %d", values, got.Next, tc.want, tc.next)
			}
		})
	}
}

// emptied is a batch whose records were all compacted away.
func emptied(t *testing.T) []byte {
	t.Helper()
	one := three(t, func([]byte) {})[:recordsAt]
	putInt32(one, lengthAt, recordsAt-lengthAt-4)
	putInt32(one, countAt, 0)
	return sealed(one)
}

func putInt16(b []byte, at int, n uint16) { binary.BigEndian.PutUint16(b[at:], n) }
func putInt32(b []byte, at int, n uint32) { binary.BigEndian.PutUint32(b[at:], n) }

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	whole := three(t, func([]byte) {})
	unsealed := bytes.Clone(whole)
	unsealed[len(unsealed)-1]++
	unsealedControl := bytes.Clone(whole)
	putInt16(unsealedControl, attributesAt, controlBit)
	short := bytes.Clone(whole[:50])
	putInt32(short, lengthAt, 50-12)
	for name, tc := range map[string]struct {
		data []byte
		to   int64
		want string
	}{
		"checksum":                {unsealed, 12, "checksum"},
		"control batch, checksum": {unsealedControl, 12, "checksum"},
		"unknown codec":           {three(t, func(b []byte) { putInt16(b, attributesAt, 7) }), 12, "codec 7, which is unknown"},
		"not gzip":                {three(t, func(b []byte) { putInt16(b, attributesAt, 1) }), 12, "decompressing"},
		"not snappy":              {three(t, func(b []byte) { putInt16(b, attributesAt, 2) }), 12, "decompressing"},
		"not lz4":                 {three(t, func(b []byte) { putInt16(b, attributesAt, 3) }), 12, "decompressing"},
		"not zstd":                {three(t, func(b []byte) { putInt16(b, attributesAt, 4) }), 12, "decompressing"},
		"old format":              {three(t, func(b []byte) { b[magicAt] = 1 }), 10, "message format 1"},
		"too short":               {short, 10, "too short"},
		"more records than said":  {three(t, func(b []byte) { putInt32(b, countAt, 2) }), 12, "behind its last record"},
		"fewer records than said": {three(t, func(b []byte) { putInt32(b, countAt, 4) }), 12, "record 3 is cut short"},
		"negative count":          {three(t, func(b []byte) { putInt32(b, countAt, 1<<31) }), 12, "-2147483648 records"},
		"huge count":              {three(t, func(b []byte) { putInt32(b, countAt, 1<<30) }), 12, "1073741824 records"},
		"a record's length":       {three(t, func(b []byte) { b[recordsAt] = 0x7e }), 12, "record 0 is cut short"},
		"a record is null":        {three(t, func(b []byte) { b[recordsAt] = 1 }), 12, "record 0 is cut short"},
		"a value's length":        {three(t, func(b []byte) { b[recordsAt+5] = 0x7e }), 12, "record 0: its fields do not fill it"},
		"a shorter value":         {three(t, func(b []byte) { b[recordsAt+5] = 0 }), 12, "record 0: it says it has"},
		"a count of headers":      {three(t, func(b []byte) { b[recordsAt+7] = 0x7e }), 12, "record 0: it says it has 63 headers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := decode(somewhere, 10, 100, tc.data)
			bad, ok := err.(*UndecodableError)
			if !ok {
				t.Fatalf("got %+v, %v", got, err)
			}
			if bad.From != 10 || bad.To != tc.to || !strings.Contains(bad.Error(), tc.want) {
				t.Errorf("%d to %d, %v; want to %d, %q", bad.From, bad.To, bad, tc.to, tc.want)
			}
			// Behind a good one it has to wait for its turn.
			before := three(t, func(b []byte) { b[7] = 7 })
			if got, err := decode(somewhere, 7, 100, append(before, tc.data...)); err != nil || got.Next != 10 || len(got.Records) != 3 {
				t.Errorf("behind another one: %+v, %v", got, err)
			}
		})
	}
}

// What a batch says of its end may be what is damaged.
func TestAnUndecodableBatchTakesNoOtherWithIt(t *testing.T) {
	t.Parallel()
	saying := func(delta uint32) []byte {
		one := three(t, func([]byte) {})
		putInt32(one, lastDeltaAt, delta)
		return one // with a checksum that is now wrong
	}
	next := three(t, func(b []byte) { b[7] = 13 })
	for name, tc := range map[string]struct {
		delta uint32
		rest  []byte
		to    int64
	}{
		"as it is, if it can be":      {5, nil, 15},
		"a batch follows":             {5, next, 12},
		"a part of a batch follows":   {5, next[:8], 12},
		"too little follows to tell":  {5, next[:7], 15},
		"beyond the log":              {1 << 31, nil, 99},
		"beyond the log, another one": {1 << 31, next, 12},
		"what follows makes no sense": {5, make([]byte, 100), 15},
		"before the offset asked for": {0, nil, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := decode(somewhere, 10, 100, append(saying(tc.delta), tc.rest...))
			bad, ok := err.(*UndecodableError)
			if !ok || bad.From != 10 || bad.To != tc.to {
				t.Errorf("got %+v, want to %d", err, tc.to)
			}
		})
	}
}

func TestDecodeOfACutFirstBatch(t *testing.T) {
	t.Parallel()
	whole := three(t, func([]byte) {})
	for _, n := range []int{1, prefixSize - 1, prefixSize, len(whole) - 1} {
		if _, err := decode(somewhere, 10, 100, whole[:n]); err == nil {
			t.Errorf("%d bytes: no error", n)
		}
	}
	for name, length := range map[string]uint32{"negative": 1 << 31, "less than its fields": 3} {
		if _, err := decode(somewhere, 10, 100, three(t, func(b []byte) { putInt32(b, lengthAt, length) })); err == nil {
			t.Errorf("length %s: no error", name)
		}
	}
}

// FuzzDecode looks for panics and for standing still without an error.
func FuzzDecode(f *testing.F) {
	at := time.UnixMilli(1767323045678)
	for codec := range protocol.Attributes(5) {
		one := encode(f, 10, codec, []Record{{Time: at, Key: []byte("k"), Value: []byte("v"), Headers: []Header{{"h", []byte("x")}}}, {Time: at}})
		f.Add(one, true)
		f.Add(append(one, one[:30]...), false)
	}
	f.Fuzz(func(t *testing.T, data []byte, seal bool) {
		if one, _, ok := cutBatch(data); seal && ok && len(one) >= recordsAt {
			sealed(one) // to come past the checksum
		}
		from := int64(10)
		got, err := decode(somewhere, from, 100, data)
		if err == nil && len(data) > 0 && got.Next < from {
			t.Fatalf("went back to %d", got.Next)
		}
		for _, r := range got.Records {
			if r.Offset < from {
				t.Fatalf("has offset %d", r.Offset)
			}
		}
	})
}

// TestDecodeOfWhatIsCompressedWell: an answer of some kilobytes that holds many
// megabytes is read in parts.
func TestDecodeOfWhatIsCompressedWell(t *testing.T) {
	t.Parallel()
	const gzip, batches = 1, 10
	at := time.UnixMilli(1767323045678).UTC()
	var data []byte
	for i := range batches {
		data = append(data, encode(t, int64(i), gzip, []Record{{Time: at, Value: make([]byte, readAhead/4)}})...)
	}
	var from int64
	for _, want := range []int64{4, 8, 10} {
		b, err := decode(somewhere, from, batches, data)
		if err != nil {
			t.Fatal(err)
		}
		if b.Next != want || len(b.Records) != int(want-from) {
			t.Fatalf("%d records, next is %d, want %d", len(b.Records), b.Next, want)
		}
		from = want
	}
}
