package main

import (
	"fmt"
	"testing"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// TestSlotsThatTheRelayMends: what it does something about, as far as it may, is
// nothing that a person is called for, also when it comes after the check.
func TestSlotsThatTheRelayMends(t *testing.T) {
	t.Parallel()
	missing, lost := config.Slot{Create: true}, config.Slot{RecreateIfLost: true}
	for _, tc := range []struct {
		reason string
		slot   config.Slot
		mends  bool
	}{
		{doctor.SlotMissing, missing, true},
		{doctor.SlotMissing, lost, false},
		{doctor.SlotLost, lost, true},
		{doctor.SlotLost, missing, false},
		{doctor.SlotInvalidated, lost, true},
		{doctor.SlotInvalidated, missing, false},
		{"slot.active", config.Slot{Create: true, RecreateIfLost: true}, false},
		{"slot.plugin", config.Slot{Create: true, RecreateIfLost: true}, false},
	} {
		t.Run(fmt.Sprintf("%s create=%t recreate=%t", tc.reason, tc.slot.Create, tc.slot.RecreateIfLost), func(t *testing.T) {
			t.Parallel()
			o := &opener{c: &config.Config{Slot: tc.slot}}
			err := o.unblock(fmt.Errorf("starting: %w", &fault.Blocked{Reason: tc.reason, What: "what is wrong"}))
			if err == nil || (fault.AsBlocked(err) == nil) != tc.mends {
				t.Errorf("%v, want it to pass: %t", err, tc.mends)
			}
		})
	}
}
