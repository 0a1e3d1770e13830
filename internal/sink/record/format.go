// Package record turns events into Kafka records: topic, key, partition,
// headers, and the record batch as it goes over the wire (format version 2).
//
// It is pure: values in, bytes out, no I/O, clock or logger. Nothing is
// allocated per event; a Format and a Batch reuse their buffers and belong to
// one goroutine at a time. An event that cannot become a record is answered
// with the failure that goes to its row, never with a record that says less.
package record

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Preset is a set of headers that consumers know how to read.
type Preset uint8

// The presets.
const (
	CloudEvents Preset = iota + 1 // CloudEvents 1.0, binary mode
	Debezium                      // what Debezium's outbox router writes
	Plain
)

// ParsePreset reads the name of a preset: cloudevents, debezium, plain.
func ParsePreset(name string) (Preset, error) {
	switch name {
	case "cloudevents":
		return CloudEvents, nil
	case "debezium":
		return Debezium, nil
	case "plain":
		return Plain, nil
	}
	return 0, fmt.Errorf("unknown header preset %q: use cloudevents, debezium or plain", name)
}

// Config says what records look like.
type Config struct {
	TopicTemplate string   // with {aggregate_type}, {event_type}, {schema}
	Schema        string   // stands for {schema}: the schema of the outbox table
	TopicAllow    []string // globs; a row's own topic must match one

	KeyJSON         bool // the key is aggregate_id as a quoted JSON string
	Partitioner     Partitioner
	Headers         Preset
	Source          string // ce_source, required by CloudEvents
	EventTypeHeader string // Debezium: header that carries event_type; empty means none
	TraceExtension  bool   // CloudEvents: also ce_traceparent and ce_tracestate

	EventTime  bool // the record's time is created_at, at most now; else now
	Tombstones bool // a NULL payload becomes a null value; else it is refused
}

// Format makes records of events. Not safe for concurrent use.
type Format struct {
	cfg     Config
	topic   []templatePart
	headers headers
	key     []byte
	record  Record
}

// NewFormat validates cfg.
func NewFormat(cfg Config) (*Format, error) {
	topic, err := parseTemplate(cfg.TopicTemplate, cfg.Schema)
	if err != nil {
		return nil, err
	}
	for _, glob := range cfg.TopicAllow {
		if _, err := path.Match(glob, ""); err != nil {
			return nil, fmt.Errorf("topic pattern %q: %w", glob, err)
		}
	}
	if cfg.Partitioner < Murmur2 || cfg.Partitioner > FNV1a {
		return nil, errors.New("a partitioner is required")
	}
	if cfg.Headers < CloudEvents || cfg.Headers > Plain {
		return nil, errors.New("a header preset is required")
	}
	if cfg.Headers == CloudEvents && cfg.Source == "" {
		return nil, errors.New("CloudEvents headers need a source")
	}
	if !validHeaderName(cfg.EventTypeHeader) {
		return nil, fmt.Errorf("header name %q belongs to the relay: choose another one for the event type", cfg.EventTypeHeader)
	}
	return &Format{cfg: cfg, topic: topic, headers: headers{cfg: headerConfig{
		preset:          cfg.Headers,
		source:          cfg.Source,
		eventTypeHeader: cfg.EventTypeHeader,
		traceExtension:  cfg.TraceExtension,
	}}}, nil
}

// templatePart is a piece of the topic template: literal text or a variable.
type templatePart struct {
	text     string
	variable variable
}

type variable uint8

const (
	literal variable = iota
	aggregateType
	eventType
)

// parseTemplate cuts the template into parts, with the schema put in.
func parseTemplate(template, schema string) ([]templatePart, error) {
	if template == "" {
		return nil, errors.New("a topic template is required")
	}
	var parts []templatePart
	for rest := template; rest != ""; {
		text, after, found := strings.Cut(rest, "{")
		if text != "" {
			parts = append(parts, templatePart{text: text})
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			return nil, fmt.Errorf("topic template %q: a { has no }", template)
		}
		switch name {
		case "aggregate_type":
			parts = append(parts, templatePart{variable: aggregateType})
		case "event_type":
			parts = append(parts, templatePart{variable: eventType})
		case "schema":
			parts = append(parts, templatePart{text: schema})
		default:
			return nil, fmt.Errorf("topic template %q: unknown variable {%s}: use {aggregate_type}, {event_type} or {schema}", template, name)
		}
		rest = after
	}
	return parts, nil
}

// AppendTopic appends the name of the topic for e to buf: the row's own, for
// which Allowed must be asked, or the template's. The name is not validated:
// see ValidTopic.
func (f *Format) AppendTopic(buf []byte, e *event.Event) []byte {
	if len(e.Topic) > 0 {
		return append(buf, e.Topic...)
	}
	for i := range f.topic {
		switch p := &f.topic[i]; p.variable {
		case aggregateType:
			buf = append(buf, e.AggregateType...)
		case eventType:
			buf = append(buf, e.EventType...)
		default:
			buf = append(buf, p.text...)
		}
	}
	return buf
}

// Allowed reports whether a row may name this topic.
func (f *Format) Allowed(topic string) bool {
	for _, glob := range f.cfg.TopicAllow {
		if ok, err := path.Match(glob, topic); err == nil && ok {
			return true
		}
	}
	return false
}

// ValidTopic reports whether Kafka accepts a topic of this name.
func ValidTopic(name []byte) bool {
	if len(name) == 0 || len(name) > 249 || string(name) == "." || string(name) == ".." {
		return false
	}
	for _, c := range name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

// Record makes the record of e; now is in milliseconds since the Unix epoch.
// The record is valid until the next call and as long as e is. A record comes
// with a nil failure, a failure with a nil record.
func (f *Format) Record(e *event.Event, now int64) (*Record, *event.Failure) {
	if e.PayloadNull && !f.cfg.Tombstones {
		return nil, failNullPayload
	}
	if err := f.headers.encode(e); err != nil {
		return nil, headersInvalid(err)
	}
	r := &f.record
	r.Key = e.AggregateID
	if f.cfg.KeyJSON {
		f.key = appendQuoted(f.key[:0], e.AggregateID)
		r.Key = f.key
	}
	r.Value, r.Null = e.Payload, e.PayloadNull
	r.Headers, r.HeaderCount = f.headers.buf, f.headers.count
	r.Timestamp = now
	if f.cfg.EventTime {
		r.Timestamp = min(now, e.CreatedAt/1000)
	}
	return r, nil
}

// Partition returns the partition of r among n > 0 partitions.
func (f *Format) Partition(r *Record, n int32) int32 {
	return f.cfg.Partitioner.Partition(r.Key, n)
}
