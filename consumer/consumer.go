package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/consumer/tables"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Consumer is a member of a consumer group. Make one with [New] or [NewTx] and
// call Run once.
type Consumer struct {
	cfg     Config
	opt     options
	log     *slog.Logger
	handler Handler   // with the middleware around it
	inTx    TxHandler // of NewTx

	owner      string // in claims
	engine     engine
	memory     memory
	renewer    renewer
	quarantine quarantine
	copier     *group.Copier
	reader     source
	tenures    *tenures
	misses     misses
	troubles   troubles

	// working ends after everything else: statements and reads run under it.
	// handling, under which handlers run, ends when a stop has drained.
	working, handling context.Context
	lines             sync.WaitGroup // those of earlier generations too

	mu      sync.Mutex
	current []*partition
	joined  bool
	since   time.Time
	absent  []string // topics
}

// New returns a consumer whose handler runs under a claim: of the outbox row,
// or, with [Receipts], of a receipt. It connects to nothing.
func New(cfg Config, h Handler, opts ...Option) (*Consumer, error) {
	if h == nil {
		return nil, errors.New("making a consumer: no handler")
	}
	c, err := build(cfg, opts)
	if err != nil {
		return nil, err
	}
	c.handler = c.wrap(h)
	return c, nil
}

// NewTx returns a consumer whose handler works in the transaction of its
// receipt, in [ReceiptDB] or Config.DB. [Receipts] is required. The middleware
// runs inside the transaction. It connects to nothing.
//
// Each handler that runs has a connection of the pool, so that this must have as
// many as [Concurrency] times the partitions of a member. A handler that takes
// another one from it may wait for ever for those that do the same.
//
// If a connection dies without a word, its transaction holds the receipt until
// the server notices, by default after two hours: set tcp_keepalives_idle or
// idle_in_transaction_session_timeout for the pool's sessions.
func NewTx(cfg Config, h TxHandler, opts ...Option) (*Consumer, error) {
	if h == nil {
		return nil, errors.New("making a consumer: no handler")
	}
	c, err := build(cfg, opts)
	if err != nil {
		return nil, err
	}
	if c.opt.purpose == "" {
		return nil, errors.New("making a consumer: option Receipts: a handler with a transaction needs a purpose for its receipts")
	}
	c.inTx = h
	return c, nil
}

func build(cfg Config, opts []Option) (*Consumer, error) {
	c := &Consumer{cfg: cfg, opt: defaults()}
	for _, o := range opts {
		if o == nil {
			return nil, errors.New("making a consumer: an option is nil")
		}
		o(&c.opt)
	}
	if c.opt.receiptDB != nil {
		c.cfg.DB = c.opt.receiptDB
	}
	if slices.Contains(cfg.Topics, c.opt.quarantineTopic) {
		return nil, errors.New("making a consumer: option Quarantine: the group reads this topic, and would quarantine each copy again")
	}
	if err := errors.Join(c.cfg.validate(), c.opt.validate()); err != nil {
		return nil, fmt.Errorf("making a consumer: %w", err)
	}
	c.log = c.opt.logger.With("group", cfg.Group)
	if _, err := group.NewMember(c.groupConfig()); err != nil { // what it checks is not known here
		return nil, fmt.Errorf("making a consumer: %w", err)
	}
	c.tenures = newTenures(c.opt.lease)
	return c, nil
}

// wrap puts the middleware around a handler.
func (c *Consumer) wrap(h Handler) Handler {
	for _, m := range slices.Backward(c.opt.middleware) {
		h = m(h)
	}
	return h
}

// Run consumes until ctx ends, then drains and returns nil: nothing new starts,
// running handlers get [Drain], what they did is recorded and the offsets are
// committed while this is still a member of the group. Trouble with PostgreSQL
// or Kafka is waited for, however long; an error says that the consumer cannot
// work at all, as its settings are wrong.
func (c *Consumer) Run(ctx context.Context) error {
	opened, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	closeAll, err := c.open(opened)
	if err != nil {
		return err
	}
	defer closeAll()
	member, err := group.NewMember(c.groupConfig())
	if err == nil {
		err = c.consume(ctx, func(work work) error {
			return member.Run(ctx, func(revoked context.Context, g *group.Generation) error {
				work(revoked, g.Assignments, g)
				return nil
			})
		})
	}
	if err != nil {
		return fmt.Errorf("running the consumer: %w", err)
	}
	return nil
}

// consume works as a member of the group until ctx ends, and returns once
// everything is drained. belong is a member until then, and calls work once in
// each generation; its error means that it cannot be one.
func (c *Consumer) consume(ctx context.Context, belong func(work) error) error {
	working, stopWorking := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWorking()
	handling, stopHandling := context.WithCancelCause(working)
	defer stopHandling(errStopping)
	c.working, c.handling = working, handling
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(c.opt.drain, func() { stopHandling(errStopping) })
	})()
	var renewing sync.WaitGroup
	renewing.Go(func() { c.renew(working) })
	asking, stopAsking := context.WithCancel(ctx)
	defer stopAsking()
	c.lines.Go(func() { c.retryAsked(asking) })
	c.membership(nil, false, true)
	err := belong(func(revoked context.Context, assigned []group.Assignment, offsets offsets) {
		c.generation(ctx, revoked, assigned, offsets)
	})
	stopAsking()
	c.membership(nil, false, false)
	c.topicsMissing(nil)
	if ctx.Err() == nil {
		stopHandling(errStopping) // the member has failed: there is no drain
	}
	c.awaitLines()
	stopWorking()
	renewing.Wait()
	return err
}

func (c *Consumer) groupConfig() group.Config {
	return group.Config{
		Brokers: c.cfg.Brokers, Group: c.cfg.Group, Topics: c.cfg.Topics, TLS: c.opt.tls, SASL: c.opt.sasl,
		Logger: c.opt.logger, TopicsMissing: c.topicsMissing,
	}
}

// open makes the connections of the kit's own.
func (c *Consumer) open(ctx context.Context) (func(), error) {
	pool := c.cfg.DB
	own, err := pgxpool.NewWithConfig(ctx, store.PoolConfig(pool.Config()))
	if err != nil {
		return nil, fmt.Errorf("running the consumer: %w", err)
	}
	c.owner = c.newOwner()
	// Renewals have a connection of their own: they must not queue behind
	// statements that wait.
	forRenewals, err := pgxpool.NewWithConfig(ctx, store.RenewalConfig(pool.Config(), c.renewEvery()))
	if err != nil {
		own.Close()
		return nil, fmt.Errorf("running the consumer: %w", err)
	}
	c.quarantine = store.NewQuarantine(own, c.qualified(tables.Quarantine), c.name())
	if c.opt.purpose == "" {
		rows := store.NewRows(own, c.qualified(c.opt.table), c.owner, c.opt.lease, c.opt.abandonLimit)
		c.memory, c.renewer = rows, rows.On(forRenewals)
	} else {
		receipts := store.NewReceipts(own, c.qualified(tables.Receipt), c.opt.purpose, c.owner, c.opt.lease, c.opt.abandonLimit)
		c.memory, c.renewer = receipts, receipts.On(forRenewals)
		if c.inTx != nil {
			c.engine = transacting{c, receipts, pool, c.inTx}
		}
	}
	if c.engine == nil {
		c.engine = claiming{c}
	}
	closePools := func() {
		forRenewals.Close()
		own.Close()
	}
	closeKafka, err := c.openKafka()
	if err != nil {
		closePools()
		return nil, fmt.Errorf("running the consumer: %w", err)
	}
	return func() {
		closeKafka()
		closePools()
	}, nil
}

func (c *Consumer) openKafka() (closeAll func(), err error) {
	reader, err := group.NewReader(c.groupConfig())
	if err != nil {
		return nil, err
	}
	c.reader = reader
	if c.opt.quarantineTopic == "" {
		return reader.Close, nil
	}
	if c.copier, err = group.NewCopier(c.groupConfig(), c.opt.quarantineTopic); err != nil {
		reader.Close()
		return nil, err
	}
	return func() {
		reader.Close()
		c.copier.Close()
	}, nil
}

func (c *Consumer) qualified(table string) string {
	return pgx.Identifier{c.opt.schema, table}.Sanitize()
}

// name is whose quarantine rows are: two purposes of a group may differ.
func (c *Consumer) name() string {
	if c.opt.purpose == "" {
		return c.cfg.Group
	}
	return c.cfg.Group + "/" + c.opt.purpose
}

// newOwner names this process in claims.
func (c *Consumer) newOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%s/%d/%s", c.cfg.Group, host, os.Getpid(), outbox.NewID().String()[24:])
}

// awaitLines waits for what still runs, of earlier generations too, until the
// drain is over, and then a moment for handlers whose context that has ended.
func (c *Consumer) awaitLines() {
	gone := make(chan struct{})
	go func() {
		c.lines.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return
	case <-c.handling.Done():
	}
	select {
	case <-gone:
	case <-time.After(c.opt.revokeGrace):
		c.log.Warn("handlers do not return although their context has ended; their claims end with their leases")
	}
}

// Health tells where this member stands. It may be called at any time.
func (c *Consumer) Health() Health {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := Health{Joined: c.joined, Since: c.since, TopicsMissing: slices.Clone(c.absent)}
	for _, p := range c.current {
		h.Partitions = append(h.Partitions, p.status.read())
	}
	return h
}

// membership tells whether this is a member of the group: without, all topics
// count as paused.
func (c *Consumer) membership(lines []*partition, joined, paused bool) {
	c.mu.Lock()
	c.current, c.joined, c.since = lines, joined, time.Now()
	c.mu.Unlock()
	for _, topic := range c.cfg.Topics {
		c.opt.observer.Paused(topic, allPartitions, WaitingKafka, paused)
	}
}

// topicsMissing is told by the member of the group.
func (c *Consumer) topicsMissing(names []string) {
	c.mu.Lock()
	before := c.absent
	c.absent = slices.Clone(names)
	c.mu.Unlock()
	for _, name := range before {
		if !slices.Contains(names, name) {
			c.opt.observer.Paused(name, allPartitions, BlockedTopicMissing, false)
		}
	}
	for _, name := range names {
		if !slices.Contains(before, name) {
			c.opt.observer.Paused(name, allPartitions, BlockedTopicMissing, true)
		}
	}
}

// allPartitions stands for those of a topic that does not exist, or that a
// member has not been given yet.
const allPartitions = -1

// item makes an item of a record.
func (c *Consumer) item(rec group.Record) *item {
	it := &item{rec: rec, phase: fresh}
	it.ev, it.bad = decode(rec)
	it.lane = lane(rec, it.ev)
	if it.bad == nil && c.opt.filter != nil && !c.wanted(it) {
		it.lend(done)
		return it
	}
	if it.bad == nil {
		it.bad = beyond(it.ev, c.opt.horizon, time.Now())
	}
	if it.bad != nil {
		it.lend(unusable)
	}
	return it
}

// wanted asks the application's filter. What it panics on is for a person.
func (c *Consumer) wanted(it *item) bool {
	var err error
	wanted := func() bool {
		defer c.caught(it.ev, &err)
		return c.opt.filter(it.ev.Headers)
	}()
	if err != nil {
		it.bad = &defect{store.ReasonBadHeaders, "the consumer's filter panicked on the record's headers"}
		return true
	}
	return wanted
}

// troubles says once in a while that the database does not do what it should, of
// each thing that is wrong, so that one hides no other.
type troubles struct {
	mu   sync.Mutex
	told map[string]time.Time // when, by what the database says; "" if it says nothing
}

const (
	troublePause = 10 * time.Second
	maxTroubles  = 16 // of different ones, in that time
)

func (c *Consumer) trouble(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	var (
		answer *pgconn.PgError
		says   string
	)
	if errors.As(err, &answer) {
		says = answer.Message
	}
	c.troubles.mu.Lock()
	defer c.troubles.mu.Unlock()
	told := c.troubles.told
	maps.DeleteFunc(told, func(_ string, last time.Time) bool { return time.Since(last) > troublePause })
	if _, lately := told[says]; lately || len(told) >= maxTroubles {
		return
	}
	if told == nil {
		told = map[string]time.Time{}
		c.troubles.told = told
	}
	told[says] = time.Now()
	c.log.Warn("the database does not answer as it should; what it owes is waited for", "err", err)
}
