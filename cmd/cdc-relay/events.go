package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
)

func (a *app) eventsCommand() *cobra.Command {
	return group(&cobra.Command{Use: "events", Short: "Find events and see what became of them"},
		a.eventsListCommand(), a.eventsShowCommand())
}

func (a *app) eventsListCommand() *cobra.Command {
	var parked bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List events, the newest first",
		Long: "List events, the newest first. Rows are looked for among the newest 100,000, unless\n" +
			"their ids are named. With --parked, or --status failed, all rows are found that wait for\n" +
			"something, the oldest first.",
		Args: cobra.NoArgs,
	}
	flags := addFilter(cmd, listLimit)
	cmd.Flags().BoolVar(&parked, "parked", false, "only rows that wait: held, delayed, to be tried again, or FAILED")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := flags.parse(args, time.Now())
		if err != nil {
			return err
		}
		filter.Parked = parked
		return a.withTable(cmd, func(ctx context.Context, c *config.Config, table *operate.Table) error {
			list, err := table.Events(ctx, filter)
			if err != nil {
				return err
			}
			return printList(a, c, list, eventHeader, newEventItem)
		})
	}
	return cmd
}

// eventItem is an event in a list.
type eventItem struct {
	ID            int64          `json:"id"`
	EventID       string         `json:"event_id"`
	CreatedAt     operate.Moment `json:"created_at"`
	AggregateType string         `json:"aggregate_type"`
	AggregateID   string         `json:"aggregate_id"`
	EventType     string         `json:"event_type"`
	Status        string         `json:"status"`
	StatusCode    int            `json:"status_code"`
	Attempts      int32          `json:"attempts"`
	NextAttemptAt operate.Moment `json:"next_attempt_at"` // "infinity": held, or FAILED
	ErrorCode     string         `json:"error_code"`
}

var eventHeader = []string{"ID", "EVENT_ID", "CREATED_AT", "AGGREGATE_TYPE", "AGGREGATE_ID", "EVENT_TYPE", "STATUS", "ATTEMPTS",
	"NEXT_ATTEMPT_AT", "ERROR_CODE"}

func newEventItem(r *operate.Listed, at time.Time) (eventItem, []string) {
	item := eventItem{r.ID, r.EventID.String(), r.CreatedAt, r.AggregateType, r.AggregateID, r.EventType,
		r.Status.String(), int(r.Status), r.Attempts, r.NextAttemptAt, r.ErrorCode}
	return item, []string{strconv.FormatInt(r.ID, 10), item.EventID, momentText(r.CreatedAt, at), cell(r.AggregateType), cell(r.AggregateID),
		cell(r.EventType), item.Status, strconv.Itoa(int(r.Attempts)), momentText(r.NextAttemptAt, at), cell(r.ErrorCode)}
}

func (a *app) eventsShowCommand() *cobra.Command {
	var want showParts
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Tell where an event is: what became of it, what holds it, what to do",
		Long: "Tell where an event is: what became of it, what holds it, and what to do. ID is the\n" +
			"number of its row, or its event id.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.showEvent(cmd, args[0], want) },
	}
	addShowParts(cmd, &want)
	return cmd
}

// showParts are what is shown of an event only when asked for.
type showParts struct {
	payload bool
	headers bool
	locate  bool
	// failed asks for what concerns FAILED events, and for nothing else.
	failed bool
}

func addShowParts(cmd *cobra.Command, want *showParts) {
	cmd.Flags().BoolVar(&want.payload, "payload", false, "also show the payload")
	cmd.Flags().BoolVar(&want.headers, "headers", false, "also show the row's headers")
	cmd.Flags().BoolVar(&want.locate, "locate", false, "look for its record in Kafka, around the time when it was sent")
}

// showEvent answers events show and failed show.
func (a *app) showEvent(cmd *cobra.Command, id string, want showParts) error {
	var filter operate.Filter
	if err := filter.AddID(id); err != nil {
		return usageError(err)
	}
	if want.locate { // which needs all that the relay needs
		if _, err := a.loadConfig(config.UseAll); err != nil {
			return err
		}
	}
	return a.withTable(cmd, func(ctx context.Context, c *config.Config, table *operate.Table) error {
		answer, err := readEvent(ctx, c, table, filter, want)
		if errors.Is(err, operate.ErrNotFound) {
			return notFound("event %s: %w", id, operate.ErrNotFound)
		}
		if answer == nil {
			return err
		}
		return errors.Join(err, a.print(answer, answer.write)) // without Kafka's part, perhaps
	})
}

// readEvent reads what was asked for. If only Kafka does not answer there is an
// error, and an answer without it.
func readEvent(ctx context.Context, c *config.Config, table *operate.Table, filter operate.Filter, want showParts) (*eventAnswer, error) {
	detail, err := table.Show(ctx, filter)
	if err != nil {
		return nil, err
	}
	answer := newEventAnswer(c.Pipeline, detail)
	if want.failed {
		if err := answer.addEffects(detail); err != nil {
			return nil, err
		}
	}
	if want.payload {
		payload, err := table.Payload(ctx, detail.ID)
		if err != nil {
			return nil, err
		}
		answer.addPayload(payload)
	}
	if want.headers {
		headers, err := table.Headers(ctx, detail.ID)
		if err != nil {
			return nil, err
		}
		answer.addHeaders(headers)
	}
	if want.locate {
		location, err := locate(ctx, c, detail)
		if err != nil {
			return answer, err
		}
		answer.addLocation(location)
	}
	return answer, nil
}
