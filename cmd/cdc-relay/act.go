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
	"github.com/cdc-relay/cdc-relay/outbox"
)

// actFlags are the flags of commands that change outbox rows.
type actFlags struct {
	consentFlags
	filter *filterFlags
	rate   int           // rows a second, 0: without limit
	wait   time.Duration // for replayed rows, 0: not at all
}

func addAct(cmd *cobra.Command) *actFlags {
	f := &actFlags{filter: addFilter(cmd, bulkLimit)}
	f.add(cmd)
	cmd.Flags().IntVar(&f.rate, "rate", 0, "at most this `number` of rows a second; 0: without limit")
	return f
}

// act is one command line on rows, understood.
type act struct {
	app    *app
	flags  *actFlags
	filter operate.Filter
	order  operate.Order
}

// newAct makes sense of the arguments; takes are the states that the action may
// find a row in. An error is one of usage.
func (a *app) newAct(cmd *cobra.Command, args []string, flags *actFlags, action operate.Action, takes ...outbox.Status) (*act, error) {
	filter, err := flags.filter.parse(args, time.Now(), outbox.Failed)
	if err != nil {
		return nil, err
	}
	if filter.Empty() && len(flags.filter.statuses) == 0 {
		return nil, usageError(fmt.Errorf("%s needs ids, or flags that pick rows, such as --error-code or --status failed", action))
	}
	if flags.rate < 0 || flags.wait < 0 {
		return nil, usageError(errors.New("--rate and --wait must not be negative"))
	}
	order := operate.Order{Action: action, From: filter.Statuses, Waived: flags.filter.waived, Reason: flags.reason}
	if err := order.Validate(takes...); err != nil {
		return nil, usageError(err)
	}
	if !filter.Named() {
		order.Filter = filter.String()
	}
	return &act{a, flags, filter, order}, nil
}

// run carries it out. Rows that are named are changed at once, those of a
// filter only when their number is confirmed.
func (a *act) run(cmd *cobra.Command) error {
	return a.app.withTable(cmd, func(ctx context.Context, c *config.Config, table *operate.Table) error {
		actions := operate.NewActions(table, person(), a.app.timeout)
		picked, err := actions.Pick(ctx, a.filter)
		if err != nil {
			return err
		}
		dry, refusal := a.flags.ask(cmd, len(picked.IDs), picked.Total, a.filter.Named())
		if dry {
			return errors.Join(a.preview(ctx, c, actions, picked), refusal)
		}
		if refusal != nil {
			return refusal
		}
		return a.apply(cmd.Context(), c, actions, picked)
	})
}

// preview shows what would happen.
func (a *act) preview(ctx context.Context, c *config.Config, actions *operate.Actions, picked operate.Picked) error {
	results, err := actions.Preview(ctx, a.order, picked.IDs)
	if err != nil {
		return err
	}
	results = append(results, picked.Missing...)
	return errors.Join(a.print(c, picked, results, true), a.verdict(results))
}

// apply is bounded by the number of rows and --rate, not by --timeout, which is
// for each transaction.
func (a *act) apply(ctx context.Context, c *config.Config, actions *operate.Actions, picked operate.Picked) error {
	results, err := actions.Apply(ctx, a.order, picked.IDs, a.flags.rate)
	if err == nil && a.flags.wait > 0 {
		err = actions.Wait(ctx, results, a.flags.wait)
	}
	results = append(results, picked.Missing...)
	shown := a.print(c, picked, results, false)
	if err != nil {
		return errors.Join(err, shown)
	}
	return errors.Join(shown, a.verdict(results))
}

// verdict is an error if a row has not become what was asked for.
func (a *act) verdict(results []operate.Result) error {
	outcomes := make([]operate.Outcome, len(results))
	for i := range results {
		outcomes[i] = results[i].Outcome
	}
	return verdict(a.order.Action, outcomes)
}

// actItem is what became of a row. Null is not known.
type actItem struct {
	ID         *int64  `json:"id"`
	EventID    *string `json:"event_id"`
	Result     string  `json:"result"`
	Status     *string `json:"status"`
	StatusCode *int16  `json:"status_code"`
	ErrorCode  *string `json:"error_code"`
	Detail     string  `json:"detail"`
}

func newActItem(r *operate.Result) actItem {
	item := actItem{EventID: orNull(r.EventID), Result: string(r.Outcome), ErrorCode: orNull(r.ErrorCode), Detail: r.Detail}
	if r.ID != 0 {
		item.ID = &r.ID
	}
	if r.Found {
		name, code := r.Status.String(), int16(r.Status)
		item.Status, item.StatusCode = &name, &code
	}
	return item
}

func (i *actItem) cells() []string {
	id := "-"
	if i.ID != nil {
		id = strconv.FormatInt(*i.ID, 10)
	}
	return []string{id, textOr(i.EventID), i.Result, textOr(i.Status), cell(textOr(i.ErrorCode)), i.Detail}
}

func textOr(text *string) string {
	if text == nil {
		return "-"
	}
	return *text
}

// print shows what became of each row.
func (a *act) print(c *config.Config, picked operate.Picked, results []operate.Result, dryRun bool) error {
	answer := actAnswer{envelope: newEnvelope(c.Pipeline, time.Now().UTC()), Action: string(a.order.Action), DryRun: dryRun,
		Matched: len(picked.IDs), Total: picked.Total}
	items := make([]actItem, len(results))
	rows := make([][]string, len(results))
	for i := range results {
		items[i] = newActItem(&results[i])
		rows[i] = items[i].cells()
		if results[i].Changed() {
			answer.Changed++
		}
	}
	answer.Items = items
	note := ""
	if picked.After != 0 {
		note = fmt.Sprintf("; looked at the newest %d rows only, go on with --after %d", operate.MaxWalk, picked.After)
	}
	return a.app.printTable(answer, []string{"ID", "EVENT_ID", "RESULT", "STATUS", "ERROR_CODE", "DETAIL"}, rows, answer.summary()+note)
}
