package record

import (
	"math/rand/v2"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestPartition(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		key                   string
		murmur2, crc32, fnv1a int32
	}{
		{"order-1", 10, 7, 1},
		{"order-2", 3, 9, 4},
		{"a", 4, 3, 0},
		{"grüß-7", 4, 3, 3},
		{`"order-1"`, 8, 1, 11},
	} {
		t.Run(tc.key, func(t *testing.T) {
			t.Parallel()
			for p, want := range map[Partitioner]int32{Murmur2: tc.murmur2, CRC32: tc.crc32, FNV1a: tc.fnv1a} {
				if got := p.Partition([]byte(tc.key), 12); got != want {
					t.Errorf("partitioner %d: partition %d, want %d", p, got, want)
				}
			}
		})
	}
}

func TestMurmur2(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int32{"21": -973932308, "foobar": -790332482} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}

func TestMurmur2AgainstAnotherClient(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	other := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	for range 10_000 {
		key := make([]byte, 1+rnd.IntN(40))
		for i := range key {
			key[i] = byte(rnd.Uint32())
		}
		n := 1 + rnd.IntN(64)
		want := other.Partition(&kgo.Record{Key: key}, n)
		if got := Murmur2.Partition(key, int32(n)); int(got) != want {
			t.Fatalf("key %x over %d partitions: %d, the other client has %d", key, n, got, want)
		}
	}
}

func TestParsePartitioner(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Partitioner{"murmur2": Murmur2, "crc32": CRC32, "fnv1a": FNV1a} {
		if got, err := ParsePartitioner(name); err != nil || got != want {
			t.Errorf("ParsePartitioner(%q) = %v, %v", name, got, err)
		}
	}
	if _, err := ParsePartitioner("random"); err == nil {
		t.Error("an unknown partitioner was accepted")
	}
}
