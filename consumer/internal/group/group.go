// Package group is the consumer kit's Kafka side: membership of a consumer
// group, committed offsets and reading one partition at a time. It knows nothing
// of events and claims.
//
// Membership and commits use kafka.ConsumerGroup, reading uses fetch requests on
// one Transport, as a kafka.Reader would commit under a generation that is not
// the message's own.
package group

import (
	"fmt"
	"time"
)

// Partition names a partition.
type Partition struct {
	Topic  string
	Number int
}

// String is topic/number.
func (p Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Number) }

// Assignment is a partition that this member reads in a generation.
type Assignment struct {
	Partition
	// Offset is the first to read; negative if the group has committed none:
	// from the start of the log.
	Offset int64
}

// Record is what a partition holds at an offset. Its bytes belong to whoever
// reads it.
type Record struct {
	Partition
	Offset  int64
	Time    time.Time
	Key     []byte
	Value   []byte // nil if it is null
	Headers []Header
}

// Size is how many bytes the record holds.
func (r Record) Size() int {
	n := len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += len(h.Name) + len(h.Value)
	}
	return n
}

// Header is a header of a record.
type Header struct {
	Name  string
	Value []byte
}

// Batch is what one read of a partition yields.
type Batch struct {
	// Records are in the order of the log, none below the offset asked for.
	Records []Record
	// Next is the offset to read from next. It can be above the last record's:
	// control batches and compacted records have offsets too.
	Next int64
	// End is the partition's high watermark: Next equals it when all is read.
	End int64
}

// OffsetError says that the log does not hold the offset asked for.
type OffsetError struct {
	Partition
	Offset     int64
	Start, End int64 // of the log
}

// Lost says that records were deleted before they were read; otherwise the
// offset is beyond the end.
func (e *OffsetError) Lost() bool { return e.Offset < e.Start }

func (e *OffsetError) Error() string {
	return fmt.Sprintf("partition %s holds offsets %d to %d, not %d", e.Partition, e.Start, e.End, e.Offset)
}

// UndecodableError says that a batch at the front cannot be read, again and
// again: it is damaged or compressed in a way that this program does not know.
type UndecodableError struct {
	Partition
	// From is the offset asked for, To the last of the batch, both included.
	From, To int64
	Err      error
}

func (e *UndecodableError) Error() string {
	return fmt.Sprintf("the batch of offsets %d to %d of partition %s cannot be decoded: %v", e.From, e.To, e.Partition, e.Err)
}

// Unwrap returns the reason.
func (e *UndecodableError) Unwrap() error { return e.Err }
