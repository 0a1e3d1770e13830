package sink

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

func TestHeardAt(t *testing.T) {
	t.Parallel()
	_, addr := newFake(t, kfake.SeedTopics(1, "t"))
	out := newRecorder()
	unused, err := New(testConfig(addr), testDeps(t, out))
	if err != nil {
		t.Fatal(err)
	}
	if at := unused.HeardAt(); !at.IsZero() {
		t.Errorf("heard at %v before any connection", at)
	}
	before := time.Now()
	p := start(t, testConfig(addr), testDeps(t, out))
	publishAll(t, p, out, numbered("t", 10, 1))
	if at := p.HeardAt(); at.Before(before) || at.After(time.Now()) {
		t.Errorf("heard at %v, published at %v", at, before)
	}
}
