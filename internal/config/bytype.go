package config

import (
	"encoding/json"
	"regexp"
	"strings"
	"time"
)

// RetryOverride is what an aggregate type has instead of the general retry
// policy. A field that is nil is as there.
type RetryOverride struct {
	Base             *time.Duration
	Jitter           *float64
	MaxAttempts      *int
	TopicMaxAttempts *int
}

// Of returns the policy of an aggregate type.
func (r Retry) Of(aggregateType string) RetryPolicy {
	policy, o := r.RetryPolicy, r.ByType[aggregateType]
	replace(&policy.Base, o.Base)
	replace(&policy.Jitter, o.Jitter)
	replace(&policy.MaxAttempts, o.MaxAttempts)
	replace(&policy.TopicMaxAttempts, o.TopicMaxAttempts)
	return policy
}

func replace[T any](value, by *T) {
	if by != nil {
		*value = *by
	}
}

// Blocks reports whether later events of an aggregate of this type wait for a
// failed one.
func (f Failure) Blocks(aggregateType string) bool {
	mode, ok := f.ByType[aggregateType]
	if !ok {
		mode = f.OnFailure
	}
	return mode == onFailureBlock
}

const (
	onFailureBlock    = "block"
	onFailureContinue = "continue"
)

// maxTypes is how many aggregate types may have a policy of their own.
const maxTypes = 255

// TypesWithPolicy names the aggregate types that failure.by_type or
// retry.by_type mentions, sorted.
func (c *Config) TypesWithPolicy() []string {
	types := map[string]bool{}
	for name := range c.Failure.ByType {
		types[name] = true
	}
	for name := range c.Retry.ByType {
		types[name] = true
	}
	return sortedNames(types)
}

// parseOverrides reads a map of maps that is written as YAML or as JSON.
func parseOverrides(target *map[string]RetryOverride, s setting) defect {
	const form = `write it as {"order": {"base": "5s", "max_attempts": 3}}`
	*target = nil
	entries := s.Maps
	switch s.Form {
	case formList:
		return defect{"is a list", "write a mapping"}
	case formText:
		if strings.TrimSpace(s.Text) == "" {
			return fine
		}
		var object map[string]map[string]scalar
		if err := json.Unmarshal([]byte(s.Text), &object); err != nil {
			return defect{"is not a JSON object of objects", form}
		}
		entries = texts(object)
	}
	overrides := map[string]RetryOverride{}
	for _, name := range sortedNames(entries) {
		o, d := parseOverride(entries[name])
		if d != fine {
			return defect{"of " + quoted(name) + ": " + d.what, d.hint}
		}
		overrides[name] = o
	}
	*target = overrides
	return fine
}

func parseOverride(entry map[string]string) (o RetryOverride, d defect) {
	for _, name := range sortedNames(entry) {
		switch text := entry[name]; name {
		case "base":
			o.Base, d = parseChecked(text, parseDuration, positive)
		case "jitter":
			o.Jitter, d = parseChecked(text, parseFloat, isJitter)
		case "max_attempts":
			o.MaxAttempts, d = parseChecked(text, parseInt, isMaxAttempts)
		case "topic_max_attempts":
			o.TopicMaxAttempts, d = parseChecked(text, parseInt, isTopicMaxAttempts)
		default:
			return o, defect{quoted(name) + " is unknown", "write base, jitter, max_attempts or topic_max_attempts"}
		}
		if d != fine {
			return o, defect{name + " " + d.what, d.hint}
		}
	}
	return o, fine
}

func parseChecked[T any](text string, parse func(string) (T, defect), check func(T) defect) (*T, defect) {
	value, d := parse(text)
	if d == fine {
		d = check(value)
	}
	return &value, d
}

// scalar is a JSON string or number, as text.
type scalar string

func (s *scalar) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		return json.Unmarshal(data, (*string)(s))
	}
	return json.Unmarshal(data, (*json.Number)(s))
}

func texts(object map[string]map[string]scalar) map[string]map[string]string {
	entries := make(map[string]map[string]string, len(object))
	for name, values := range object {
		entries[name] = make(map[string]string, len(values))
		for k, v := range values {
			entries[name][k] = string(v)
		}
	}
	return entries
}

// formatOverrides writes overrides the way the environment takes them.
func formatOverrides(overrides map[string]RetryOverride) string {
	entries := make(map[string]map[string]any, len(overrides))
	for name, o := range overrides {
		entry := map[string]any{}
		if o.Base != nil {
			entry["base"] = formatDuration(*o.Base)
		}
		if o.Jitter != nil {
			entry["jitter"] = *o.Jitter
		}
		if o.MaxAttempts != nil {
			entry["max_attempts"] = *o.MaxAttempts
		}
		if o.TopicMaxAttempts != nil {
			entry["topic_max_attempts"] = *o.TopicMaxAttempts
		}
		entries[name] = entry
	}
	return formatMap(entries)
}

// aggregateTypeName is what the table accepts.
var aggregateTypeName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,200}$`)

func areAggregateTypes[V any](byType map[string]V) defect {
	for _, name := range sortedNames(byType) {
		if !aggregateTypeName.MatchString(name) {
			return defect{quoted(name) + " is not an aggregate type", "write 1 to 200 of A-Z, a-z, 0-9, '.', '_' and '-'"}
		}
	}
	return fine
}

func areOnFailure(byType map[string]string) defect {
	for _, name := range sortedNames(byType) {
		if d := isOnFailure(byType[name]); d != fine {
			return defect{"of " + quoted(name) + ": " + d.what, d.hint}
		}
	}
	return fine
}

var (
	isOnFailure        = oneOf(onFailureBlock, onFailureContinue)
	isMaxAttempts      = within(1, 1_000_000)
	isTopicMaxAttempts = within(0, 1_000_000)
)
