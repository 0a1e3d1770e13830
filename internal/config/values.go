package config

import (
	"fmt"
	"maps"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// maxNameBytes is PostgreSQL's limit for identifiers.
const maxNameBytes = 63

// maxTransactionalIDBytes is ours; brokers and ACLs take more.
const maxTransactionalIDBytes = 255

var (
	schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	slotName   = regexp.MustCompile(`^[a-z0-9_]{1,63}$`)
	topicChars = regexp.MustCompile(`^[A-Za-z0-9._-]*$`)
	variable   = regexp.MustCompile(`\{([^{}]*)\}`)
)

func positive(d time.Duration) defect {
	if d <= 0 {
		return defect{"is not more than 0", "write a positive duration, such as 5s"}
	}
	return fine
}

func notNegative(d time.Duration) defect {
	if d < 0 {
		return defect{"is negative", "write a duration of 0s or more"}
	}
	return fine
}

func between(lo, hi time.Duration) func(time.Duration) defect {
	return func(d time.Duration) defect {
		if d < lo || d > hi {
			return outside(formatDuration(d), formatDuration(lo), formatDuration(hi))
		}
		return fine
	}
}

func within(lo, hi int) func(int) defect {
	return func(n int) defect {
		if n < lo || n > hi {
			return outside(strconv.Itoa(n), strconv.Itoa(lo), strconv.Itoa(hi))
		}
		return fine
	}
}

func sizeWithin(lo, hi Size) func(Size) defect {
	return func(n Size) defect {
		if n < lo || n > hi {
			return outside(n.String(), lo.String(), hi.String())
		}
		return fine
	}
}

func outside(value, lo, hi string) defect {
	return defect{value + " is out of range", "write a value from " + lo + " to " + hi}
}

func isJitter(x float64) defect {
	if x < 0 || x > 0.5 {
		return outside(strconv.FormatFloat(x, 'g', -1, 64), "0", "0.5")
	}
	return fine
}

func oneOf(values ...string) func(string) defect {
	return func(s string) defect {
		if slices.Contains(values, s) {
			return fine
		}
		return defect{quoted(s) + " is unknown", "write one of: " + strings.Join(values, ", ")}
	}
}

func sourceIsWAL(s string) defect {
	if s == "poll" {
		return defect{"poll is not in this version", "write wal, or remove the key"}
	}
	return oneOf("wal")(s)
}

func hasControl(s string) bool { return strings.ContainsFunc(s, unicode.IsControl) }

func isName(s string) defect {
	if s == "" || len(s) > maxNameBytes || hasControl(s) {
		return defect{"is empty, longer than 63 bytes or has control characters", "write a name of 1 to 63 bytes"}
	}
	return fine
}

func isSource(s string) defect {
	if !utf8.ValidString(s) || hasControl(s) {
		return defect{"is not UTF-8 text, or has control characters", "write a URI that names your service, such as /shop"}
	}
	return fine
}

func isTransactionalID(s string) defect {
	if len(s) > maxTransactionalIDBytes || hasControl(s) {
		return defect{"is longer than 255 bytes or has control characters", "write a name of at most 255 bytes, or nothing"}
	}
	return fine
}

func isSlotName(s string) defect {
	if !slotName.MatchString(s) {
		return defect{quoted(s) + " is not a slot name", "write 1 to 63 of a-z, 0-9 and _"}
	}
	return fine
}

func areColumns(columns map[string]string) defect {
	for _, name := range sortedNames(columns) {
		if d := isName(columns[name]); d != fine {
			return defect{"the column for " + quoted(name) + " " + d.what, d.hint}
		}
		if slices.Contains(relayColumns, name) {
			return defect{"another name for " + name + " is not in this version", "call the table's column " + name}
		}
		if !slices.Contains(writtenColumns, name) {
			return defect{quoted(name) + " is no column of the outbox", "did you mean " + nearest(name, writtenColumns) + "?"}
		}
	}
	return fine
}

var (
	// writtenColumns are only read from the stream, under whatever name.
	writtenColumns = []string{
		"event_id", "aggregate_type", "aggregate_id", "event_type", "payload", "headers", "content_type", "topic",
		"priority", "created_at",
	}
	// relayColumns are named in the statements of the relay.
	relayColumns = []string{
		"id", "send_status", "attempts", "next_attempt_at", "commit_lsn", "claim_generation", "claimed_by",
		"lease_until", "sent_at", "finished_at", "error_code", "error_message",
	}
)

// isHostPort does not repeat the value: a DSN pasted here holds a password.
func isHostPort(s string) defect {
	if d := portDefect(s); d != "" {
		return defect{d, "write host:port, such as 127.0.0.1:8470"}
	}
	return fine
}

func areHostPorts(list []string) defect {
	for i, s := range list {
		if d := portDefect(s); d != "" || strings.HasPrefix(s, ":") {
			return defect{fmt.Sprintf("entry %d is not host:port", i+1), "write them as kafka-1:9092,kafka-2:9092"}
		}
	}
	return fine
}

func portDefect(s string) string {
	host, port, err := net.SplitHostPort(s)
	if err != nil || strings.ContainsAny(host, "/@ ") {
		return "is not host:port"
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "has no port number from 0 to 65535"
	}
	return ""
}

func isReadable(name string) defect {
	if name == "" {
		return fine
	}
	if _, err := readBounded(name, maxFile); err != nil {
		return defect{"cannot be read: " + reason(err), "name a file that this process may read"}
	}
	return fine
}

func areGlobs(globs []string) defect {
	for i, glob := range globs {
		if _, err := path.Match(glob, ""); err != nil || glob == "" {
			return defect{fmt.Sprintf("entry %d is not a glob", i+1), "write names with * and ?, such as billing.*"}
		}
	}
	return fine
}

var topicVariables = []string{"aggregate_type", "event_type", "schema"}

func isTopicTemplate(template string) defect {
	for _, match := range variable.FindAllStringSubmatch(template, -1) {
		if !slices.Contains(topicVariables, match[1]) {
			return defect{"the variable {" + match[1] + "} is unknown", "use {" + strings.Join(topicVariables, "}, {") + "}"}
		}
	}
	if template == "" || !topicChars.MatchString(variable.ReplaceAllString(template, "")) {
		return defect{"is not a topic name", "use letters, digits, '.', '_', '-' and the variables {" + strings.Join(topicVariables, "}, {") + "}"}
	}
	return fine
}

func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
