package outbox_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestNewIDIsVersion7(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		<-time.After(1500 * time.Microsecond) // of the bubble's clock: half a millisecond on top
		id := outbox.NewID()
		var word [8]byte
		copy(word[2:], id[:6])
		if got, want := int64(binary.BigEndian.Uint64(word[:])), time.Now().UnixMilli(); got != want {
			t.Errorf("time %d, want %d", got, want)
		}
		if got := binary.BigEndian.Uint16(id[6:8]); got != 0x7800 {
			t.Errorf("version and fraction %04x, want 7800: half of a millisecond", got)
		}
		if id[8]&0xc0 != 0x80 {
			t.Errorf("variant %02x", id[8])
		}
		if other := outbox.NewID(); other == id || !bytes.Equal(other[:8], id[:8]) {
			t.Errorf("%v and %v, made at the same time", id, other)
		}
	})
}

func TestIDsAscendWithTheClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		last := outbox.NewID()
		for range 5000 {
			<-time.After(time.Microsecond) // of the bubble's clock
			id := outbox.NewID()
			if bytes.Compare(id[:], last[:]) <= 0 {
				t.Fatalf("%v after %v", id, last)
			}
			last = id
		}
	})
}

func TestParseID(t *testing.T) {
	t.Parallel()
	want := outbox.ID{0x01, 0x8f, 0x3c, 0x4d, 0x5e, 0x6f, 0x7a, 0x0b, 0x9c, 0x1d, 0x2e, 0x3f, 0x40, 0x51, 0x62, 0xAB}
	for name, test := range map[string]struct {
		text string
		ok   bool
	}{
		"lower case":       {"018f3c4d-5e6f-7a0b-9c1d-2e3f405162ab", true},
		"upper case":       {"018F3C4D-5E6F-7A0B-9C1D-2E3F405162AB", true},
		"empty":            {"", false},
		"without hyphens":  {"018f3c4d5e6f7a0b9c1d2e3f405162ab", false},
		"in braces":        {"{018f3c4d-5e6f-7a0b-9c1d-2e3f405162ab}", false},
		"a hyphen too far": {"018f3c4d5-e6f-7a0b-9c1d-2e3f405162ab", false},
		"no hexadecimal":   {"018f3c4d-5e6f-7a0b-9c1d-2e3f405162ag", false},
		"too long":         {"018f3c4d-5e6f-7a0b-9c1d-2e3f405162ab0", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := outbox.ParseID(test.text)
			if (err == nil) != test.ok || test.ok && got != want || !test.ok && !got.IsZero() {
				t.Errorf("%v, %v", got, err)
			}
		})
	}
}

func TestIDSurvivesItsForms(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var id outbox.ID
		copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))

		if back, err := outbox.ParseID(id.String()); err != nil || back != id {
			t.Errorf("as text: %v, %v", back, err)
		}
		var back outbox.ID
		if text, err := json.Marshal(id); err != nil || json.Unmarshal(text, &back) != nil || back != id {
			t.Errorf("as JSON: %v, %v", back, err)
		}
		value, err := id.Value()
		if err != nil {
			t.Fatal(err)
		}
		var scanned, fromBytes outbox.ID
		if err := scanned.Scan(value); err != nil || scanned != id {
			t.Errorf("from a string: %v, %v", scanned, err)
		}
		if err := fromBytes.Scan([]byte(id.String())); err != nil || fromBytes != id {
			t.Errorf("from bytes: %v, %v", fromBytes, err)
		}
	})
}

func TestScanRefuses(t *testing.T) {
	t.Parallel()
	for name, src := range map[string]any{"NULL": nil, "a number": int64(1), "other text": "x", "raw bytes": make([]byte, 16)} {
		id := outbox.NewID()
		before := id
		if err := id.Scan(src); err == nil || id != before {
			t.Errorf("%s: %v, %v", name, id, err)
		}
	}
}
