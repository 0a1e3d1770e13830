package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
)

// app is what every command works with.
type app struct {
	stdout  io.Writer
	stderr  io.Writer
	environ []string
	// started is set once the arguments were understood: an error before
	// that is one of usage.
	started bool

	// Global flags.
	configFile string
	set        []string
	logLevel   string
	json       bool
	noColor    bool
	timeout    time.Duration
}

// execute runs one command line and returns the exit code. It uses nothing of
// the process but its arguments, so tests run it as it is.
func execute(ctx context.Context, args, environ []string, stdout, stderr io.Writer) (code int) {
	a := &app{stdout: stdout, stderr: stderr, environ: environ}
	defer func() {
		if p := recover(); p != nil {
			code = a.internalFault(p)
		}
	}()
	root := a.rootCommand()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil && !a.started {
		err = usageError(err)
	}
	return a.report(err)
}

// internalFault reports a panic: one line for people, one log entry with where
// it happened.
func (a *app) internalFault(p any) int {
	slog.New(slog.NewTextHandler(a.stderr, nil)).Error("internal fault", "err", fmt.Sprint(p), "stack", string(debug.Stack()))
	return a.report(&exitError{exitInternal, fmt.Errorf("an internal fault ended the program: %v; report it with the log entry before this line", p)})
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:                "cdc-relay",
		Short:              "Publishes outbox rows from PostgreSQL to Kafka",
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true, // they take several lines
		PersistentPreRunE:  func(*cobra.Command, []string) error { return a.start() },
		CompletionOptions:  cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	f := root.PersistentFlags()
	f.StringVar(&a.configFile, "config", "", "configuration `file`; else $CDC_RELAY_CONFIG, else ./"+config.DefaultFile)
	f.StringArrayVar(&a.set, "set", nil, "set a configuration key, as `key=value`; may be repeated; not for secrets")
	f.StringVar(&a.logLevel, "log-level", "", "short for --set log.level=`level`: debug, info, warn, error")
	f.BoolVar(&a.json, "json", false, "print JSON instead of a table")
	f.BoolVar(&a.noColor, "no-color", false, "never colour what goes to a terminal (also $NO_COLOR)")
	f.DurationVar(&a.timeout, "timeout", 30*time.Second, "limit for commands that end by themselves")
	root.AddCommand(
		a.configCommand(),
		a.eventsCommand(),
		a.failedCommand(),
		a.initCommand(),
		a.migrateCommand(),
		a.quarantineCommand(),
		a.receiptsCommand(),
		a.replayCommand(),
		a.runCommand(),
		a.skipCommand(),
		a.slotCommand(),
		a.statusCommand(),
		a.topicsCommand(),
		a.verifyCommand(),
		a.versionCommand(),
	)
	return root
}

// start begins a command whose arguments were understood.
func (a *app) start() error {
	if a.timeout <= 0 {
		return errors.New("--timeout must be more than 0, such as 30s")
	}
	a.started = true
	return nil
}

// loadConfig reads the configuration from all its sources. An error is a
// *config.Error.
func (a *app) loadConfig(use config.Use) (*config.Loaded, error) {
	flags := a.set
	if a.logLevel != "" {
		flags = append(flags[:len(flags):len(flags)], "log.level="+a.logLevel)
	}
	loaded, err := config.Load(config.Input{File: a.configFile, Environ: a.environ, Flags: flags, Use: use})
	if err != nil {
		return nil, err
	}
	if err := checkParts(&loaded.Config, use); err != nil {
		return nil, err
	}
	return loaded, nil
}

// loadForDatabase is loadConfig for commands that need the database only; it
// shows the warnings.
func (a *app) loadForDatabase() (*config.Config, error) {
	loaded, err := a.loadConfig(config.UseDatabase)
	if err != nil {
		return nil, err
	}
	a.warn(loaded.Warnings)
	return &loaded.Config, nil
}

// withDatabase runs a command that needs the database and ends by itself, within
// --timeout.
func (a *app) withDatabase(cmd *cobra.Command, run func(context.Context, *config.Config) error) error {
	c, err := a.loadForDatabase()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
	defer cancel()
	return run(ctx, c)
}

func (a *app) warn(warnings []string) {
	for _, w := range warnings {
		fmt.Fprintln(a.stderr, "warning:", w)
	}
}

// group is a command that only holds others.
func group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(children...)
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var names []string
		for _, child := range children {
			names = append(names, child.Name())
		}
		return usageError(fmt.Errorf("%s needs one of: %s", cmd.CommandPath(), strings.Join(names, ", ")))
	}
	return cmd
}

// colours reports whether w is a terminal that may show colours.
func (a *app) colours(w io.Writer) bool {
	return isTerminal(w) && !a.noColor && !hasEnv(a.environ, "NO_COLOR")
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// hasEnv reports whether name is set to something.
func hasEnv(environ []string, name string) bool {
	for _, e := range environ {
		if value, found := strings.CutPrefix(e, name+"="); found && value != "" {
			return true
		}
	}
	return false
}
