package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/consumer"
)

// consumers are three groups of the consumer kit, each with the one handler
// that its topics need. They claim the rows and finish them.
type consumers struct {
	groups map[string]*consumer.Consumer // by name

	mu      sync.Mutex
	handled map[int64]handling // by row
}

// handling is when an event was published and when its handler began.
type handling struct{ published, began time.Time }

// newConsumers connects to nothing yet. One group asks for a topic that is made
// later, and waits for it.
func newConsumers(w *world, s *site) (*consumers, error) {
	logger := slog.New(slog.NewTextHandler(w.log, nil))
	c := &consumers{groups: map[string]*consumer.Consumer{}, handled: map[int64]handling{}}
	var loaded []string
	for _, t := range append([]string{delayedType}, types...) {
		loaded = append(loaded, w.topic(t))
	}
	for _, g := range []struct {
		name   string
		topics []string
		handle consumer.Handler
	}{
		{"load", loaded, done},
		{"late", []string{w.topic(lateType)}, done},
		{"mail", []string{w.topic(userType)}, s.mailer.Handle},
	} {
		name := w.group(g.name)
		var err error
		c.groups[name], err = consumer.New(
			consumer.Config{Brokers: []string{w.broker}, Group: name, Topics: g.topics, DB: w.pool}, g.handle,
			consumer.Use(c.note), consumer.Logger(logger),
			consumer.RetryDelay(consumer.RetryPolicy{Base: 200 * time.Millisecond, Max: time.Second}))
		if err != nil {
			return nil, err
		}
	}
	return c, nil
}

// done is a handler. The work of a real one would be here.
func done(context.Context, *consumer.Event) error { return nil }

// note is a middleware that remembers an event's first attempt.
func (c *consumers) note(next consumer.Handler) consumer.Handler {
	return func(ctx context.Context, ev *consumer.Event) error {
		c.mu.Lock()
		if _, again := c.handled[ev.OutboxID]; !again {
			c.handled[ev.OutboxID] = handling{ev.Time, time.Now()}
		}
		c.mu.Unlock()
		return next(ctx, ev)
	}
}

// first returns the first attempt of each row.
func (c *consumers) first() map[int64]handling {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.handled)
}

// join waits until all groups read but the one whose topic is made later: what
// is written before that waits for them, not for the relay.
func (c *consumers) join(ctx context.Context) error {
	return until(ctx, "the consumers to join their groups", func() (bool, error) {
		for _, member := range c.groups {
			if h := member.Health(); !h.Joined && len(h.TopicsMissing) == 0 {
				return false, nil
			}
		}
		return true, nil
	})
}

// run consumes until ctx ends.
func (c *consumers) run(ctx context.Context) error {
	g, running := errgroup.WithContext(ctx)
	for name, member := range c.groups {
		g.Go(func() error {
			if err := member.Run(running); err != nil {
				return fmt.Errorf("group %s: %w", name, err)
			}
			return nil
		})
	}
	return g.Wait()
}
