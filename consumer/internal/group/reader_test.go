package group

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/internal/kafkaconn"
	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
)

// quick is a config whose reads do not wait for long when there is nothing.
func quick(t testing.TB, topics ...string) Config {
	t.Helper()
	cfg := config(t, topics...)
	cfg.timing.wait = 50 * time.Millisecond
	return cfg
}

func read(t testing.TB, r *Reader, p Partition, from int64) Batch {
	t.Helper()
	b, err := r.Read(t.Context(), p, from)
	if err != nil {
		t.Fatalf("reading from %d: %v", from, err)
	}
	return b
}

// readAll reads from an offset on until all is read.
func readAll(t testing.TB, r *Reader, p Partition, from int64) []Record {
	t.Helper()
	var records []Record
	for {
		b := read(t, r, p, from)
		records = append(records, b.Records...)
		if b.Next == b.End {
			return records
		}
		if b.Next == from {
			t.Fatalf("stands still at %d before the end, %d", from, b.End)
		}
		from = b.Next
	}
}

// values makes records with the values 0, 1, ..
func values(topic string, partition int32, n int) []*kgo.Record {
	records := make([]*kgo.Record, n)
	for i := range records {
		records[i] = &kgo.Record{Topic: topic, Partition: partition, Value: fmt.Append(nil, i)}
	}
	return records
}

func valuesOf(records []Record) []string {
	var got []string
	for _, r := range records {
		got = append(got, string(r.Value))
	}
	return got
}

func TestReadsEveryCodec(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1767323045678).UTC()
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(),
		"zstd": kgo.ZstdCompression(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tp := topic(t, 2, nil)
			p := Partition{tp, 1}
			var sent []*kgo.Record
			var want []Record
			for i := range 100 {
				key, value := fmt.Appendf(nil, "key %d", i), bytes.Repeat([]byte{byte(i)}, 300)
				sent = append(sent, &kgo.Record{Topic: tp, Partition: 1, Timestamp: at, Key: key, Value: value,
					Headers: []kgo.RecordHeader{{Key: "a", Value: key}, {Key: "null"}, {Key: "a", Value: []byte{}}}})
				want = append(want, Record{Partition: p, Offset: int64(i), Time: at, Key: key, Value: value,
					Headers: []Header{{"a", key}, {"null", nil}, {"a", []byte{}}}})
			}
			produce(t, producer(t, kgo.ProducerBatchCompression(codec)), sent...)
			got := read(t, reader(t, quick(t, tp)), p, -1)
			if diff := cmp.Diff(Batch{Records: want, Next: 100, End: 100}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestNullAndEmptyAreToldApart(t *testing.T) {
	t.Parallel()
	tp := topic(t, 1, nil)
	produce(t, producer(t), &kgo.Record{Topic: tp}, &kgo.Record{Topic: tp, Key: []byte{}, Value: []byte{}})
	got := readAll(t, reader(t, quick(t, tp)), Partition{tp, 0}, 0)
	want := []Record{{Partition: Partition{tp, 0}}, {Partition: Partition{tp, 0}, Offset: 1, Key: []byte{}, Value: []byte{}}}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Record{}, "Time")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadsFromTheMiddleOfABatch(t *testing.T) {
	t.Parallel()
	tp := topic(t, 1, nil)
	produce(t, producer(t), values(tp, 0, 10)...)
	got := read(t, reader(t, quick(t, tp)), Partition{tp, 0}, 7)
	if diff := cmp.Diff([]string{"7", "8", "9"}, valuesOf(got.Records)); diff != "" || got.Next != 10 {
		t.Errorf("next %d, values (-want +got):\n%s", got.Next, diff)
	}
}

func TestTheEndOfTheLogIsWaitedAt(t *testing.T) {
	t.Parallel()
	tp := topic(t, 1, nil)
	p := Partition{tp, 0}
	cfg := config(t, tp)
	cfg.timing.wait, cfg.timing.read = patience, 2*patience
	c, r := producer(t), reader(t, cfg)
	produce(t, c, values(tp, 0, 1)...)
	asked := make(chan struct{})
	between(r, onWrite([]byte(tp), sync.OnceFunc(func() { close(asked) })))
	var got Batch
	arrived := make(chan struct{})
	go func() {
		defer close(arrived)
		var err error
		if got, err = r.Read(t.Context(), p, 1); err != nil {
			t.Error(err)
		}
	}()
	wait(t, "the request", asked)
	produce(t, c, values(tp, 0, 1)...)
	wait(t, "the record", arrived)
	if len(got.Records) != 1 || got.Records[0].Offset != 1 || got.Next != 2 {
		t.Errorf("got %+v", got)
	}
	if b := read(t, reader(t, quick(t, tp)), p, 2); len(b.Records) > 0 || b.Next != 2 || b.End != 2 {
		t.Errorf("at the end: %+v", b)
	}
}

// A read stops before its answer is larger than asked for, but never within the
// first batch.
func TestReadsLargeBatchesAndManyOfThem(t *testing.T) {
	t.Parallel()
	tp := topic(t, 1, map[string]string{"max.message.bytes": "8000000"})
	c := producer(t, kgo.ProducerBatchMaxBytes(8000000), kgo.ProducerBatchCompression(kgo.NoCompression()))
	var want []int
	for _, size := range []int{400_000, 400_000, 400_000, 5_000_000, 10, 900_000} {
		want = append(want, size)
		produce(t, c, &kgo.Record{Topic: tp, Value: make([]byte, size)})
	}
	var got []int
	for _, r := range readAll(t, reader(t, quick(t, tp)), Partition{tp, 0}, 0) {
		got = append(got, len(r.Value))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
}

func TestTheBrokersTimeCountsWhereItIsAsked(t *testing.T) {
	t.Parallel()
	tp := topic(t, 1, map[string]string{"message.timestamp.type": "LogAppendTime"})
	old := time.UnixMilli(1)
	produce(t, producer(t), &kgo.Record{Topic: tp, Timestamp: old}, &kgo.Record{Topic: tp, Timestamp: old})
	want := kafkatest.ReadAll(t, kafkatest.Broker(t), tp)
	for i, r := range readAll(t, reader(t, quick(t, tp)), Partition{tp, 0}, 0) {
		if !r.Time.Equal(want[i].Timestamp) || r.Time.Equal(old) {
			t.Errorf("record %d: %v, another client reads %v", i, r.Time, want[i].Timestamp)
		}
	}
}

func TestOffsetsOutsideOfTheLog(t *testing.T) {
	t.Parallel()
	t.Run("lost", func(t *testing.T) {
		t.Parallel()
		tp := topic(t, 1, nil)
		p := Partition{tp, 0}
		produce(t, producer(t), values(tp, 0, 10)...)
		deleteBefore(t, p, 6)
		r := reader(t, quick(t, tp))
		expectOffsetError(t, r, &OffsetError{Partition: p, Offset: 3, Start: 6, End: 10}, true)
		if got := valuesOf(readAll(t, r, p, -1)); !cmp.Equal(got, []string{"6", "7", "8", "9"}) {
			t.Errorf("from the start: %v", got)
		}
	})
	t.Run("made anew", func(t *testing.T) {
		t.Parallel()
		tp := topic(t, 1, nil)
		p := Partition{tp, 0}
		produce(t, producer(t), values(tp, 0, 10)...)
		r := reader(t, quick(t, tp))
		read(t, r, p, 10)
		kafkatest.Delete(t, kafkatest.Broker(t), tp)
		kafkatest.Create(t, kafkatest.Broker(t), tp, 1, nil)
		produce(t, producer(t), values(tp, 0, 2)...)
		// Until it knows the new topic, the broker and this client say other things.
		var err error
		var outside *OffsetError
		for deadline := time.Now().Add(patience); !errors.As(err, &outside) && time.Now().Before(deadline); {
			_, err = r.Read(t.Context(), p, 10)
		}
		expectOffsetError(t, r, &OffsetError{Partition: p, Offset: 10, Start: 0, End: 2}, false)
	})
}

func deleteBefore(t *testing.T, p Partition, offset int64) {
	t.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset(p.Topic, int32(p.Number), offset, -1)
	res, err := kafkatest.Admin(t, kafkatest.Broker(t)).DeleteRecords(t.Context(), offsets)
	if err == nil {
		err = res.Error()
	}
	if err != nil {
		t.Fatalf("deleting records: %v", err)
	}
}

func expectOffsetError(t *testing.T, r *Reader, want *OffsetError, lost bool) {
	t.Helper()
	_, err := r.Read(t.Context(), want.Partition, want.Offset)
	var got *OffsetError
	if !errors.As(err, &got) {
		t.Fatalf("got %v, want an OffsetError", err)
	}
	if diff := cmp.Diff(want, got); diff != "" || got.Lost() != lost {
		t.Errorf("lost: %v, (-want +got):\n%s", got.Lost(), diff)
	}
}

// Markers of transactions are batches without records for anybody. At the end
// of the log they must not be asked for again and again.
func TestStepsOverTransactionMarkers(t *testing.T) {
	t.Parallel()
	tp := topic(t, 1, nil)
	p := Partition{tp, 0}
	c := producer(t, kgo.TransactionalID(kafkatest.Name(t)))
	for i, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort, kgo.TryAbort} {
		if err := c.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		produce(t, c, &kgo.Record{Topic: tp, Value: fmt.Append(nil, i)})
		if err := c.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
	}
	r := reader(t, quick(t, tp))
	records := readAll(t, r, p, 0)
	if got := valuesOf(records); !cmp.Equal(got, []string{"0", "1", "2"}) { // aborted ones too: no transactions are expected
		t.Errorf("values %v", got)
	}
	if b := read(t, r, p, 5); len(b.Records) != 0 || b.Next != 6 || b.End != 6 {
		t.Errorf("at the last marker: %+v", b)
	}
}

func TestPartitionsAreReadSideBySide(t *testing.T) {
	t.Parallel()
	const parts = 4
	tp := topic(t, parts, nil)
	c := producer(t)
	for i := range parts {
		produce(t, c, values(tp, int32(i), 50)...)
	}
	r := reader(t, quick(t, tp))
	var all sync.WaitGroup
	for i := range parts {
		all.Go(func() {
			for range 5 {
				if b, err := r.Read(t.Context(), Partition{tp, i}, 0); err != nil || len(b.Records) != 50 {
					t.Errorf("partition %d: %d records, %v", i, len(b.Records), err)
				}
			}
		})
	}
	all.Wait()
}

func TestAReadEndsWithItsContextAndWithTheReader(t *testing.T) {
	t.Parallel()
	tp := topic(t, 1, nil)
	cfg := config(t, tp)
	cfg.timing.wait, cfg.timing.read = 10*patience, 10*patience
	for name, end := range map[string]func(cancel func(), r *Reader){
		"context": func(cancel func(), _ *Reader) { cancel() },
		"Close":   func(_ func(), r *Reader) { r.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := reader(t, cfg)
			// The deadline is what frees the connection of a canceled read.
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			asked := make(chan struct{})
			between(r, onWrite([]byte(tp), sync.OnceFunc(func() { close(asked) })))
			failed := make(chan struct{})
			go func() {
				defer close(failed)
				if _, err := r.Read(ctx, Partition{tp, 0}, 0); err == nil {
					t.Error("no error")
				}
			}()
			wait(t, "the request", asked)
			end(cancel, r)
			wait(t, "the end of the read", failed)
		})
	}
}

func TestATopicThatIsNotThere(t *testing.T) {
	t.Parallel()
	tp := kafkatest.Name(t)
	r := reader(t, quick(t, tp))
	_, err := r.Read(t.Context(), Partition{tp, 0}, 0)
	if err == nil || !strings.Contains(err.Error(), tp+"/0") {
		t.Errorf("got %v", err)
	}
	var outside *OffsetError
	var bad *UndecodableError
	if errors.As(err, &outside) || errors.As(err, &bad) {
		t.Errorf("%v is none that stays", err)
	}
}

// damage changes a byte of values on their way from the broker, as often as it
// is asked to.
type damaging struct {
	net.Conn
	left *atomic.Int32
}

// mark is what is looked for; values consist of many.
var mark = []byte("MARK")

func (d damaging) Read(p []byte) (int, error) {
	n, err := d.Conn.Read(p)
	if i := bytes.Index(p[:n], mark); i >= 0 && d.left.Add(-1) >= 0 {
		p[i]++
	}
	return n, err
}

func damaged(t *testing.T, topic string, times int32) *Reader {
	t.Helper()
	r := reader(t, quick(t, topic))
	left := &atomic.Int32{}
	left.Store(times)
	between(r, func(dial kafkaconn.DialFunc) kafkaconn.DialFunc {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			return damaging{c, left}, err
		}
	})
	return r
}

func TestDamagedBatches(t *testing.T) {
	t.Parallel()
	tp := topic(t, 1, nil)
	p := Partition{tp, 0}
	c := producer(t, kgo.ProducerBatchCompression(kgo.NoCompression()))
	produce(t, c, values(tp, 0, 2)...)
	bad := &kgo.Record{Topic: tp, Value: bytes.Repeat(mark, 2000)}
	produce(t, c, bad, &kgo.Record{Topic: tp}, &kgo.Record{Topic: tp})
	produce(t, c, values(tp, 0, 3)...)

	t.Run("for good", func(t *testing.T) {
		t.Parallel()
		r := damaged(t, tp, 1_000_000)
		before := read(t, r, p, 0)
		if got := valuesOf(before.Records); !cmp.Equal(got, []string{"0", "1"}) || before.Next != 2 {
			t.Errorf("before it: %v, next %d", got, before.Next)
		}
		for range 2 {
			_, err := r.Read(t.Context(), p, 2)
			var final *UndecodableError
			if err == nil || errors.As(err, &final) || !strings.Contains(err.Error(), "checksum") {
				t.Errorf("at first: %v", err)
			}
		}
		for range 2 {
			_, err := r.Read(t.Context(), p, 2)
			var final *UndecodableError
			if !errors.As(err, &final) {
				t.Fatalf("got %v", err)
			}
			want := &UndecodableError{Partition: p, From: 2, To: 4}
			if diff := cmp.Diff(want, final, cmpopts.IgnoreFields(UndecodableError{}, "Err")); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if strings.Contains(err.Error(), "MARK") {
				t.Errorf("the error has the payload: %v", err)
			}
		}
		if _, err := r.Read(t.Context(), p, 3); err == nil || errors.As(err, new(*UndecodableError)) {
			t.Errorf("at another offset: %v, want to try again", err)
		}
		if got := valuesOf(readAll(t, r, p, 5)); !cmp.Equal(got, []string{"0", "1", "2"}) {
			t.Errorf("after it: %v", got)
		}
	})
	t.Run("on its way", func(t *testing.T) {
		t.Parallel()
		r := damaged(t, tp, 1)
		if _, err := r.Read(t.Context(), p, 2); err == nil {
			t.Fatal("no error")
		}
		if got := read(t, r, p, 2); len(got.Records) != 6 {
			t.Errorf("%d records, want 6", len(got.Records))
		}
	})
}

// onWrite calls f when something is written that has a part in it.
func onWrite(part []byte, f func()) func(kafkaconn.DialFunc) kafkaconn.DialFunc {
	return func(dial kafkaconn.DialFunc) kafkaconn.DialFunc {
		return func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dial(ctx, network, address)
			return writing{c, part, f}, err
		}
	}
}

type writing struct {
	net.Conn
	part []byte
	f    func()
}

func (w writing) Write(p []byte) (int, error) {
	n, err := w.Conn.Write(p)
	// Requests for metadata name the topic too, but have no partition's 8 bytes
	// of an offset after it.
	if i := bytes.Index(p, w.part); i >= 0 && len(p) > i+len(w.part)+8 {
		w.f()
	}
	return n, err
}

// BenchmarkRead reads records of 200 bytes from one partition.
func BenchmarkRead(b *testing.B) {
	tp := topic(b, 1, nil)
	c := producer(b)
	records := make([]*kgo.Record, 100_000)
	for i := range records {
		records[i] = &kgo.Record{Topic: tp, Key: fmt.Append(nil, "order-", i), Value: bytes.Repeat([]byte("v"), 200),
			Headers: []kgo.RecordHeader{{Key: "ce_id", Value: []byte("01234567-89ab-cdef-0123-456789abcdef")}, {Key: "ce_type", Value: []byte("order.created")},
				{Key: "cdcr-id", Value: []byte("123456")}, {Key: "cdcr-attempt", Value: []byte("1")}}}
	}
	produce(b, c, records...)
	r := reader(b, config(b, tp))
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		n += len(readAll(b, r, Partition{tp, 0}, 0))
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "records/s")
}
