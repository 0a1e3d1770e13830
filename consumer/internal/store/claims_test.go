package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
)

// roughly compares durations to within a few seconds: they are of the
// database's clock, a moment ago.
var roughly = cmp.Comparer(func(a, b time.Duration) bool { return a-b < 5*time.Second && b-a < 5*time.Second })

func TestLifeOfAClaim(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, f *fixture) {
		ref := f.event(t)
		claim := f.claim(t, ref)
		if diff := cmp.Diff(store.Claim{Ref: ref, Generation: 1}, claim, roughly); diff != "" {
			t.Errorf("the claim (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(row{Status: 5, Generation: 1, By: "me", Leased: true}, f.row(t, ref)); diff != "" {
			t.Errorf("claimed (-want +got):\n%s", diff)
		}
		held := []store.Held{claim.Held()}
		if alive, err := f.Renew(t.Context(), held); err != nil || !cmp.Equal(alive, held) {
			t.Errorf("renewing: %v, %v", alive, err)
		}
		if kept, err := f.Done(t.Context(), held); err != nil || !cmp.Equal(kept, held) {
			t.Errorf("completing: %v, %v", kept, err)
		}
		if diff := cmp.Diff(row{Status: 4, Generation: 1, By: "me", Finished: true}, f.row(t, ref)); diff != "" {
			t.Errorf("done (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(store.State{Kind: store.Finished, Generation: 1}, f.state(t, ref)); diff != "" {
			t.Errorf("state (-want +got):\n%s", diff)
		}
	})
}
