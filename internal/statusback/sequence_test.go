package statusback

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Whatever is settled when: no write is tried before every parking of its row
// that came earlier is settled, none is lost, and none waits for nothing.
func TestSequence(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := sequence{}
		var tried, open []write
		try := func(writes []write) {
			for _, w := range s.enter(writes) {
				for _, earlier := range open {
					if earlier.ID == w.ID {
						t.Fatalf("write %d of row %d is tried while write %d is not settled", w.Seq, w.ID, earlier.Seq)
					}
				}
				for _, earlier := range tried {
					if earlier.ID == w.ID && earlier.Seq > w.Seq {
						t.Fatalf("write %d of row %d is tried after write %d", w.Seq, w.ID, earlier.Seq)
					}
				}
				tried = append(tried, w)
				if w.park != nil {
					open = append(open, w)
				}
			}
		}
		settle := func(i int) {
			w := open[i]
			open = slices.Delete(open, i, i+1)
			try(s.leave(w.ID))
		}
		var handed event.Seq
		for range rapid.IntRange(0, 30).Draw(t, "steps") {
			if len(open) > 0 && rapid.Bool().Draw(t, "settle") {
				settle(rapid.IntRange(0, len(open)-1).Draw(t, "which"))
				continue
			}
			batch := make([]write, rapid.IntRange(0, 5).Draw(t, "batch"))
			for i := range batch {
				handed++
				batch[i].Ref = event.Ref{Seq: handed, ID: rapid.Int64Range(1, 3).Draw(t, "row")}
				if rapid.Bool().Draw(t, "park") {
					batch[i].park = &event.Park{}
				}
			}
			try(batch)
		}
		for len(open) > 0 {
			settle(len(open) - 1)
		}
		if len(tried) != int(handed) || len(s) != 0 {
			t.Fatalf("%d of %d writes were tried, %d rows are left", len(tried), handed, len(s))
		}
	})
}

// What came from the stream and was acknowledged passes without a map entry.
func TestSequenceOfSentOnlyDoesNotAllocate(t *testing.T) {
	s := sequence{}
	writes := make([]write, 1000)
	for i := range writes {
		writes[i].ID = int64(i)
	}
	if n := testing.AllocsPerRun(100, func() { writes = s.enter(writes) }); n != 0 || len(s) != 0 || len(writes) != 1000 {
		t.Errorf("%v allocations, %d entries, %d writes left", n, len(s), len(writes))
	}
}

func TestForm(t *testing.T) {
	t.Parallel()
	var got []form
	for _, due := range []event.Due{{}, event.DueAtMicros(1), event.DueInfinity()} {
		got = append(got, (&write{Ref: event.Ref{Due: due}}).form())
		for _, action := range []event.Action{event.ParkRetry, event.ParkFailed, event.ParkHeld, event.ParkLater} {
			got = append(got, (&write{Ref: event.Ref{Due: due}, park: &event.Park{Action: action}}).form())
		}
	}
	want := []form{
		formSent, formRetry, formFail, formHeld, formLater,
		formRequeued, formRetry, formFail, formHeld, formLater,
		formRequeued, formRetry, formFail, formKept, formLater,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("forms (-want +got):\n%s", diff)
	}
}
