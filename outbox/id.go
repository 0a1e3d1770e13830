package outbox

import (
	"crypto/rand"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"time"
)

// ID is the identity of an event, a UUID. It is the same on every retry and
// every duplicate, so consumers recognise by it what they have seen.
type ID [16]byte

// NewID makes a UUID of version 7: 48 bits of Unix time in milliseconds, 12
// bits of its fraction, 62 random bits. Ids that one process makes therefore
// ascend with its clock, to a quarter of a microsecond; two made within that
// time, or after the clock was set back, may come in any order. Within one
// [Writer.Write] they always ascend. Nothing in cdc-relay orders events by id.
func NewID() ID { return idAt(ticks(time.Now())) }

// idSequence makes ids that strictly ascend. Its zero value is ready; it is
// not safe for concurrent use.
type idSequence struct {
	last uint64 // ticks of the last id
}

func (s *idSequence) next() ID {
	s.last = max(ticks(time.Now()), s.last+1)
	return idAt(s.last)
}

// fractionBits is how much of an id's time is below the millisecond.
const fractionBits = 12

// ticks is Unix time in milliseconds with fractionBits binary places.
func ticks(t time.Time) uint64 {
	millis, rest := t.UnixMilli(), t.Nanosecond()%int(time.Millisecond)
	return uint64(millis)<<fractionBits | uint64(rest)<<fractionBits/uint64(time.Millisecond)
}

func idAt(ticks uint64) (id ID) {
	rand.Read(id[8:]) // never fails
	const version, variant = 0x7000, 0x80
	binary.BigEndian.PutUint64(id[:8], ticks>>fractionBits<<16|version|ticks&(1<<fractionBits-1))
	id[8] = variant | id[8]&0x3f
	return id
}

var errNoID = errors.New("an id is 32 hexadecimal digits in groups of 8-4-4-4-12")

// ParseID reads a UUID of any version in its usual form, in upper or lower
// case: xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx.
func ParseID(s string) (ID, error) {
	var id ID
	if err := id.UnmarshalText([]byte(s)); err != nil {
		return ID{}, err
	}
	return id, nil
}

// String returns the usual form, in lower case.
func (id ID) String() string {
	text, _ := id.MarshalText() // never fails
	return string(text)
}

// IsZero reports whether id is the zero ID, which stands for none.
func (id ID) IsZero() bool { return id == ID{} }

// MarshalText is for encoding/json and its like. It returns no error.
func (id ID) MarshalText() ([]byte, error) {
	text := make([]byte, 36)
	hex.Encode(text[0:8], id[0:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:36], id[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return text, nil
}

// UnmarshalText is the reverse of MarshalText. On an error id is unchanged.
func (id *ID) UnmarshalText(text []byte) error {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return errNoID
	}
	var digits [32]byte
	n := copy(digits[:], text[0:8])
	for _, group := range [][]byte{text[9:13], text[14:18], text[19:23], text[24:36]} {
		n += copy(digits[n:], group)
	}
	var parsed ID
	if _, err := hex.Decode(parsed[:], digits[:]); err != nil {
		return errNoID
	}
	*id = parsed
	return nil
}

// Value lets an ID be a parameter of a query, in pgx and database/sql.
func (id ID) Value() (driver.Value, error) { return id.String(), nil }

// Scan reads a uuid column, in pgx and database/sql. NULL is an error.
func (id *ID) Scan(src any) error {
	var err error
	switch src := src.(type) {
	case string:
		err = id.UnmarshalText([]byte(src))
	case []byte:
		err = id.UnmarshalText(src)
	default:
		err = fmt.Errorf("cannot read an id from %T", src)
	}
	if err != nil {
		return fmt.Errorf("scanning an event id: %w", err)
	}
	return nil
}
