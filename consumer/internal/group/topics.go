package group

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// partitions is how many partitions each topic has; 0 if it does not exist.
type partitions map[string]int

func (p partitions) missing() []string {
	var names []string
	for topic, n := range p {
		if n == 0 {
			names = append(names, topic)
		}
	}
	slices.Sort(names)
	return names
}

// ask asks the cluster which partitions there are. A topic that this program may
// not see counts as missing.
func (m *Member) ask(ctx context.Context) (partitions, error) {
	res, err := m.link.Metadata(ctx, &kafka.MetadataRequest{Topics: m.cfg.Topics})
	if err != nil {
		return nil, err
	}
	found := partitions{}
	for _, t := range res.Topics {
		found[t.Name] = len(t.Partitions)
	}
	return found, nil
}

// awaitTopics returns when all topics exist: joining without one would give
// every member of the group an empty assignment of all topics. It is false if
// ctx ended.
//
// Topics that were just made are looked at twice: by then all brokers know.
func (m *Member) awaitTopics(ctx context.Context) bool {
	settled := true
	for {
		found, err := m.look(ctx)
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			m.trouble("asking for the topics", err)
		case len(found.missing()) > 0:
			m.report(found.missing())
			settled = false
		case settled:
			m.report(nil)
			m.known = found
			return true
		default:
			settled = true
		}
		if !pause(ctx, m.cfg.timing.watch) {
			return false
		}
	}
}

// watch looks at the topics during a generation, and calls changed if they have
// other partitions than the group's assignment knows of. It ends with either
// context, and when the function that it returns is called, which waits for it.
func (m *Member) watch(ctx, generation context.Context, changed func()) (stop func()) {
	watching, cancel := context.WithCancel(generation)
	unbind := context.AfterFunc(ctx, cancel)
	var done sync.WaitGroup
	done.Go(func() {
		if m.awaitChange(watching) {
			changed()
		}
	})
	return func() {
		unbind()
		cancel()
		done.Wait()
	}
}

// awaitChange returns true when there are other partitions than are known. While
// a topic is missing it waits: joining again would take the other topics away
// from all. What came after that is joined for even if it looks as before, as
// another member may have had the group joined meanwhile.
func (m *Member) awaitChange(ctx context.Context) bool {
	var before partitions
	for pause(ctx, m.cfg.timing.watch) {
		found, err := m.look(ctx)
		if err != nil {
			continue // the heartbeats tell what it means
		}
		missing := found.missing()
		m.report(missing)
		switch {
		case len(missing) > 0:
			m.known = found
		case maps.Equal(found, before) && !maps.Equal(found, m.known): // twice, as above
			m.log.Info("the topics have other partitions than before: joining the group again")
			m.known = found
			return true
		}
		before = found
	}
	return false
}

// report tells which topics are missing, if that has changed.
func (m *Member) report(names []string) {
	if slices.Equal(names, m.missing) {
		return
	}
	m.missing = names
	if len(names) > 0 {
		m.log.Warn("topics do not exist or may not be seen: create them, or grant Describe", "topics", names)
	} else {
		m.log.Info("all topics are there")
	}
	if m.cfg.TopicsMissing != nil {
		m.cfg.TopicsMissing(names)
	}
}

// pause waits for d, and is false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
