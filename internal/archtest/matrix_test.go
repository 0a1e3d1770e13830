package archtest

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the module's folder.
const root = "../.."

var (
	inBackticks = regexp.MustCompile("`([^`]+)`")
	testName    = regexp.MustCompile(`^(?:([a-z]+)\.)?(Test[A-Z]\w*)$`)
	testFunc    = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\) \{`)
)

// TestFailureMatrixNamesTests: each row of the document names tests, and each
// of them exists.
func TestFailureMatrixNamesTests(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "FAILURE-MATRIX.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range checkMatrix(string(text), testsOf(t)) {
		t.Error(problem)
	}
}

// testsOf returns a function that lists the tests of a package by its short
// name.
func testsOf(t *testing.T) func(pkg string) []string {
	return func(pkg string) (tests []string) {
		dir := filepath.Join(root, "internal", pkg)
		if pkg == "e2e" || pkg == "consumer" {
			dir = filepath.Join(root, pkg)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range testFunc.FindAllStringSubmatch(string(source), -1) {
				tests = append(tests, m[1])
			}
		}
		return tests
	}
}

// checkMatrix returns one sentence for each row whose last cell names no test,
// and for each test that does not exist.
func checkMatrix(text string, testsOf func(pkg string) []string) (problems []string) {
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || cells[0] == " Fault " || strings.HasPrefix(cells[0], "---") {
			continue
		}
		names := inBackticks.FindAllStringSubmatch(cells[2], -1)
		if len(names) == 0 {
			problems = append(problems, fmt.Sprintf("%q names no test", strings.TrimSpace(cells[0])))
		}
		for _, name := range names {
			m := testName.FindStringSubmatch(name[1])
			if m == nil {
				problems = append(problems, name[1]+" is no name of a test")
				continue
			}
			pkg, test := cmp.Or(m[1], "e2e"), m[2]
			if !slices.Contains(testsOf(pkg), test) {
				problems = append(problems, name[1]+" does not exist in "+pkg)
			}
		}
	}
	return problems
}

func TestCheckMatrix(t *testing.T) {
	testsOf := func(pkg string) []string {
		return map[string][]string{"e2e": {"TestKilled"}, "sink": {"TestSilent"}}[pkg]
	}
	for name, tc := range map[string]struct {
		row  string
		want string // a part of the one problem; empty if there is none
	}{
		"heading":                {"| Fault | Expected | Tests |\n|---|---|---|", ""},
		"tests that exist":       {"| a | b | `TestKilled`, `sink.TestSilent` |", ""},
		"no table":               {"`TestNothing` is no row", ""},
		"a test that is gone":    {"| a | b | `TestKilled`, `TestGone` |", "TestGone does not exist in e2e"},
		"of another package":     {"| a | b | `sink.TestKilled` |", "sink.TestKilled does not exist in sink"},
		"of an unknown package":  {"| a | b | `nothing.TestKilled` |", "does not exist in nothing"},
		"no test":                {"| a `TestKilled` | b | by hand |", "names no test"},
		"something else instead": {"| a | b | `make chaos` |", "make chaos is no name of a test"},
	} {
		t.Run(name, func(t *testing.T) {
			got := checkMatrix(tc.row, testsOf)
			if tc.want == "" && len(got) == 0 {
				return
			}
			if len(got) != 1 || tc.want == "" || !strings.Contains(got[0], tc.want) {
				t.Fatalf("got %q, want a problem with %q", got, tc.want)
			}
		})
	}
}
