package consumer

import (
	"runtime"
	"testing"
	"weak"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
)

// TestFinishedRecordsAreFreed: a window that has held many small records goes on
// with few large ones. Those that are finished are not kept behind its front.
func TestFinishedRecordsAreFreed(t *testing.T) {
	t.Parallel()
	c := &Consumer{opt: defaults()}
	p := newPartition(c, group.Assignment{}, nil)
	add := func(n int) {
		for range n {
			p.window = append(p.window, &item{phase: done})
		}
	}
	add(c.opt.window)
	p.advance()
	add(100)
	last := &item{}
	p.window = append(p.window, last)
	first := weak.Make(p.window[0])
	p.advance()
	runtime.GC()
	if first.Value() != nil {
		t.Error("a finished record is still in memory")
	}
	runtime.KeepAlive(p)
}
