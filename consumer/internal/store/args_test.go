package store

import (
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func TestSentence(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 499)
	for name, test := range map[string]struct{ in, want string }{
		"plain":               {"the row is FAILED", "the row is FAILED"},
		"empty":               {"", ""},
		"zero bytes":          {"a\x00b", "a\uFFFDb"},
		"not UTF-8":           {"a\xff\xfeb", "a\uFFFDb"},
		"as long as possible": {long + "b", long + "b"},
		"too long":            {long + "bc", long + "b"},
		"cut within a rune":   {long + "ü", long},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := sentence(test.in); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func TestSentenceAlwaysFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := string(rapid.SliceOfN(rapid.Byte(), 0, 1200).Draw(t, "in"))
		got := sentence(in)
		if len(got) > maxMessage || !utf8.ValidString(got) || strings.ContainsRune(got, 0) {
			t.Fatalf("%q", got)
		}
		if clean := utf8.ValidString(in) && !strings.ContainsRune(in, 0); clean && !strings.HasPrefix(in, got) {
			t.Fatalf("%q changed to %q", in, got)
		}
	})
}
