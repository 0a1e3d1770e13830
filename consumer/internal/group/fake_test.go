package group

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// These tests need what one real broker cannot give: leaders that move, answers
// that come once in a while, logins.

func fake(t *testing.T, opts ...kfake.Opt) (*kfake.Cluster, Config) {
	t.Helper()
	c := kafkatest.Fake(t, opts...)
	return c, Config{
		Brokers: c.ListenAddrs(), Group: "g", Topics: []string{"t"}, Logger: discard(),
		timing: timing{heartbeat: 20 * time.Millisecond, session: 6 * time.Second, backoff: 20 * time.Millisecond, watch: 20 * time.Millisecond,
			wait: 20 * time.Millisecond},
	}
}

// fill writes n records to partition 0 of topic t.
func fill(t *testing.T, c *kfake.Cluster, n int, opts ...kgo.Opt) {
	t.Helper()
	opts = append([]kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)
	client, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	produce(t, client, values("t", 0, n)...)
}

func TestReadsOnWhenTheLeaderMoves(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(c *kfake.Cluster, to int32) error{
		"to another broker":  func(c *kfake.Cluster, to int32) error { return c.MoveTopicPartition("t", 0, to) },
		"as its broker dies": func(c *kfake.Cluster, to int32) error { return c.RemoveNode(1 - to) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, cfg := fake(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "t"))
			fill(t, c, 3)
			r := reader(t, cfg)
			leader := c.LeaderFor("t", 0)
			// By itself it would not find out before the end of the test.
			r.link = newLink(Config{Brokers: []string{c.ListenAddrs()[1-leader]}}, nil, time.Hour)
			t.Cleanup(r.link.Close)
			p := Partition{"t", 0}
			read(t, r, p, 0)
			if err := move(c, 1-leader); err != nil {
				t.Fatal(err)
			}
			if _, err := r.Read(t.Context(), p, 0); err == nil {
				t.Fatal("the old leader has answered")
			}
			if b := read(t, r, p, 0); len(b.Records) != 3 {
				t.Errorf("%d records, want 3", len(b.Records))
			}
		})
	}
}

func TestRefusalsOfACommit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		code kafka.Error
		over bool
	}{
		{kafka.IllegalGeneration, true},
		{kafka.UnknownMemberId, true},
		{kafka.FencedInstanceID, true},
		{kafka.RebalanceInProgress, false},
		{kafka.GroupLoadInProgress, false},
		{kafka.GroupCoordinatorNotAvailable, false},
		{kafka.NotCoordinatorForGroup, false},
		{kafka.TopicAuthorizationFailed, false},
		{kafka.Unknown, false},
	} {
		t.Run(tc.code.Title(), func(t *testing.T) {
			t.Parallel()
			c, cfg := fake(t, kfake.SeedTopics(2, "t"))
			g := run(t, cfg, nil).until(t, 2)
			c.ControlKey(int16(kmsg.OffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
				return refusal(req.(*kmsg.OffsetCommitRequest), int16(tc.code)), nil, true
			})
			err := g.Commit(t.Context(), map[Partition]int64{{"t", 0}: 1})
			if !errors.Is(err, tc.code) || errors.Is(err, ErrRevoked) != tc.over {
				t.Errorf("got %v, over: %v, want %v", err, errors.Is(err, ErrRevoked), tc.over)
			}
			if err := g.Commit(t.Context(), map[Partition]int64{{"t", 0}: 1}); err != nil {
				t.Errorf("the next one: %v", err)
			}
		})
	}
}

func refusal(req *kmsg.OffsetCommitRequest, code int16) kmsg.Response {
	res := req.ResponseKind().(*kmsg.OffsetCommitResponse)
	for _, topic := range req.Topics {
		t := kmsg.NewOffsetCommitResponseTopic()
		t.Topic = topic.Topic
		for _, partition := range topic.Partitions {
			p := kmsg.NewOffsetCommitResponseTopicPartition()
			p.Partition, p.ErrorCode = partition.Partition, code
			t.Partitions = append(t.Partitions, p)
		}
		res.Topics = append(res.Topics, t)
	}
	return res
}

func TestTheCoordinatorMoves(t *testing.T) {
	t.Parallel()
	c, cfg := fake(t, kfake.NumBrokers(3), kfake.SeedTopics(2, "t"))
	one := run(t, cfg, nil)
	g := one.until(t, 2)
	if err := c.RemoveNode(c.CoordinatorFor(cfg.Group)); err != nil {
		t.Fatal(err)
	}
	wait(t, "the end of the generation", g.ctx.Done())
	one.until(t, 2)
	one.end(t)
}

func TestAllConnectionsLogInOverTLS(t *testing.T) {
	t.Parallel()
	brokers, clients := kafkatest.TLS(t)
	_, cfg := fake(t, kfake.SeedTopics(1, "t"), kfake.EnableSASL(), kfake.Superuser("PLAIN", "me", "secret"), kfake.TLS(brokers))
	cfg.TLS, cfg.SASL = clients, plain.Mechanism{Username: "me", Password: "secret"}

	copies, err := NewCopier(cfg, "t")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(copies.Close)
	if err := copies.Send(t.Context(), quarantined()); err != nil {
		t.Errorf("copying: %v", err)
	}
	if b := read(t, reader(t, cfg), Partition{"t", 0}, 0); len(b.Records) != 1 {
		t.Errorf("%d records, want 1", len(b.Records))
	}
	one := run(t, cfg, nil)
	if err := one.until(t, 1).Commit(t.Context(), map[Partition]int64{{"t", 0}: 0}); err != nil {
		t.Errorf("committing: %v", err)
	}
	one.end(t)
}

func TestAWrongPasswordIsLoggedWithoutIt(t *testing.T) {
	t.Parallel()
	_, cfg := fake(t, kfake.SeedTopics(1, "t"), kfake.EnableSASL(), kfake.Superuser("PLAIN", "me", "secret"))
	cfg.SASL = plain.Mechanism{Username: "me", Password: "planted"}
	log := logged(&cfg)
	one := run(t, cfg, nil)
	pgtest.Eventually(t, "a line in the log", func() bool { return len(log.all()) > 0 }, func() string { return "none" })
	one.end(t)
	if all := strings.Join(log.all(), "\n"); strings.Contains(all, "planted") {
		t.Errorf("logged %s", all)
	}
}

// A topic that may not be described looks as if it were not there.
func TestATopicThatMayNotBeSeen(t *testing.T) {
	t.Parallel()
	_, cfg := fake(t, kfake.SeedTopics(1, "mine", "theirs"), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.User("PLAIN", "me", "pw", kafkatest.Allow(kmsg.ACLResourceTypeTopic, "mine", kmsg.ACLOperationDescribe)))
	cfg.Topics, cfg.SASL = []string{"mine", "theirs"}, plain.Mechanism{Username: "me", Password: "pw"}
	var told lines
	cfg.TopicsMissing = told.note
	one := run(t, cfg, nil)
	pgtest.Eventually(t, "the report", func() bool { return len(told.all()) > 0 }, func() string { return "none" })
	one.end(t)
	if diff := cmp.Diff([]string{"theirs"}, told.all()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}
