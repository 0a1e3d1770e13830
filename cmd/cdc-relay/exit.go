package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// Exit codes; they are part of the contract.
const (
	exitOK       = 0
	exitFailed   = 1   // the command could not do what it was asked
	exitUsage    = 2   // the arguments make no sense
	exitFindings = 3   // a check found something
	exitNotFound = 4   // what was asked about is not there
	exitRefused  = 5   // not confirmed, or confirmed with another number
	exitInternal = 70  // a defect of the program
	exitConfig   = 78  // the configuration is unusable
	exitSignal   = 130 // a second signal ended the program at once
)

// exitError is an error that chooses the exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }

func (e *exitError) Unwrap() error { return e.err }

// usageError says that the arguments make no sense.
func usageError(err error) error {
	return &exitError{exitUsage, fmt.Errorf("%w; run cdc-relay help", err)}
}

// exitCode maps an error to the code that the process ends with.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	var bad *config.Error
	if errors.As(err, &bad) {
		return exitConfig
	}
	return exitFailed
}

// report shows err, if any, and returns the exit code. A configuration's
// problems have a line each; any other error is one line.
func (a *app) report(err error) int {
	if err == nil {
		return exitOK
	}
	label := "error:"
	if a.colours(a.stderr) {
		label = "\x1b[1;31merror:\x1b[0m"
	}
	var bad *config.Error
	if errors.As(err, &bad) {
		for _, p := range bad.Problems {
			fmt.Fprintln(a.stderr, oneLine(p.String()))
		}
	} else {
		fmt.Fprintln(a.stderr, label, oneLine(err.Error()+unreachable(err)))
	}
	return exitCode(err)
}

// unreachable is what to do about a server that did not answer; "" for any
// other error.
func unreachable(err error) string {
	var connect *pgconn.ConnectError
	if !errors.As(err, &connect) || pg.Code(err) != "" {
		return ""
	}
	return "; check the address in the DSN, and whether the server runs and can be reached from here"
}

// oneLine joins the lines of a text, which may come from a server.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
