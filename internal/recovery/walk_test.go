package recovery

import (
	"testing"
	"time"
)

func TestWalk(t *testing.T) {
	t.Parallel()
	start := time.Unix(1e9, 0)
	w := walk{lowWaterAge: time.Hour}
	walk := func(after time.Duration, highest int64, xmax, xmin int64) (from, raised int64) {
		low := w.low
		w.begin(low, mark{id: highest, xmax: xmax, at: start.Add(after)}, xmin)
		from = w.after
		w.pass(0, highest)
		w.low, w.underway = w.raised(), false
		return from, w.low
	}
	for _, step := range []struct {
		name           string
		after          time.Duration
		highest        int64
		xmax, xmin     int64
		from, lowWater int64
	}{
		{"the first walk notes a mark", 0, 100, 50, 50, 0, 0},
		{"it is not old enough", 59 * time.Minute, 200, 90, 90, 0, 0},
		{"the first walk from the first row, with a transaction of then still open", time.Hour, 250, 95, 49, 0, 0},
		{"all have ended", 61 * time.Minute, 300, 99, 50, 0, 100},
		{"the next mark is as old as the walk that raised the last", 2 * time.Hour, 400, 120, 120, 100, 100},
		{"and raises it again", 122 * time.Minute, 500, 150, 150, 100, 300},
		{"once a day", 25 * time.Hour, 600, 160, 160, 0, 500},
	} {
		if from, low := walk(step.after, step.highest, step.xmax, step.xmin); from != step.from || low != step.lowWater {
			t.Errorf("%s: walked from %d, low-water mark %d; want %d and %d", step.name, from, low, step.from, step.lowWater)
		}
	}
}

// Nothing is known of what a walk leaves out.
func TestWalkSkips(t *testing.T) {
	t.Parallel()
	start := time.Unix(1e9, 0)
	for _, tc := range []struct {
		name string
		skip int64
		want int64
	}{
		{"nothing", 0, 100},
		{"less than was walked over", 5, 100},
		{"some", 90, 10},
	} {
		w := walk{}
		w.begin(0, mark{id: 100, xmax: 1, at: start}, 1)
		w.begin(0, mark{id: 200, xmax: 2, at: start}, 2)
		w.pass(0, 10)
		w.skip(tc.skip)
		w.pass(0, 200)
		if got := w.raised(); got != tc.want {
			t.Errorf("%s: the mark rises to %d, want %d", tc.name, got, tc.want)
		}
	}
}
