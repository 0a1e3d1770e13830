package lease

import (
	"testing"
	"time"
)

func TestFree(t *testing.T) {
	t.Parallel()
	me, other := [16]byte{1}, [16]byte{2}
	const after = 3 * time.Second
	for name, tc := range map[string]struct {
		v    view
		want bool
	}{
		"never led, or released":              {view{released: true}, true},
		"released, the slot still active":     {view{released: true, owner: &other, slotActive: true}, true},
		"held and renewed":                    {view{owner: &other, age: time.Second}, false},
		"neglected just too short":            {view{owner: &other, age: after - 1}, false},
		"neglected long enough":               {view{owner: &other, age: after}, true},
		"neglected, but somebody streams":     {view{owner: &other, age: time.Hour, slotActive: true}, false},
		"run out, and somebody streams":       {view{owner: &other, expired: true, slotActive: true}, true},
		"held by an earlier tenure of myself": {view{owner: &me, slotActive: true}, true},
		"the clock was set back":              {view{owner: &other, age: -time.Hour}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.v.free(me, after); got != tc.want {
				t.Errorf("free = %v, want %v", got, tc.want)
			}
		})
	}
}

func TestNextEpoch(t *testing.T) {
	t.Parallel()
	lease := func(epoch int64) *int64 { return &epoch }
	for name, tc := range map[string]struct {
		v    view
		want int64
	}{
		"both agree":                {view{fenceEpoch: 4, epoch: lease(4)}, 5},
		"the fence was raised":      {view{fenceEpoch: 9, epoch: lease(4)}, 10},
		"the fence row was deleted": {view{fenceEpoch: 0, epoch: lease(4)}, 5},
		"no epoch in the lease":     {view{fenceEpoch: 4}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.v.nextEpoch(); got != tc.want {
				t.Errorf("next epoch = %d, want %d", got, tc.want)
			}
		})
	}
}
