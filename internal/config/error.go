package config

import (
	"strings"
)

// Problem is one thing that makes a configuration unusable.
type Problem struct {
	Path string // the key, or what stands for it
	What string // what is wrong, without a secret's value
	Hint string // what to do about it
}

// String returns the line that is shown.
func (p Problem) String() string {
	return "config: " + p.Path + ": " + p.What + "; " + p.Hint
}

// Error holds every problem of a configuration.
type Error struct {
	Problems []Problem
}

// Error returns a line for each problem.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// defect is a problem that does not know yet which key it belongs to; the zero
// value means that all is well.
type defect struct {
	what string
	hint string
}

var fine defect

func (d defect) at(path, origin string) Problem {
	if origin != originDefault && origin != originFile && origin != "" {
		d.what += " (" + origin + ")"
	}
	return Problem{Path: path, What: d.what, Hint: d.hint}
}
