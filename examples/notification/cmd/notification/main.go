// Command notification is the notification example: a service in three parts,
// each a command, and one that prepares what they need.
//
//	notification setup      makes the table of users and the topic
//	notification api        people register and confirm their addresses
//	notification consume    sends the e-mails that the API has asked for
//	notification provider   a stand-in for the service that delivers e-mails
//
// Settings are environment variables; settings.go tells them. The README next to
// this folder's parent shows it at work.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	logger := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	if err := run(ctx, os.Args[1:], os.Getenv, logger); err != nil {
		fmt.Fprintln(os.Stderr, "notification:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: notification setup | api | consume | provider")

// run carries a command out until it has ended or ctx ends.
func run(ctx context.Context, args []string, getenv func(string) string, logger *slog.Logger) error {
	if len(args) != 1 {
		return errUsage
	}
	e := &env{get: getenv}
	switch args[0] {
	case "setup":
		return setup(ctx, e)
	case "api":
		return api(ctx, e, logger)
	case "consume":
		return consume(ctx, e, logger)
	case "provider":
		return standIn(ctx, e, logger)
	}
	return errUsage
}
