package group

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
)

// quarantined is a record with bytes of all kinds.
func quarantined() Copy {
	return Copy{
		Record: Record{
			Partition: Partition{"outbox.event.order", 5},
			Offset:    1234567890123,
			Time:      time.UnixMilli(1767323045678).UTC(),
			Key:       []byte("grüß\x00\xff"),
			Value:     []byte("{\"broken\": \n\xfe"),
			Headers: []Header{
				{"ce_id", []byte("not a UUID")}, {"null", nil}, {"empty", []byte{}}, {"twice", []byte("1")}, {"twice", []byte("2\x80")},
			},
		},
		Group:   "mailer",
		Code:    "NO_EVENT_ID",
		Message: "the record has no event id",
		At:      time.Date(2026, 1, 2, 4, 4, 5, 678_900_499, time.FixedZone("east", 3600)),
	}
}

// TestCopyIsByteForByte reads what was sent by another client. The golden file
// has each byte as Go writes it, and tells null from empty.
func TestCopyIsByteForByte(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Copy){
		"all":     func(*Copy) {},
		"null":    func(c *Copy) { c.Key, c.Value, c.Headers = nil, nil, nil },
		"empty":   func(c *Copy) { c.Key, c.Value, c.Headers = []byte{}, []byte{}, nil },
		"spring":  func(c *Copy) { c.Headers, c.Also = nil, Spring },
		"connect": func(c *Copy) { c.Headers, c.Also = nil, Connect },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cp := quarantined()
			spoil(&cp)
			dlq := topic(t, 3, nil)
			c := copier(t, dlq)
			if err := c.Send(t.Context(), cp); err != nil {
				t.Fatal(err)
			}
			got := kafkatest.ReadAll(t, kafkatest.Broker(t), dlq)
			if len(got) != 1 || got[0].Partition != 2 {
				t.Fatalf("got %d records, want one in partition 2", len(got))
			}
			want, err := os.ReadFile("testdata/copy/" + name + ".golden")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), written(got[0])); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func written(r *kgo.Record) string {
	var b strings.Builder
	line := func(name string, value []byte) {
		if value == nil {
			fmt.Fprintf(&b, "%s null\n", name)
		} else {
			fmt.Fprintf(&b, "%s %+q\n", name, value)
		}
	}
	fmt.Fprintf(&b, "time %d\n", r.Timestamp.UnixMilli())
	line("key", r.Key)
	line("value", r.Value)
	for _, h := range r.Headers {
		line("header "+h.Key, h.Value)
	}
	return b.String()
}

func copier(t *testing.T, topic string) *Copier {
	t.Helper()
	c, err := NewCopier(Config{Brokers: []string{kafkatest.Broker(t)}, ClientID: "group-test"}, topic)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestCopyThatCannotBeSent(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	small := topic(t, 1, map[string]string{"max.message.bytes": "100"})
	for name, tc := range map[string]struct {
		topic string
		ctx   context.Context
		want  string
	}{
		"no such topic": {kafkatest.Name(t), t.Context(), "does not exist"},
		"too large":     {small, t.Context(), "Message Size Too Large"},
		"ctx ended":     {small, ended, "canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := copier(t, tc.topic).Send(tc.ctx, quarantined())
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
			if err != nil && strings.Contains(err.Error(), "broken") {
				t.Errorf("the error has the payload: %v", err)
			}
		})
	}
}

func TestNewCopierValidates(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		brokers []string
		topic   string
	}{
		"no brokers": {nil, "dlq"},
		"no topic":   {[]string{"localhost:1"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := NewCopier(Config{Brokers: tc.brokers}, tc.topic); err == nil {
				t.Error("accepted")
			}
		})
	}
}
