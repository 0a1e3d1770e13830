package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/segmentio/kafka-go"
)

// Member is this process's membership of the group. Its Run is called once.
type Member struct {
	cfg  Config
	link *link
	log  *slog.Logger

	// state is the last that was logged, to log changes only.
	state string
	// missing are the topics last reported as such.
	missing []string
	// known are the topics as the group's assignment knows them at the least.
	known partitions
}

// NewMember checks cfg. It opens no connection.
func NewMember(cfg Config) (*Member, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configuring the consumer group: %w", err)
	}
	cfg.timing.setDefaults()
	return &Member{
		cfg:  cfg,
		link: newLink(cfg, cfg.Topics, cfg.timing.watch),
		log:  cfg.Logger.With("group", cfg.Group),
	}, nil
}

// Work is what is done in a generation. Its ctx ends, with cause [ErrRevoked],
// when the generation has ended; it then has to return soon, as the group waits
// for it, and the broker evicts the member after the session timeout. Committing
// is possible until it returns.
//
// A stop is no end of the generation: Work watches the context given to
// [Member.Run] itself, finishes what it has begun while heartbeats go on, and
// returns.
//
// If it returns before either, the member joins again; an error ends Run.
type Work func(ctx context.Context, g *Generation) error

// Run is a member of the group until ctx ends, and calls work once in each
// generation, one at a time. When ctx has ended and work has returned, it leaves
// the group, waits until that is done, and returns nil.
//
// Whatever goes wrong with the brokers is tried again without end. An error is
// work's own, or says that the configuration cannot work. A panic in work goes
// up through Run, after the member has left.
func (m *Member) Run(ctx context.Context, work Work) error {
	defer m.link.close()
	if !m.awaitTopics(ctx) {
		return nil
	}
	cg, err := kafka.NewConsumerGroup(m.groupConfig())
	if err != nil {
		return fmt.Errorf("configuring the consumer group: %w", err)
	}
	defer m.leave(cg)
	for joined := false; ; joined = true {
		kgen, err := m.next(ctx, cg)
		if err != nil {
			if joined {
				// A pending request to join would hold up leaving. The broker
				// knows this member, so that it can leave from there.
				m.link.conns.cut()
			}
			return nil
		}
		if err := m.generation(ctx, kgen, work); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// next waits for the next generation; the error is that of ctx.
func (m *Member) next(ctx context.Context, cg *kafka.ConsumerGroup) (*kafka.Generation, error) {
	for {
		kgen, err := cg.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil:
			return kgen, nil
		case !errors.Is(err, kafka.RebalanceInProgress): // that is the usual course
			m.trouble("joining the group", err)
		}
	}
}

func (m *Member) groupConfig() kafka.ConsumerGroupConfig {
	t := m.cfg.timing
	return kafka.ConsumerGroupConfig{
		ID:      m.cfg.Group,
		Brokers: m.cfg.Brokers,
		Topics:  m.cfg.Topics,
		Dialer: &kafka.Dialer{
			ClientID:      m.cfg.ClientID,
			DialFunc:      m.link.conns.dial,
			Timeout:       loginTimeout,
			TLS:           m.cfg.TLS,
			SASLMechanism: m.cfg.SASL,
		},
		HeartbeatInterval: t.heartbeat,
		SessionTimeout:    t.session,
		RebalanceTimeout:  t.rebalance,
		JoinGroupBackoff:  t.backoff,
		Timeout:           t.request,
		// Only ever the start of the log: the end would lose what came before
		// the first commit. Changes of partitions are watched for here, as the
		// library makes a new generation after the other while a topic is away.
		StartOffset: kafka.FirstOffset,
	}
}

// generation runs work in a generation, in this goroutine. The library ends a
// generation when a function given to its Start returns, and joins at once:
// the one function therefore returns only after work has, and not by itself,
// so that a stop can first tell the library to leave instead.
func (m *Member) generation(ctx context.Context, kgen *kafka.Generation, work Work) error {
	g := newGeneration(kgen)
	m.enter(fmt.Sprintf("generation %d", g.ID), slog.LevelInfo, "joined the group", "generation", g.ID, "partitions", len(g.Assignments))

	workCtx, revoke := context.WithCancelCause(context.WithoutCancel(ctx))
	defer revoke(ErrRevoked)
	returned := make(chan struct{})
	defer close(returned)
	rejoin := make(chan struct{}, 1)
	kgen.Start(func(over context.Context) {
		select {
		case <-over.Done():
		case <-rejoin:
		}
		revoke(ErrRevoked)
		<-returned
	})
	defer g.over.Store(true)

	stopWatching := m.watch(ctx, workCtx, func() { rejoin <- struct{}{} })
	defer stopWatching()
	err := work(workCtx, g)
	if stopWatching(); err == nil && ctx.Err() == nil {
		select {
		case rejoin <- struct{}{}:
		default: // the watch asked for it
		}
	}
	return err
}

// leave leaves the group and waits until that is done. What hangs is cut off,
// first with leave to try again on new connections, then for good: the broker
// finds out by the missing heartbeats.
func (m *Member) leave(cg *kafka.ConsumerGroup) {
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = cg.Close() // always nil
	}()
	for _, giveUp := range []func(){m.link.conns.cut, m.link.conns.close} {
		patience := time.NewTimer(m.cfg.timing.leave)
		select {
		case <-left:
			patience.Stop()
			m.enter("left", slog.LevelInfo, "left the group")
			return
		case <-patience.C:
			giveUp()
		}
	}
	<-left
	m.enter("left", slog.LevelWarn, "could not tell the group that this member is gone: it will notice after the session timeout")
}

// enter logs a change of state, and nothing if it is none.
func (m *Member) enter(state string, level slog.Level, message string, attrs ...any) {
	if m.state == state {
		return
	}
	m.state = state
	m.log.Log(context.Background(), level, message, attrs...)
}

// trouble is a state for each kind of error.
func (m *Member) trouble(doing string, err error) {
	kind := "connection"
	var code kafka.Error
	if errors.As(err, &code) {
		kind = code.Title()
	}
	m.enter(doing+": "+kind, slog.LevelWarn, doing+" does not work; trying on", "err", err)
}
