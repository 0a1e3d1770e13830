package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Partitioner picks a partition for a key. It must be the one that other
// producers of the topic use, or one aggregate ends up in two partitions.
type Partitioner uint8

// The partitioners.
const (
	Murmur2 Partitioner = iota + 1 // Java clients and whatever follows them
	CRC32                          // librdkafka's default
	FNV1a                          // Sarama and kafka-go's Hash
)

// ParsePartitioner reads the name of a partitioner: murmur2, crc32, fnv1a.
func ParsePartitioner(name string) (Partitioner, error) {
	switch name {
	case "murmur2":
		return Murmur2, nil
	case "crc32":
		return CRC32, nil
	case "fnv1a":
		return FNV1a, nil
	}
	return 0, fmt.Errorf("unknown partitioner %q: use murmur2, crc32 or fnv1a", name)
}

// Partition returns the partition of key among n > 0 partitions.
func (p Partitioner) Partition(key []byte, n int32) int32 {
	switch p {
	case CRC32:
		return int32(crc32.ChecksumIEEE(key) % uint32(n))
	case FNV1a:
		// The remainder is signed and then made positive, as Sarama has it:
		// that is not the remainder of the unsigned hash.
		part := int32(fnv1a(key)) % n
		if part < 0 {
			part = -part
		}
		return part
	default:
		return int32(murmur2(key)&0x7fffffff) % n
	}
}

// murmur2 is the hash of Kafka's Java client, with its fixed seed.
func murmur2(data []byte) uint32 {
	const (
		seed  uint32 = 0x9747b28c
		mul   uint32 = 0x5bd1e995
		shift        = 24
	)
	h := seed ^ uint32(len(data))
	for len(data) >= 4 {
		k := binary.LittleEndian.Uint32(data) * mul
		k ^= k >> shift
		h = h*mul ^ k*mul
		data = data[4:]
	}
	for i := len(data) - 1; i >= 0; i-- {
		h ^= uint32(data[i]) << (8 * i)
		if i == 0 {
			h *= mul
		}
	}
	h ^= h >> 13
	h *= mul
	return h ^ h>>15
}

// fnv1a is hash/fnv's New32a without the allocation.
func fnv1a(data []byte) uint32 {
	h := uint32(2166136261)
	for _, c := range data {
		h ^= uint32(c)
		h *= 16777619
	}
	return h
}
