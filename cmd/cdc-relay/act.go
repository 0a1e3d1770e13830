package main

import (
	"context"
	"errors"
	"fmt"
	"os/user"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// actFlags are the flags of commands that change rows.
type actFlags struct {
	filter  *filterFlags
	confirm int
	dryRun  bool
	reason  string
	rate    int           // rows a second, 0: without limit
	wait    time.Duration // for replayed rows, 0: not at all
}

// addAct gives a command the flags that all commands have which change rows.
func addAct(cmd *cobra.Command) *actFlags {
	f := &actFlags{filter: addFilter(cmd, bulkLimit)}
	s := cmd.Flags()
	s.IntVar(&f.confirm, "confirm", 0, "with a filter: the `number` of rows that it picks, at most --limit")
	s.BoolVar(&f.dryRun, "dry-run", false, "show what would happen, change nothing")
	s.StringVar(&f.reason, "reason", "", "why, for the audit trail")
	s.IntVar(&f.rate, "rate", 0, "at most this `number` of rows a second; 0: without limit")
	return f
}

// act is one command line on rows, understood.
type act struct {
	app    *app
	flags  *actFlags
	filter operate.Filter
	order  operate.Order
	// confirmed tells that --confirm was given.
	confirmed bool
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
	return &act{a, flags, filter, order, cmd.Flags().Changed("confirm")}, nil
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
		n := len(picked.IDs)
		switch {
		case a.flags.dryRun:
			return a.preview(ctx, c, actions, picked)
		case a.confirmed && a.flags.confirm != n && picked.Total > int64(n):
			return refused("%d rows match and --limit takes the first %d of them, not %d: nothing was changed; give another --limit, or --confirm %[2]d", picked.Total, n, a.flags.confirm)
		case a.confirmed && a.flags.confirm != n:
			return refused("the number of rows is %d, not %d: nothing was changed; look at them with --dry-run", n, a.flags.confirm)
		case !a.confirmed && !a.filter.Named():
			return errors.Join(a.preview(ctx, c, actions, picked), refused("nothing was changed; to do it, add --confirm %d", n))
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
	counts := map[operate.Outcome]int{}
	bad := 0
	for _, r := range results {
		switch r.Outcome {
		case operate.Replayed, operate.Skipped, operate.WouldReplay, operate.WouldSkip, operate.Sent:
		default:
			counts[r.Outcome]++
			bad++
		}
	}
	if bad == 0 {
		return nil
	}
	var parts []string
	for _, outcome := range []operate.Outcome{operate.FailedAgain, operate.StillWaiting, operate.Locked, operate.NotFailed,
		operate.Waived, operate.NotFound} {
		if n := counts[outcome]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, strings.ReplaceAll(string(outcome), "_", " ")))
		}
	}
	code := exitFailed
	if counts[operate.NotFound] == bad {
		code = exitNotFound
	}
	text := fmt.Sprintf("%s: of %d rows %s", a.order.Action, len(results), strings.Join(parts, ", "))
	if counts[operate.StillWaiting] > 0 {
		text += "; --wait is over, which changes nothing for them: look later with cdc-relay events show, and whether a relay runs with cdc-relay status"
	}
	return &exitError{code, errors.New(text)}
}

// actAnswer is the answer as JSON.
type actAnswer struct {
	V        int       `json:"v"`
	At       time.Time `json:"at"`
	Pipeline string    `json:"pipeline"`
	Action   string    `json:"action"`
	DryRun   bool      `json:"dry_run"`
	// Matched rows were picked, at most --limit; Total is how many there are.
	Matched int       `json:"matched"`
	Total   int64     `json:"total"`
	Changed int       `json:"changed"`
	Items   []actItem `json:"items"`
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
	item := actItem{Result: string(r.Outcome), Detail: r.Detail}
	if r.ID != 0 {
		item.ID = &r.ID
	}
	if r.EventID != "" {
		item.EventID = &r.EventID
	}
	if r.Found {
		name, code := r.Status.String(), int16(r.Status)
		item.Status, item.StatusCode = &name, &code
	}
	if r.ErrorCode != "" {
		item.ErrorCode = &r.ErrorCode
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
	answer := actAnswer{V: 1, At: time.Now().UTC(), Pipeline: c.Pipeline, Action: string(a.order.Action), DryRun: dryRun,
		Matched: len(picked.IDs), Total: picked.Total, Items: make([]actItem, len(results))}
	rows := make([][]string, len(results))
	for i := range results {
		answer.Items[i] = newActItem(&results[i])
		rows[i] = answer.Items[i].cells()
		if results[i].Changed() {
			answer.Changed++
		}
	}
	if a.app.json {
		return a.app.printJSON(answer)
	}
	if err := a.app.printItems(c.Pipeline, nil, []string{"ID", "EVENT_ID", "RESULT", "STATUS", "ERROR_CODE", "DETAIL"}, rows); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.app.stdout, answer.summary(picked)); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}

// summary is the last line of the table.
func (r *actAnswer) summary(picked operate.Picked) string {
	text := fmt.Sprintf("matched %d, changed %d", r.Matched, r.Changed)
	if r.DryRun {
		text += " (dry run)"
	}
	if r.Total > int64(r.Matched) {
		text += fmt.Sprintf("; %d rows match in all, the first of them are taken: --limit", r.Total)
	}
	if picked.After != 0 {
		text += fmt.Sprintf("; looked at the newest %d rows only, go on with --after %d", operate.MaxWalk, picked.After)
	}
	return text
}

// person is who runs this command, as the operating system names him; "" if it
// does not.
func person() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Username
}

// maxReason is how long a reason may be, in bytes.
const maxReason = 1000

// checkReason judges the text of --reason.
func checkReason(reason string, required bool) error {
	switch {
	case required && strings.TrimSpace(reason) == "":
		return usageError(errors.New("--reason is required: say why, for the audit trail"))
	case len(reason) > maxReason:
		return usageError(fmt.Errorf("--reason is longer than %d bytes", maxReason))
	case !utf8.ValidString(reason) || strings.ContainsRune(reason, 0):
		return usageError(errors.New("--reason is not UTF-8 text"))
	}
	return nil
}

// refused says that nothing was done because it was not confirmed.
func refused(format string, args ...any) error {
	return &exitError{exitRefused, fmt.Errorf(format, args...)}
}

// notFound says that what was asked about is not there.
func notFound(format string, args ...any) error {
	return &exitError{exitNotFound, fmt.Errorf(format, args...)}
}
