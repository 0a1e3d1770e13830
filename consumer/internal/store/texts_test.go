package store

import (
	"strings"
	"testing"
)

func TestStatementsAreMadeOnceATable(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		texts func(table string) *texts
		text  func(*texts) string
	}{
		"rows":     {rowTexts, func(t *texts) string { return t.claim.byEvent }},
		"receipts": {receiptTexts, func(t *texts) string { return t.insert }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			one, other := tc.texts(`"one"."table"`), tc.texts(`"other"."table"`)
			if tc.texts(`"one"."table"`) != one {
				t.Error("made twice")
			}
			if text := tc.text(one); !strings.Contains(text, `"one"."table"`) {
				t.Errorf("not of its table: %s", text)
			}
			if text := tc.text(other); !strings.Contains(text, `"other"."table"`) {
				t.Errorf("not of its table: %s", text)
			}
		})
	}
}
