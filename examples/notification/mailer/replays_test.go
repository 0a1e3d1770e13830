package mailer

import (
	"testing"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestReplaysAreBounded(t *testing.T) {
	t.Parallel()
	var r replays
	for range maxRemembered + 1 {
		r.add(outbox.NewID(), 500)
	}
	if n := len(r.seen); n > maxRemembered {
		t.Errorf("%d events are remembered, want at most %d", n, maxRemembered)
	}
}
