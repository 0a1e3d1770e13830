package check

import (
	"cmp"
	"slices"
	"time"
)

// Batch is one record batch of a topic's log: what one request has appended to
// a partition.
type Batch struct {
	Topic     string
	Partition int32
	Offset    int64 // of its first record
	Records   int
	// ProducerID is that of the session which published it. A broker hands them
	// out in rising order, so a later session has a higher one.
	ProducerID int64
	// Appended is when the broker appended it, in a topic whose timestamps say
	// so.
	Appended time.Time
}

// Late returns the batches that a producer appended to a partition after a
// later one had begun to write there.
func Late(batches []Batch) []Batch {
	batches = slices.Clone(batches)
	slices.SortFunc(batches, func(a, b Batch) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	var late []Batch
	var latest Batch
	for _, b := range batches {
		switch {
		case b.log() != latest.log() || b.ProducerID >= latest.ProducerID:
			latest = b
		default:
			late = append(late, b)
		}
	}
	return late
}

// log names the partition of a batch.
func (b Batch) log() partition { return partition{b.Topic, b.Partition} }

type partition struct {
	topic  string
	number int32
}

// Overlaps returns the batches that two leaders at a time explain, but not a
// request that was on its way when its sender lost the leadership: of those a
// partition can see one of each session, as one is in flight at a time.
func Overlaps(batches []Batch) []Batch {
	type sender struct {
		partition
		producer int64
	}
	seen := map[sender]bool{}
	return slices.DeleteFunc(Late(batches), func(b Batch) bool {
		from := sender{b.log(), b.ProducerID}
		first := !seen[from]
		seen[from] = true
		return first
	})
}
