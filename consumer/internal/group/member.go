package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/cdc-relay/cdc-relay/internal/kafkaconn"
)

// Member is this process's membership of the group. Its Run is called once.
type Member struct {
	cfg   Config
	link  *link            // for looking at topics, and for leaving where the library does not
	conns *kafkaconn.Conns // the library's to the coordinator
	log   *slog.Logger
	// look returns which partitions there are: ask, except in tests.
	look func(ctx context.Context) (partitions, error)

	// id is the one that the broker gave this member, empty if there is none.
	id string
	// joining says that the library is to bring the next generation, and may
	// wait for it.
	joining bool
	// state is the last that was logged, to log changes only.
	state string
	// missing are the topics last reported as such.
	missing []string
	// known is what was last seen before the group's assignment was made: the
	// assignment has that, or more.
	known partitions
}

// NewMember checks cfg. It opens no connection.
func NewMember(cfg Config) (*Member, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configuring the consumer group: %w", err)
	}
	cfg.setDefaults()
	m := &Member{
		cfg:   cfg,
		link:  newLink(cfg, cfg.Topics, cfg.timing.watch),
		conns: newConns(),
		log:   cfg.Logger.With("group", cfg.Group),
	}
	m.look = m.ask
	return m, nil
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
	defer m.link.Close()
	if !m.awaitTopics(ctx) {
		return nil
	}
	cg, err := kafka.NewConsumerGroup(m.groupConfig())
	if err != nil {
		return fmt.Errorf("configuring the consumer group: %w", err)
	}
	defer m.leave(cg)
	for {
		kgen, err := m.next(ctx, cg)
		if err != nil {
			return nil
		}
		if err := m.generation(ctx, kgen, work); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// next waits for the next generation; the error is that of ctx.
func (m *Member) next(ctx context.Context, cg *kafka.ConsumerGroup) (*kafka.Generation, error) {
	forgotten := false
	for {
		kgen, err := m.nextWithin(ctx, cg, forgotten)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil:
			m.id, m.joining = kgen.MemberID, false
			return kgen, nil
		case errors.Is(err, kafka.RebalanceInProgress): // the usual course
		case err == context.DeadlineExceeded: // of nextWithin; that of a connection comes wrapped
			forgotten = m.removeFromGroup(ctx) != nil
		default:
			m.trouble("joining the group", err)
			forgotten = m.id != ""
		}
	}
}

// nextWithin waits for the next generation. After an error the library has
// forgotten which member it was and joins as a new one, while the group waits
// for the old one, up to the session timeout. Therefore, if so, the waiting ends
// now and then, for the old one to be taken out of the group.
func (m *Member) nextWithin(ctx context.Context, cg *kafka.ConsumerGroup, forgotten bool) (*kafka.Generation, error) {
	if forgotten {
		short, cancel := context.WithTimeout(ctx, m.cfg.timing.backoff)
		defer cancel()
		ctx = short
	}
	return cg.Next(ctx)
}

// removeFromGroup takes this member out of the group by its id.
func (m *Member) removeFromGroup(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.timing.request)
	defer cancel()
	res, err := m.link.LeaveGroup(ctx, &kafka.LeaveGroupRequest{
		GroupID: m.cfg.Group,
		Members: []kafka.LeaveGroupRequestMember{{ID: m.id}},
	})
	if err == nil {
		err = res.Error
	}
	if err == nil || errors.Is(err, kafka.UnknownMemberId) {
		m.id = ""
		return nil
	}
	return err
}

func (m *Member) groupConfig() kafka.ConsumerGroupConfig {
	t := m.cfg.timing
	return kafka.ConsumerGroupConfig{
		ID:      m.cfg.Group,
		Brokers: m.cfg.Brokers,
		Topics:  m.cfg.Topics,
		Dialer: &kafka.Dialer{
			ClientID:      m.cfg.ClientID,
			DialFunc:      m.conns.Dial,
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
	m.joining = workCtx.Err() != nil
	if stopWatching(); err == nil && ctx.Err() == nil {
		select {
		case rejoin <- struct{}{}:
		default: // the watch asked for it
		}
	}
	return err
}

// leave leaves the group and waits until that is done.
//
// The library leaves by itself, except while it waits to join, for as long as
// the slowest other member takes to let go of its partitions. Then, or if the
// coordinator does not answer, its connections are closed, and this member is
// taken out by its id. One that has none yet can only be waited for: once joined
// and gone, it would hold partitions up to the session timeout.
func (m *Member) leave(cg *kafka.ConsumerGroup) {
	if m.joining && m.id != "" {
		m.conns.Close()
	}
	patience := time.AfterFunc(m.cfg.timing.leave, m.conns.Close)
	_ = cg.Close() // always nil
	patience.Stop()
	var err error
	if m.conns.Closed() {
		err = kafkaconn.ErrClosed
		if m.id != "" {
			err = m.removeFromGroup(context.Background())
		}
	}
	m.conns.Close()
	if err != nil {
		m.enter("left", slog.LevelWarn, "could not tell the group that this member is gone: it will notice after the session timeout", "err", err)
		return
	}
	m.enter("left", slog.LevelInfo, "left the group")
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
