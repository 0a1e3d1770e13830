package decoder

import (
	"encoding/hex"
	"errors"
	"math"
	"strconv"
	"time"
)

// Values in text format. PostgreSQL sends them for types without a binary
// format, so these are for completeness, not for speed. The errors do not
// repeat the value: it may be anybody's data.

func integerText(b []byte) (int64, error) {
	v, err := strconv.ParseInt(string(b), 10, 64)
	if err != nil {
		return 0, errors.New("the text is not a number")
	}
	return v, nil
}

// uuidText reads the form that PostgreSQL writes, with hyphens.
func uuidText(b []byte) (id [16]byte, err error) {
	bad := errors.New("the text is not a uuid")
	if len(b) != 36 || b[8] != '-' || b[13] != '-' || b[18] != '-' || b[23] != '-' {
		return id, bad
	}
	digits := make([]byte, 0, 32)
	for _, group := range [][]byte{b[:8], b[9:13], b[14:18], b[19:23], b[24:]} {
		digits = append(digits, group...)
	}
	if _, err := hex.Decode(id[:], digits); err != nil {
		return id, bad
	}
	return id, nil
}

// byteaText reads bytea_output hex, which the connection pins. The result is
// a copy.
func byteaText(b []byte) ([]byte, error) {
	if len(b) < 2 || b[0] != '\\' || b[1] != 'x' {
		return nil, errors.New("the text is not bytea in hex format")
	}
	out := make([]byte, hex.DecodedLen(len(b)-2))
	if _, err := hex.Decode(out, b[2:]); err != nil {
		return nil, errors.New("the text is not bytea in hex format")
	}
	return out, nil
}

// timestampLayouts are DateStyle ISO with the forms of an offset; a timestamp
// without one is UTC.
var timestampLayouts = []string{
	"2006-01-02 15:04:05-07",
	"2006-01-02 15:04:05-07:00",
	"2006-01-02 15:04:05-07:00:00",
	"2006-01-02 15:04:05",
}

// timestampText returns microseconds since PostgreSQL's epoch.
func timestampText(b []byte) (int64, error) {
	switch s := string(b); s {
	case "infinity":
		return math.MaxInt64, nil
	case "-infinity":
		return math.MinInt64, nil
	default:
		for _, layout := range timestampLayouts {
			if t, err := time.Parse(layout, s); err == nil {
				return t.UnixMicro() - microsToUnix, nil
			}
		}
		return 0, errors.New("the text is not a timestamp in ISO format")
	}
}
