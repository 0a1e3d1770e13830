package operate

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestParseTime(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"2026-01-02T15:04:05Z":           "2026-01-02T15:04:05Z",
		"2026-01-02T15:04:05.5+02:00":    "2026-01-02T13:04:05Z",
		"2h":                             "2026-03-10T10:00:00Z",
		"90m":                            "2026-03-10T10:30:00Z",
		"7d":                             "2026-03-03T12:00:00Z",
		"1d12h":                          "2026-03-09T00:00:00Z",
		"0s":                             "2026-03-10T12:00:00Z",
		"":                               "",
		"2":                              "",
		"-2h":                            "",
		"1d-2h":                          "",
		"-1d":                            "",
		"d":                              "",
		"2026-01-02":                     "",
		"99999999999999999999999999999d": "",
		"9999999999h":                    "",
	} {
		at, err := ParseTime(text, now)
		if got := at.UTC().Format(time.RFC3339); want != "" && (err != nil || got != want) {
			t.Errorf("%q: %s, %v; want %s", text, got, err, want)
		}
		if want == "" && err == nil {
			t.Errorf("%q: %v, want an error", text, at)
		}
	}
}

// TestParsersNeverPanic: whatever is typed is a value or an error.
func TestParsersNeverPanic(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[0-9dhms.:TZ+-]{0,30}`)).Draw(t, "text")
		if at, err := ParseTime(text, time.Unix(0, 0)); err != nil && !at.IsZero() {
			t.Errorf("time %v with %v", at, err)
		}
		var f Filter
		if err := f.AddID(text); (err == nil) != f.ByID() {
			t.Errorf("id: %+v with %v", f, err)
		}
	})
}

func TestFilterString(t *testing.T) {
	t.Parallel()
	f := Filter{
		IDs: []int64{1, 2}, EventIDs: []outbox.ID{{15: 3}}, AggregateType: "order", AggregateID: `o "1'`, Topic: "t", EventType: "a b", ErrorCode: "X",
		Phase: PhaseConsume, Statuses: []outbox.Status{outbox.Failed, outbox.Sent}, Since: time.Unix(0, 1000).UTC(), Until: time.Unix(60, 0).UTC(), After: 9, Limit: 5,
	}
	want := `--id 1 --id 2 --event-id 00000000-0000-0000-0000-000000000003 --aggregate-type order --aggregate-id "o \"1'" --topic t ` +
		`--event-type "a b" --error-code X --phase consume --status failed --status sent --since 1970-01-01T00:00:00.000001Z ` +
		`--until 1970-01-01T00:01:00Z --after 9 --include-waived`
	if diff := cmp.Diff(want, f.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for want, f := range map[string]Filter{
		"":                            {},
		"--status failed":             {Statuses: []outbox.Status{outbox.Failed}, Open: true},
		"--aggregate-type x --parked": {AggregateType: "x", Parked: true},
		"--held":                      {Held: true},
		`--aggregate-id "a\nb"`:       {AggregateID: "a\nb"},
	} {
		if got := f.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestEveryCodeIsExplained looks for the codes that the sink may write.
func TestEveryCodeIsExplained(t *testing.T) {
	t.Parallel()
	code := regexp.MustCompile(`"((?:RECORD|TOPIC|HEADERS|NULL|TIMESTAMP|POLICY)_[A-Z_]+)"`)
	found := map[string]bool{}
	for _, pattern := range []string{"../sink/*.go", "../sink/record/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range code.FindAllStringSubmatch(string(text), -1) {
				found[match[1]] = true
			}
		}
	}
	if len(found) < 8 {
		t.Errorf("only %d codes found: is this test still looking at the right place?", len(found))
	}
	for code := range found {
		if Explain(code).Class == "" {
			t.Errorf("%s is not explained", code)
		}
	}
	for code, want := range map[string]string{"APP_ANY": "consumer", "CONSUMER_DATA": "consumer", "TOPIC_UNKNOWN": "topic", "NEW": ""} {
		if got := Explain(code); got.Class != want || got.Meaning == "" || got.Remedy == "" {
			t.Errorf("%s: %+v", code, got)
		}
	}
}
