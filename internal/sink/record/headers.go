package record

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// headers encodes the headers of one record after the other. Not safe for
// concurrent use.
type headers struct {
	cfg headerConfig

	buf   []byte // wire form
	count int
	text  []byte // a decoded string of the row's headers
	name  []byte // the decoded name of a row header
	trace [2][]byte
	has   [2]bool

	second int64  // Unix time of date
	date   []byte // a second as text, up to the decimal point; empty: none yet
}

// headerConfig is what of the configuration concerns headers.
type headerConfig struct {
	preset          Preset
	source          string
	eventTypeHeader string
	traceExtension  bool
}

// Names that the relay itself may write, besides those with its prefixes.
var presetNames = map[Preset][]string{
	CloudEvents: {"content-type"},
	Debezium:    {"id"},
	Plain:       {"event-id", "event-type", "aggregate-id", "occurred-at", "content-type", "aggregate-type"},
}

const (
	traceParent = iota
	traceState
)

var traceNames = [2]string{"traceparent", "tracestate"}

// encode writes the headers of e into buf, in the documented order. The error
// says what is wrong with the row's own headers.
func (h *headers) encode(e *event.Event) error {
	h.buf, h.count = h.buf[:0], 0
	h.has = [2]bool{}
	switch h.cfg.preset {
	case Debezium:
		h.debezium(e)
	case Plain:
		h.plain(e)
	default:
		h.cloudEvents(e)
	}
	if len(e.Headers) > 0 && !bytes.Equal(e.Headers, emptyObject) {
		if err := h.row(e.Headers); err != nil {
			return err
		}
	}
	h.traceContext()
	h.begin("cdcr-id")
	h.buf = appendIntValue(h.buf, e.ID)
	h.begin("cdcr-attempt")
	h.buf = appendIntValue(h.buf, int64(e.Attempts)+1)
	if e.PayloadNull {
		h.addString("cdcr-tombstone", "1")
	}
	return nil
}

var emptyObject = []byte("{}")

func (h *headers) cloudEvents(e *event.Event) {
	h.addString("ce_specversion", "1.0")
	h.addUUID("ce_id", &e.EventID)
	h.addString("ce_source", h.cfg.source)
	h.add("ce_type", e.EventType)
	h.add("ce_subject", e.AggregateID)
	h.addTime("ce_time", e.CreatedAt)
	h.add("content-type", e.ContentType)
	h.add("ce_aggregatetype", e.AggregateType)
}

func (h *headers) debezium(e *event.Event) {
	h.addUUID("id", &e.EventID)
	if h.cfg.eventTypeHeader != "" {
		h.add(h.cfg.eventTypeHeader, e.EventType)
	}
}

func (h *headers) plain(e *event.Event) {
	h.addUUID("event-id", &e.EventID)
	h.add("event-type", e.EventType)
	h.add("aggregate-id", e.AggregateID)
	h.addTime("occurred-at", e.CreatedAt)
	h.add("content-type", e.ContentType)
	h.add("aggregate-type", e.AggregateType)
}

// traceContext writes the row's trace context, which stands after its other
// headers.
func (h *headers) traceContext() {
	for i, name := range traceNames {
		if h.has[i] {
			h.add(name, h.trace[i])
		}
	}
	if h.cfg.preset != CloudEvents || !h.cfg.traceExtension {
		return
	}
	for i, name := range [2]string{"ce_traceparent", "ce_tracestate"} {
		if h.has[i] {
			h.add(name, h.trace[i])
		}
	}
}

// row writes the headers that the row brings along.
func (h *headers) row(text []byte) error {
	s := scanner{text: text}
	if !s.accept('{') {
		return errNotObject
	}
	for first := true; ; first = false {
		done, err := s.next(first, '}')
		if err != nil {
			return err
		}
		if done {
			break
		}
		if err := h.rowHeader(&s); err != nil {
			return err
		}
	}
	if s.peek() != 0 || s.pos < len(s.text) {
		return errSyntax
	}
	return nil
}

func (h *headers) rowHeader(s *scanner) (err error) {
	if h.name, err = s.appendString(h.name[:0]); err != nil {
		return err
	}
	if !s.accept(':') {
		return errSyntax
	}
	if h.reserved(h.name) {
		return errReserved
	}
	for i, name := range traceNames {
		if string(h.name) == name {
			return h.rowTrace(s, i)
		}
	}
	return h.rowValue(s)
}

// rowTrace keeps one half of the trace context for later.
func (h *headers) rowTrace(s *scanner, i int) (err error) {
	if s.peek() != '"' {
		return errTraceValue
	}
	h.trace[i], err = s.appendString(h.trace[i][:0])
	h.has[i] = err == nil
	return err
}

func (h *headers) rowValue(s *scanner) error {
	switch s.peek() {
	case '"':
		return h.rowString(s)
	case '[':
		return h.rowStrings(s)
	case '{':
		return errValueKind
	}
	lit, err := s.literal()
	if err != nil {
		return err
	}
	h.beginNamed(h.name)
	if string(lit) == "null" {
		h.buf = appendNull(h.buf)
	} else {
		h.buf = appendBytes(h.buf, lit)
	}
	return nil
}

func (h *headers) rowString(s *scanner) (err error) {
	if h.text, err = s.appendString(h.text[:0]); err != nil {
		return err
	}
	h.beginNamed(h.name)
	h.buf = appendBytes(h.buf, h.text)
	return nil
}

// rowStrings repeats the header for each string of an array.
func (h *headers) rowStrings(s *scanner) error {
	s.accept('[')
	for first := true; ; first = false {
		done, err := s.next(first, ']')
		if done || err != nil {
			return err
		}
		if s.peek() != '"' {
			return errValueKind
		}
		if err := h.rowString(s); err != nil {
			return err
		}
	}
}

// reserved reports whether a row must not bring a header of this name.
func (h *headers) reserved(name []byte) bool {
	if bytes.HasPrefix(name, []byte("ce_")) || bytes.HasPrefix(name, []byte("cdcr-")) {
		return true
	}
	if h.cfg.preset == Debezium && h.cfg.eventTypeHeader != "" && string(name) == h.cfg.eventTypeHeader {
		return true
	}
	for _, own := range presetNames[h.cfg.preset] {
		if string(name) == own {
			return true
		}
	}
	return false
}

// begin starts a header: its value must follow.
func (h *headers) begin(name string) {
	h.buf = appendString(h.buf, name)
	h.count++
}

func (h *headers) beginNamed(name []byte) {
	h.buf = appendBytes(h.buf, name)
	h.count++
}

func (h *headers) add(name string, value []byte) {
	h.begin(name)
	h.buf = appendBytes(h.buf, value)
}

func (h *headers) addString(name, value string) {
	h.begin(name)
	h.buf = appendString(h.buf, value)
}

// addUUID writes the UUID in lower case.
func (h *headers) addUUID(name string, id *[16]byte) {
	var text [36]byte
	hex.Encode(text[0:8], id[0:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:36], id[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	h.add(name, text[:])
}

// addTime writes microseconds since the Unix epoch as UTC with six decimals.
// Formatting a date costs more than all the rest of a record, and neighbours
// mostly share their second: it is kept.
func (h *headers) addTime(name string, micros int64) {
	t := time.UnixMicro(micros)
	if second := t.Unix(); second != h.second || len(h.date) == 0 {
		h.second = second
		h.date = t.UTC().AppendFormat(h.date[:0], "2006-01-02T15:04:05.")
	}
	fraction := t.Nanosecond() / 1000
	var digits [6]byte
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i] = byte('0' + fraction%10)
		fraction /= 10
	}
	h.begin(name)
	h.buf = binary.AppendVarint(h.buf, int64(len(h.date)+len(digits)+1))
	h.buf = append(h.buf, h.date...)
	h.buf = append(h.buf, digits[:]...)
	h.buf = append(h.buf, 'Z')
}

// validHeaderName keeps a configured header name out of the relay's own.
func validHeaderName(name string) bool {
	return !strings.HasPrefix(name, "ce_") && !strings.HasPrefix(name, "cdcr-") && name != "id" &&
		name != traceNames[traceParent] && name != traceNames[traceState]
}
