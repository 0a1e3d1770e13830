package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPrintTable(t *testing.T) {
	t.Parallel()
	shown := answer{newEnvelope("shop", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), []string{"a<b"}}
	for name, tc := range map[string]struct {
		json bool
		last string
		want string
	}{
		"JSON":             {true, "for people", `{"v":1,"at":"2026-01-02T03:04:05Z","pipeline":"shop","items":["a<b"]}` + "\n"},
		"table":            {false, "", "ONE   OTHER\na<b   1\nlong  2\n"},
		"with a last line": {false, "and more", "ONE   OTHER\na<b   1\nlong  2\nand more\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out strings.Builder
			a := &app{json: tc.json, stdout: &out}
			if err := a.printTable(shown, []string{"ONE", "OTHER"}, [][]string{{"a<b", "1"}, {"long", "2"}}, tc.last); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// full is where nothing more can be written.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestAnAnswerThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	for _, json := range []bool{false, true} {
		t.Run(fmt.Sprintf("json %v", json), func(t *testing.T) {
			t.Parallel()
			a := &app{json: json, stdout: full{}}
			err := a.print("text", func(w io.Writer) { fmt.Fprint(w, "text") })
			if !errors.Is(err, os.ErrClosed) || !strings.HasPrefix(err.Error(), "writing the answer: ") {
				t.Errorf("got %v", err)
			}
		})
	}
}
