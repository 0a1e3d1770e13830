package group

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
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
	one.until(t, 4)
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
