// Command cdc-relay publishes outbox rows from PostgreSQL to Kafka.
//
// This package reads the configuration, builds the parts and runs them. It is
// the only one that installs signal handlers, writes to the terminal and
// chooses exit codes; each command is a file of its own.
//
// Errors go to stderr as one line: what, why, what to do. They never show a
// secret or a stack trace.
package main

import (
	"context"
	"os"
)

func main() {
	ctx, stop := withSignals(context.Background())
	code := execute(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
