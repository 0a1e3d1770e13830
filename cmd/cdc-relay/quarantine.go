package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
)

func (a *app) quarantineCommand() *cobra.Command {
	kit := &kitFlags{}
	cmd := &cobra.Command{
		Use:   "quarantine",
		Short: "Deal with records that a consumer could not handle",
		Long: "Deal with records that a consumer could not handle and that no row or receipt tells\n" +
			"of: without an event id, without a row, too old. Each is open until a person has it\n" +
			"tried again or drops it.",
	}
	kit.add(cmd)
	return group(cmd, a.quarantineListCommand(kit), a.quarantineShowCommand(kit),
		a.quarantineRetryCommand(kit), a.quarantineDropCommand(kit))
}

// quarantineFlags are the flags that pick quarantined records.
type quarantineFlags struct {
	eventIDs []string
	statuses []string
	since    string
	until    string
	filter   operate.QuarantineFilter // the plain ones, as they are
	cmd      *cobra.Command
}

func addQuarantineFilter(cmd *cobra.Command, limit int) *quarantineFlags {
	s := cmd.Flags()
	f := &quarantineFlags{cmd: cmd}
	s.Int64SliceVar(&f.filter.IDs, "id", nil, "records with these `ids`, with commas between or repeated")
	s.StringSliceVar(&f.eventIDs, "event-id", nil, "records of these events, by `uuid`; with --id: those as well")
	s.StringVar(&f.filter.Consumer, "consumer", "", "of this consumer: its `group`, or group/purpose")
	s.StringVar(&f.filter.Topic, "topic", "", "from this `topic`")
	s.Int32Var(&f.filter.Partition, "partition", -1, "from this `partition`; -1: any")
	s.StringVar(&f.filter.Code, "error-code", "", "quarantined for this `reason`, such as MISSING")
	s.StringSliceVar(&f.statuses, "status", nil, "with one of these `statuses`: open, retry (asked for), retried, dropped")
	s.StringVar(&f.since, "since", "", "quarantined at this `time` or later: 2026-01-02T15:04:05Z, or so long ago: 90m, 2h, 7d")
	s.StringVar(&f.until, "until", "", "quarantined before this `time`")
	s.IntVar(&f.filter.Limit, "limit", limit, "at most this `number` of records")
	s.Int64Var(&f.filter.After, "after", 0, "go on after the record with this `id`, with which a list has ended")
	return f
}

// parse makes a filter of the flags and of ids given as arguments; states stand
// for a --status that is not there. An error is one of usage.
func (f *quarantineFlags) parse(args []string, now time.Time, states ...operate.QuarantineState) (operate.QuarantineFilter, error) {
	filter := f.filter
	filter.IDs = append([]int64{}, f.filter.IDs...)
	for _, text := range args {
		id, err := parseRecordID(text)
		if err != nil {
			return filter, usageError(err)
		}
		filter.IDs = append(filter.IDs, id)
	}
	filter.States = states
	if len(f.statuses) > 0 {
		filter.States = nil
	}
	err := checkConditions(f.cmd)
	if err != nil {
		return filter, usageError(err)
	}
	for _, name := range f.statuses {
		state, err := operate.ParseQuarantineState(name)
		if err != nil {
			return filter, usageError(err)
		}
		filter.States = append(filter.States, state)
	}
	if filter.EventIDs, err = parseEvents(f.eventIDs); err == nil {
		filter.Since, filter.Until, err = parseSpan(f.since, f.until, now)
	}
	if err == nil {
		err = filter.Validate()
	}
	if err != nil {
		return filter, usageError(err)
	}
	return filter, nil
}

// parseRecordID reads the number of a quarantined record.
func parseRecordID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no id; write the number of a record, as cdc-relay quarantine list shows it", text)
	}
	return id, nil
}

func (a *app) quarantineListCommand(kit *kitFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List records that nobody has dealt with, the oldest first",
		Args:  cobra.NoArgs,
	}
	flags := addQuarantineFilter(cmd, listLimit)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := flags.parse(args, time.Now(), operate.QuarantineOpen, operate.QuarantineAsked)
		if err != nil {
			return err
		}
		return a.withKit(cmd, kit, func(ctx context.Context, c *config.Config, k *operate.Kit) error {
			list, err := k.Quarantined(ctx, filter)
			if err != nil {
				return err
			}
			return a.printQuarantine(c, list)
		})
	}
	return cmd
}

func (a *app) quarantineRetryCommand(kit *kitFlags) *cobra.Command {
	return a.quarantineActCommand(kit, operate.QuarantineRetry, false, "a consumer of that name makes it when it runs", &cobra.Command{
		Use:   "retry [ID..]",
		Short: "Let a consumer handle stored records once more",
		Long: "Ask for another try of records: their consumer runs the stored bytes through its line,\n" +
			"like a record that it has just received, but for the order of its key, which is lost.\n" +
			"If that fails again the record is open again. Records are named by id, or picked by\n" +
			"flags: then nothing happens without --confirm and their number.",
	})
}

func (a *app) quarantineDropCommand(kit *kitFlags) *cobra.Command {
	return a.quarantineActCommand(kit, operate.QuarantineDrop, true, "", &cobra.Command{
		Use:   "drop [ID..] --reason TEXT",
		Short: "Give records up",
		Long: "Give records up: no consumer handles them, and nobody is alerted about them any more.\n" +
			"They stay in the table. Records are named by id, or picked by flags: then nothing\n" +
			"happens without --confirm and their number.",
	})
}

func (a *app) quarantineActCommand(kit *kitFlags, action operate.Action, reason bool, note string, cmd *cobra.Command) *cobra.Command {
	flags, consent := addQuarantineFilter(cmd, bulkLimit), &consentFlags{}
	consent.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkReason(consent.reason, reason); err != nil {
			return err
		}
		states := []operate.QuarantineState{operate.QuarantineOpen}
		if action == operate.QuarantineDrop {
			states = append(states, operate.QuarantineAsked)
		}
		filter, err := flags.parse(args, time.Now(), states...)
		if err != nil {
			return err
		}
		if filter.Empty() && len(flags.statuses) == 0 {
			return usageError(errors.New(cmd.Name() + " needs ids, or flags that pick records, such as --error-code or --status open"))
		}
		if filter.Named() {
			filter.States = nil // each gets an answer, whatever its state is
		}
		return a.withKit(cmd, kit, func(ctx context.Context, c *config.Config, k *operate.Kit) error {
			act := &kitAct{app: a, flags: consent, action: action, named: filter.Named(), note: note,
				order:  &operate.QuarantineOrder{Kit: k, Action: action, Filter: filter, Reason: consent.reason},
				header: []string{"ID", "EVENT_ID", "RESULT", "STATUS", "ERROR_CODE", "DETAIL"},
				cells: func(i *kitItem) []string {
					return []string{i.idText(), textOr(i.EventID), i.Result, textOr(i.Status), cell(textOr(i.ErrorCode)), i.Detail}
				},
			}
			return act.run(ctx, cmd, c)
		})
	}
	return cmd
}

// quarantineItem is a quarantined record in a list.
type quarantineItem struct {
	ID         int64                   `json:"id"`
	Consumer   string                  `json:"consumer"`
	Topic      string                  `json:"topic"`
	Partition  int32                   `json:"partition"`
	Offset     int64                   `json:"offset"`
	EventID    *string                 `json:"event_id"`  // null: the record has none that can be read
	OutboxID   *int64                  `json:"outbox_id"` // null: the record names no row
	ErrorCode  string                  `json:"error_code"`
	Message    string                  `json:"message"`
	Status     operate.QuarantineState `json:"status"`
	Seen       int32                   `json:"seen"`
	Age        *float64                `json:"age_seconds"` // since it was quarantined
	CreatedAt  operate.Moment          `json:"created_at"`
	RecordTime operate.Moment          `json:"record_time"`
	KeyBytes   *int64                  `json:"key_bytes"`   // null: a null key
	ValueBytes *int64                  `json:"value_bytes"` // null: a null value

	ResolvedAt     operate.Moment `json:"resolved_at"`
	ResolvedBy     string         `json:"resolved_by"`
	ResolvedReason string         `json:"resolved_reason"`
}

var quarantineHeader = []string{"ID", "AGE", "CONSUMER", "TOPIC", "PARTITION", "OFFSET", "EVENT_ID", "ERROR_CODE", "STATUS", "SEEN"}

func newQuarantineItem(r *operate.Quarantined, at time.Time) quarantineItem {
	item := quarantineItem{ID: r.ID, Consumer: r.Consumer, Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, EventID: orNull(r.EventID),
		OutboxID: positive(r.OutboxID), ErrorCode: r.Code, Message: r.Message, Status: r.State, Seen: r.Seen, Age: age(r.CreatedAt, at),
		CreatedAt: r.CreatedAt, RecordTime: r.RecordTime, ResolvedAt: r.ResolvedAt, ResolvedBy: r.ResolvedBy, ResolvedReason: r.ResolvedReason}
	if r.KeyBytes >= 0 {
		item.KeyBytes = &r.KeyBytes
	}
	if r.ValueBytes >= 0 {
		item.ValueBytes = &r.ValueBytes
	}
	return item
}

func (i *quarantineItem) cells() []string {
	return []string{strconv.FormatInt(i.ID, 10), ageCell(i.Age), cell(i.Consumer), cell(i.Topic), strconv.Itoa(int(i.Partition)),
		strconv.FormatInt(i.Offset, 10), textOr(i.EventID), cell(i.ErrorCode), string(i.Status), strconv.Itoa(int(i.Seen))}
}

func (a *app) printQuarantine(c *config.Config, list *operate.QuarantineList) error {
	items := make([]quarantineItem, len(list.Rows))
	rows := make([][]string, len(list.Rows))
	for i := range list.Rows {
		items[i] = newQuarantineItem(&list.Rows[i], list.At)
		rows[i] = items[i].cells()
	}
	answer := listAnswer{newEnvelope(c.Pipeline, list.At), items, positive(list.After), nil}
	return a.printTable(answer, quarantineHeader, rows, pageNote(operate.Page{After: list.After}))
}
