package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
)

// Settings. What has no default is required by the commands that use it.
const (
	dsn            = "NOTIFICATION_DSN"             // setup, api, consume: of the database with the outbox
	keys           = "NOTIFICATION_KEYS"            // api, consume: name:base64,..; the first seals
	listen         = "NOTIFICATION_LISTEN"          // api, provider: host:port
	brokers        = "NOTIFICATION_BROKERS"         // setup, consume: host:port,..
	topics         = "NOTIFICATION_TOPICS"          // setup, consume: name,..; outbox.event.user
	group          = "NOTIFICATION_GROUP"           // consume: notification
	providerURL    = "NOTIFICATION_PROVIDER"        // consume: http://host:port
	timeout        = "NOTIFICATION_TIMEOUT"         // consume: of a call to the provider; 10s
	ambiguity      = "NOTIFICATION_AMBIGUITY"       // consume: repeat, query or hold; repeat
	metricsListen  = "NOTIFICATION_METRICS_LISTEN"  // consume: host:port of /metrics and /healthz; 127.0.0.1:8471
	traces         = "NOTIFICATION_TRACES"          // api, consume: off, or log, which writes spans to the log; off
	providerKeyTTL = "NOTIFICATION_PROVIDER_KEYTTL" // provider: how long it knows a key; 24h
)

const defaultTopic = "outbox.event.user"

// env reads settings and collects all that is wrong with them.
type env struct {
	get      func(string) string
	problems []error
}

func (e *env) required(name string) string {
	value := e.get(name)
	if value == "" {
		e.problems = append(e.problems, fmt.Errorf("%s is not set", name))
	}
	return value
}

func (e *env) or(name, otherwise string) string {
	if value := e.get(name); value != "" {
		return value
	}
	return otherwise
}

func (e *env) requiredList(name string) []string {
	value := e.required(name)
	items := list(value)
	if value != "" && len(items) == 0 {
		e.problems = append(e.problems, fmt.Errorf("%s is a list with nothing in it", name))
	}
	return items
}

// list cuts at commas and spaces.
func list(value string) []string {
	return strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
}

func (e *env) duration(name string, otherwise time.Duration) time.Duration {
	value := e.get(name)
	if value == "" {
		return otherwise
	}
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		e.problems = append(e.problems, fmt.Errorf("%s is a duration such as 10s", name))
	}
	return d
}

// ring reads the keys. Its errors show none.
func (e *env) ring() *notice.Ring {
	value := e.required(keys)
	if value == "" {
		return nil
	}
	ring, err := notice.ParseRing(value)
	if err != nil {
		e.problems = append(e.problems, fmt.Errorf("%s: %w", keys, err))
	}
	return ring
}

// choice reads one of some words, the first by default.
func (e *env) choice(name string, words ...string) string {
	value := e.or(name, words[0])
	if !slices.Contains(words, value) {
		e.problems = append(e.problems, fmt.Errorf("%s is one of %s", name, strings.Join(words, ", ")))
	}
	return value
}

// err tells all that is wrong, one a line.
func (e *env) err() error { return errors.Join(e.problems...) }
