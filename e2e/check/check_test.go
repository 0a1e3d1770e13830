package check

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"pgregory.net/rapid"
)

// good is a run in which all is well: two aggregates, five rows, each
// published once and SENT.
func good() Run {
	var run Run
	for i := range 5 {
		id := int64(i + 1)
		e := Event{ID: id, EventID: eventID(id), Aggregate: Aggregate{"order", string(rune('a' + i%2))}}
		run.Events = append(run.Events, e)
		run.Rows = append(run.Rows, Row{ID: id, EventID: e.EventID, Status: Sent, Payload: Digest{byte(id)}})
		run.Records = append(run.Records, Record{
			Topic: "t", Partition: int32(i % 2), Offset: int64(i / 2),
			Key: e.Aggregate.ID, RowID: id, EventID: e.EventID, Payload: Digest{byte(id)},
		})
	}
	run.Samples = []Sample{{Confirmed: 10, Saved: 10}, {Confirmed: 20, Saved: 30}}
	return run
}

func eventID(id int64) (u [16]byte) {
	binary.BigEndian.PutUint64(u[8:], uint64(id))
	return u
}

func TestCheckAcceptsAGoodRun(t *testing.T) {
	t.Parallel()
	rep := good().Check()
	if err := rep.Err(); err != nil {
		t.Fatal(err)
	}
	want := &Report{Committed: 5, Records: 5, Statuses: map[int16]int{Sent: 5}, Samples: 2}
	if d := cmp.Diff(want, rep); d != "" {
		t.Errorf("report (-want +got):\n%s", d)
	}
}

// TestCheckSeesPlantedFaults plants one fault in a good run; exactly the
// problems named must come out.
func TestCheckSeesPlantedFaults(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		plant func(*Run)
		want  []Kind
	}{
		{"lost record", func(r *Run) { r.Records = slices.Delete(r.Records, 2, 3) }, []Kind{Loss, Unproven}},
		{"lost record of a READY row", func(r *Run) {
			r.Records = slices.Delete(r.Records, 2, 3)
			r.Rows[2].Status = Ready
		}, []Kind{Loss, Unresolved}},
		{"lost record of a row that is not refused though parked", func(r *Run) {
			r.Records = slices.Delete(r.Records, 2, 3)
			r.Rows[2].Status, r.Rows[2].Parked = Ready, true
		}, []Kind{Loss, Unresolved}},
		{"swapped records of an aggregate", func(r *Run) {
			r.Records[0].Offset, r.Records[2].Offset = r.Records[2].Offset, r.Records[0].Offset
		}, []Kind{Disorder}},
		{"an aggregate in two partitions", func(r *Run) { r.Records[4].Partition = 7 }, []Kind{Disorder}},
		{"a copy more than allowed", func(r *Run) { r.copyOf(0, 100) }, []Kind{Duplicate}},
		{"a copy of another row than the one that may be repeated", func(r *Run) {
			r.Repeated = map[int64]bool{2: true}
			r.copyOf(0, 100)
		}, []Kind{Duplicate}},
		{"a copy under another event id", func(r *Run) {
			r.MaxDuplicates = 1
			r.copyOf(0, 100)
			r.Records[5].EventID = eventID(99)
		}, []Kind{Foreign}},
		{"a copy before an earlier event", func(r *Run) {
			r.MaxDuplicates = 1
			r.copyOf(2, -1)
		}, []Kind{Disorder}},
		{"a record of a rolled back row", func(r *Run) {
			r.Records = append(r.Records, Record{Topic: "t", Offset: 9, Key: "a", RowID: 77, EventID: eventID(77)})
		}, []Kind{Foreign}},
		{"a record under another key", func(r *Run) { r.Records[1].Key = "x" }, []Kind{Foreign}},
		{"another payload", func(r *Run) { r.Records[1].Payload[0]++ }, []Kind{Corrupt}},
		{"a row left INPROGRESS", func(r *Run) { r.Rows[1].Status = InProgress }, []Kind{Unresolved}},
		{"a row FAILED unexpectedly", func(r *Run) { r.Rows[1].Status, r.Rows[1].Parked = Failed, true }, []Kind{Unresolved}},
		{"a refused row forgotten", func(r *Run) {
			r.Refused = map[int64]bool{2: true}
			r.Rows[1].Status = Ready
		}, []Kind{Unresolved}},
		{"an uncertain commit that the table has, not in Kafka", func(r *Run) {
			r.Events[4].Uncertain = true
			r.Records = r.Records[:4]
		}, []Kind{Loss, Unproven}},
		{"a row that passes a refused one", func(r *Run) {
			r.refuse(1)
			r.hold(3)
		}, []Kind{Disorder}},
		{"a row behind a refused one, forgotten", func(r *Run) {
			r.refuse(1)
			r.hold(3, 5)
			r.Rows[2].Parked = false
		}, []Kind{Unresolved}},
		{"a waived row that waits", func(r *Run) {
			r.waive(3)
			r.Rows[2].Parked = true
		}, []Kind{Unresolved}},
		{"a row behind a waived one, lost", func(r *Run) {
			r.waive(1)
			r.drop(3)
		}, []Kind{Loss, Unproven}},
		{"slot beyond the saved position", func(r *Run) { r.Samples[1].Confirmed = 31 }, []Kind{Position}},
		{"slot past a READY row", func(r *Run) { r.Samples[0].Passed = []int64{3} }, []Kind{Position}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			run := good()
			tc.plant(&run)
			rep := run.Check()
			if d := cmp.Diff(tc.want, kinds(rep)); d != "" {
				t.Errorf("problems (-want +got):\n%s\n%v", d, rep.Err())
			}
			for _, k := range tc.want {
				if !rep.Has(k) || !strings.Contains(rep.Err().Error(), string(k)) {
					t.Errorf("%s is not told by Has and Err: %v", k, rep.Err())
				}
			}
		})
	}
}

// TestCheckAllows holds what must not be taken for a fault.
func TestCheckAllows(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		adapt func(*Run)
	}{
		{"a copy after the first occurrence, within the limit", func(r *Run) {
			r.MaxDuplicates = 1
			r.copyOf(0, 100)
		}},
		{"rows that went further than SENT", func(r *Run) { r.Rows[0].Status, r.Rows[1].Status = Consuming, Consumed }},
		{"a refused row, FAILED and without a record", func(r *Run) {
			r.Refused = map[int64]bool{3: true}
			r.Rows[2].Status, r.Rows[2].Parked = Failed, true
			r.Records = slices.Delete(r.Records, 2, 3)
		}},
		{"rows held behind a refused one, others not", func(r *Run) {
			r.refuse(1)
			r.hold(3, 5)
		}},
		{"rows behind a refused one that do not wait", func(r *Run) {
			r.refuse(1)
			r.Block = nil
		}},
		{"a waived row before others", func(r *Run) { r.waive(1) }},
		{"a deleted row before others", func(r *Run) {
			r.waive(1)
			r.Rows = r.Rows[1:]
		}},
		{"copies of a row that may be repeated", func(r *Run) {
			r.Repeated = map[int64]bool{1: true}
			r.copyOf(0, 100)
			r.copyOf(0, 101)
		}},
		{"a delayed row at any place", func(r *Run) {
			r.Unordered = map[int64]bool{1: true}
			r.Records[0].Offset = 100
		}},
		{"an uncertain commit that did not happen", func(r *Run) {
			r.Events[4].Uncertain = true
			r.Records, r.Rows = r.Records[:4], r.Rows[:4]
		}},
		{"an uncertain commit that happened", func(r *Run) { r.Events[4].Uncertain = true }},
		{"records read in any order", func(r *Run) { slices.Reverse(r.Records) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			run := good()
			tc.adapt(&run)
			if err := run.Check().Err(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCheckSeesAnySwap: whatever two records of one aggregate change places,
// the checker sees it.
func TestCheckSeesAnySwap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var run Run
		n := rapid.IntRange(2, 40).Draw(t, "events")
		for i := range n {
			id := int64(i + 1)
			run.Events = append(run.Events, Event{ID: id, EventID: eventID(id), Aggregate: Aggregate{"x", "1"}})
			run.Records = append(run.Records, Record{Topic: "t", Offset: int64(i), Key: "1", RowID: id, EventID: eventID(id)})
		}
		i := rapid.IntRange(0, n-2).Draw(t, "first")
		j := rapid.IntRange(i+1, n-1).Draw(t, "second")
		run.Records[i].Offset, run.Records[j].Offset = run.Records[j].Offset, run.Records[i].Offset
		if rep := run.Check(); !rep.Has(Disorder) {
			t.Fatalf("swap of %d and %d not seen", i, j)
		}
	})
}

func TestErrListsAFewOfEachKind(t *testing.T) {
	t.Parallel()
	var run Run
	for i := range 100 {
		run.Samples = append(run.Samples, Sample{Confirmed: pglogrepl.LSN(i + 1)})
	}
	text := run.Check().Err().Error()
	if got := strings.Count(text, "\n"); got != 6 || !strings.Contains(text, "position: 100 in all") {
		t.Errorf("%d lines:\n%s", got, text)
	}
}

// refuse lets Kafka have refused a row of a type that blocks.
func (r *Run) refuse(id int64) {
	r.Block, r.Refused = map[string]bool{"order": true}, map[int64]bool{id: true}
	r.drop(id)
	r.Rows[id-1].Status, r.Rows[id-1].Parked = Failed, true
}

// hold lets rows wait.
func (r *Run) hold(ids ...int64) {
	for _, id := range ids {
		r.drop(id)
		r.Rows[id-1].Status, r.Rows[id-1].Parked = Ready, true
	}
}

// waive lets a person have skipped a row of a type that blocks.
func (r *Run) waive(id int64) {
	r.Block, r.Waived = map[string]bool{"order": true}, map[int64]bool{id: true}
	r.drop(id)
	r.Rows[id-1].Status = Failed
}

// drop takes a row's record away.
func (r *Run) drop(id int64) {
	r.Records = slices.DeleteFunc(r.Records, func(rec Record) bool { return rec.RowID == id })
}

// copyOf adds a copy of record i at another offset.
func (r *Run) copyOf(i int, offset int64) {
	c := r.Records[i]
	c.Offset = offset
	r.Records = append(r.Records, c)
}

func kinds(r *Report) (ks []Kind) {
	for _, p := range r.Problems {
		if !slices.Contains(ks, p.Kind) {
			ks = append(ks, p.Kind)
		}
	}
	slices.Sort(ks)
	return ks
}
