package tables_test

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/consumer/tables"
)

func TestHeaders(t *testing.T) {
	t.Parallel()
	many := make([]tables.Header, 1000)
	for i := range many {
		many[i] = tables.Header{Name: "same", Value: []byte{byte(i)}}
	}
	for name, test := range map[string]struct {
		headers []tables.Header
		hex     string // "" for too long to write down
	}{
		"none":       {nil, "00000000"},
		"one":        {[]tables.Header{{Name: "id", Value: []byte("7")}}, "00000001" + "00000002" + "6964" + "00000001" + "37"},
		"null":       {[]tables.Header{{Name: "a", Value: nil}}, "00000001" + "00000001" + "61" + "ffffffff"},
		"empty":      {[]tables.Header{{Name: "", Value: []byte{}}}, "00000001" + "00000000" + "00000000"},
		"zero bytes": {[]tables.Header{{Name: "\x00", Value: []byte{0}}}, "00000001" + "00000001" + "00" + "00000001" + "00"},
		"not UTF-8":  {[]tables.Header{{Name: "\xff", Value: []byte{0xfe}}}, "00000001" + "00000001" + "ff" + "00000001" + "fe"},
		"many":       {many, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := tables.EncodeHeaders(test.headers)
			if got := hex.EncodeToString(b); test.hex != "" && got != test.hex {
				t.Errorf("encoded as %s, want %s", got, test.hex)
			}
			got, err := tables.DecodeHeaders(b)
			if diff := cmp.Diff(test.headers, got); err != nil || diff != "" {
				t.Errorf("decoded: %v (-want +got):\n%s", err, diff)
			}
		})
	}
}

func TestHeadersThatAreDamaged(t *testing.T) {
	t.Parallel()
	whole := tables.EncodeHeaders([]tables.Header{{Name: "id", Value: []byte("7")}, {Name: "b", Value: nil}})
	for n := range whole {
		if got, err := tables.DecodeHeaders(whole[:n]); err == nil {
			t.Errorf("the first %d bytes were decoded: %v", n, got)
		}
	}
	for name, text := range map[string]string{
		"bytes left":           "00000000" + "00",
		"a name is null":       "00000001" + "ffffffff" + "00000000",
		"a count of all bytes": "ffffffff",
		"a length of 4 GiB":    "00000001" + "fffffffe" + "61",
	} {
		b, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tables.DecodeHeaders(b); err == nil {
			t.Errorf("%s: decoded as %v", name, got)
		}
	}
}

func TestHeadersSurvive(t *testing.T) {
	t.Parallel()
	header := rapid.Custom(func(t *rapid.T) tables.Header {
		h := tables.Header{Name: string(rapid.SliceOf(rapid.Byte()).Draw(t, "name"))}
		if rapid.Bool().Draw(t, "not null") {
			h.Value = rapid.SliceOf(rapid.Byte()).Draw(t, "value")
		}
		return h
	})
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOf(header).Draw(t, "headers")
		got, err := tables.DecodeHeaders(tables.EncodeHeaders(want))
		if err != nil || len(got) != len(want) {
			t.Fatalf("%v, %v", got, err)
		}
		for i := range want {
			if diff := cmp.Diff(want[i], got[i]); diff != "" {
				t.Fatalf("(-want +got):\n%s", diff)
			}
		}
	})
}

// FuzzDecodeHeaders: whatever the bytes are, there is no panic, and what can be
// decoded is encoded to the same bytes.
func FuzzDecodeHeaders(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff})
	f.Add(tables.EncodeHeaders([]tables.Header{{Name: "id", Value: []byte("7")}, {Name: "b", Value: nil}, {}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		headers, err := tables.DecodeHeaders(b)
		if err == nil && !bytes.Equal(tables.EncodeHeaders(headers), b) {
			t.Errorf("%x is decoded as %v, which is encoded as %x", b, headers, tables.EncodeHeaders(headers))
		}
	})
}
