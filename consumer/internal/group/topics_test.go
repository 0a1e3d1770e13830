package group

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestWaitsForAMissingTopic(t *testing.T) {
	t.Parallel()
	there, missing := topic(t, 2, nil), kafkatest.Name(t)
	cfg := config(t, there, missing)
	var told lines
	cfg.TopicsMissing = told.note
	one := run(t, cfg, nil)
	pgtest.Eventually(t, "the report of the missing topic", func() bool { return len(told.all()) > 0 }, func() string { return "none" })
	if d := described(t, cfg.Group); len(d.Members) != 0 {
		t.Errorf("joined without the topic: %v", d.Members)
	}
	kafkatest.Create(t, cfg.Brokers[0], missing, 3, nil)
	one.until(t, 5)
	if diff := cmp.Diff([]string{missing, ""}, told.all()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestStopWhileATopicIsMissing(t *testing.T) {
	t.Parallel()
	cfg := config(t, kafkatest.Name(t))
	var told lines
	cfg.TopicsMissing = told.note
	one := run(t, cfg, nil)
	pgtest.Eventually(t, "the report of the missing topic", func() bool { return len(told.all()) > 0 }, func() string { return "none" })
	one.end(t)
	if diff := cmp.Diff([]string{cfg.Topics[0]}, told.all()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestATopicThatIsDeletedTakesNothingFromTheOthers(t *testing.T) {
	t.Parallel()
	stays, goes := topic(t, 2, nil), topic(t, 1, nil)
	cfg := config(t, stays, goes)
	var told lines
	cfg.TopicsMissing = told.note
	one := run(t, cfg, nil)
	g := one.until(t, 3)

	kafkatest.Delete(t, cfg.Brokers[0], goes)
	pgtest.Eventually(t, "the report of the deleted topic", func() bool { return len(told.all()) > 0 }, func() string { return "none" })
	if err := g.Commit(t.Context(), map[Partition]int64{{stays, 0}: 1}); err != nil || g.ctx.Err() != nil {
		t.Errorf("the generation is over (%v), its commit says %v", g.ctx.Err(), err)
	}
	// Made anew it has other offsets, so it is to be joined for even if it has as
	// many partitions.
	kafkatest.Create(t, cfg.Brokers[0], goes, 1, nil)
	again := one.next(t)
	want := []Assignment{{Partition{goes, 0}, -2}, {Partition{stays, 0}, 1}, {Partition{stays, 1}, -2}}
	if goes > stays {
		want = []Assignment{want[1], want[2], want[0]}
	}
	if diff := cmp.Diff(want, again.Assignments); diff != "" {
		t.Errorf("assignments (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{goes, ""}, told.all()); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

func TestNewPartitionsAreAssigned(t *testing.T) {
	t.Parallel()
	cfg := config(t, topic(t, 1, nil))
	one := run(t, cfg, nil)
	one.until(t, 1)
	res, err := kafkatest.Admin(t, cfg.Brokers[0]).UpdatePartitions(t.Context(), 3, cfg.Topics[0])
	if err == nil {
		err = res.Error()
	}
	if err != nil {
		t.Fatalf("adding partitions: %v", err)
	}
	if g := one.next(t); len(g.Assignments) != 3 {
		t.Errorf("%d partitions, want 3", len(g.Assignments))
	}
}

// looks is what a member sees of its topics, look by look; an error stands for
// none.
func looks(t *testing.T, seen ...partitions) (m *Member, taken *int) {
	t.Helper()
	m, err := NewMember(Config{Brokers: []string{"localhost:1"}, Group: "g", Topics: []string{"a", "b"}, Logger: discard()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.link.Close)
	t.Cleanup(m.conns.Close)
	taken = new(int)
	m.look = func(context.Context) (partitions, error) {
		if *taken++; *taken > len(seen) {
			t.Fatal("looks on")
		}
		if found := seen[*taken-1]; found != nil {
			return found, nil
		}
		return nil, errors.New("away")
	}
	return m, taken
}

var both, grown, half, none = partitions{"a": 1, "b": 2}, partitions{"a": 1, "b": 3}, partitions{"a": 1, "b": 0}, partitions(nil)

func TestJoinsWhenTopicsAreThereAndAllBrokersKnow(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		seen []partitions
		took time.Duration
	}{
		"at once":           {[]partitions{both}, 0},
		"brokers were away": {[]partitions{none, none, both}, 2 * time.Second},
		"one was missing":   {[]partitions{half, half, both, both}, 3 * time.Second},
		"it came and went":  {[]partitions{half, both, half, both, both}, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, taken := looks(t, tc.seen...)
				began := time.Now()
				if !m.awaitTopics(t.Context()) || *taken != len(tc.seen) || time.Since(began) != tc.took {
					t.Errorf("after %d looks and %v, want %d and %v", *taken, time.Since(began), len(tc.seen), tc.took)
				}
			})
		})
	}
}

func TestJoinsAgainWhenPartitionsHaveChanged(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		seen    []partitions
		changed bool
	}{
		"nothing changed":       {[]partitions{both, both, both}, false},
		"grown, seen twice":     {[]partitions{both, grown, grown}, true},
		"grown, seen once":      {[]partitions{both, grown, both, both}, false},
		"brokers were away":     {[]partitions{none, both, none, both}, false},
		"away between the two":  {[]partitions{grown, none, grown}, true},
		"missing":               {[]partitions{half, half, half}, false},
		"missing, back as was":  {[]partitions{half, both, both}, true},
		"missing, back by half": {[]partitions{half, both, half, both}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, taken := looks(t, tc.seen...)
				m.known = both
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(len(tc.seen))*time.Second+time.Millisecond)
				defer cancel()
				if got := m.awaitChange(ctx); got != tc.changed || *taken != len(tc.seen) {
					t.Errorf("changed: %v after %d looks, want %v after %d", got, *taken, tc.changed, len(tc.seen))
				}
			})
		})
	}
}
