package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func (a *app) failedCommand() *cobra.Command {
	return group(&cobra.Command{Use: "failed", Short: "Find events that wait for a person"},
		a.failedListCommand(), a.failedShowCommand())
}

func (a *app) failedListCommand() *cobra.Command {
	var held bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List FAILED events that nobody has dealt with, the oldest first",
		Long: "List FAILED events that nobody has dealt with, the oldest first, and how many held\n" +
			"events of its aggregate stand behind each. With --include-waived also those that were\n" +
			"skipped, as far as they are among the newest 100,000 rows.",
		Args: cobra.NoArgs,
	}
	flags := addFilter(cmd, listLimit)
	cmd.Flags().BoolVar(&held, "held", false, "list the events instead that wait behind an earlier one")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		states := []outbox.Status{outbox.Failed}
		if held {
			states = nil
		}
		filter, err := flags.parse(args, time.Now(), states...)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(filter.Statuses, func(s outbox.Status) bool { return held || s != outbox.Failed }) {
			return usageError(errors.New("--status makes no sense here: FAILED events are listed, or held ones; use cdc-relay events list --status"))
		}
		filter.Held = held
		return a.withTable(cmd, func(ctx context.Context, c *config.Config, table *operate.Table) error {
			if held {
				list, err := table.Held(ctx, filter)
				if err != nil {
					return err
				}
				return printList(a, c, list, heldHeader, newHeldItem)
			}
			list, err := table.Failed(ctx, filter)
			if err != nil {
				return err
			}
			return printList(a, c, list, failedHeader, newFailedItem)
		})
	}
	return cmd
}

// failedItem is a FAILED event in a list.
type failedItem struct {
	ID            int64    `json:"id"`
	EventID       string   `json:"event_id"`
	Status        string   `json:"status"`
	StatusCode    int      `json:"status_code"`
	Phase         string   `json:"phase"`
	Waived        bool     `json:"waived"`
	Age           *float64 `json:"age_seconds"` // since it was created; null: not known
	AggregateType string   `json:"aggregate_type"`
	AggregateID   string   `json:"aggregate_id"`
	Attempts      int32    `json:"attempts"`
	ErrorCode     string   `json:"error_code"`
	ErrorMessage  string   `json:"error_message"`
	Blocking      int      `json:"blocking"`
	// BlockingComplete is false if there may be more than Blocking.
	BlockingComplete bool `json:"blocking_complete"`
}

var failedHeader = []string{"ID", "PHASE", "AGE", "AGGREGATE_TYPE", "AGGREGATE_ID", "ATTEMPTS", "ERROR_CODE", "ERROR_MESSAGE", "BLOCKING"}

func newFailedItem(r *operate.Listed, at time.Time) (failedItem, []string) {
	item := failedItem{
		ID: r.ID, EventID: r.EventID.String(), Status: r.Status.String(), StatusCode: int(r.Status), Phase: string(r.Phase()),
		Waived: r.Kind(at) == operate.KindWaived, Age: age(r.CreatedAt, at), AggregateType: r.AggregateType, AggregateID: r.AggregateID,
		Attempts: r.Attempts, ErrorCode: r.ErrorCode, ErrorMessage: r.ErrorMessage,
		Blocking: r.Blocking, BlockingComplete: r.Blocking < operate.MaxBlocking,
	}
	phase := item.Phase
	if item.Waived {
		phase += ", waived"
	}
	return item, []string{strconv.FormatInt(r.ID, 10), phase, ageCell(item.Age), cell(r.AggregateType), cell(r.AggregateID),
		strconv.Itoa(int(r.Attempts)), cell(r.ErrorCode), cell(r.ErrorMessage), blockingText(item.Blocking)}
}

func blockingText(n int) string {
	if n >= operate.MaxBlocking {
		return strconv.Itoa(n) + "+"
	}
	return strconv.Itoa(n)
}

// heldItem is a held event in a list.
type heldItem struct {
	ID            int64    `json:"id"`
	EventID       string   `json:"event_id"`
	Status        string   `json:"status"`
	StatusCode    int      `json:"status_code"`
	Age           *float64 `json:"age_seconds"`
	AggregateType string   `json:"aggregate_type"`
	AggregateID   string   `json:"aggregate_id"`
	HeldBy        *heldBy  `json:"held_by"` // null: nothing any more
}

// heldBy is the first parked event of an aggregate.
type heldBy struct {
	ID            int64          `json:"id"`
	Status        string         `json:"status"`
	StatusCode    int            `json:"status_code"`
	ErrorCode     string         `json:"error_code"`
	NextAttemptAt operate.Moment `json:"next_attempt_at"`
}

func newHeldBy(h operate.Head) *heldBy {
	if h.ID == 0 {
		return nil
	}
	return &heldBy{h.ID, h.Status.String(), int(h.Status), h.ErrorCode, h.NextAttemptAt}
}

var heldHeader = []string{"ID", "AGE", "AGGREGATE_TYPE", "AGGREGATE_ID", "HELD_BY", "ITS_STATUS", "ITS_ERROR_CODE"}

func newHeldItem(r *operate.Listed, at time.Time) (heldItem, []string) {
	item := heldItem{r.ID, r.EventID.String(), r.Status.String(), int(r.Status), age(r.CreatedAt, at), r.AggregateType, r.AggregateID,
		newHeldBy(r.First)}
	first := []string{"-", "-", "-"}
	if h := item.HeldBy; h != nil {
		first = []string{strconv.FormatInt(h.ID, 10), h.Status, cell(h.ErrorCode)}
	}
	return item, append([]string{strconv.FormatInt(r.ID, 10), ageCell(item.Age), cell(r.AggregateType), cell(r.AggregateID)}, first...)
}

func (a *app) failedShowCommand() *cobra.Command {
	want := showParts{failed: true}
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Explain why an event FAILED, and what replay and skip would do",
		Args:  cobra.ExactArgs(1),
		RunE:  func(cmd *cobra.Command, args []string) error { return a.showEvent(cmd, args[0], want) },
	}
	addShowParts(cmd, &want)
	return cmd
}
