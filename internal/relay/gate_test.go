package relay

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Above the bound all aggregates under one policy count as blocked, that of
// the most blocked ones, until a sweep finds that there are few again.
func TestTooManyBlockedAggregates(t *testing.T) {
	t.Parallel()
	const many, few, most = 1, 2, 10
	g := newGate()
	g.most = most
	for hash := range uint64(most - 1) {
		g.block(hash, many)
	}
	g.block(100, few)
	if g.knows(50, many) {
		t.Error("an aggregate that was never blocked is, below the bound")
	}
	g.block(101, few)
	for _, c := range []struct {
		hash uint64
		kind uint8
		want bool
	}{{0, many, true}, {50, many, true}, {100, few, true}, {101, few, true}, {102, few, false}} {
		if got := g.knows(c.hash, c.kind); got != c.want {
			t.Errorf("aggregate %d of policy %d is blocked: %t, want %t", c.hash, c.kind, got, c.want)
		}
	}
	if n := len(g.marks); n != 2 {
		t.Errorf("%d aggregates are remembered, want 2", n)
	}

	g.beginSweep() // there are still too many
	for hash := range uint64(most) {
		g.block(hash, many)
	}
	g.endSweep()
	if !g.knows(50, many) {
		t.Error("the gate opened though more than half the bound are blocked")
	}

	g.beginSweep()
	g.block(3, many)
	ref := event.Ref{Seq: 1, ID: 1, Aggregate: 4, Kind: many, CommitLSN: 1, Ordered: true}
	g.park(&ref) // the sweep may be past its place
	g.endSweep()
	for hash, want := range map[uint64]bool{3: true, 4: true, 50: false, 100: true} {
		kind := uint8(many)
		if hash >= 100 {
			kind = few
		}
		if got := g.knows(hash, kind); got != want {
			t.Errorf("after the sweep aggregate %d is blocked: %t, want %t", hash, got, want)
		}
	}
	g.forget(3)
	if g.knows(3, many) || g.kinds[many].n != 1 {
		t.Errorf("a forgotten aggregate is remembered, or miscounted: %d", g.kinds[many].n)
	}
}
