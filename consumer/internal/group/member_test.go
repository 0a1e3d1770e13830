package group

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/kafkaconn"
	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestTwoMembersShareAndHandOver(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 4, nil))
	one := run(t, cfg, nil)
	first := one.until(t, 4)
	want := Assignment{Partition{cfg.Topics[0], 0}, -2}
	if diff := cmp.Diff(want, first.Assignments[0]); diff != "" {
		t.Errorf("without a committed offset (-want +got):\n%s", diff)
	}
	if err := first.Commit(t.Context(), map[Partition]int64{{cfg.Topics[0], 0}: 7, {cfg.Topics[0], 3}: 9}); err != nil {
		t.Fatal(err)
	}

	two := run(t, cfg, nil)
	wait(t, "the end of the first generation", first.ctx.Done())
	if cause := context.Cause(first.ctx); cause != ErrRevoked {
		t.Errorf("cause %v, want ErrRevoked", cause)
	}
	ones, twos := one.until(t, 2), two.until(t, 2)
	got := map[Partition]int64{}
	for _, a := range append(ones.Assignments, twos.Assignments...) {
		got[a.Partition] = a.Offset
	}
	name := cfg.Topics[0]
	if diff := cmp.Diff(map[Partition]int64{{name, 0}: 7, {name, 1}: -2, {name, 2}: -2, {name, 3}: 9}, got); diff != "" {
		t.Errorf("assignments of both (-want +got):\n%s", diff)
	}

	two.end(t)
	if g := one.next(t); len(g.Assignments) != 4 {
		t.Errorf("the next generation has %d partitions, want 4: the other member left by a detour", len(g.Assignments))
	}
	awaitMembers(t, cfg.Group, 1)
}

func TestCommitOfAnOldGenerationIsRefused(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 2, nil))
	one := run(t, cfg, nil)
	old := one.until(t, 2)
	two := run(t, cfg, nil)
	one.until(t, 1)
	two.until(t, 1)

	p := Partition{cfg.Topics[0], 0}
	if err := old.Commit(t.Context(), map[Partition]int64{p: 1}); !errors.Is(err, ErrRevoked) {
		t.Errorf("after its work has returned: %v, want ErrRevoked", err)
	}
	if got := committed(t, cfg.Group); len(got) != 0 {
		t.Errorf("committed %v", got)
	}
}

// A rebalance is told in the answer to a heartbeat: that it is noticed while
// the stopped member drains shows that heartbeats go on.
func TestDrainsAsAMember(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 2, nil))
	release := newGate()
	one := run(t, cfg, release)
	g := one.until(t, 2)
	one.stop()
	awaitMembers(t, cfg.Group, 1)
	if g.ctx.Err() != nil {
		t.Fatal("the stop has ended the generation")
	}
	two := run(t, cfg, nil)
	wait(t, "the rebalance to be noticed in the drain", g.ctx.Done())
	p := Partition{cfg.Topics[0], 1}
	if err := g.Commit(t.Context(), map[Partition]int64{p: 5}); err != nil {
		t.Errorf("committing at the end of the drain: %v", err)
	}
	release.open()
	one.end(t)
	if got := two.until(t, 2).Assignments[1].Offset; got != 5 {
		t.Errorf("the other member begins at %d, want 5", got)
	}
}

func TestTheGroupWaitsForWorkThatIsSlowToEnd(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 2, nil))
	release := newGate()
	one := run(t, cfg, release)
	old := one.until(t, 2)
	two := run(t, cfg, nil)
	wait(t, "the end of the generation", old.ctx.Done())
	p := Partition{cfg.Topics[0], 0}
	if err := old.Commit(t.Context(), map[Partition]int64{p: 3}); err != nil {
		t.Errorf("committing before the work has returned: %v", err)
	}
	if len(two.generations) > 0 {
		t.Error("the other member has got a generation before the first has let go")
	}
	release.open()
	a, b := one.until(t, 1), two.until(t, 1)
	for _, as := range append(a.Assignments, b.Assignments...) {
		if as.Partition == p && as.Offset != 3 {
			t.Errorf("partition 0 begins at %d, want 3", as.Offset)
		}
	}
}

func TestAnEvictedMemberCannotCommitAndComesBack(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 1, nil))
	release := newGate()
	one := run(t, cfg, release)
	old := one.until(t, 1)
	two := run(t, cfg, nil)
	wait(t, "the end of the generation", old.ctx.Done())
	two.until(t, 1) // after the session timeout of the first
	err := old.Commit(t.Context(), map[Partition]int64{{cfg.Topics[0], 0}: 3})
	if !errors.Is(err, ErrRevoked) || !errors.Is(err, kafka.UnknownMemberId) {
		t.Errorf("got %v, want ErrRevoked by code 25", err)
	}
	if got := committed(t, cfg.Group); len(got) != 0 {
		t.Errorf("committed %v", got)
	}
	release.open()
	one.next(t)
	awaitMembers(t, cfg.Group, 2)
}

// A member that joins again waits for one that is slow to let go. Stopped there
// it leaves all the same.
func TestStopWhileJoiningAgain(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 6, nil))
	patient(&cfg)
	cfg.timing.leave = 10 * patience
	quick, other := run(t, cfg, nil), run(t, cfg, nil)
	quick.until(t, 3)
	other.until(t, 3)
	held := newGate()
	holding := run(t, cfg, held)
	inAll := quick.until(t, 2)
	holding.until(t, 2)
	other.end(t) // its partitions make the others join again
	wait(t, "the rebalance", inAll.ctx.Done())
	quick.end(t)
	held.open()
	holding.until(t, 6)
	awaitMembers(t, cfg.Group, 1)
}

func TestStopWhileJoiningForTheFirstTime(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 1, nil))
	patient(&cfg)
	release := newGate()
	slow := run(t, cfg, release)
	old := slow.until(t, 1)
	cfg.timing.leave = 100 * time.Millisecond
	late := run(t, cfg, nil)
	wait(t, "the rebalance that the new member makes", old.ctx.Done())
	late.end(t)
	release.open()
}

func TestStopWithoutBrokers(t *testing.T) {
	t.Parallel()
	cfg := config(t, kafkatest.Name(t))
	cfg.Brokers = []string{"localhost:1"}
	log := logged(&cfg)
	one := run(t, cfg, nil)
	pgtest.Eventually(t, "a line in the log", func() bool { return len(log.all()) > 0 }, func() string { return "none" })
	one.end(t)
	for _, l := range log.all() {
		if !strings.Contains(l, "asking for the topics does not work") {
			t.Errorf("logged %s", l)
		}
	}
}

// The member joins again under a new id, and takes the old one out of the group,
// which would else wait for it up to the session timeout.
func TestTroubleIsLoggedOnceAndWaitedFor(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 1, nil))
	patient(&cfg)
	cfg.timing.backoff = time.Millisecond
	log := logged(&cfg)
	m, err := NewMember(cfg)
	if err != nil {
		t.Fatal(err)
	}
	net := &network{}
	m.conns = kafkaconn.New(net.dial)
	one := start(t, m, nil)
	g := one.next(t)
	net.goAway()
	wait(t, "the end of the generation", g.ctx.Done())
	pgtest.Eventually(t, "several tries", func() bool { return net.refusals() > 5 }, func() string { return "fewer" })
	net.comeBack()
	one.until(t, 1)
	awaitMembers(t, cfg.Group, 1)
	one.end(t)
	var got []string
	for _, l := range log.all() {
		_, message, _ := strings.Cut(l, "msg=")
		got = append(got, strings.Split(message, " group=")[0])
	}
	want := []string{`"joined the group"`, `"joining the group does not work; trying on"`, `"joined the group"`, `"left the group"`}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("logged (-want +got):\n%s", diff)
	}
}

func TestTheErrorOfWorkEndsRun(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 1, nil))
	m, err := NewMember(cfg)
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := m.Run(t.Context(), func(context.Context, *Generation) error { return broken }); err != broken {
		t.Errorf("got %v", err)
	}
	awaitMembers(t, cfg.Group, 0)
}

func TestWorkThatReturnsEarlyJoinsAgain(t *testing.T) {
	t.Parallel()
	m, err := NewMember(config(t, topic(t, 1, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ids []int32
	err = m.Run(ctx, func(_ context.Context, g *Generation) error {
		if ids = append(ids, g.ID); len(ids) == 3 {
			cancel()
		}
		return nil
	})
	if diff := cmp.Diff([]int32{1, 2, 3}, ids); diff != "" || err != nil {
		t.Errorf("Run: %v, generations (-want +got):\n%s", err, diff)
	}
}

func TestAPanicGoesThroughRunAndLeaves(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 1, nil))
	m, err := NewMember(cfg)
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if got := recover(); got != "a bug" {
				t.Errorf("recovered %v", got)
			}
		}()
		_ = m.Run(t.Context(), func(context.Context, *Generation) error { panic("a bug") })
	}()
	if d := described(t, cfg.Group); len(d.Members) != 0 {
		t.Errorf("still a member: %v", d.Members)
	}
}

func TestStopLeavesTheGroup(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 1, nil))
	one := run(t, cfg, nil)
	one.until(t, 1)
	awaitMembers(t, cfg.Group, 1)
	one.end(t)
	if d := described(t, cfg.Group); len(d.Members) != 0 {
		t.Errorf("the group has members still: %s %v", d.State, d.Members)
	}
}

func TestNewMemberValidates(t *testing.T) {
	t.Parallel()
	good := Config{Brokers: []string{"localhost:1"}, Group: "g", Topics: []string{"t"}, Logger: discard()}
	if _, err := NewMember(good); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"no brokers":      func(c *Config) { c.Brokers = nil },
		"broker, no port": func(c *Config) { c.Brokers = []string{"localhost"} },
		"no group":        func(c *Config) { c.Group = "" },
		"no topics":       func(c *Config) { c.Topics = nil },
		"empty topic":     func(c *Config) { c.Topics = []string{""} },
		"topic twice":     func(c *Config) { c.Topics = []string{"t", "t"} },
		"no logger":       func(c *Config) { c.Logger = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bad := good
			spoil(&bad)
			if _, err := NewMember(bad); err == nil {
				t.Error("accepted")
			}
		})
	}
}
