package outbox_test

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// The numbers are in the tables of everybody who uses cdc-relay.
func TestCodesAreFixed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status outbox.Status
		code   int16
		name   string
	}{
		{outbox.Ready, 0, "READY"},
		{outbox.InProgress, 1, "INPROGRESS"},
		{outbox.Sent, 2, "SENT"},
		{outbox.Failed, 3, "FAILED"},
		{outbox.Consumed, 4, "CONSUMED"},
		{outbox.Consuming, 5, "CONSUMING"},
		{-1, -1, "Status(-1)"},
		{6, 6, "Status(6)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if int16(test.status) != test.code || test.status.String() != test.name {
				t.Errorf("got %d %s, want %d %s", int16(test.status), test.status, test.code, test.name)
			}
		})
	}
}
