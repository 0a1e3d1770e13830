package record

import (
	"encoding/binary"
	"errors"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// The headers column is a JSON object that PostgreSQL has already checked.
// This scanner reads just what a header may be, straight into a buffer; all
// else is an error, so it also stands up to text that is no JSON at all.

var (
	errNotObject  = errors.New("is not a JSON object")
	errSyntax     = errors.New("is not well-formed JSON")
	errValueKind  = errors.New("holds a value that is neither a string, number, boolean, null nor an array of strings")
	errNotText    = errors.New("holds a string that is not valid Unicode")
	errReserved   = errors.New("uses a name that belongs to the relay")
	errTraceValue = errors.New("holds a trace context that is not a string")
)

// scanner reads JSON from text, one element after the other.
type scanner struct {
	text []byte
	pos  int
}

// peek returns the next byte that is not white space, 0 at the end.
func (s *scanner) peek() byte {
	for s.pos < len(s.text) {
		switch c := s.text[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

// accept takes c if it comes next.
func (s *scanner) accept(c byte) bool {
	if s.peek() != c {
		return false
	}
	s.pos++
	return true
}

// next moves on to the next element of an object or array: done tells that
// it was closed, by end. first is true before the first element.
func (s *scanner) next(first bool, end byte) (done bool, err error) {
	switch {
	case s.accept(end):
		return true, nil
	case first, s.accept(','):
		return false, nil
	}
	return false, errSyntax
}

// appendString appends what the next string stands for, in UTF-8.
func (s *scanner) appendString(buf []byte) ([]byte, error) {
	if !s.accept('"') {
		return buf, errSyntax
	}
	for start := s.pos; s.pos < len(s.text); {
		switch c := s.text[s.pos]; {
		case c == '"':
			if !utf8.Valid(s.text[start:s.pos]) {
				return buf, errNotText
			}
			buf = append(buf, s.text[start:s.pos]...)
			s.pos++
			return buf, nil
		case c == '\\':
			if !utf8.Valid(s.text[start:s.pos]) {
				return buf, errNotText
			}
			buf = append(buf, s.text[start:s.pos]...)
			var err error
			if buf, err = s.appendEscape(buf); err != nil {
				return buf, err
			}
			start = s.pos
		case c < ' ':
			return buf, errSyntax
		default:
			s.pos++
		}
	}
	return buf, errSyntax
}

// appendEscape appends what an escape sequence stands for. pos is at its
// backslash.
func (s *scanner) appendEscape(buf []byte) ([]byte, error) {
	if s.pos+1 >= len(s.text) {
		return buf, errSyntax
	}
	c := s.text[s.pos+1]
	s.pos += 2
	switch c {
	case '"', '\\', '/':
		return append(buf, c), nil
	case 'b':
		return append(buf, '\b'), nil
	case 'f':
		return append(buf, '\f'), nil
	case 'n':
		return append(buf, '\n'), nil
	case 'r':
		return append(buf, '\r'), nil
	case 't':
		return append(buf, '\t'), nil
	case 'u':
		return s.appendUnicodeEscape(buf)
	}
	return buf, errSyntax
}

// appendUnicodeEscape reads the digits after \u, and the second half of a
// surrogate pair where there is one.
func (s *scanner) appendUnicodeEscape(buf []byte) ([]byte, error) {
	r, ok := s.hex4()
	if !ok {
		return buf, errSyntax
	}
	if utf16.IsSurrogate(r) {
		if len(s.text)-s.pos < 2 || s.text[s.pos] != '\\' || s.text[s.pos+1] != 'u' {
			return buf, errNotText
		}
		s.pos += 2
		low, ok := s.hex4()
		if !ok {
			return buf, errSyntax
		}
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return buf, errNotText
		}
	}
	return utf8.AppendRune(buf, r), nil
}

func (s *scanner) hex4() (rune, bool) {
	if len(s.text)-s.pos < 4 {
		return 0, false
	}
	var r rune
	for _, c := range s.text[s.pos : s.pos+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	s.pos += 4
	return r, true
}

// literal takes the next number, true, false or null as it is written.
func (s *scanner) literal() ([]byte, error) {
	s.peek()
	start := s.pos
	for s.pos < len(s.text) && isLiteral(s.text[s.pos]) {
		s.pos++
	}
	lit := s.text[start:s.pos]
	switch string(lit) {
	case "true", "false", "null":
		return lit, nil
	}
	if !isNumber(lit) {
		return nil, errSyntax
	}
	return lit, nil
}

func isLiteral(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == '+' || c == '-' || c == '.' || c == 'E'
}

// isNumber reports whether lit is a number in JSON's grammar.
func isNumber(lit []byte) bool {
	rest := lit
	if len(rest) > 0 && rest[0] == '-' {
		rest = rest[1:]
	}
	whole := digits(rest)
	if whole == 0 || whole > 1 && rest[0] == '0' {
		return false
	}
	rest = rest[whole:]
	if len(rest) > 0 && rest[0] == '.' {
		n := digits(rest[1:])
		if n == 0 {
			return false
		}
		rest = rest[1+n:]
	}
	if len(rest) > 0 && (rest[0] == 'e' || rest[0] == 'E') {
		rest = rest[1:]
		if len(rest) > 0 && (rest[0] == '+' || rest[0] == '-') {
			rest = rest[1:]
		}
		n := digits(rest)
		if n == 0 {
			return false
		}
		rest = rest[n:]
	}
	return len(rest) == 0
}

// digits counts the decimal digits at the start of p.
func digits(p []byte) int {
	for i, c := range p {
		if c < '0' || c > '9' {
			return i
		}
	}
	return len(p)
}

// appendQuoted appends p as a JSON string, escaped as Kafka Connect's JSON
// converter does it: quote, backslash and control characters only.
func appendQuoted(buf, p []byte) []byte {
	const hex = "0123456789ABCDEF"
	buf = append(buf, '"')
	for _, c := range p {
		switch {
		case c == '"' || c == '\\':
			buf = append(buf, '\\', c)
		case c >= ' ':
			buf = append(buf, c)
		case c == '\b':
			buf = append(buf, '\\', 'b')
		case c == '\f':
			buf = append(buf, '\\', 'f')
		case c == '\n':
			buf = append(buf, '\\', 'n')
		case c == '\r':
			buf = append(buf, '\\', 'r')
		case c == '\t':
			buf = append(buf, '\\', 't')
		default:
			buf = append(buf, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(buf, '"')
}

// appendIntValue appends n in decimal, with the length in front.
func appendIntValue(buf []byte, n int64) []byte {
	var digits [20]byte
	return appendBytes(buf, strconv.AppendInt(digits[:0], n, 10))
}

// appendNull appends the length that stands for no value.
func appendNull(buf []byte) []byte { return binary.AppendVarint(buf, -1) }
