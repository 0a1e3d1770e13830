package outbox

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// What Write refuses, before it sends anything: errors.Is tells them apart.
// The text around them says which event it is, by its index, and why, without
// its values.
var (
	// ErrField: a field is missing or holds what its column refuses.
	ErrField = errors.New("field refused")
	// ErrNullPayload: no payload and no tombstone, or a tombstone where none
	// is allowed.
	ErrNullPayload = errors.New("no payload")
	// ErrHeader: a header's name is reserved or empty, or a name or value is no
	// text.
	ErrHeader = errors.New("header refused")
	// ErrTopicName: Kafka has no topic of this name.
	ErrTopicName = errors.New("topic name refused")
	// ErrTooLarge: a payload, the headers of an event, or all events of a call
	// are over their limit.
	ErrTooLarge = errors.New("too large")
	// ErrDuplicateID: two events of a call have the same id.
	ErrDuplicateID = errors.New("id given twice")
)

// Limits in bytes. The table enforces those of its columns as well.
const (
	maxAggregateType = 200
	maxAggregateID   = 1024
	maxEventType     = 255
	maxContentType   = 255
	maxTopic         = 249
	maxPayload       = 16 << 20
	// maxHeaders bounds names and values of one event: a broker takes about as
	// much for a whole record unless told otherwise.
	maxHeaders = 1 << 20
	// maxCall bounds all values of one call. PostgreSQL takes 1 GiB in a
	// statement, and some drivers write two bytes for each one.
	maxCall = 256 << 20
	// eventOverhead is more than an event's id, numbers, time and separators
	// take in the statement.
	eventOverhead = 128
)

// check returns why the table, or this Writer, refuses e; its headers apart.
func (w *Writer) check(e *Event) error {
	if err := checkName(ErrField, "aggregate type", e.AggregateType, maxAggregateType); err != nil {
		return err
	}
	if err := checkText("aggregate id", e.AggregateID, maxAggregateID); err != nil {
		return err
	}
	if err := checkText("event type", e.EventType, maxEventType); err != nil {
		return err
	}
	if e.ContentType != "" {
		if err := checkText("content type", e.ContentType, maxContentType); err != nil {
			return err
		}
	}
	if e.Topic != "" {
		if err := checkTopic(e.Topic); err != nil {
			return err
		}
	}
	if err := checkNotBefore(e.NotBefore); err != nil {
		return err
	}
	return w.checkPayload(e)
}

func (w *Writer) checkPayload(e *Event) error {
	switch {
	case e.Tombstone && !w.tombstones:
		return fmt.Errorf("%w: tombstones are not allowed here: see AllowTombstones", ErrNullPayload)
	case e.Tombstone && e.Payload != nil:
		return fmt.Errorf("%w: a tombstone has a payload", ErrField)
	case !e.Tombstone && e.Payload == nil:
		return fmt.Errorf("%w: an empty one is not nil, a null value is a tombstone", ErrNullPayload)
	case len(e.Payload) > w.maxPayload:
		return fmt.Errorf("%w: the payload has %d bytes, more than %d", ErrTooLarge, len(e.Payload), w.maxPayload)
	}
	return nil
}

func checkText(field, value string, limit int) error {
	if value == "" || len(value) > limit {
		return fmt.Errorf("%w: %s has %d bytes, not 1 to %d", ErrField, field, len(value), limit)
	}
	if !isText(value) {
		return fmt.Errorf("%w: %s is not UTF-8, or has a zero byte", ErrField, field)
	}
	return nil
}

// isText reports whether PostgreSQL takes s as text.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// checkName is for what becomes a topic's name, or a part of one.
func checkName(refused error, field, value string, limit int) error {
	if value == "" || len(value) > limit {
		return fmt.Errorf("%w: %s has %d bytes, not 1 to %d", refused, field, len(value), limit)
	}
	for i := range len(value) {
		if !isNameByte(value[i]) {
			return fmt.Errorf("%w: %s has other characters than A-Z a-z 0-9 . _ -", refused, field)
		}
	}
	return nil
}

func isNameByte(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
}

func checkTopic(topic string) error {
	if topic == "." || topic == ".." {
		return fmt.Errorf("%w: . and .. are no topics", ErrTopicName)
	}
	return checkName(ErrTopicName, "topic", topic, maxTopic)
}

func checkNotBefore(t time.Time) error {
	if t.IsZero() {
		return nil
	}
	if year := roundUp(t).Year(); year < 1 || year > 9999 {
		return fmt.Errorf("%w: not before is outside the years 1 to 9999", ErrField)
	}
	return nil
}

// roundUp brings t to PostgreSQL's resolution: not before means not before.
func roundUp(t time.Time) time.Time {
	return t.UTC().Add(time.Microsecond - time.Nanosecond).Truncate(time.Microsecond)
}

// Header names that the relay writes itself: all that start with one of these,
// and those of every preset, since an application does not know which one the
// relay uses, and that may change.
var (
	reservedPrefixes = []string{"ce_", "cdcr-"}
	reservedNames    = []string{
		"content-type", "id", "event-id", "event-type", "aggregate-id", "occurred-at", "aggregate-type",
	}
)

// checkHeaders returns why the relay or the table refuses a set of headers.
func checkHeaders(headers map[string]string) error {
	size := 0
	for name, value := range headers {
		if err := checkHeader(name, value); err != nil {
			return err
		}
		size += len(name) + len(value)
	}
	if size > maxHeaders {
		return fmt.Errorf("%w: the headers have %d bytes, more than %d", ErrTooLarge, size, maxHeaders)
	}
	return nil
}

func checkHeader(name, value string) error {
	if name == "" || !isText(name) {
		return fmt.Errorf("%w: a name is empty, not UTF-8, or has a zero byte", ErrHeader)
	}
	for _, prefix := range reservedPrefixes {
		if strings.HasPrefix(name, prefix) {
			return fmt.Errorf("%w: names that start with %s are reserved for the relay", ErrHeader, prefix)
		}
	}
	if slices.Contains(reservedNames, name) {
		return fmt.Errorf("%w: the name %s is reserved for the relay", ErrHeader, name)
	}
	if !isText(value) {
		return fmt.Errorf("%w: the value of %.60q is not UTF-8, or has a zero byte", ErrHeader, name)
	}
	return nil
}
