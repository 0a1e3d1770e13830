package record

import (
	"bytes"
	"fmt"

	"github.com/segmentio/kafka-go/compress"
)

// Compression is the codec of a batch's records, with its number in the
// record format.
type Compression int8

// The codecs of the record format.
const (
	None   Compression = 0
	Gzip   Compression = 1
	Snappy Compression = 2
	LZ4    Compression = 3
	Zstd   Compression = 4
)

var compressionNames = [...]string{"none", "gzip", "snappy", "lz4", "zstd"}

// ParseCompression reads the name of a codec: none, gzip, snappy, lz4, zstd.
func ParseCompression(name string) (Compression, error) {
	for i, n := range compressionNames {
		if n == name {
			return Compression(i), nil
		}
	}
	return 0, fmt.Errorf("unknown compression %q: use none, gzip, snappy, lz4 or zstd", name)
}

// String returns the name.
func (c Compression) String() string {
	if c < 0 || int(c) >= len(compressionNames) {
		return fmt.Sprintf("Compression(%d)", int(c))
	}
	return compressionNames[c]
}

// compress returns data itself for None, else a new slice.
func (c Compression) compress(data []byte) ([]byte, error) {
	if c == None {
		return data, nil
	}
	codec := compress.Compression(c).Codec()
	if codec == nil {
		return nil, fmt.Errorf("unknown codec %d", c)
	}
	var out bytes.Buffer
	out.Grow(len(data)/2 + 64)
	w := codec.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
