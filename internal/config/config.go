package config

import (
	"time"
)

// Config is a complete, validated configuration. It is cut up where the parts
// are built; no part receives the whole.
type Config struct {
	// Pipeline names this line on metrics and in answers; slot.name if not set.
	Pipeline string
	// Source is where events come from; always "wal" in this version.
	Source    string
	Postgres  Postgres
	Slot      Slot
	Outbox    Outbox
	Lease     Lease
	Kafka     Kafka
	Record    Record
	Failure   Failure
	Retry     Retry
	Reconcile Reconcile
	Writeback Writeback
	Limits    Limits
	Sampler   Sampler
	HTTP      HTTP
	Log       Log
	Shutdown  Shutdown
}

// Postgres says how to reach the database.
type Postgres struct {
	// DSN is a URL or a keyword/value string.
	DSN Secret
	// Password, when set, replaces the one of DSN.
	Password Secret
	// ReplicationDSN reaches the same database for the replication stream;
	// DSN if not set.
	ReplicationDSN      Secret
	ReplicationPassword Secret
	// ApplicationName is sent to the server as <name>/<slot>.
	ApplicationName  string
	ConnectTimeout   time.Duration
	StatementTimeout time.Duration
	MaxConns         int
}

// Slot is the replication slot that this process reads.
type Slot struct {
	Name        string
	Publication string
	// Create lets the relay create a slot that is missing.
	Create bool
	// RecreateIfLost lets the relay drop a slot that is lost and create it anew.
	RecreateIfLost bool
	// Failover creates a slot that is copied to standbys (PostgreSQL 17+).
	Failover bool
	// ProbeInterval is the time between two probe messages.
	ProbeInterval time.Duration
	// ConfirmInterval is the longest time between two status messages.
	ConfirmInterval time.Duration
}

// Outbox is the table.
type Outbox struct {
	Table Table
	// Columns maps columns that applications write to those of an existing
	// table. The others, which the relay writes, have the outbox's names.
	Columns map[string]string
	// Tombstones publishes NULL payloads instead of failing them.
	Tombstones bool
}

// Lease holds the times of leadership.
type Lease struct {
	TTL           time.Duration
	RenewInterval time.Duration
	PublishWithin time.Duration
	TakeoverAfter time.Duration
}

// Kafka says how to reach the brokers and how much to send at once.
type Kafka struct {
	Brokers  []string
	ClientID string
	// Identity is "fenced", "idempotent" or "none".
	Identity string
	// TransactionalID is of identity fenced; empty: made of system, database and slot.
	TransactionalID string
	TLS             TLS
	SASL            SASL
	// Compression is "none", "gzip", "snappy", "lz4" or "zstd".
	Compression       string
	Linger            time.Duration
	BatchBytes        Size // encoded
	BatchRecords      int
	MaxRequests       int
	RequestTimeout    time.Duration
	DialTimeout       time.Duration
	IdleTimeout       time.Duration
	MetadataTTL       time.Duration
	UnknownTopicGrace time.Duration
	// PartitionGrace is how long one partition may be silent while others make
	// progress before its events are held on their rows.
	PartitionGrace time.Duration
}

// TLS is the encryption of the connections to Kafka. Files are PEM.
type TLS struct {
	Enabled            bool
	CAFile             string
	CertFile           string
	KeyFile            string
	ServerName         string
	InsecureSkipVerify bool
}

// SASL is the login at Kafka.
type SASL struct {
	// Mechanism is "none", "plain", "scram-sha-256" or "scram-sha-512".
	Mechanism string
	Username  string
	Password  Secret
}

// Record says what a row looks like in Kafka.
type Record struct {
	// Topic is a template with {aggregate_type}, {event_type} and {schema}.
	Topic string
	// TopicAllow are globs, as of path.Match; a row's own topic must match one.
	TopicAllow []string
	// KeyEncoding is "raw" or "json_string".
	KeyEncoding string
	// Partitioner is "murmur2", "crc32" or "fnv1a".
	Partitioner string
	// Headers is "cloudevents", "debezium" or "plain".
	Headers string
	// Source is ce_source.
	Source string
	// Timestamp is "send" or "event".
	Timestamp       string
	EventTypeHeader string
	TraceExtension  bool
}

// Failure says what a failed event means for later ones of its aggregate.
type Failure struct {
	// OnFailure is "block": they wait for it, or "continue": they pass it.
	OnFailure string
	// ByType is the same for single aggregate types.
	ByType map[string]string
}

// Retry says how often and when a failed event is tried again.
type Retry struct {
	RetryPolicy // of aggregate types that ByType does not name
	ByType      map[string]RetryOverride
	// Tick is the time between two looks for due rows, Batch how many of them
	// are requeued at a time.
	Tick  time.Duration
	Batch int
	// Patience is how long a requeue is waited for before it is repeated.
	Patience time.Duration
	// BrokerBackoff is between attempts on brokers, which have no limit.
	BrokerBackoff Backoff
}

// RetryPolicy is the schedule and the budget of a failed event.
type RetryPolicy struct {
	Base             time.Duration
	Jitter           float64 // a fraction, 0 to 0.5
	MaxAttempts      int     // class record
	TopicMaxAttempts int     // class topic; 0 = without limit
}

// Reconcile is the search for rows that the slot never showed, and for those of
// claims that no consumer will end.
type Reconcile struct {
	Interval   time.Duration
	Page       int           // rows
	SweepAfter time.Duration // since the claim's lease was over
}

// Backoff bounds the wait between attempts that consume none.
type Backoff struct {
	Min time.Duration
	Max time.Duration
}

// Writeback is the batching of status updates.
type Writeback struct {
	Batch    int
	Interval time.Duration
}

// Limits bounds what is in memory between the slot and SENT.
type Limits struct {
	InflightEvents int
	InflightBytes  Size
}

// Sampler looks at the slot and the table at intervals.
type Sampler struct {
	Interval time.Duration
	Timeout  time.Duration // of one look
	MaxRows  int           // that one statement walks over
}

// HTTP is the listener for metrics, health and status.
type HTTP struct {
	Listen string
	// StallAfter is how long there may be no progress before the relay is not
	// ready.
	StallAfter time.Duration
}

// Log is the process's own log.
type Log struct {
	// Level is "debug", "info", "warn" or "error".
	Level string
	// Format is "text" or "json".
	Format string
}

// Shutdown is the ordered stop.
type Shutdown struct {
	DrainTimeout time.Duration
}

// Table is a qualified table name, unquoted.
type Table struct {
	Schema string
	Name   string
}

// String returns the name as it is configured: schema.name.
func (t Table) String() string { return t.Schema + "." + t.Name }

// Size is a number of bytes.
type Size int64
