package config

import (
	"time"
)

// key is one entry of the configuration.
type key struct {
	path string
	def  string // as written in the environment
	help string
	// required keys have no default that works. database tells that the
	// commands which only use the database need it too.
	required bool
	database bool
	// field returns a pointer to the value in c.
	field func(c *Config) any
	// check judges the parsed value.
	check func(c *Config) defect
}

// isSecret reports whether the key has a twin that names a file.
func (k *key) isSecret() bool {
	_, ok := k.field(new(Config)).(*Secret)
	return ok
}

func entry[T any](path, def, help string, field func(*Config) *T, checks ...func(T) defect) key {
	return key{
		path: path, def: def, help: help,
		field: func(c *Config) any { return field(c) },
		check: func(c *Config) defect {
			for _, check := range checks {
				if d := check(*field(c)); d != fine {
					return d
				}
			}
			return fine
		},
	}
}

func required(k key) key {
	k.required = true
	return k
}

func forDatabase(k key) key {
	k.database = true
	return k
}

// keys is every key of this version, in the order of the documentation.
var keys = concat(generalKeys, postgresKeys, slotKeys, outboxKeys, leaseKeys, kafkaKeys, recordKeys, failureKeys, processKeys)

func concat(groups ...[]key) []key {
	var all []key
	for _, g := range groups {
		all = append(all, g...)
	}
	return all
}

var generalKeys = []key{
	entry("pipeline", "", "name on metrics and answers, unique over the fleet; empty: slot.name",
		func(c *Config) *string { return &c.Pipeline }),
	entry("source", "wal", "where events come from: wal",
		func(c *Config) *string { return &c.Source }, sourceIsWAL),
}

var postgresKeys = []key{
	required(forDatabase(entry("postgres.dsn", "", "URL or keywords; PG* variables, service file and passfile apply",
		func(c *Config) *Secret { return &c.Postgres.DSN }))),
	entry("postgres.password", "", "overrides the DSN's",
		func(c *Config) *Secret { return &c.Postgres.Password }),
	entry("postgres.replication_dsn", "", "for the stream, same server and database; empty: postgres.dsn",
		func(c *Config) *Secret { return &c.Postgres.ReplicationDSN }),
	entry("postgres.replication_password", "", "overrides the replication DSN's",
		func(c *Config) *Secret { return &c.Postgres.ReplicationPassword }),
	entry("postgres.application_name", "cdc-relay", "sent as <name>/<slot>",
		func(c *Config) *string { return &c.Postgres.ApplicationName }, isName),
	entry("postgres.connect_timeout", "5s", "for one connection",
		func(c *Config) *time.Duration { return &c.Postgres.ConnectTimeout }, positive),
	entry("postgres.statement_timeout", "30s", "for one statement",
		func(c *Config) *time.Duration { return &c.Postgres.StatementTimeout }, positive),
	entry("postgres.max_conns", "6", "SQL connections, the replication connection aside",
		func(c *Config) *int { return &c.Postgres.MaxConns }, within(1, 1000)),
}

var slotKeys = []key{
	entry("slot.name", "cdc_relay", "the replication slot, [a-z0-9_]",
		func(c *Config) *string { return &c.Slot.Name }, isSlotName),
	entry("slot.publication", "cdc_relay", "the publication of the outbox table",
		func(c *Config) *string { return &c.Slot.Publication }, isName),
	entry("slot.create", "true", "create the slot when it is missing",
		func(c *Config) *bool { return &c.Slot.Create }),
	entry("slot.recreate_if_lost", "true", "drop a slot that is lost and create it anew; READY rows are then published from the table",
		func(c *Config) *bool { return &c.Slot.RecreateIfLost }),
	entry("slot.failover", "false", "create it as a failover slot (PostgreSQL 17 and later)",
		func(c *Config) *bool { return &c.Slot.Failover }),
	entry("slot.probe_interval", "30s", "time between two probe messages, whose way back shows that the slot delivers",
		func(c *Config) *time.Duration { return &c.Slot.ProbeInterval }, positive),
	entry("slot.confirm_interval", "1s", "longest time between two status messages; a tenth of wal_sender_timeout if that is less",
		func(c *Config) *time.Duration { return &c.Slot.ConfirmInterval }, positive),
}

var outboxKeys = []key{
	entry("outbox.table", "public.outbox", "schema.table",
		func(c *Config) *Table { return &c.Outbox.Table }),
	entry("outbox.columns", "", "column that applications write -> column of an existing table",
		func(c *Config) *map[string]string { return &c.Outbox.Columns }, areColumns),
	entry("outbox.tombstones", "false", "publish NULL payloads",
		func(c *Config) *bool { return &c.Outbox.Tombstones }),
}

var leaseKeys = []key{
	entry("lease.ttl", "10s", "a frozen leader loses the slot after this",
		func(c *Config) *time.Duration { return &c.Lease.TTL }, positive),
	entry("lease.renew_interval", "500ms", "time between two renewals",
		func(c *Config) *time.Duration { return &c.Lease.RenewInterval }, positive),
	entry("lease.publish_within", "1500ms", "nothing is published when the last renewal is older",
		func(c *Config) *time.Duration { return &c.Lease.PublishWithin }, positive),
	entry("lease.takeover_after", "3s", "a crashed leader loses the slot after this",
		func(c *Config) *time.Duration { return &c.Lease.TakeoverAfter }, positive),
}

var kafkaKeys = []key{
	required(entry("kafka.brokers", "", "host:port of some brokers",
		func(c *Config) *[]string { return &c.Kafka.Brokers }, areHostPorts)),
	entry("kafka.client_id", "cdc-relay", "name in broker logs and quotas",
		func(c *Config) *string { return &c.Kafka.ClientID }, isName),
	entry("kafka.identity", "idempotent", "fenced (a leader that lost the slot is refused), idempotent or none; steps down to the next with a warning",
		func(c *Config) *string { return &c.Kafka.Identity }, oneOf("fenced", "idempotent", "none")),
	entry("kafka.transactional_id", "", "of identity fenced, unique in the Kafka cluster; empty: cdc-relay/<system identifier>/<database>/<slot.name>",
		func(c *Config) *string { return &c.Kafka.TransactionalID }, isTransactionalID),
	entry("kafka.tls.enabled", "false", "encrypt",
		func(c *Config) *bool { return &c.Kafka.TLS.Enabled }),
	entry("kafka.tls.ca_file", "", "PEM; empty: the system's authorities",
		func(c *Config) *string { return &c.Kafka.TLS.CAFile }, isReadable),
	entry("kafka.tls.cert_file", "", "client certificate, PEM",
		func(c *Config) *string { return &c.Kafka.TLS.CertFile }, isReadable),
	entry("kafka.tls.key_file", "", "its key, PEM",
		func(c *Config) *string { return &c.Kafka.TLS.KeyFile }, isReadable),
	entry("kafka.tls.server_name", "", "name on the brokers' certificate; empty: the host dialled",
		func(c *Config) *string { return &c.Kafka.TLS.ServerName }),
	entry("kafka.tls.insecure_skip_verify", "false", "accept any certificate: for trials only",
		func(c *Config) *bool { return &c.Kafka.TLS.InsecureSkipVerify }),
	entry("kafka.sasl.mechanism", "none", "none, plain, scram-sha-256 or scram-sha-512",
		func(c *Config) *string { return &c.Kafka.SASL.Mechanism }, oneOf("none", "plain", "scram-sha-256", "scram-sha-512")),
	entry("kafka.sasl.username", "", "login",
		func(c *Config) *string { return &c.Kafka.SASL.Username }),
	entry("kafka.sasl.password", "", "its password",
		func(c *Config) *Secret { return &c.Kafka.SASL.Password }),
	entry("kafka.compression", "none", "none, gzip, snappy, lz4 or zstd",
		func(c *Config) *string { return &c.Kafka.Compression }, oneOf("none", "gzip", "snappy", "lz4", "zstd")),
	entry("kafka.linger", "0s", "wait for more events before a batch is sent, 0 to 5ms",
		func(c *Config) *time.Duration { return &c.Kafka.Linger }, between(0, 5*time.Millisecond)),
	entry("kafka.batch_bytes", "1044480", "of an encoded batch; 1 KiB or more under the smallest max.message.bytes",
		func(c *Config) *Size { return &c.Kafka.BatchBytes }, sizeWithin(1<<10, 1<<30)),
	entry("kafka.batch_records", "5000", "records in a batch",
		func(c *Config) *int { return &c.Kafka.BatchRecords }, within(1, 1_000_000)),
	entry("kafka.max_requests", "32", "produce requests in flight",
		func(c *Config) *int { return &c.Kafka.MaxRequests }, within(1, 10_000)),
	entry("kafka.request_timeout", "10s", "for one request",
		func(c *Config) *time.Duration { return &c.Kafka.RequestTimeout }, positive),
	entry("kafka.dial_timeout", "3s", "for one connection",
		func(c *Config) *time.Duration { return &c.Kafka.DialTimeout }, positive),
	entry("kafka.idle_timeout", "4m", "an unused connection is closed after this",
		func(c *Config) *time.Duration { return &c.Kafka.IdleTimeout }, positive),
	entry("kafka.metadata_ttl", "1s", "age at which metadata is read again, 500ms to 5s",
		func(c *Config) *time.Duration { return &c.Kafka.MetadataTTL }, between(500*time.Millisecond, 5*time.Second)),
	entry("kafka.unknown_topic_grace", "30s", "a topic may be missing this long before its events fail",
		func(c *Config) *time.Duration { return &c.Kafka.UnknownTopicGrace }, positive),
	entry("kafka.partition_grace", "60s", "a partition may be silent this long while others are not, before its events are held on their rows",
		func(c *Config) *time.Duration { return &c.Kafka.PartitionGrace }, positive),
}

var recordKeys = []key{
	entry("record.topic", "outbox.event.{aggregate_type}", "template; variables {aggregate_type} {event_type} {schema}",
		func(c *Config) *string { return &c.Record.Topic }, isTopicTemplate),
	entry("record.topic_allow", "", "globs; a row's own topic must match one",
		func(c *Config) *[]string { return &c.Record.TopicAllow }, areGlobs),
	entry("record.key_encoding", "raw", "raw or json_string",
		func(c *Config) *string { return &c.Record.KeyEncoding }, oneOf("raw", "json_string")),
	entry("record.partitioner", "murmur2", "murmur2, crc32 or fnv1a",
		func(c *Config) *string { return &c.Record.Partitioner }, oneOf("murmur2", "crc32", "fnv1a")),
	entry("record.headers", "cloudevents", "cloudevents, debezium or plain",
		func(c *Config) *string { return &c.Record.Headers }, oneOf("cloudevents", "debezium", "plain")),
	entry("record.source", "", "ce_source, required with cloudevents",
		func(c *Config) *string { return &c.Record.Source }, isSource),
	entry("record.timestamp", "send", "send or event",
		func(c *Config) *string { return &c.Record.Timestamp }, oneOf("send", "event")),
	entry("record.event_type_header", "", "debezium: name of the header for event_type",
		func(c *Config) *string { return &c.Record.EventTypeHeader }),
	entry("record.trace_extension", "false", "cloudevents: ce_traceparent and ce_tracestate",
		func(c *Config) *bool { return &c.Record.TraceExtension }),
}

var failureKeys = []key{
	entry("failure.on_failure", "block", "later events of a failed event's aggregate: block (they wait for it) or continue (they pass it)",
		func(c *Config) *string { return &c.Failure.OnFailure }, isOnFailure),
	entry("failure.by_type", "", "aggregate type -> block or continue",
		func(c *Config) *map[string]string { return &c.Failure.ByType }, areAggregateTypes, areOnFailure),
	entry("retry.base", "5s", "first delay; then 2, 4 and 8 times as long",
		func(c *Config) *time.Duration { return &c.Retry.Base }, positive),
	entry("retry.jitter", "0.2", "fraction of a delay, 0 to 0.5",
		func(c *Config) *float64 { return &c.Retry.Jitter }, isJitter),
	entry("retry.max_attempts", "10", "of an event whose record is refused",
		func(c *Config) *int { return &c.Retry.MaxAttempts }, isMaxAttempts),
	entry("retry.topic_max_attempts", "100", "of an event whose topic is missing or denied; 0: without limit",
		func(c *Config) *int { return &c.Retry.TopicMaxAttempts }, isTopicMaxAttempts),
	entry("retry.by_type", "", "aggregate type -> its own base, jitter, max_attempts, topic_max_attempts",
		func(c *Config) *map[string]RetryOverride { return &c.Retry.ByType }, areAggregateTypes),
	entry("retry.tick", "1s", "time between two looks for rows that are due",
		func(c *Config) *time.Duration { return &c.Retry.Tick }, positive),
	entry("retry.batch", "500", "rows requeued at a time",
		func(c *Config) *int { return &c.Retry.Batch }, within(1, 10_000)),
	entry("retry.patience", "30s", "no second requeue of a row before this",
		func(c *Config) *time.Duration { return &c.Retry.Patience }, positive),
	entry("retry.broker_backoff.min", "50ms", "first wait for a broker; consumes no attempt",
		func(c *Config) *time.Duration { return &c.Retry.BrokerBackoff.Min }, positive),
	entry("retry.broker_backoff.max", "5s", "longest wait for a broker",
		func(c *Config) *time.Duration { return &c.Retry.BrokerBackoff.Max }, positive),
	entry("reconcile.interval", "1m", "time between two searches for rows that the slot never showed",
		func(c *Config) *time.Duration { return &c.Reconcile.Interval }, positive),
	entry("reconcile.page", "5000", "rows in one of its steps",
		func(c *Config) *int { return &c.Reconcile.Page }, within(1, 100_000)),
	entry("reconcile.sweep_after", "5m", "a consumer's claim whose lease has been over for this long is stranded, and its event published again: ten leases",
		func(c *Config) *time.Duration { return &c.Reconcile.SweepAfter }, positive),
}

var processKeys = []key{
	entry("writeback.batch", "1000", "rows in a status update, 500 to 2000",
		func(c *Config) *int { return &c.Writeback.Batch }, within(500, 2000)),
	entry("writeback.interval", "5ms", "longest wait for a full batch, 1ms to 20ms",
		func(c *Config) *time.Duration { return &c.Writeback.Interval }, between(time.Millisecond, 20*time.Millisecond)),
	entry("limits.inflight_events", "50000", "received and not resolved yet",
		func(c *Config) *int { return &c.Limits.InflightEvents }, within(1, 10_000_000)),
	entry("limits.inflight_bytes", "24MiB", "same, their bytes",
		func(c *Config) *Size { return &c.Limits.InflightBytes }, sizeWithin(1, 1<<40)),
	entry("sampler.interval", "15s", "time between two looks at the slot and the table, 1s to 5m",
		func(c *Config) *time.Duration { return &c.Sampler.Interval }, between(time.Second, 5*time.Minute)),
	entry("sampler.timeout", "2s", "for one look",
		func(c *Config) *time.Duration { return &c.Sampler.Timeout }, positive),
	entry("sampler.max_rows", "100000", "rows that one statement of it walks over",
		func(c *Config) *int { return &c.Sampler.MaxRows }, within(1, 10_000_000)),
	entry("http.listen", "127.0.0.1:8470", "host:port of metrics, health and status",
		func(c *Config) *string { return &c.HTTP.Listen }, isHostPort),
	entry("http.stall_after", "2m", "not ready when nothing has come, or moved, for this long",
		func(c *Config) *time.Duration { return &c.HTTP.StallAfter }, positive),
	entry("log.level", "info", "debug, info, warn or error",
		func(c *Config) *string { return &c.Log.Level }, oneOf("debug", "info", "warn", "error")),
	entry("log.format", "text", "text or json",
		func(c *Config) *string { return &c.Log.Format }, oneOf("text", "json")),
	entry("shutdown.drain_timeout", "25s", "time for acknowledgements to come in after a stop",
		func(c *Config) *time.Duration { return &c.Shutdown.DrainTimeout }, notNegative),
}

// later names keys and sections that belong to the contract and have no effect
// in this version. Accepting them silently would promise what is not done.
var later = []string{
	"failure.include_detail",
	"retention",
	"http.tls", "http.token", "http.pprof_listen",
	"page", "tracing", "poll",
}
