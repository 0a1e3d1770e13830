package notice

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// The vectors below were made with another implementation of AES-GCM, from the
// description of the format: key 00 01 .. 1f, nonce 64 65 .. 6f.
const (
	vectorID  = "0192a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
	vectorKey = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
	vectorAAD = "00000016" + "6364632d72656c61792f6e6f74696669636174696f6e" + // cdc-relay/notification
		"00000001" + "31" + // 1
		"00000007" + "323032362d3131" + // 2026-11
		"0000000c" + "7665726966795f656d61696c" + // verify_email
		"00000010" + "0192a1b2c3d47e5f8a9b0c1d2e3f4a5b"

	// {"to":"ada@example.com","token":"dG9rZW4","exp":1793000000}
	vectorSealed = "ZGVmZ2hpamtsbW5vMzmqCVvTdP9aAx-NogQHjS6nKGnkAdFehaXDI57Nh3K2jQf5PkjMMN_fWlqFMuj1Kmyh1BB6cRjKwdGjsbRqCWc1Zr-CDOgxCha5"
	// {"to":"no address","token":"dG9rZW4","exp":1793000000}
	vectorNoAddress = "ZGVmZ2hpamtsbW5vMzmqCVvTdPBRQj6MvhcPjjHgKij_A5gXyfOWap_knDrOvnTiYDD-fI3RQg7Ke_n_K2uo1xA3cr5SpJ26cnue3GRD8lWYRw"
	// not json
	vectorNotJSON = "ZGVmZ2hpamtsbW5vJnSqRhOaOfB3B-1gnjkX7a3r98CWKkGW"
	// {"to":"ada@example.com","token":"","exp":1793000000}
	vectorNoToken = "ZGVmZ2hpamtsbW5vMzmqCVvTdP9aAx-NogQHjS6nKGnkAdFehaXDI57Nh3K2y2ziKWrrJsfCTwbOcvr_K2uomudm-EHOqWgwSIG0sFweRrY"
)

func ring(t *testing.T, keys string) *Ring {
	t.Helper()
	r, err := ParseRing(keys)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func id(t *testing.T, s string) outbox.ID {
	t.Helper()
	id, err := outbox.ParseID(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestAdditionalData(t *testing.T) {
	t.Parallel()
	if got := hex.EncodeToString(additional("2026-11", "verify_email", id(t, vectorID))); got != vectorAAD {
		t.Errorf("got  %s\nwant %s", got, vectorAAD)
	}
}

// document is a payload of format 1 with changes.
func document(t *testing.T, changes map[string]any) []byte {
	t.Helper()
	fields := map[string]any{
		"v": 1, "kid": "2026-11", "purpose": "verify_email", "tpl": "verify_email@3", "locale": "en", "sealed": vectorSealed,
	}
	for name, value := range changes {
		if fields[name] = value; value == nil {
			delete(fields, name)
		}
	}
	data, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestOpen(t *testing.T) {
	t.Parallel()
	expires := time.Unix(1793000000, 0)
	good := document(t, nil)
	for _, tc := range []struct {
		name    string
		id      string
		purpose string
		data    []byte
		now     time.Time
		want    error
	}{
		{name: "the vector", data: good},
		{name: "a moment before it expires", data: good, now: expires.Add(-1)},
		{name: "expired", data: good, now: expires, want: ErrExpired},
		{name: "another event", id: "0192a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5c", data: good, want: ErrSeal},
		{name: "another purpose is expected", purpose: "reset_password", data: good, want: ErrPurpose},
		{name: "purpose rewritten", purpose: "reset_password", data: document(t, map[string]any{"purpose": "reset_password"}), want: ErrSeal},
		{name: "key rewritten", data: document(t, map[string]any{"kid": "2026-10"}), want: ErrSeal},
		{name: "unknown key", data: document(t, map[string]any{"kid": "2027-01"}), want: ErrKey},
		{name: "unknown version, other fields", data: []byte(`{"v":2,"all":"new"}`), want: ErrVersion},
		{name: "no address", data: document(t, map[string]any{"sealed": vectorNoAddress}), want: ErrAddress},
		{name: "sealed is no JSON", data: document(t, map[string]any{"sealed": vectorNotJSON}), want: ErrPayload},
		{name: "no token", data: document(t, map[string]any{"sealed": vectorNoToken}), want: ErrPayload},
		{name: "not base64", data: document(t, map[string]any{"sealed": "***"}), want: ErrSeal},
		{name: "padded base64", data: document(t, map[string]any{"sealed": vectorSealed + "="}), want: ErrSeal},
		{name: "base64 with bits too many", data: document(t, map[string]any{"sealed": vectorNoAddress[:len(vectorNoAddress)-1] + "x"}), want: ErrSeal},
		{name: "too short for a nonce", data: document(t, map[string]any{"sealed": "AAAA"}), want: ErrSeal},
		{name: "empty", data: nil, want: ErrPayload},
		{name: "no JSON", data: []byte("hello"), want: ErrPayload},
		{name: "a list", data: []byte("[]"), want: ErrPayload},
		{name: "something behind it", data: append(document(t, nil), " {}"...), want: ErrPayload},
		{name: "no version", data: document(t, map[string]any{"v": nil}), want: ErrPayload},
		{name: "version in words", data: document(t, map[string]any{"v": "1"}), want: ErrPayload},
		{name: "unknown field", data: document(t, map[string]any{"cc": "x"}), want: ErrPayload},
		{name: "no kid", data: document(t, map[string]any{"kid": nil}), want: ErrPayload},
		{name: "no purpose", data: document(t, map[string]any{"purpose": nil}), want: ErrPayload},
		{name: "no tpl", data: document(t, map[string]any{"tpl": nil}), want: ErrPayload},
		{name: "no locale", data: document(t, map[string]any{"locale": nil}), want: ErrPayload},
		{name: "no sealed", data: document(t, map[string]any{"sealed": nil}), want: ErrPayload},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			eventID, purpose, now := id(t, vectorID), "verify_email", expires.Add(-time.Hour)
			if tc.id != "" {
				eventID = id(t, tc.id)
			}
			if tc.purpose != "" {
				purpose = tc.purpose
			}
			if !tc.now.IsZero() {
				now = tc.now
			}
			r := ring(t, "2026-11:"+vectorKey+",2026-10:"+vectorKey)
			got, err := r.Open(eventID, purpose, tc.data, now)
			if !errors.Is(err, tc.want) {
				t.Fatalf("error %v, want %v", err, tc.want)
			}
			var want Notice
			if tc.want == nil {
				want = Notice{"verify_email", "verify_email@3", "en", "ada@example.com", "dG9rZW4", expires}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestSealed(t *testing.T) {
	t.Parallel()
	const oldKey = "/////////////////////////////////////////w8="
	before, after := ring(t, "old:"+oldKey), ring(t, "new:"+vectorKey+",old:"+oldKey)
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringN(1, 40, 100)
		want := Notice{
			Purpose: text.Draw(rt, "purpose"), Template: text.Draw(rt, "template"), Locale: text.Draw(rt, "locale"),
			To: "ada@example.com", Token: text.Draw(rt, "token"), Expires: time.Unix(rapid.Int64Range(1, 1<<40).Draw(rt, "expires"), 0),
		}
		sealer := rapid.SampledFrom([]*Ring{before, after}).Draw(rt, "ring")
		eventID := outbox.NewID()
		data, err := sealer.Seal(eventID, want)
		if err != nil {
			rt.Fatal(err)
		}
		got, err := after.Open(eventID, want.Purpose, data, want.Expires.Add(-1))
		if err != nil {
			rt.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Errorf("(-want +got)\n%s", diff)
		}
		again, err := sealer.Seal(eventID, want)
		if err != nil || string(again) == string(data) {
			rt.Errorf("sealed twice with one nonce (error %v)", err)
		}
	})
}

func TestAnyChangeOfTheSealedPartIsSeen(t *testing.T) {
	t.Parallel()
	r := ring(t, "2026-11:"+vectorKey)
	sealed, err := base64.RawURLEncoding.DecodeString(vectorSealed)
	if err != nil {
		t.Fatal(err)
	}
	for i := range sealed {
		for bit := range 8 {
			sealed[i] ^= 1 << bit
			data := document(t, map[string]any{"sealed": base64.RawURLEncoding.EncodeToString(sealed)})
			if _, err := r.Open(id(t, vectorID), "verify_email", data, time.Unix(0, 0)); !errors.Is(err, ErrSeal) {
				t.Fatalf("bit %d of byte %d: error %v", bit, i, err)
			}
			sealed[i] ^= 1 << bit
		}
	}
}

func TestSealRefuses(t *testing.T) {
	t.Parallel()
	good := Notice{Purpose: "p", Template: "t@1", Locale: "en", To: "ada@example.com", Token: "x"}
	for _, tc := range []struct {
		name   string
		change func(*Notice)
	}{
		{"no purpose", func(n *Notice) { n.Purpose = "" }},
		{"no template", func(n *Notice) { n.Template = "" }},
		{"no locale", func(n *Notice) { n.Locale = "" }},
		{"no token", func(n *Notice) { n.Token = "" }},
		{"no address", func(n *Notice) { n.To = "ada" }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			n := good
			tc.change(&n)
			if data, err := ring(t, "k:"+vectorKey).Seal(outbox.NewID(), n); err == nil {
				t.Errorf("sealed: %s", data)
			}
		})
	}
}

func TestIsAddress(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		address string
		want    bool
	}{
		{"ada@example.com", true}, {"ada+tag@example.com", true}, {"ädä@example.com", true},
		{"", false}, {"ada", false}, {"ada@", false}, {"@example.com", false}, {"Ada <ada@example.com>", false},
		{"ada@example.com, bob@example.com", false}, {"ada@example.com\r\nBcc: bob@example.com", false}, {" ada@example.com", false},
		{strings.Repeat("a", 242) + "@example.com", true}, {strings.Repeat("a", 243) + "@example.com", false},
	} {
		if got := IsAddress(tc.address); got != tc.want {
			t.Errorf("%q: %t, want %t", tc.address, got, tc.want)
		}
	}
}

func TestParseRing(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, keys, want string }{
		{"one", "a:" + vectorKey, ""},
		{"several, with a space", "a:" + vectorKey + ", b:" + vectorKey, ""},
		{"none", "", "key 1: write name:base64"},
		{"no name", ":" + vectorKey, "key 1: write name:base64"},
		{"no colon", "a:" + vectorKey + ",b", "key 2: write name:base64"},
		{"a name twice", "a:" + vectorKey + ",a:" + vectorKey, `key "a" is given twice`},
		{"31 bytes", "a:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHg==", "32 random bytes"},
		{"not base64", "a:secret", "32 random bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseRing(tc.keys)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func FuzzOpen(f *testing.F) {
	r, err := ParseRing("2026-11:" + vectorKey)
	if err != nil {
		f.Fatal(err)
	}
	eventID, err := outbox.ParseID(vectorID)
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte(`{"v":1,"kid":"2026-11","purpose":"verify_email","tpl":"verify_email@3","locale":"en","sealed":"` + vectorSealed + `"}`))
	f.Add([]byte(`{"v":1,"kid":"2026-11","purpose":"verify_email","tpl":"verify_email@3","locale":"en","sealed":""}`))
	f.Add([]byte(`{"v":2}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := r.Open(eventID, "verify_email", data, time.Unix(0, 0))
		if err == nil && n.To != "ada@example.com" {
			t.Errorf("opened something else: %q", data)
		}
	})
}
