package kafkaconn

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
)

// client is one that asks for the layout by itself only at the start, as the
// library draws the time of the next one from MetadataTTL, at random.
func client(t *testing.T, fake *kfake.Cluster) *Client {
	t.Helper()
	c := NewClient(fake.ListenAddrs(), 0, New((&net.Dialer{}).DialContext), &kafka.Transport{MetadataTTL: 10_000 * time.Hour})
	t.Cleanup(c.Close)
	return c
}

func TestCloseEndsARequest(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]kmsg.Key{
		"that waits for the layout": kmsg.Metadata,
		"that waits for its answer": kmsg.ListOffsets,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fake := kafkatest.Fake(t, kfake.SeedTopics(1, "t"))
			asked := make(chan struct{})
			fake.ControlKey(int16(key), func(kmsg.Request) (kmsg.Response, error, bool) {
				close(asked)
				return nil, nil, true // no answer at all
			})
			c := client(t, fake)
			failed := make(chan error)
			go func() {
				_, err := c.ListOffsets(t.Context(), &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{"t": {kafka.FirstOffsetOf(0)}}})
				failed <- err
			}()
			<-asked
			c.Close()
			if err := <-failed; err == nil {
				t.Error("no error")
			}
			if _, err := c.Metadata(t.Context(), &kafka.MetadataRequest{}); err == nil {
				t.Error("a request after Close has no error")
			}
		})
	}
}

// TestMain sees it if a goroutine is left.
func TestWithContextOneCloseIsEnough(t *testing.T) {
	t.Parallel()
	conns := New((&net.Dialer{}).DialContext)
	c := NewClient([]string{"localhost:1"}, 0, conns, &kafka.Transport{MetadataTTL: time.Second, Context: conns.Context()})
	c.Close()
	if _, err := c.Metadata(t.Context(), &kafka.MetadataRequest{}); err == nil {
		t.Error("a request after Close has no error")
	}
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	fake := kafkatest.Fake(t, kfake.SeedTopics(1, "t"))
	var layouts atomic.Int32
	fake.ControlKey(int16(kmsg.Metadata), func(kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		layouts.Add(1)
		return nil, nil, false
	})
	c := client(t, fake)
	for step, want := range []int32{1, 2, 2} {
		for range 2 {
			if _, err := c.Metadata(t.Context(), &kafka.MetadataRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		if got := layouts.Load(); got != want {
			t.Errorf("asked for the layout %d times after %d refreshes, want %d", got, step, want)
		}
		c.Refresh()
	}
	if c.LastHeard().IsZero() {
		t.Error("nothing was heard")
	}
}

func TestRefreshIsDueAfterMetadataTTL(t *testing.T) {
	t.Parallel()
	c := NewClient(nil, 0, New(nil), &kafka.Transport{MetadataTTL: time.Second})
	began := time.Now()
	for _, tc := range []struct {
		after time.Duration
		due   bool
	}{{0, true}, {0, false}, {time.Second - 1, false}, {time.Second, true}, {2*time.Second - 1, false}, {2 * time.Second, true}} {
		if got := c.due(began.Add(tc.after)); got != tc.due {
			t.Errorf("after %v: due %v, want %v", tc.after, got, tc.due)
		}
	}
}
