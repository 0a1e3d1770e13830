package sink

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
)

// A login without the right to a topic: its events are refused, with a code
// that tells so, and others flow.
func TestTopicDenied(t *testing.T) {
	t.Parallel()
	_, addr := newFake(t,
		kfake.SeedTopics(1, "mine", "theirs"), kfake.EnableSASL(), kfake.EnableACLs(), kfake.Superuser("PLAIN", "root", "root"),
		kfake.User("PLAIN", "relay", "pw",
			kafkatest.Allow(kmsg.ACLResourceTypeTopic, "mine", kmsg.ACLOperationWrite), kafkatest.Allow(kmsg.ACLResourceTypeTopic, "mine", kmsg.ACLOperationDescribe),
			kafkatest.Allow(kmsg.ACLResourceTypeTopic, "theirs", kmsg.ACLOperationDescribe)))
	cfg := testConfig(addr)
	cfg.SASL = plain.Mechanism{Username: "relay", Password: "pw"}
	out := newRecorder()
	p := start(t, cfg, testDeps(t, out))
	p.Publish([]event.Event{testEvent("theirs", 1, "k", "v"), testEvent("mine", 2, "k", "v"), testEvent("theirs", 3, "k", "v")})
	p.Flush()
	out.settled(t, 3)
	if got := out.ackedIDs(); !slices.Equal(got, []int64{2}) {
		t.Errorf("acked %v, want event 2", got)
	}
	for _, id := range []int64{1, 3} {
		if f := out.refusals()[id]; f.Code != "TOPIC_DENIED" || f.Class != event.ClassTopic || f.Permanent {
			t.Errorf("event %d: %+v", id, f)
		}
	}
}

// A login that is refused and a certificate that is not trusted are for a person, at
// once, and neither tells a secret.
func TestConnectionRefused(t *testing.T) {
	t.Parallel()
	brokers, _ := kafkatest.TLS(t)
	for name, tc := range map[string]struct {
		opts   []kfake.Opt
		change func(*Config)
		remedy string
	}{
		"login refused": {
			opts: []kfake.Opt{kfake.EnableSASL()},
			change: func(c *Config) {
				c.SASL = oddMechanism{plain.Mechanism{Username: "root", Password: "planted-password"}}
			},
			remedy: "kafka.sasl",
		},
		"unknown CA": {
			opts:   []kfake.Opt{kfake.TLS(brokers)},
			change: func(c *Config) { c.TLS = &tls.Config{RootCAs: x509.NewCertPool()} },
			remedy: "kafka.tls",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, addr := newFake(t, append(tc.opts, kfake.SeedTopics(1, "t"))...)
			cfg := testConfig(addr)
			tc.change(&cfg)
			out := newRecorder()
			p := start(t, cfg, testDeps(t, out))
			p.Publish(numbered("t", 1, 1))
			p.Flush()
			out.wait(t, "a trouble", func() bool { return len(out.trouble) > 0 })
			b := out.trouble[0]
			if b == nil || b.Reason != "kafka.connect" || !strings.Contains(b.Remedy, tc.remedy) {
				t.Errorf("trouble %v, want kafka.connect with %s", b, tc.remedy)
			}
			if b != nil && strings.Contains(b.Error(), "planted") {
				t.Errorf("%q tells the password", b.Error())
			}
		})
	}
}

// oddMechanism is a login that no broker knows.
type oddMechanism struct{ sasl.Mechanism }

func (oddMechanism) Name() string { return "ODD" }

// Over TLS, with the right certificate.
func TestPublishesOverTLS(t *testing.T) {
	t.Parallel()
	brokers, clients := kafkatest.TLS(t)
	_, addr := newFake(t, kfake.SeedTopics(2, "t"), kfake.TLS(brokers))
	cfg := testConfig(addr)
	cfg.TLS = clients
	out := newRecorder()
	p := start(t, cfg, testDeps(t, out))
	publishAll(t, p, out, numbered("t", 50, 5))
	if n := len(out.ackedIDs()); n != 50 {
		t.Errorf("%d acked, want 50", n)
	}
}
