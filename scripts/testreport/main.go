// Testreport turns the output of go test -json, read from its standard input, into something to read: a line for each
// package and for each test that took long, the output of failed tests only, and at the end the names of what failed and
// the numbers. It ends with code 1 if anything failed.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	name := flag.String("name", "tests", "what the last line calls this run")
	slow := flag.Float64("slow", 5, "name a passed test that took at least so many seconds")
	flag.Parse()
	r := newReport(os.Stdout, *name, *slow)
	if err := r.read(os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	if !r.finish() {
		os.Exit(1)
	}
}

// event is one line of go test -json.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of a failed build
	FailedBuild string
	Test        string // with its subtests after slashes; empty: of the package
	Elapsed     float64
	Output      string
}

// failure is a test that failed, by package and full name, or a package.
type failure struct{ test, how string }

// report collects one run. Output of a test is kept until its top-level test ends, and dropped if that passed.
type report struct {
	w    io.Writer
	name string
	slow float64

	held    map[string][]event // by package and top-level test
	passed  map[string]bool    // subtests, by package and full name
	running map[string]bool    // tests, by package and full name
	crashed map[string]bool    // packages whose test binary panicked, or ran out of time
	failed  []failure
	skips   []string            // reasons, in the order of their first appearance
	skipped map[string][]string // by reason, the tests

	nPass, nFail, nSkip int
}

func newReport(w io.Writer, name string, slow float64) *report {
	return &report{w: w, name: name, slow: slow,
		held: map[string][]event{}, passed: map[string]bool{}, running: map[string]bool{}, crashed: map[string]bool{},
		skipped: map[string][]string{}}
}

func (r *report) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.line(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the output of go test: %w", err)
		}
	}
}

func (r *report) line(line string) {
	var e event
	if err := json.Unmarshal([]byte(line), &e); err != nil || e.Action == "" {
		fmt.Fprint(r.w, line) // not from a test: what go itself says
		return
	}
	switch {
	case e.Action == "build-output":
		fmt.Fprint(r.w, e.Output)
	case e.Test == "":
		r.ofPackage(e)
	default:
		r.ofTest(e)
	}
}

func (r *report) ofPackage(e event) {
	switch e.Action {
	case "output":
		if e.Output != "PASS\n" && !strings.Contains(e.Output, "[no test files]") {
			fmt.Fprint(r.w, e.Output)
		}
	case "fail":
		for _, test := range slices.Sorted(maps.Keys(r.running)) {
			if strings.HasPrefix(test, e.Package+" ") {
				r.fail(test, " did not end")
			}
		}
		if !r.failedIn(e.Package + " ") {
			r.fail(e.Package, "") // did not build, or ended outside of a test
		}
	}
}

// fail notes the failure of a test, or of a package.
func (r *report) fail(test, how string) {
	r.nFail++
	r.failed = append(r.failed, failure{test, how})
}

// failedIn tells whether a test failed whose name begins so.
func (r *report) failedIn(prefix string) bool {
	return slices.ContainsFunc(r.failed, func(f failure) bool { return strings.HasPrefix(f.test, prefix) })
}

func (r *report) ofTest(e event) {
	top, _, isSub := strings.Cut(e.Test, "/")
	key, test := e.Package+" "+top, e.Package+" "+e.Test
	switch e.Action {
	case "run", "cont":
		r.running[test] = true
		return
	case "pause":
		delete(r.running, test)
		return
	case "output":
		// It comes under the name of any test, such as one that has passed.
		r.crashed[e.Package] = r.crashed[e.Package] || crash.MatchString(e.Output)
		if r.crashed[e.Package] {
			fmt.Fprint(r.w, e.Output)
		} else {
			r.held[key] = append(r.held[key], e)
		}
		return
	case "pass":
		r.nPass++
		r.passed[test] = true
	case "skip":
		r.skip(e, r.held[key])
	case "fail":
		r.fail(test, "")
	default:
		return
	}
	delete(r.running, test)
	if isSub {
		return
	}
	switch {
	case e.Action == "fail":
		r.show(key)
	case e.Elapsed >= r.slow:
		fmt.Fprintf(r.w, "    \t%s\t%s %.1fs\n", e.Package, e.Test, e.Elapsed)
	}
	delete(r.held, key)
}

// skip notes a skipped test under its reason, the last thing it said.
func (r *report) skip(e event, held []event) {
	r.nSkip++
	reason := "no reason given"
	for _, h := range held {
		said := strings.TrimSpace(sourceLine.ReplaceAllString(h.Output, ""))
		if h.Test == e.Test && said != "" && !strings.HasPrefix(said, "=== ") && !strings.HasPrefix(said, "--- ") {
			reason = said
		}
	}
	if r.skipped[reason] == nil {
		r.skips = append(r.skips, reason)
	}
	r.skipped[reason] = append(r.skipped[reason], e.Package+" "+e.Test)
}

// crash is how the runtime, and the testing package, begin their last words.
var crash = regexp.MustCompile(`^(panic|fatal error|SIG[A-Z]+): `)

// sourceLine is how the testing package begins a log line.
var sourceLine = regexp.MustCompile(`^\s*\w+\.go:\d+: `)

// show prints what a failed test said, without its passed subtests.
func (r *report) show(key string) {
	for _, e := range r.held[key] {
		if !r.passed[e.Package+" "+e.Test] && !strings.HasPrefix(e.Output, "=== ") {
			fmt.Fprint(r.w, e.Output)
		}
	}
}

// finish prints the rest and the numbers, and tells whether all is well.
func (r *report) finish() bool {
	for key := range r.held { // tests that never ended
		r.show(key)
	}
	for _, reason := range r.skips {
		tests := r.skipped[reason]
		if n := len(tests); n > 1 {
			fmt.Fprintf(r.w, "skipped %d tests: %s\n", n, reason)
		} else {
			fmt.Fprintf(r.w, "skipped %s: %s\n", tests[0], reason)
		}
	}
	for _, f := range r.failed {
		if !r.failedIn(f.test + "/") { // the subtest is named
			fmt.Fprintf(r.w, "failed: %s%s\n", f.test, f.how)
		}
	}
	fmt.Fprintf(r.w, "%s: %d passed, %d failed, %d skipped\n", r.name, r.nPass, r.nFail, r.nSkip)
	return r.nFail == 0
}
