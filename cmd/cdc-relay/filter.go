package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// filterFlags are the flags that pick rows; all commands about rows share them.
type filterFlags struct {
	eventIDs []string
	statuses []string
	since    string
	until    string
	phase    string
	waived   bool
	filter   operate.Filter // the plain ones, as they are
	cmd      *cobra.Command
}

// conditions are the flags that say which rows, records or receipts are meant.
var conditions = []string{"event-id", "aggregate-type", "aggregate-id", "topic", "event-type", "status", "phase", "error-code", "since", "until",
	"consumer", "purpose"}

// checkConditions refuses one that was given without a value: it would pick any,
// and most likely a variable of a script is not set.
func checkConditions(cmd *cobra.Command) error {
	for _, name := range conditions {
		if !cmd.Flags().Changed(name) {
			continue
		}
		if text := cmd.Flags().Lookup(name).Value.String(); text == "" || text == "[]" {
			return fmt.Errorf("--%s is empty; leave it out to pick any, or give it a value", name)
		}
	}
	return nil
}

// How many rows a command takes if not told otherwise.
const (
	listLimit = 50
	bulkLimit = 1000
)

// addFilter gives a command the flags of the filter.
func addFilter(cmd *cobra.Command, limit int) *filterFlags {
	s := cmd.Flags()
	f := &filterFlags{cmd: cmd}
	s.Int64SliceVar(&f.filter.IDs, "id", nil, "rows with these `ids`, with commas between or repeated")
	s.StringSliceVar(&f.eventIDs, "event-id", nil, "rows of these events, by `uuid`; with --id: those as well")
	s.StringVar(&f.filter.AggregateType, "aggregate-type", "", "of this aggregate `type`")
	s.StringVar(&f.filter.AggregateID, "aggregate-id", "", "of the aggregate with this `id`")
	s.StringVar(&f.filter.Topic, "topic", "", "for this `topic`")
	s.StringVar(&f.filter.EventType, "event-type", "", "of this event `type`")
	s.StringSliceVar(&f.statuses, "status", nil, "with one of these `statuses`: ready, sent, failed, ...; failed means not waived")
	s.StringVar(&f.phase, "phase", "", "in this `phase`: publish (not sent yet), or consume")
	s.StringVar(&f.filter.ErrorCode, "error-code", "", "with this error `code`")
	s.StringVar(&f.since, "since", "", "created at this `time` or later: 2026-01-02T15:04:05Z, or so long ago: 90m, 2h, 7d")
	s.StringVar(&f.until, "until", "", "created before this `time`")
	s.IntVar(&f.filter.Limit, "limit", limit, "at most this `number` of rows")
	s.Int64Var(&f.filter.After, "after", 0, "go on after the row with this `id`, with which a list has ended")
	s.BoolVar(&f.waived, "include-waived", false, "also FAILED rows that were skipped")
	return f
}

// parse makes a filter of the flags and of ids given as arguments. An error is
// one of usage. statuses stand for a --status that is not there.
func (f *filterFlags) parse(args []string, now time.Time, statuses ...outbox.Status) (operate.Filter, error) {
	filter := f.filter
	filter.IDs = slices.Clone(filter.IDs)
	filter.Phase = operate.Phase(f.phase)
	filter.Statuses = statuses
	err := checkConditions(f.cmd)
	if err == nil {
		err = f.parseLists(&filter, args)
	}
	if err != nil {
		return operate.Filter{}, usageError(err)
	}
	filter.Open = len(filter.Statuses) > 0 && !f.waived
	if filter.Since, filter.Until, err = parseSpan(f.since, f.until, now); err == nil {
		err = filter.Validate()
	}
	if err != nil {
		return operate.Filter{}, usageError(err)
	}
	return filter, nil
}

// parseSpan reads --since and --until; a flag that is not there is no bound.
func parseSpan(since, until string, now time.Time) (from, to time.Time, err error) {
	if since != "" {
		from, err = operate.ParseTime(since, now)
	}
	if err == nil && until != "" {
		to, err = operate.ParseTime(until, now)
	}
	return from, to, err
}

// parseEvents reads --event-id.
func parseEvents(texts []string) ([]outbox.ID, error) {
	var ids []outbox.ID
	for _, text := range texts {
		id, err := outbox.ParseID(text)
		if err != nil {
			return nil, fmt.Errorf("--event-id: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// parseStatuses reads --status; without it there are those by default.
func parseStatuses(names []string, byDefault []outbox.Status) ([]outbox.Status, error) {
	if len(names) == 0 {
		return byDefault, nil
	}
	var statuses []outbox.Status
	for _, name := range names {
		status, err := operate.ParseStatus(name)
		if err != nil {
			return nil, err
		}
		statuses = append(statuses, status)
	}
	return statuses, nil
}

func (f *filterFlags) parseLists(filter *operate.Filter, args []string) error {
	for _, text := range args {
		if err := filter.AddID(text); err != nil {
			return err
		}
	}
	events, err := parseEvents(f.eventIDs)
	if err != nil {
		return err
	}
	filter.EventIDs = append(filter.EventIDs, events...)
	filter.Statuses, err = parseStatuses(f.statuses, filter.Statuses)
	return err
}
