package sink

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// publishAll publishes events in chunks of 50 and waits until all are settled.
func publishAll(t *testing.T, p *Publisher, out *recorder, events []event.Event) {
	t.Helper()
	before := out.count()
	for chunk := range slices.Chunk(events, 50) {
		p.Publish(chunk)
		p.Flush()
	}
	out.settled(t, before+len(events))
}

// wantLog checks that the log holds these ids, once each.
func wantLog(t *testing.T, addr, topic string, want []int64) {
	t.Helper()
	if got := logIDs(t, addr, topic); !slices.Equal(got, want) {
		t.Errorf("%d records in the log, want each of %d events once:\n%v", len(got), len(want), got)
	}
}

// Errors of a partition that pass: everything arrives, once and in order.
func TestPassingErrors(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{
		kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.UnknownTopicOrPartition, kerr.NotEnoughReplicas,
		kerr.RequestTimedOut, kerr.NotEnoughReplicasAfterAppend, kerr.KafkaStorageError, kerr.UnknownServerError,
		kerr.ThrottlingQuotaExceeded, kerr.OutOfOrderSequenceNumber, kerr.CorruptMessage,
	} {
		t.Run(code.Message, func(t *testing.T) {
			t.Parallel()
			fake, addr := newFake(t, kfake.SeedTopics(3, "t"))
			fault := fake.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Err: code, Count: 7})
			out := newRecorder()
			p := start(t, testConfig(addr), testDeps(t, out))
			publishAll(t, p, out, numbered("t", 300, 20))
			wantLog(t, addr, "t", ids(1, 300))
			if fault.Hits() != 7 {
				t.Errorf("%d faults, want 7", fault.Hits())
			}
		})
	}
}

// Leaders move between three brokers: nobody is told, and nothing is lost.
func TestLeadersMove(t *testing.T) {
	t.Parallel()
	fake, addr := newFake(t, kfake.NumBrokers(3), kfake.SeedTopics(6, "t"))
	out := newRecorder()
	p := start(t, testConfig(addr), testDeps(t, out))
	events := numbered("t", 1000, 50)
	for i := range 10 {
		publishAll(t, p, out, events[i*100:(i+1)*100])
		fake.ShufflePartitionLeaders()
	}
	wantLog(t, addr, "t", ids(1, 1000))
}

// A move of a leader is found out at once, long before the metadata are due.
func TestLeaderMoveRefreshesMetadata(t *testing.T) {
	t.Parallel()
	fake, addr := newFake(t, kfake.NumBrokers(2), kfake.SeedTopics(1, "t"))
	if err := fake.MoveTopicPartition("t", 0, 0); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(addr)
	cfg.MetadataTTL = 10 * patience
	out := newRecorder()
	p := start(t, cfg, testDeps(t, out))
	events := numbered("t", 100, 5)
	publishAll(t, p, out, events[:50])
	if err := fake.MoveTopicPartition("t", 0, 1); err != nil {
		t.Fatal(err)
	}
	publishAll(t, p, out, events[50:])
	wantLog(t, addr, "t", ids(1, 100))
}

// A partition without a leader waits; the others flow.
func TestNoLeader(t *testing.T) {
	t.Parallel()
	fake, addr := newFake(t, kfake.NumBrokers(2), kfake.SeedTopics(2, "t"))
	if err := fake.MoveTopicPartition("t", 0, 1); err != nil {
		t.Fatal(err)
	}
	if err := fake.MoveTopicPartition("t", 1, 0); err != nil {
		t.Fatal(err)
	}
	var leaderless atomic.Bool
	leaderless.Store(true)
	fake.ControlKey(int16(kmsg.Metadata), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		if !leaderless.Load() {
			return nil, nil, false
		}
		return leaderlessMetadata(t, kreq, addr), nil, true
	})
	out := newRecorder()
	p := start(t, testConfig(addr), testDeps(t, out))
	events := numbered("t", 200, 50)
	p.Publish(events)
	p.Flush()
	var flows int
	for i := range events {
		if record.Murmur2.Partition(events[i].AggregateID, 2) == 1 {
			flows++
		}
	}
	out.wait(t, "the partition with a leader", func() bool { return len(out.acked) >= flows })
	if got := len(out.ackedIDs()); got != flows {
		t.Errorf("%d acked without a leader, want %d", got, flows)
	}
	leaderless.Store(false)
	out.settled(t, 200)
	wantLog(t, addr, "t", ids(1, 200))
}

// leaderlessMetadata is an answer in which partition 0 of t has no leader and
// partition 1 is led by the first broker.
func leaderlessMetadata(t *testing.T, kreq kmsg.Request, addr string) kmsg.Response {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Error(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Error(err)
	}
	res := kreq.ResponseKind().(*kmsg.MetadataResponse)
	b := kmsg.NewMetadataResponseBroker()
	b.Host, b.Port = host, int32(n)
	res.Brokers = append(res.Brokers, b)
	topic := kmsg.NewMetadataResponseTopic()
	name := "t"
	topic.Topic = &name
	for i, leader := range []int32{-1, 0} {
		part := kmsg.NewMetadataResponseTopicPartition()
		part.Partition, part.Leader = int32(i), leader
		if leader < 0 {
			part.ErrorCode = kerr.LeaderNotAvailable.Code
		}
		topic.Partitions = append(topic.Partitions, part)
	}
	res.Topics = append(res.Topics, topic)
	return res
}

// cutter is a listener whose connections are closed instead of answering,
// while it is armed: the broker has done its work, and nobody hears of it.
type cutter struct {
	net.Listener
	armed atomic.Bool
	cuts  atomic.Int64
}

type cutConn struct {
	net.Conn
	cutter *cutter
}

func (c *cutter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &cutConn{conn, c}, nil
}

func (c *cutConn) Write(p []byte) (int, error) {
	if c.cutter.armed.CompareAndSwap(true, false) {
		c.cutter.cuts.Add(1)
		_ = c.Conn.Close()
	}
	return c.Conn.Write(p)
}

// An answer that gets lost after the append leaves one copy in the log.
func TestAnswerCut(t *testing.T) {
	t.Parallel()
	cut := &cutter{}
	fake, addr := newFake(t, kfake.SeedTopics(1, "t"), kfake.ListenFn(func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, address)
		cut.Listener = l
		return cut, err
	}))
	var produced atomic.Int64
	fake.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		if produced.Add(1)%3 == 1 {
			cut.armed.Store(true)
		}
		return nil, nil, false
	})
	out := newRecorder()
	p := start(t, testConfig(addr), testDeps(t, out))
	events := numbered("t", 200, 5)
	for chunk := range slices.Chunk(events, 20) {
		publishAll(t, p, out, chunk)
	}
	wantLog(t, addr, "t", ids(1, 200))
	if cut.cuts.Load() < 3 {
		t.Errorf("%d answers were cut, want several", cut.cuts.Load())
	}
}

// A broker that says nothing is given up after the time-out and asked again.
func TestSilentBroker(t *testing.T) {
	t.Parallel()
	fake, addr := newFake(t, kfake.SeedTopics(1, "t"))
	var swallowed atomic.Int64
	fake.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		fake.KeepControl()
		if swallowed.Load() == 2 {
			return nil, nil, false
		}
		swallowed.Add(1)
		return nil, nil, true // no answer at all
	})
	cfg := testConfig(addr)
	cfg.RequestTimeout = 300 * time.Millisecond
	out := newRecorder()
	p := start(t, cfg, testDeps(t, out))
	publishAll(t, p, out, numbered("t", 100, 5))
	wantLog(t, addr, "t", ids(1, 100))
	if swallowed.Load() != 2 {
		t.Errorf("%d requests were swallowed, want 2", swallowed.Load())
	}
}

// Run ends at once although a broker owes it an answer, and reports nothing.
func TestEndsWithRequestInFlight(t *testing.T) {
	t.Parallel()
	fake, addr := newFake(t, kfake.SeedTopics(1, "t"))
	asked := make(chan struct{})
	fake.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		close(asked)
		return nil, nil, true
	})
	cfg := testConfig(addr)
	cfg.RequestTimeout = time.Hour // nothing but the end of Run can end it
	out := newRecorder()
	p, err := New(cfg, testDeps(t, out))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	p.Publish(numbered("t", 5, 1))
	p.Flush()
	await(t, asked, "a request")
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run = %v, want nil", err)
	}
	if n := len(out.ackedIDs()) + len(out.refusals()) + len(out.troubles()); n != 0 {
		t.Errorf("%d reports about what was not answered", n)
	}
}

// A broker that comes up after the relay is found.
func TestBrokerComesLater(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	out := newRecorder()
	p := start(t, testConfig(addr), testDeps(t, out))
	p.Publish(numbered("t", 50, 5))
	p.Flush()
	newFake(t, kfake.SeedTopics(2, "t"), kfake.Ports(port))
	out.settled(t, 50)
	wantLog(t, addr, "t", ids(1, 50))
}

// The broker refuses records by their index: they alone are refused.
func TestRecordsRefusedByIndex(t *testing.T) {
	t.Parallel()
	fake, addr := newFake(t, kfake.SeedTopics(1, "t"))
	fake.ControlKey(int16(kmsg.Produce), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		return refuseIndexes(kreq, kerr.InvalidRecord.Code, 0, 2), nil, true
	})
	out := newRecorder()
	p := start(t, testConfig(addr), testDeps(t, out))
	publishAll(t, p, out, numbered("t", 5, 5))
	wantLog(t, addr, "t", []int64{2, 4, 5})
	if got := out.refusals(); len(got) != 2 || got[1].Code != "RECORD_INVALID" || got[3].Code != "RECORD_INVALID" {
		t.Errorf("refused %v, want events 1 and 3", got)
	}
	for _, f := range out.refusals() {
		if strings.Contains(f.Message, "secret") {
			t.Errorf("message %q repeats the broker's words", f.Message)
		}
	}
}

// refuseIndexes is the answer of a broker that refuses these records.
func refuseIndexes(kreq kmsg.Request, code int16, indexes ...int32) kmsg.Response {
	req := kreq.(*kmsg.ProduceRequest)
	res := req.ResponseKind().(*kmsg.ProduceResponse)
	topic := kmsg.NewProduceResponseTopic()
	topic.Topic = req.Topics[0].Topic
	part := kmsg.NewProduceResponseTopicPartition()
	part.Partition = req.Topics[0].Partitions[0].Partition
	part.ErrorCode = code
	for _, i := range indexes {
		e := kmsg.NewProduceResponseTopicPartitionErrorRecord()
		words := "secret words of the broker"
		e.RelativeOffset, e.ErrorMessage = i, &words
		part.ErrorRecords = append(part.ErrorRecords, e)
	}
	topic.Partitions = append(topic.Partitions, part)
	res.Topics = append(res.Topics, topic)
	return res
}

// A topic's own size limit is read, kept to, and told.
func TestSizeLimitOfTopic(t *testing.T) {
	t.Parallel()
	for name, broker := range map[string]func(t *testing.T) string{
		"fake broker": func(t *testing.T) string { _, addr := newFake(t); return addr },
		"real broker": func(t *testing.T) string { return kafkatest.Broker(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := broker(t)
			topic := kafkatest.Name(t)
			kafkatest.Create(t, addr, topic, 1, map[string]string{"max.message.bytes": "20000"})
			out := newRecorder()
			p := start(t, testConfig(addr), testDeps(t, out))
			events := numbered(topic, 100, 5)
			for i := range events {
				events[i].Payload = []byte(strings.Repeat("x", 1000))
			}
			events[49].Payload = []byte(strings.Repeat("x", 30_000))
			publishAll(t, p, out, events)
			wantLog(t, addr, topic, append(ids(1, 49), ids(51, 100)...))
			f := out.refusals()[50]
			if f.Code != "RECORD_TOO_LARGE" || !strings.Contains(f.Message, "accepts 20000 ") {
				t.Errorf("event 50: %+v", f)
			}
		})
	}
}

// A topic that is created while its events wait.
func TestTopicCreatedLater(t *testing.T) {
	t.Parallel()
	_, addr := newFake(t)
	topic := kafkatest.Name(t)
	out := newRecorder()
	p := start(t, testConfig(addr), testDeps(t, out))
	p.Publish(numbered(topic, 50, 5))
	p.Flush()
	kafkatest.Create(t, addr, topic, 3, nil)
	out.settled(t, 50)
	wantLog(t, addr, topic, ids(1, 50))
}
