package group

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what tests wait for.
const patience = 60 * time.Second

// topic creates a topic for a test, and waits until its leaders answer: the
// broker tells of it before.
func topic(t testing.TB, partitions int, configs map[string]string) string {
	t.Helper()
	name := kafkatest.Name(t)
	kafkatest.Create(t, kafkatest.Broker(t), name, partitions, configs)
	adm := kafkatest.Admin(t, kafkatest.Broker(t))
	var err error
	pgtest.Eventually(t, "leaders of a new topic", func() bool {
		var ends kadm.ListedOffsets
		if ends, err = adm.ListEndOffsets(t.Context(), name); err == nil {
			err = ends.Error()
		}
		return err == nil
	}, func() string { return err.Error() })
	return name
}

// config is that of a member of a group of this test's own.
func config(t testing.TB, topics ...string) Config {
	t.Helper()
	return Config{
		Brokers:  []string{kafkatest.Broker(t)},
		Group:    kafkatest.Name(t),
		Topics:   topics,
		ClientID: "group-test",
		Logger:   slog.New(slog.NewTextHandler(testWriter{t}, nil)),
		timing:   timing{heartbeat: 100 * time.Millisecond, session: 6 * time.Second, backoff: 100 * time.Millisecond, watch: 100 * time.Millisecond},
	}
}

// patient makes a group wait for its members for longer than the test does.
func patient(cfg *Config) {
	cfg.timing.session, cfg.timing.rebalance = 10*patience, 10*patience
}

// testWriter logs to a test. Members end before their test does.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// running is a member that runs until it is stopped.
type running struct {
	generations chan *tenure // each as it begins
	stop        func()       // asks it to stop
	ended       chan struct{}
	err         error // of Run, once ended
}

// tenure is a generation as a test sees it.
type tenure struct {
	*Generation
	ctx context.Context
}

// gate is closed until it is opened.
type gate struct {
	once sync.Once
	way  chan struct{}
}

func newGate() *gate { return &gate{way: make(chan struct{})} }

func (g *gate) open() { g.once.Do(func() { close(g.way) }) }

// run starts a member whose work returns when the generation has ended or the
// member is to stop, and then not before a gate is open, if there is one.
func run(t testing.TB, cfg Config, release *gate) *running {
	t.Helper()
	m, err := NewMember(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return start(t, m, release)
}

func start(t testing.TB, m *Member, release *gate) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &running{generations: make(chan *tenure, 100), stop: cancel, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.err = m.Run(ctx, func(workCtx context.Context, g *Generation) error {
			r.generations <- &tenure{g, workCtx}
			select {
			case <-workCtx.Done():
			case <-ctx.Done():
			}
			if release != nil {
				<-release.way
			}
			return nil
		})
	}()
	t.Cleanup(func() {
		cancel()
		if release != nil {
			release.open()
		}
		<-r.ended
	})
	return r
}

// next waits for the next generation.
func (r *running) next(t testing.TB) *tenure {
	t.Helper()
	select {
	case g := <-r.generations:
		return g
	case <-r.ended:
		t.Fatalf("Run ended with %v", r.err)
	case <-time.After(patience):
		t.Fatal("no generation began")
	}
	return nil
}

// until waits for a generation with n partitions, over those that come before.
func (r *running) until(t testing.TB, n int) *tenure {
	t.Helper()
	for {
		if g := r.next(t); len(g.Assignments) == n {
			return g
		}
	}
}

// end stops it and waits.
func (r *running) end(t testing.TB) {
	t.Helper()
	r.stop()
	select {
	case <-r.ended:
	case <-time.After(patience):
		t.Fatal("Run does not end")
	}
	if r.err != nil {
		t.Fatalf("Run: %v", r.err)
	}
}

func wait(t testing.TB, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("waited %v for: %s", patience, what)
	}
}

// described is what the broker says of a group.
func described(t testing.TB, group string) kadm.DescribedGroup {
	t.Helper()
	groups, err := kafkatest.Admin(t, kafkatest.Broker(t)).DescribeGroups(t.Context(), group)
	if err != nil {
		t.Fatalf("describing group %s: %v", group, err)
	}
	return groups[group]
}

// awaitMembers waits until the group is stable with n members.
func awaitMembers(t testing.TB, group string, n int) {
	t.Helper()
	var d kadm.DescribedGroup
	pgtest.Eventually(t, fmt.Sprintf("%d members of the group", n), func() bool {
		d = described(t, group)
		return len(d.Members) == n && (n == 0 || d.State == "Stable")
	}, func() string { return fmt.Sprintf("%s with %d members", d.State, len(d.Members)) })
}

// committed is the committed offset of each partition.
func committed(t testing.TB, group string) map[Partition]int64 {
	t.Helper()
	res, err := kafkatest.Admin(t, kafkatest.Broker(t)).FetchOffsets(t.Context(), group)
	if err != nil {
		t.Fatalf("asking for the offsets of group %s: %v", group, err)
	}
	offsets := map[Partition]int64{}
	res.Each(func(o kadm.OffsetResponse) { offsets[Partition{o.Topic, int(o.Partition)}] = o.At })
	return offsets
}

// producer is a client that writes to the partition that a record names.
func producer(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	opts = append([]kgo.Opt{kgo.SeedBrokers(kafkatest.Broker(t)), kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...)
	c, err := kgo.NewClient(opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// produce writes records and waits for them.
func produce(t testing.TB, c *kgo.Client, records ...*kgo.Record) {
	t.Helper()
	if err := c.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatalf("producing: %v", err)
	}
}

// reader is one that is closed with the test.
func reader(t testing.TB, cfg Config) *Reader {
	t.Helper()
	r, err := NewReader(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// lines collects what is written to it: log lines, or what TopicsMissing is
// told.
type lines struct {
	mu   sync.Mutex
	said []string
}

func (l *lines) note(names []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said = append(l.said, strings.Join(names, " "))
}

func (l *lines) Write(p []byte) (int, error) {
	l.note([]string{strings.TrimSuffix(string(p), "\n")})
	return len(p), nil
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.said)
}

// logged makes a member log to lines.
func logged(cfg *Config) *lines {
	var l lines
	cfg.Logger = slog.New(slog.NewTextHandler(&l, nil))
	return &l
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
