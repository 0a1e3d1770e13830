package record

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// rowHeaders reads the headers of a row as the encoder writes them.
func rowHeaders(text string) ([]header, error) {
	h := headers{cfg: headerConfig{preset: Debezium}}
	if err := h.row([]byte(text)); err != nil {
		return nil, err
	}
	h.traceContext()
	return cutHeaders(h.buf, h.count), nil
}

// cutHeaders reads headers in wire form.
func cutHeaders(buf []byte, count int) []header {
	var list []header
	for range count {
		var h header
		var name []byte
		name, buf = cutRecord(buf) // a length and as many bytes, like a record
		h.Name = string(name)
		if h.Null = buf[0] == 1; h.Null {
			buf = buf[1:]
		} else {
			var value []byte
			value, buf = cutRecord(buf)
			h.Value = string(value)
		}
		list = append(list, h)
	}
	return list
}

func TestRowHeaders(t *testing.T) {
	t.Parallel()
	text := func(name, value string) header { return header{Name: name, Value: value} }
	for name, tc := range map[string]struct {
		text string
		want []header
		err  error
	}{
		"none":             {text: `{}`},
		"none, spaced":     {text: " { \n } "},
		"string":           {text: `{"a": "b"}`, want: []header{text("a", "b")}},
		"empty string":     {text: `{"a": ""}`, want: []header{text("a", "")}},
		"escapes":          {text: `{"a\"\\\/\b\f\n\r\t": "\u00fc\ud83d\ude00ü"}`, want: []header{text("a\"\\/\b\f\n\r\t", "ü😀ü")}},
		"numbers":          {text: `{"a": 1, "b": -0.50, "c": 1E+2}`, want: []header{text("a", "1"), text("b", "-0.50"), text("c", "1E+2")}},
		"booleans":         {text: `{"a": true, "b": false}`, want: []header{text("a", "true"), text("b", "false")}},
		"null":             {text: `{"a": null}`, want: []header{{Name: "a", Null: true}}},
		"array":            {text: `{"a": ["x", "y"], "b": "z"}`, want: []header{text("a", "x"), text("a", "y"), text("b", "z")}},
		"empty array":      {text: `{"a": [ ]}`},
		"trace goes last":  {text: `{"tracestate": "s", "traceparent": "p", "a": "b"}`, want: []header{text("a", "b"), text("traceparent", "p"), text("tracestate", "s")}},
		"object":           {text: `{"a": {}}`, err: errValueKind},
		"array of numbers": {text: `{"a": ["x", 1]}`, err: errValueKind},
		"array of arrays":  {text: `{"a": [["x"]]}`, err: errValueKind},
		"not an object":    {text: `["a"]`, err: errNotObject},
		"no JSON":          {text: `a=b`, err: errNotObject},
		"nothing":          {text: ` `, err: errNotObject},
		"unfinished":       {text: `{"a": "b"`, err: errSyntax},
		"unfinished text":  {text: `{"a": "b`, err: errSyntax},
		"no colon":         {text: `{"a" "b"}`, err: errSyntax},
		"no comma":         {text: `{"a": "b" "c": "d"}`, err: errSyntax},
		"comma at the end": {text: `{"a": "b",}`, err: errSyntax},
		"more behind it":   {text: `{"a": "b"} x`, err: errSyntax},
		"bare word":        {text: `{"a": nil}`, err: errSyntax},
		"leading zero":     {text: `{"a": 01}`, err: errSyntax},
		"bare point":       {text: `{"a": 1.}`, err: errSyntax},
		"bare exponent":    {text: `{"a": 1e}`, err: errSyntax},
		"control byte":     {text: "{\"a\": \"\x01\"}", err: errSyntax},
		"unknown escape":   {text: `{"a": "\x"}`, err: errSyntax},
		"short escape":     {text: `{"a": "\u12"}`, err: errSyntax},
		"half a pair":      {text: `{"a": "\ud83d"}`, err: errNotText},
		"wrong pair":       {text: `{"a": "\ud83d\u0041"}`, err: errNotText},
		"no UTF-8":         {text: "{\"a\": \"\xff\"}", err: errNotText},
		"reserved":         {text: `{"id": "x"}`, err: errReserved},
		"reserved, hidden": {text: `{"\u0069d": "x"}`, err: errReserved},
		"ce_ prefix":       {text: `{"ce_x": "x"}`, err: errReserved},
		"cdcr- prefix":     {text: `{"cdcr-x": "x"}`, err: errReserved},
		"trace no string":  {text: `{"traceparent": 1}`, err: errTraceValue},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := rowHeaders(tc.text)
			if !errors.Is(err, tc.err) {
				t.Fatalf("error %v, want %v", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("headers (-want +got):\n%s", diff)
			}
		})
	}
}

// The scanner accepts what encoding/json accepts, as far as it can be a
// header, and reads the same from it.
func FuzzRowHeaders(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"a":"b"}`, `{"a":["x","y"]}`, `{"a":null,"b":1.5e3,"c":true}`, `{"a":"\u00fc\ud83d\ude00"}`, `{"a":{}}`, `[1]`, `{"a":1,}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := rowHeaders(text)
		want, ok := reference(text)
		if err != nil {
			if ok && !errors.Is(err, errReserved) && !errors.Is(err, errNotText) && !errors.Is(err, errTraceValue) {
				t.Fatalf("%q: %v, but encoding/json reads %v", text, err, want)
			}
			return
		}
		if !ok {
			t.Fatalf("%q: read as %v, but encoding/json refuses it", text, got)
		}
		for _, h := range got {
			if h.Name == "traceparent" || h.Name == "tracestate" {
				return // the order differs by design
			}
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%q (-encoding/json +got):\n%s", text, diff)
		}
	})
}

// reference reads headers with encoding/json; ok is false if they are none.
func reference(text string) (list []header, ok bool) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if tok, err := dec.Token(); err != nil || tok != json.Delim('{') {
		return nil, false
	}
	for dec.More() {
		tok, err := dec.Token()
		name, isString := tok.(string)
		if err != nil || !isString {
			return nil, false
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, false
		}
		values, ok := referenceValues(raw)
		if !ok {
			return nil, false
		}
		for _, v := range values {
			v.Name = name
			list = append(list, v)
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, false
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, false
	}
	return list, true
}

func referenceValues(raw json.RawMessage) ([]header, bool) {
	switch raw[0] {
	case '{':
		return nil, false
	case '[':
		var items []json.RawMessage
		if err := json.Unmarshal(raw, &items); err != nil {
			return nil, false
		}
		var list []header
		for _, item := range items {
			if item[0] != '"' {
				return nil, false
			}
			v, ok := referenceValues(item)
			if !ok {
				return nil, false
			}
			list = append(list, v...)
		}
		return list, true
	case '"':
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return nil, false
		}
		return []header{{Value: s}}, true
	case 'n':
		return []header{{Null: true}}, true
	}
	return []header{{Value: string(raw)}}, true
}

func TestQuotedKey(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"order-1":      `"order-1"`,
		"grüß-7":       `"grüß-7"`,
		`a"b\c/d`:      `"a\"b\\c/d"`,
		"\b\f\n\r\t":   `"\b\f\n\r\t"`,
		"\x00\x1f\x7f": "\"\\u0000\\u001F\x7f\"",
	} {
		if got := string(appendQuoted(nil, []byte(key))); got != want {
			t.Errorf("key %q is quoted as %s, want %s", key, got, want)
		}
		var back string
		if err := json.Unmarshal(appendQuoted(nil, []byte(key)), &back); err != nil || back != key {
			t.Errorf("key %q reads back as %q, %v", key, back, err)
		}
	}
}
