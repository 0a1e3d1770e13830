package consumer

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go/sasl"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
)

// Config is what every consumer needs.
type Config struct {
	// Brokers are host:port of some of the cluster's brokers.
	Brokers []string
	// Group is the consumer group. Offsets and, of shared status, the right to
	// drive the rows are its.
	Group string
	// Topics are all read by every member; each must exist.
	Topics []string
	// DB is the database of the outbox; with [Receipts] it is the consumer's own,
	// which [ReceiptDB] names as well. The kit opens connections of its own with the pool's
	// settings, so that neither waits for the other.
	DB *pgxpool.Pool
}

func (c Config) validate() error {
	switch {
	case len(c.Brokers) == 0:
		return errors.New("no brokers: name at least one as host:port")
	case c.Group == "":
		return errors.New("no group: name the consumer group")
	case len(c.Topics) == 0:
		return errors.New("no topics: name at least one")
	case c.DB == nil:
		return errors.New("no database: give a pool")
	}
	return nil
}

// Option changes a default of [New] and [NewTx].
type Option func(*options)

// options are the settings of a Consumer, checked by validate.
type options struct {
	table, schema   string
	lease           time.Duration
	notSentWait     time.Duration
	retry           RetryPolicy
	maxAttempts     int
	abandonLimit    int
	handlerTimeout  time.Duration
	concurrency     int
	window          int
	claimBatch      int
	revokeGrace     time.Duration
	drain           time.Duration
	purpose         string
	receiptDB       *pgxpool.Pool
	horizon         time.Duration
	ambiguity       Policy
	keyTTL          time.Duration
	quarantineTopic string
	quarantineNames HeaderNames
	floodLimit      int
	floodWindow     time.Duration
	middleware      []Middleware
	filter          func([]Header) bool
	observer        Observer
	logger          *slog.Logger
	tls             *tls.Config
	sasl            sasl.Mechanism
	resumeAtStart   bool
	skipUndecodable bool
	// missingWait is how long a row may be invisible, as behind a synchronous
	// standby, until it is taken to be missing.
	missingWait time.Duration
	// statementWait bounds what is asked of the database at a time, which is
	// longer than it may wait for a lock: a connection may be dead without
	// anybody knowing.
	statementWait time.Duration
}

func defaults() options {
	return options{
		table: "outbox", schema: "public",
		lease: 30 * time.Second, notSentWait: 2 * time.Second,
		retry:        RetryPolicy{Base: time.Second, Max: time.Minute, Jitter: 0.2},
		abandonLimit: 5, concurrency: 1, window: 256, claimBatch: 100,
		revokeGrace: 3 * time.Second, drain: 20 * time.Second,
		ambiguity: Repeat, keyTTL: 24 * time.Hour,
		floodLimit: 20, floodWindow: time.Minute, missingWait: 30 * time.Second, statementWait: 15 * time.Second,
		observer: nobody{}, logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

// claimsAhead reports whether events are claimed before their handlers can start.
// Each claim of a process that dies leaves its event in doubt, also where no
// handler has had it, and with [Hold] all of these would wait for a person.
func (o *options) claimsAhead() bool { return o.ambiguity.kind != holdKind }

// Table names the outbox table, "public" and "outbox" by default. Receipts and
// quarantine are in the same schema of their database.
func Table(schema, table string) Option {
	return func(o *options) { o.schema, o.table = schema, table }
}

// Lease is how long a claim lasts without renewal, 30 s by default. It is
// renewed every third of it; after a crash the event is free when it is over.
// At least 3 s.
func Lease(d time.Duration) Option { return func(o *options) { o.lease = d } }

// NotSentWait is how long a record is taken to be merely early when its row is
// not SENT, 2 s by default. After that the partition shows
// [WaitingNotSent] and goes on waiting: the relay owes SENT.
func NotSentWait(d time.Duration) Option { return func(o *options) { o.notSentWait = d } }

// RetryPolicy is the delay after a failed attempt: Base, doubled with each,
// at most Max, more or less by the fraction Jitter.
type RetryPolicy struct {
	Base, Max time.Duration
	Jitter    float64
}

// RetryDelay sets the delays after failures, 1, 2, 4 .. 60 s with a jitter of
// 0.2 by default.
func RetryDelay(p RetryPolicy) Option { return func(o *options) { o.retry = p } }

// MaxAttempts makes an event FAILED when attempt n fails; 0, the default, is
// without limit, so that an outage parks nothing. Attempts that ended in a
// [Delay], were cut off by a stop or died with their process count, but only a
// failure makes the event FAILED.
func MaxAttempts(n int) Option { return func(o *options) { o.maxAttempts = n } }

// AbandonLimit is how many attempts an event has at most whose processes die: at
// the second death in a row or later, the attempt with this number makes it
// FAILED; 5 by default. A death counts for all events that were in work in the
// process, as nothing tells which of them has killed it.
func AbandonLimit(n int) Option { return func(o *options) { o.abandonLimit = n } }

// HandlerTimeout ends the context of a handler, and that of a [Query]; 0, the
// default, does not. If the handler then fails without saying why, its effect is in doubt, and the policy
// of [Ambiguity] decides.
func HandlerTimeout(d time.Duration) Option { return func(o *options) { o.handlerTimeout = d } }

// Concurrency is how many handlers run side by side for one partition, 1 by
// default: by offset. Above that, events of one key still run one after the
// other, and one that waits lets other keys go on until [Window] is full.
func Concurrency(n int) Option { return func(o *options) { o.concurrency = n } }

// Window is how many records of a partition are looked at together, and how far
// one that waits can be overtaken; 256 by default, and 16 MiB. What was read
// ahead comes on top: twice 4 MiB, or a batch of the log that is larger.
func Window(n int) Option { return func(o *options) { o.window = n } }

// ClaimBatch is how many events one statement claims at most, 100 by default.
func ClaimBatch(n int) Option { return func(o *options) { o.claimBatch = n } }

// RevokeGrace is how long running handlers may hold up a rebalance, 3 s by
// default, 8 s at most. Those that take longer run on under their claim.
func RevokeGrace(d time.Duration) Option { return func(o *options) { o.revokeGrace = d } }

// Drain is how long a stop waits for running handlers, 20 s by default.
func Drain(d time.Duration) Option { return func(o *options) { o.drain = d } }

// Receipts keeps the memory of events in outbox_receipt under this purpose,
// 1 to 64 of a-z, 0-9, dot, underscore and hyphen, instead of the outbox row.
// [Horizon] is then required.
func Receipts(purpose string) Option { return func(o *options) { o.purpose = purpose } }

// ReceiptDB is where receipts and the quarantine are, Config.DB by default. With
// it Config.DB is not used, and may be nil.
func ReceiptDB(pool *pgxpool.Pool) Option { return func(o *options) { o.receiptDB = pool } }

// Horizon is the age above which a record is quarantined as BEYOND_HORIZON: its
// receipt may have been purged, and it would look new. Keep receipts longer, by
// more than the clocks of consumer, producer and database differ.
func Horizon(d time.Duration) Option { return func(o *options) { o.horizon = d } }

// KeyTTL is how long the receiver of an effect remembers its idempotency key,
// 24 h by default, from when the event was SENT (again) or its receipt made.
// After that [Repeat] is [Hold].
func KeyTTL(d time.Duration) Option { return func(o *options) { o.keyTTL = d } }

// Ambiguity decides what is done about an event whose earlier attempt may have
// had its effect; [Repeat] by default.
func Ambiguity(p Policy) Option { return func(o *options) { o.ambiguity = p } }

// Quarantine also sends a copy of each quarantined record to a topic, after its
// row is written. The row is what counts.
func Quarantine(topic string) Option { return func(o *options) { o.quarantineTopic = topic } }

// QuarantineHeaders adds headers to the copies, under the names of others, for
// tools that know these.
func QuarantineHeaders(names HeaderNames) Option {
	return func(o *options) { o.quarantineNames = names }
}

// HeaderNames are the names of headers by which tools tell where a copy of a
// record came from and why. Stack traces are never among them, and what is the
// class of an exception elsewhere is our code.
type HeaderNames uint8

// Names for [QuarantineHeaders]. The cdcr-* ones are always there.
const (
	SpringNames  = HeaderNames(group.Spring)  // kafka_dlt-*, numbers in big-endian bytes, as Spring for Apache Kafka
	ConnectNames = HeaderNames(group.Connect) // __connect.errors.*, numbers as text, as Kafka Connect
)

// QuarantineLimit blocks a partition that would quarantine more than n records
// within d, 20 in a minute by default: then it is not the records that are
// wrong.
func QuarantineLimit(n int, d time.Duration) Option {
	return func(o *options) { o.floodLimit, o.floodWindow = n, d }
}

// Use adds middleware; the first is the outermost. With [NewTx] it is put around
// the handler anew for each attempt: keep what it counts outside.
func Use(m ...Middleware) Option {
	return func(o *options) { o.middleware = append(o.middleware, m...) }
}

// Filter leaves out records by their headers, before any claim: f says which to
// handle. With receipts only; those left out leave none.
func Filter(f func([]Header) bool) Option { return func(o *options) { o.filter = f } }

// Metrics tells o what happens.
func Metrics(ob Observer) Option { return func(o *options) { o.observer = ob } }

// Logger is where state changes, failures and their reasons go; by default
// nowhere. No payload, key or header value is logged.
func Logger(l *slog.Logger) Option { return func(o *options) { o.logger = l } }

// TLS encrypts the connections to the brokers.
func TLS(c *tls.Config) Option { return func(o *options) { o.tls = c } }

// SASL logs in to the brokers.
func SASL(m sasl.Mechanism) Option { return func(o *options) { o.sasl = m } }

// ResumeAtStart reads on from the start of the log where the committed offset
// is no longer in it ([BlockedOffsetLost], [BlockedOffsetAhead]).
func ResumeAtStart() Option { return func(o *options) { o.resumeAtStart = true } }

// SkipUndecodable quarantines the range of a batch that cannot be read and goes
// on after it ([BlockedUndecodable]).
func SkipUndecodable() Option { return func(o *options) { o.skipUndecodable = true } }

var (
	purposeName = regexp.MustCompile(`^[a-z0-9._-]{1,64}$`)
	errPurpose  = errors.New("a purpose is 1 to 64 of a-z, 0-9, dot, underscore and hyphen")
)

// minLease leaves a handler a second besides the two that its context ends
// early.
const minLease = 3 * time.Second

// maxGrace is below the 10 s after which a group takes a silent member for dead.
const maxGrace = 8 * time.Second

func (o *options) validate() error {
	if slices.ContainsFunc(o.middleware, func(m Middleware) bool { return m == nil }) {
		return errors.New("option Use: a middleware is nil")
	}
	for name, n := range map[string]int{
		"AbandonLimit": o.abandonLimit, "Concurrency": o.concurrency, "Window": o.window, "ClaimBatch": o.claimBatch,
		"QuarantineLimit": o.floodLimit,
	} {
		if n < 1 {
			return fmt.Errorf("option %s: %d is less than 1", name, n)
		}
	}
	switch {
	case o.quarantineNames != 0 && o.quarantineTopic == "":
		return errors.New("option QuarantineHeaders: with Quarantine only, as it is about the copies")
	case o.quarantineNames > ConnectNames:
		return errors.New("option QuarantineHeaders: want SpringNames or ConnectNames")
	case o.floodWindow <= 0:
		return errors.New("option QuarantineLimit: want a time above 0")
	case o.revokeGrace > maxGrace:
		return fmt.Errorf("option RevokeGrace: %v is more than %v, and the group would take this member for dead", o.revokeGrace, maxGrace)
	case o.handlerTimeout < 0 || o.revokeGrace < 0 || o.drain < 0:
		return errors.New("options HandlerTimeout, RevokeGrace and Drain: want 0 or more")
	case o.receiptDB != nil && o.purpose == "":
		return errors.New("option ReceiptDB: with Receipts only")
	case o.lease < minLease:
		return fmt.Errorf("option Lease: %v is less than %v", o.lease, minLease)
	case o.retry.Base <= 0 || o.retry.Max < o.retry.Base || o.retry.Jitter < 0 || o.retry.Jitter > 0.5:
		return errors.New("option RetryDelay: want 0 < Base <= Max and a Jitter of 0 to 0.5")
	case o.maxAttempts < 0:
		return errors.New("option MaxAttempts: want 0 for no limit, or more")
	case o.purpose == "" && o.filter != nil:
		return errors.New("option Filter: with Receipts only, as a row that is left out would stay SENT")
	case o.purpose != "" && !purposeName.MatchString(o.purpose):
		return fmt.Errorf("option Receipts: %w", errPurpose)
	case o.purpose != "" && o.horizon <= 0:
		return errors.New("option Horizon: required with Receipts: the age above which a record's receipt may be purged")
	case o.ambiguity.kind == queryKind && o.ambiguity.ask == nil:
		return errors.New("option Ambiguity: a Query needs a function that asks")
	case o.observer == nil || o.logger == nil:
		return errors.New("options Metrics and Logger: nil is neither; leave the option out")
	}
	return nil
}
