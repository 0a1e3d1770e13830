package decoder

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Kinds of a column value in a tuple.
const (
	valueNull      = 'n'
	valueUnchanged = 'u' // an out-of-line value that an UPDATE did not touch
	valueText      = 't'
	valueBinary    = 'b'
)

// tuple reads the new row of an Insert into e, which holds the defaults.
func tuple(r *reader, columns []column, e *event.Event) error {
	if kind := r.uint8(); kind != 'N' && !r.short {
		return fmt.Errorf("tuple of unknown kind %q", kind)
	}
	if count := int(r.uint16()); count != len(columns) && !r.short {
		return fmt.Errorf("the row has %d columns, the Relation message named %d", count, len(columns))
	}
	size := 0
	for i := range columns {
		n, err := value(r, &columns[i], e)
		if err != nil {
			return fmt.Errorf("column %q: %w", columns[i].name, err)
		}
		size += n
	}
	e.Bytes = int32(size) // a message has less than 1 GiB
	return nil
}

// value reads one column of the row. It returns what the value adds to the
// event's size: 0 for those of fixed length.
func value(r *reader, c *column, e *event.Event) (int, error) {
	switch kind := r.uint8(); kind {
	case valueNull:
		return 0, null(c, e)
	case valueText, valueBinary:
		b := r.take(r.length())
		if r.short {
			return 0, errTruncated
		}
		if c.field == fieldNone {
			return 0, nil
		}
		return set(c, kind == valueBinary, b, e)
	case valueUnchanged:
		return 0, errors.New("an inserted row came without this value")
	default:
		if r.short {
			return 0, errTruncated
		}
		return 0, fmt.Errorf("value of unknown kind %q", kind)
	}
}

// null leaves a field at its default.
func null(c *column, e *event.Event) error {
	switch {
	case c.field == fieldPayload:
		e.PayloadNull = true
	case c.field != fieldNone && !c.nullable:
		return errors.New("it is NULL but must not be")
	}
	return nil
}

// set stores a value that is not NULL in its field. It returns the value's
// length if that varies.
func set(c *column, isBinary bool, b []byte, e *event.Event) (n int, err error) {
	switch c.field {
	case fieldID:
		e.ID, err = integer(c.oid, isBinary, b, math.MaxInt64)
		if err == nil && e.ID <= 0 {
			err = errors.New("it must be positive")
		}
		return 0, err
	case fieldEventID:
		e.EventID, err = uuid(isBinary, b)
		return 0, err
	case fieldPriority:
		v, err := integer(c.oid, isBinary, b, math.MaxInt16)
		e.Priority = int16(v)
		return 0, err
	case fieldStatus:
		v, err := integer(c.oid, isBinary, b, math.MaxInt16)
		e.Status = int16(v)
		return 0, err
	case fieldAttempts:
		v, err := integer(c.oid, isBinary, b, math.MaxInt32)
		e.Attempts = int32(v)
		return 0, err
	case fieldCreatedAt:
		v, err := timestamp(isBinary, b)
		e.CreatedAt = unixMicros(v)
		return 0, err
	case fieldDue:
		v, err := timestamp(isBinary, b)
		e.Due = due(v)
		return 0, err
	}
	return setBytes(c, isBinary, b, e)
}

// setBytes stores a value of variable length.
func setBytes(c *column, isBinary bool, b []byte, e *event.Event) (int, error) {
	b, err := plain(c.oid, isBinary, b)
	switch c.field {
	case fieldAggregateType:
		e.AggregateType = b
	case fieldAggregateID:
		e.AggregateID = b
	case fieldEventType:
		e.EventType = b
	case fieldPayload:
		e.Payload = b
	case fieldHeaders:
		e.Headers = b
	case fieldContentType:
		e.ContentType = b
	case fieldTopic:
		e.Topic = b
	}
	return len(b), err
}

// due is a next_attempt_at from PostgreSQL's microseconds.
func due(micros int64) event.Due {
	if micros == math.MaxInt64 {
		return event.DueInfinity()
	}
	return event.DueAtMicros(unixMicros(micros))
}

// unixMicros moves PostgreSQL's microseconds to the Unix epoch. Its infinities
// and its last centuries have no place there and become the outermost times.
func unixMicros(micros int64) int64 {
	switch {
	case micros == math.MinInt64:
		return math.MinInt64
	case micros > math.MaxInt64-microsToUnix:
		return math.MaxInt64
	}
	return micros + microsToUnix
}

// integer reads an int2, int4 or int8 of at most limit, and at least -limit-1.
func integer(oid uint32, isBinary bool, b []byte, limit int64) (int64, error) {
	var v int64
	switch {
	case !isBinary:
		var err error
		if v, err = integerText(b); err != nil {
			return 0, err
		}
	case oid == oidInt8 && len(b) == 8:
		v = int64(binary.BigEndian.Uint64(b))
	case oid == oidInt4 && len(b) == 4:
		v = int64(int32(binary.BigEndian.Uint32(b)))
	case oid == oidInt2 && len(b) == 2:
		v = int64(int16(binary.BigEndian.Uint16(b)))
	default:
		return 0, errLength
	}
	if v > limit || v < -limit-1 {
		return 0, errors.New("the number is out of range")
	}
	return v, nil
}

// uuid reads a uuid.
func uuid(isBinary bool, b []byte) ([16]byte, error) {
	switch {
	case !isBinary:
		return uuidText(b)
	case len(b) != 16:
		return [16]byte{}, errLength
	}
	return [16]byte(b), nil
}

// timestamp reads microseconds since PostgreSQL's epoch; infinities are the
// outermost values.
func timestamp(isBinary bool, b []byte) (int64, error) {
	switch {
	case !isBinary:
		return timestampText(b)
	case len(b) != 8:
		return 0, errLength
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// plain returns a value of variable length without its wrapping.
func plain(oid uint32, isBinary bool, b []byte) ([]byte, error) {
	switch {
	case isBinary && oid == oidJSONB:
		if len(b) == 0 || b[0] != 1 {
			return nil, errors.New("jsonb of unknown version")
		}
		return b[1:], nil
	case !isBinary && oid == oidBytea:
		return byteaText(b)
	}
	return b, nil
}

var errLength = errors.New("the binary value has the wrong length for its type")
