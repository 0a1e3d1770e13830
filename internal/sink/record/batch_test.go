package record

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// parsed is a record as another client reads it.
type parsed struct {
	Key, Value string
	Null       bool
	Headers    []header
	Timestamp  int64
	ID         int64 // of the event
}

type header struct {
	Name  string
	Value string
	Null  bool
}

// anyRecord draws a record. Of its bytes the number is drawn, and then their
// seed: what they are makes no difference.
func anyRecord(t *rapid.T) parsed {
	some := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
	text := func(label string) string {
		p := make([]byte, rapid.IntRange(0, 300).Draw(t, label))
		for i := range p {
			p[i] = byte(some.Uint32())
		}
		return string(p)
	}
	p := parsed{Key: text("key"), Value: text("value"), Null: rapid.Bool().Draw(t, "null")}
	if p.Null {
		p.Value = ""
	}
	for range rapid.IntRange(0, 3).Draw(t, "headers") {
		h := header{Name: hex.EncodeToString([]byte(text("name"))), Value: text("header"), Null: rapid.Bool().Draw(t, "header null")}
		if h.Null {
			h.Value = ""
		}
		p.Headers = append(p.Headers, h)
	}
	p.Timestamp = 1_767_323_045_678 + rapid.Int64Range(-1e10, 1e10).Draw(t, "timestamp")
	return p
}

// record is p as the encoder takes it.
func (p *parsed) record() *Record {
	r := &Record{
		Key: []byte(p.Key), Value: []byte(p.Value), Null: p.Null, HeaderCount: len(p.Headers), Timestamp: p.Timestamp,
	}
	for _, h := range p.Headers {
		r.Headers = appendString(r.Headers, h.Name)
		if h.Null {
			r.Headers = appendNull(r.Headers)
		} else {
			r.Headers = appendString(r.Headers, h.Value)
		}
	}
	return r
}

// fataler is a *testing.T or a *rapid.T.
type fataler interface {
	Helper()
	Fatalf(string, ...any)
}

// parse reads a sealed batch with another client's code and checks what is
// the same in every batch.
func parse(t fataler, b *Batch, s *Sealed, p Producer) []parsed {
	t.Helper()
	raw, err := io.ReadAll(s.Reader())
	if err != nil {
		t.Fatalf("reading: %v", err)
	}
	var written bytes.Buffer
	if n, err := s.Reader().(io.WriterTo).WriteTo(&written); err != nil || n != int64(len(raw)) || !bytes.Equal(written.Bytes(), raw) {
		t.Fatalf("WriteTo wrote %d bytes (%v), not what Read reads", n, err)
	}
	if want := s.Size() + 4; len(raw) != want {
		t.Fatalf("%d bytes, want %d", len(raw), want)
	}
	var batch kmsg.RecordBatch
	if err := batch.ReadFrom(raw[4:]); err != nil {
		t.Fatalf("parsing: %v", err)
	}
	if batch.ProducerID != p.ID || batch.ProducerEpoch != p.Epoch || batch.FirstSequence != p.Sequence {
		t.Fatalf("published under %d/%d/%d, want %+v", batch.ProducerID, batch.ProducerEpoch, batch.FirstSequence, p)
	}
	records, err := kfake.BatchRecords(batch)
	if err != nil {
		t.Fatalf("parsing the records: %v", err)
	}
	var out []parsed
	latest := int64(0)
	for i, r := range records {
		if int(r.OffsetDelta) != i {
			t.Fatalf("record %d has offset delta %d", i, r.OffsetDelta)
		}
		q := parsed{
			Key: string(r.Key), Value: string(r.Value), Null: r.Value == nil, Timestamp: batch.FirstTimestamp + r.TimestampDelta64, ID: b.Refs()[i].ID,
		}
		for _, h := range r.Headers {
			q.Headers = append(q.Headers, header{Name: h.Key, Value: string(h.Value), Null: h.Value == nil})
		}
		if i == 0 {
			latest = q.Timestamp
		}
		latest = max(latest, q.Timestamp)
		out = append(out, q)
	}
	if batch.MaxTimestamp != latest {
		t.Fatalf("max timestamp %d, want %d", batch.MaxTimestamp, latest)
	}
	return out
}

// checkReadBack seals b and reads it with another client's code.
func checkReadBack(t fataler, b *Batch, c Compression, p Producer, want []parsed) {
	t.Helper()
	sealed, err := b.Seal(c, p)
	if err != nil {
		t.Fatalf("Seal: %v", err)
	}
	if diff := cmp.Diff(want, parse(t, b, sealed, p)); diff != "" {
		t.Fatalf("read back (-want +got):\n%s", diff)
	}
}

// fill adds records to b, as events 1, 2, 3 and so on.
func fill(t fataler, b *Batch, records []parsed) {
	t.Helper()
	for i := range records {
		records[i].ID = int64(i + 1)
		grown := b.Grown(records[i].record())
		b.Add(records[i].record(), event.Ref{ID: records[i].ID})
		if b.Size() != grown {
			t.Fatalf("the batch has %d bytes, Grown said %d", b.Size(), grown)
		}
	}
}

// Whatever records are put into a batch, another client reads the same, also
// from a part of a split batch, and from a batch that is used again.
func TestBatchReadBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOfN(rapid.Custom(anyRecord), 1, 20).Draw(t, "records")
		p := Producer{ID: rapid.Int64Range(-1, 1<<40).Draw(t, "id"), Epoch: 3, Sequence: rapid.Int32Min(0).Draw(t, "sequence")}
		var b Batch
		fill(t, &b, records)
		checkReadBack(t, &b, None, p, records)

		kept := map[int]bool{}
		var some []parsed
		for i := range records {
			if kept[i] = rapid.Bool().Draw(t, "kept"); kept[i] {
				some = append(some, records[i])
			}
		}
		if len(some) > 0 {
			checkReadBack(t, b.Subset(func(i int) bool { return kept[i] }), None, p, some)
		}
		checkReadBack(t, &b, None, p, records) // Subset has left it alone

		b.Reset()
		last := records[len(records)-1:]
		fill(t, &b, last)
		checkReadBack(t, &b, None, p, last)
	})
}

func TestCodecsReadBack(t *testing.T) {
	t.Parallel()
	records := make([]parsed, 200)
	for i := range records {
		records[i] = parsed{
			Key: fmt.Sprint("order-", i%7), Value: strings.Repeat("value", i),
			Headers: []header{{Name: "n", Value: fmt.Sprint(i)}}, Timestamp: 1_767_323_045_678 + int64(i),
		}
	}
	for _, codec := range []Compression{None, Gzip, Snappy, LZ4, Zstd} {
		t.Run(codec.String(), func(t *testing.T) {
			t.Parallel()
			mine := slices.Clone(records)
			var b Batch
			fill(t, &b, mine)
			checkReadBack(t, &b, codec, Producer{ID: 7, Epoch: 1, Sequence: 2147483647}, mine)
			sealed, err := b.Seal(codec, NoProducer)
			if err != nil {
				t.Fatal(err)
			}
			if codec != None && sealed.Size() > b.Size()/2 {
				t.Errorf("%d bytes were compressed to %d", b.Size(), sealed.Size())
			}
		})
	}
}

func TestParseCompression(t *testing.T) {
	t.Parallel()
	for _, c := range []Compression{None, Gzip, Snappy, LZ4, Zstd} {
		if got, err := ParseCompression(c.String()); err != nil || got != c {
			t.Errorf("ParseCompression(%q) = %v, %v", c, got, err)
		}
	}
	if _, err := ParseCompression("brotli"); err == nil {
		t.Error("an unknown codec was accepted")
	}
	if _, err := new(Batch).Seal(Compression(9), NoProducer); err == nil {
		t.Error("a batch was sealed with an unknown codec")
	}
}
