// Package modeltest runs programs of faults against a model: a plain world, in
// simulated time, that says what must not have been.
package modeltest

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// Violation is something that must never be.
type Violation struct {
	Rule   string
	Detail string
}

// Run runs a program to its end, in a bubble, and returns what must not have
// been. log gets what happens, for people; nil: nobody reads it.
type Run[P any] func(p P, log func(format string, args ...any)) []Violation

// Step is one thing that happens. What the numbers mean depends on what is done.
type Step[Action fmt.Stringer] struct {
	Do      Action
	A, B, C int
	Wait    int // microseconds until the next step
}

// String is the step as Go source: a failing program becomes a named test case.
func (s Step[Action]) String() string {
	return fmt.Sprintf("{Do: %s, A: %d, B: %d, C: %d, Wait: %d},", s.Do, s.A, s.B, s.C, s.Wait)
}

// Random runs -rapid.checks random programs in each of some parallel lanes. A
// failing one is printed.
func Random[P any](t *testing.T, lanes int, programs *rapid.Generator[P], run Run[P]) {
	for lane := range lanes {
		t.Run(strconv.Itoa(lane), func(t *testing.T) {
			t.Parallel()
			check(t, programs, run)
		})
	}
}

func check[P any](t *testing.T, programs *rapid.Generator[P], run Run[P]) {
	// The order in which goroutines run is not in the seed. So once a program
	// has failed, its shorter forms get more than one chance to fail, too.
	tries := 1
	rapid.Check(t, func(rt *rapid.T) {
		p := programs.Draw(rt, "program")
		for range tries {
			if broken := bubble(t, p, run, nil); len(broken) > 0 {
				tries = 20
				rt.Logf("%v\n%v", p, broken)
				rt.Fatalf("%s", broken[0].Rule)
			}
		}
	})
}

// Case runs a program that has a name. With -v it tells what happens in it.
func Case[P any](t *testing.T, seed uint64, p P, run Run[P]) {
	t.Helper()
	var log func(string, ...any)
	if testing.Verbose() {
		log = t.Logf
	}
	for _, v := range bubble(t, p, run, log) {
		t.Errorf("seed %d: %s: %s", seed, v.Rule, v.Detail)
	}
}

// bubble runs a program in a bubble of its own.
func bubble[P any](t *testing.T, p P, run Run[P], log func(string, ...any)) (broken []Violation) {
	synctest.Test(t, func(*testing.T) { broken = run(p, log) })
	return broken
}
