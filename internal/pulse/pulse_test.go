package pulse_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

func TestParts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		after := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
		board := pulse.NewBoard()
		check := func(when string, want ...pulse.Part) {
			t.Helper()
			if diff := cmp.Diff(want, board.Parts()); diff != "" && len(want)+len(board.Parts()) > 0 {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		check("nobody runs")
		line := board.Start("line")
		first := board.Start("worker")
		<-time.After(time.Second)
		second := board.Start("worker")
		check("all work", pulse.Part{Name: "line", Since: after(0)}, pulse.Part{Name: "worker", Since: after(0)})

		<-time.After(time.Second)
		first.Work()
		line.Rest()
		check("one beats, one rests", pulse.Part{Name: "line"}, pulse.Part{Name: "worker", Since: after(1)})
		second.Rest()
		check("one of two rests", pulse.Part{Name: "line"}, pulse.Part{Name: "worker", Since: after(2)})
		first.Rest()
		line.Work()
		check("rest and work", pulse.Part{Name: "line", Since: after(2)}, pulse.Part{Name: "worker"})

		first.End()
		second.End()
		check("the workers have ended", pulse.Part{Name: "line", Since: after(2)})
		line.End()
		check("all have ended")
	})
}

func TestNoBoard(t *testing.T) {
	t.Parallel()
	var board *pulse.Board
	beat := board.Start("line")
	beat.Work()
	beat.Rest()
	beat.End()
	if parts := board.Parts(); len(parts) != 0 {
		t.Errorf("parts %v", parts)
	}
}

func TestBeatingAllocatesNothing(t *testing.T) {
	beat := pulse.NewBoard().Start("line")
	if n := testing.AllocsPerRun(100, func() { beat.Work(); beat.Rest() }); n != 0 {
		t.Errorf("%v allocations a beat", n)
	}
}
