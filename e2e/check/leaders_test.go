package check_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/e2e/check"
)

func TestLateAndOverlaps(t *testing.T) {
	t.Parallel()
	// at is a batch of a partition, told by its offset.
	at := func(partition int32, offset, producer int64) check.Batch {
		return check.Batch{Topic: "t", Partition: partition, Offset: offset, Records: 1, ProducerID: producer}
	}
	for name, tc := range map[string]struct {
		batches    []check.Batch
		late, over []int64 // offsets
	}{
		"one after the other": {batches: []check.Batch{at(0, 1, 7), at(0, 2, 7), at(0, 3, 8), at(0, 4, 9)}},
		"each partition for itself": {batches: []check.Batch{
			at(0, 1, 8), at(1, 1, 7), at(1, 2, 8)}},
		"in any order":             {batches: []check.Batch{at(0, 3, 8), at(0, 1, 7)}},
		"one request on its way":   {batches: []check.Batch{at(0, 1, 7), at(0, 2, 8), at(0, 3, 7), at(0, 4, 8)}, late: []int64{3}},
		"of two earlier ones":      {batches: []check.Batch{at(0, 1, 9), at(0, 2, 7), at(0, 3, 8)}, late: []int64{2, 3}},
		"an earlier leader works":  {batches: []check.Batch{at(0, 1, 8), at(0, 2, 7), at(0, 3, 7)}, late: []int64{2, 3}, over: []int64{3}},
		"two leaders take turns":   {batches: []check.Batch{at(0, 1, 8), at(0, 2, 7), at(0, 3, 8), at(0, 4, 7)}, late: []int64{2, 4}, over: []int64{4}},
		"another topic's overlaps": {batches: []check.Batch{at(0, 1, 8), {Topic: "u", Offset: 1, ProducerID: 7}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.late, offsets(check.Late(tc.batches))); diff != "" {
				t.Errorf("late (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.over, offsets(check.Overlaps(tc.batches))); diff != "" {
				t.Errorf("overlaps (-want +got):\n%s", diff)
			}
		})
	}
}

func offsets(batches []check.Batch) (list []int64) {
	for _, b := range batches {
		list = append(list, b.Offset)
	}
	return list
}
