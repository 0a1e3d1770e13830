package group

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestReadsWhatIsThereInEveryCodec(t *testing.T) {
	t.Parallel()
	for name, codec := range map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(),
		"zstd": kgo.ZstdCompression(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tp := topic(t, 1, nil)
			c := producer(t, kgo.ProducerBatchCompression(codec))
			var records []*kgo.Record
			for i := range 100 {
				records = append(records, &kgo.Record{Topic: tp, Key: fmt.Append(nil, i), Value: fmt.Append(nil, "value ", i)})
			}
			produce(t, c, records...)
			r := reader(t, config(t, tp))
			b, err := r.Read(t.Context(), Partition{tp, 0}, -1)
			if err != nil {
				t.Fatal(err)
			}
			if len(b.Records) != 100 || b.Next != 100 || b.End != 100 {
				t.Fatalf("%d records, next %d, end %d", len(b.Records), b.Next, b.End)
			}
		})
	}
}
