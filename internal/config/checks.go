package config

import (
	"strconv"
	"strings"
)

// crossCheck applies the rules that span keys to values that are right by
// themselves.
func (l *Loaded) crossCheck() []Problem {
	c := &l.Config
	var problems []Problem
	add := func(broken bool, path, what, hint string) {
		if broken {
			problems = append(problems, Problem{path, what, hint})
		}
	}
	add(c.Lease.RenewInterval > c.Lease.PublishWithin/3, "lease.renew_interval",
		"is more than a third of lease.publish_within, so one slow renewal would stop publishing",
		"write at most "+formatDuration(c.Lease.PublishWithin/3)+", or raise lease.publish_within")
	add(c.Lease.PublishWithin > c.Lease.TakeoverAfter/2, "lease.publish_within",
		"is more than half of lease.takeover_after, so two instances could publish at once",
		"write at most "+formatDuration(c.Lease.TakeoverAfter/2)+", or raise lease.takeover_after")
	add(c.Lease.TakeoverAfter > c.Lease.TTL, "lease.takeover_after",
		"is more than lease.ttl",
		"write at most "+formatDuration(c.Lease.TTL)+", or raise lease.ttl")
	add(c.Limits.InflightBytes < 2*c.Kafka.BatchBytes, "limits.inflight_bytes",
		"is less than twice kafka.batch_bytes, so a full batch could never be followed by another",
		"write at least "+(2*c.Kafka.BatchBytes).String()+", or lower kafka.batch_bytes")
	add(c.Retry.BrokerBackoff.Min > c.Retry.BrokerBackoff.Max, "retry.broker_backoff.min",
		"is more than retry.broker_backoff.max", "write a smaller value")
	types := len(c.TypesWithPolicy())
	add(types > maxTypes, "retry.by_type",
		"and failure.by_type name "+strconv.Itoa(types)+" aggregate types in all",
		"name at most "+strconv.Itoa(maxTypes)+", and let the general values suit the others")
	add(c.HTTP.StallAfter < 2*c.Slot.ProbeInterval, "http.stall_after",
		"is less than twice slot.probe_interval, so one late probe would look like a stall",
		"write at least "+formatDuration(2*c.Slot.ProbeInterval)+", or lower slot.probe_interval")
	add(c.Sampler.Timeout > c.Sampler.Interval, "sampler.timeout",
		"is more than sampler.interval, so a slow look would hold up the next one",
		"write at most "+formatDuration(c.Sampler.Interval)+", or raise sampler.interval")
	add(c.Kafka.SASL.Mechanism != "none" && (c.Kafka.SASL.Username == "" || !c.Kafka.SASL.Password.IsSet()), "kafka.sasl",
		"has a mechanism but not both a username and a password",
		"write kafka.sasl.username and kafka.sasl.password (or kafka.sasl.password_file)")
	add((c.Kafka.TLS.CertFile == "") != (c.Kafka.TLS.KeyFile == ""), "kafka.tls",
		"has only one of cert_file and key_file", "write both, or neither")
	problems = append(problems, checkDSN("postgres.dsn", c.Postgres.DSN, "postgres.password", c.Postgres.Password)...)
	problems = append(problems, checkDSN("postgres.replication_dsn", c.Postgres.ReplicationDSN,
		"postgres.replication_password", c.Postgres.ReplicationPassword)...)
	return problems
}

func checkDSN(path string, text Secret, passwordPath string, password Secret) []Problem {
	if !text.IsSet() {
		return nil
	}
	d, ok := readDSN(text)
	switch {
	case !ok:
		return []Problem{{path, "is not a connection string",
			"write postgres://user@host:5432/database, or host=... user=... dbname=..."}}
	case d.hasPassword && password.IsSet():
		return []Problem{{path, "holds a password, and " + passwordPath + " is set too", "keep one of the two"}}
	}
	return nil
}

func readDSN(text Secret) (dsn, bool) {
	value, err := text.Read()
	if err != nil {
		return dsn{}, false
	}
	return parseDSN(value)
}

// oddities finds what is allowed and hardly meant.
func (l *Loaded) oddities() []string {
	c := &l.Config
	var warnings []string
	warn := func(odd bool, path, what string) {
		if odd {
			warnings = append(warnings, "config: "+path+": "+what)
		}
	}
	warn(!strings.Contains(c.Record.Topic, "{"), "record.topic",
		"has no variable; every event goes to one topic")
	warn(c.Kafka.SASL.Mechanism != "none" && !c.Kafka.TLS.Enabled, "kafka.sasl",
		"is used without kafka.tls.enabled; the login can be overheard")
	warn(c.Kafka.TLS.Enabled && c.Kafka.TLS.InsecureSkipVerify, "kafka.tls.insecure_skip_verify",
		"accepts any certificate; anybody on the way can pose as a broker")
	l.warnPooled(warn)
	l.warnUnused(warn)
	return warnings
}

// warnPooled recognises poolers, which do not speak the replication protocol.
func (l *Loaded) warnPooled(warn func(bool, string, string)) {
	path, text := "postgres.replication_dsn", l.Config.Postgres.ReplicationDSN
	if !text.IsSet() {
		path, text = "postgres.dsn", l.Config.Postgres.DSN
	}
	d, _ := readDSN(text)
	warn(d.port == "6543" || strings.Contains(d.host, "-pooler"), path,
		"looks like a connection pooler; replication needs the server's direct address in postgres.replication_dsn")
}

// warnUnused finds keys that another key makes ineffective.
func (l *Loaded) warnUnused(warn func(bool, string, string)) {
	c := &l.Config
	preset := "has no effect with record.headers " + c.Record.Headers
	warn(c.Record.Source != "" && c.Record.Headers != "cloudevents", "record.source", preset)
	warn(c.Record.TraceExtension && c.Record.Headers != "cloudevents", "record.trace_extension", preset)
	warn(c.Record.EventTypeHeader != "" && c.Record.Headers != "debezium", "record.event_type_header", preset)
	warn(c.Kafka.TransactionalID != "" && c.Kafka.Identity != "fenced", "kafka.transactional_id", "has no effect with kafka.identity "+c.Kafka.Identity)
	warn(!c.Kafka.TLS.Enabled && c.Kafka.TLS != (TLS{}), "kafka.tls", "has no effect without kafka.tls.enabled")
}
