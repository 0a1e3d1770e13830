package operate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// MaxWalk is how many rows a walk of the primary key looks at.
const MaxWalk = 100_000

// maxLimit is how many rows a person may ask for.
const maxLimit = 10_000_000

// Phase is where an event is, or where it failed.
type Phase string

// The phases. A row without a time of SENT is on its way to Kafka, one that has
// it is its consumer's.
const (
	PhasePublish Phase = "publish"
	PhaseConsume Phase = "consume"
)

// Filter picks rows: those for which everything that is set holds. The zero
// value picks all of them.
type Filter struct {
	// IDs and EventIDs name rows; one that is in either is picked.
	IDs      []int64
	EventIDs []outbox.ID

	AggregateType string
	AggregateID   string
	// Topic is the one that the row names, else the one of the template.
	Topic     string
	EventType string
	ErrorCode string
	// Statuses lists those of which a row has one; empty: any.
	Statuses []outbox.Status
	// Open leaves out FAILED rows that a person has waived.
	Open bool
	// Parked leaves out rows that do not wait: held, delayed, retried and open
	// FAILED ones stay.
	Parked bool
	// Held leaves out all but those that wait for their release behind an
	// earlier one.
	Held  bool
	Phase Phase // "": both
	// Since (inclusive) and Until (exclusive) bound the time of creation; zero
	// is no bound.
	Since time.Time
	Until time.Time

	// Limit is how many rows to return; it must be set.
	Limit int
	// After is the id at which the page before ended, 0 for the first page.
	After int64
}

// ByID reports whether the filter names its rows.
func (f Filter) ByID() bool { return len(f.IDs)+len(f.EventIDs) > 0 }

// Validate says what about the filter makes no sense.
func (f Filter) Validate() error {
	switch {
	case f.After < 0:
		return errors.New("--after must be the id that a list ended with")
	case f.Phase != "" && f.Phase != PhasePublish && f.Phase != PhaseConsume:
		return fmt.Errorf("--phase %q is unknown; use publish or consume", string(f.Phase))
	}
	return validate(f.Limit, f.Since, f.Until, f.texts())
}

// validate judges what all filters have.
func validate(limit int, since, until time.Time, texts []text) error {
	switch {
	case limit < 1:
		return errors.New("--limit must be 1 or more")
	case limit > maxLimit:
		return fmt.Errorf("--limit must be at most %d", maxLimit)
	case !since.IsZero() && !until.IsZero() && !since.Before(until):
		return errors.New("--since must be before --until")
	}
	for _, field := range texts {
		if !utf8.ValidString(field.value) || strings.ContainsRune(field.value, 0) {
			return fmt.Errorf("--%s is not UTF-8 text, so no row has it", field.flag)
		}
	}
	return nil
}

// text is a condition on a column, as the flag that sets it.
type text struct{ flag, value string }

func (f Filter) texts() []text {
	return []text{
		{"aggregate-type", f.AggregateType},
		{"aggregate-id", f.AggregateID},
		{"topic", f.Topic},
		{"event-type", f.EventType},
		{"error-code", f.ErrorCode},
		{"phase", string(f.Phase)},
	}
}

// String is the filter as flags, for the audit.
func (f Filter) String() string {
	var parts []string
	add := func(flag, value string) { parts = append(parts, flagText(flag, value)) }
	for _, id := range f.IDs {
		add("id", strconv.FormatInt(id, 10))
	}
	for _, id := range f.EventIDs {
		add("event-id", id.String())
	}
	for _, field := range f.texts() {
		if field.value != "" {
			add(field.flag, field.value)
		}
	}
	for _, status := range f.Statuses {
		add("status", strings.ToLower(status.String()))
	}
	if !f.Since.IsZero() {
		add("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	if !f.Until.IsZero() {
		add("until", f.Until.UTC().Format(time.RFC3339Nano))
	}
	if f.After > 0 {
		add("after", strconv.FormatInt(f.After, 10))
	}
	for _, is := range []struct {
		set  bool
		flag string
	}{{len(f.Statuses) > 0 && !f.Open, "--include-waived"}, {f.Parked, "--parked"}, {f.Held, "--held"}} {
		if is.set {
			parts = append(parts, is.flag)
		}
	}
	return strings.Join(parts, " ")
}

// flagText is a flag with its value, quoted where a shell would need it.
func flagText(flag, value string) string {
	if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == '"' || r == '\'' }) {
		value = strconv.Quote(value)
	}
	return "--" + flag + " " + value
}

// ParseStatus reads the name of a status, in upper or lower case.
func ParseStatus(name string) (outbox.Status, error) {
	var known []string
	for s := outbox.Ready; s <= outbox.Consuming; s++ {
		if strings.EqualFold(name, s.String()) {
			return s, nil
		}
		known = append(known, strings.ToLower(s.String()))
	}
	return 0, fmt.Errorf("status %q is unknown; use one of %s", name, strings.Join(known, ", "))
}

// ParseTime reads a point in time: RFC 3339, or a duration back from now such
// as 90m, 2h or 7d.
func ParseTime(text string, now time.Time) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	days, rest, found := strings.Cut(text, "d")
	if !found {
		days, rest = "0", text
	} else if rest == "" {
		rest = "0s"
	}
	n, err := strconv.ParseUint(days, 10, 16)
	back, err2 := time.ParseDuration(rest)
	if err != nil || err2 != nil || back < 0 {
		return time.Time{}, fmt.Errorf("%q is no time; write 2026-01-02T15:04:05Z, or how long ago: 90m, 2h, 7d", text)
	}
	return now.Add(-back).AddDate(0, 0, -int(n)), nil
}

// AddID adds what names a row: its id, or the event's.
func (f *Filter) AddID(text string) error {
	if id, err := strconv.ParseInt(text, 10, 64); err == nil {
		f.IDs = append(f.IDs, id)
		return nil
	}
	id, err := outbox.ParseID(text)
	if err != nil {
		return fmt.Errorf("%q is no id; write the number of a row, or an event id such as 0190163d-8694-739b-aea5-966c26f8ad91", text)
	}
	f.EventIDs = append(f.EventIDs, id)
	return nil
}
