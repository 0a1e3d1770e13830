package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func (a *app) receiptsCommand() *cobra.Command {
	kit := &kitFlags{}
	cmd := &cobra.Command{
		Use:   "receipts",
		Short: "Deal with receipts: what a consumer remembers of events",
		Long: "Deal with receipts: what a consumer remembers of an event, for a purpose, that does not\n" +
			"keep it on the outbox row. A receipt is named by its key, EVENT_ID:PURPOSE; the event id\n" +
			"alone names the receipts of all purposes.",
	}
	kit.add(cmd)
	return group(cmd, a.receiptsListCommand(kit), a.receiptsShowCommand(kit), a.receiptsRetryCommand(kit), a.receiptsDropCommand(kit))
}

// receiptFlags are the flags that pick receipts.
type receiptFlags struct {
	eventIDs []string
	statuses []string
	since    string
	until    string
	waived   bool
	filter   operate.ReceiptFilter // the plain ones, as they are
	cmd      *cobra.Command
}

func addReceiptFilter(cmd *cobra.Command, limit int) *receiptFlags {
	s := cmd.Flags()
	f := &receiptFlags{cmd: cmd}
	s.StringSliceVar(&f.eventIDs, "event-id", nil, "of these events, by `uuid`")
	s.StringVar(&f.filter.Purpose, "purpose", "", "for this `purpose`")
	s.StringVar(&f.filter.Code, "error-code", "", "with this error `code`")
	s.StringSliceVar(&f.statuses, "status", nil, "with one of these `statuses`: sent (waits for another attempt), failed, consumed, consuming; failed means not dropped")
	s.StringVar(&f.since, "since", "", "made at this `time` or later: 2026-01-02T15:04:05Z, or so long ago: 90m, 2h, 7d")
	s.StringVar(&f.until, "until", "", "made before this `time`")
	s.IntVar(&f.filter.Limit, "limit", limit, "at most this `number` of receipts")
	s.BoolVar(&f.waived, "include-waived", false, "also FAILED receipts that were dropped")
	return f
}

// parse makes a filter of the flags and of keys given as arguments; FAILED
// stands for a --status that is not there. An error is one of usage.
func (f *receiptFlags) parse(args []string, now time.Time) (operate.ReceiptFilter, error) {
	filter := f.filter
	filter.Open = !f.waived
	err := checkConditions(f.cmd)
	if err == nil {
		err = f.parseLists(&filter, args)
	}
	if err == nil {
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

func (f *receiptFlags) parseLists(filter *operate.ReceiptFilter, args []string) error {
	for _, text := range args {
		key, err := operate.ParseReceiptKey(text)
		if err != nil {
			return err
		}
		filter.Keys = append(filter.Keys, key)
	}
	events, err := parseEvents(f.eventIDs)
	if err != nil {
		return err
	}
	for _, id := range events {
		filter.Keys = append(filter.Keys, operate.ReceiptKey{EventID: id})
	}
	filter.Statuses, err = parseStatuses(f.statuses, []outbox.Status{outbox.Failed})
	return err
}

func (a *app) receiptsListCommand(kit *kitFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List receipts that FAILED and that nobody has dealt with, the oldest first",
		Long: "List receipts that FAILED and that nobody has dealt with, the oldest first. Those with\n" +
			"another --status are looked for among the newest 100,000, unless events are named.",
		Args: cobra.NoArgs,
	}
	flags := addReceiptFilter(cmd, listLimit)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		filter, err := flags.parse(args, time.Now())
		if err != nil {
			return err
		}
		return a.withKit(cmd, kit, func(ctx context.Context, c *config.Config, k *operate.Kit) error {
			list, err := k.Receipts(ctx, filter)
			if err != nil {
				return err
			}
			return a.printReceipts(c, list)
		})
	}
	return cmd
}

func (a *app) receiptsRetryCommand(kit *kitFlags) *cobra.Command {
	var clearDoubt bool
	cmd := &cobra.Command{
		Use:   "retry [EVENT_ID[:PURPOSE]..]",
		Short: "Let a consumer try FAILED receipts once more",
		Long: "Make FAILED receipts due. The consumer tries again when it gets the record again: publish\n" +
			"the event anew with cdc-relay replay --status sent, or reset the offset of the group.\n" +
			"Attempts are kept. If the effect is in doubt, that is kept too, and the consumer's\n" +
			"ambiguity policy decides, unless --clear-doubt says that it certainly did not happen.\n" +
			"Receipts are named, or picked by flags: then nothing happens without --confirm and\n" +
			"their number.",
	}
	flags := addReceiptAct(cmd)
	cmd.Flags().BoolVar(&clearDoubt, "clear-doubt", false, "the effect did not happen: forget that it may have")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkReason(flags.reason, false); err != nil {
			return err
		}
		return a.receiptsAct(cmd, args, kit, flags, operate.ReceiptOrder{Action: operate.ReceiptRetry, ClearDoubt: clearDoubt}, operate.ComesAgain)
	}
	return cmd
}

func (a *app) receiptsDropCommand(kit *kitFlags) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drop [EVENT_ID[:PURPOSE]..] --reason TEXT",
		Short: "Give FAILED receipts up",
		Long: "Waive FAILED receipts: the event counts as handled for their purpose, and nobody is\n" +
			"alerted about them any more. Receipts are named, or picked by flags: then nothing happens\n" +
			"without --confirm and their number. A dropped one can be retried with --include-waived.",
	}
	flags := addReceiptAct(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkReason(flags.reason, true); err != nil {
			return err
		}
		if flags.filter.waived {
			return usageError(errors.New("--include-waived makes no sense here: those receipts are dropped already"))
		}
		return a.receiptsAct(cmd, args, kit, flags, operate.ReceiptOrder{Action: operate.ReceiptDrop}, "")
	}
	return cmd
}

// receiptActFlags are those of commands that change receipts.
type receiptActFlags struct {
	consentFlags
	filter *receiptFlags
}

func addReceiptAct(cmd *cobra.Command) *receiptActFlags {
	f := &receiptActFlags{filter: addReceiptFilter(cmd, bulkLimit)}
	f.add(cmd)
	return f
}

func (a *app) receiptsAct(cmd *cobra.Command, args []string, kit *kitFlags, flags *receiptActFlags, order operate.ReceiptOrder, note string) error {
	filter, err := flags.filter.parse(args, time.Now())
	if err != nil {
		return err
	}
	for _, status := range filter.Statuses {
		if status != outbox.Failed {
			return usageError(fmt.Errorf("receipts %s does nothing to receipts that are %s", cmd.Name(), status))
		}
	}
	if filter.Empty() && len(flags.filter.statuses) == 0 {
		return usageError(errors.New(cmd.Name() + " needs keys, or flags that pick receipts, such as --error-code or --status failed"))
	}
	return a.withKit(cmd, kit, func(ctx context.Context, c *config.Config, k *operate.Kit) error {
		order.Kit, order.Filter, order.Reason = k, filter, flags.reason
		act := &kitAct{app: a, flags: &flags.consentFlags, action: order.Action, named: filter.Named(), note: note, order: &order,
			header: []string{"EVENT_ID", "PURPOSE", "RESULT", "STATUS", "ERROR_CODE", "DETAIL"},
			cells: func(i *kitItem) []string {
				return []string{textOr(i.EventID), cell(i.Purpose), i.Result, textOr(i.Status), cell(textOr(i.ErrorCode)), i.Detail}
			},
		}
		return act.run(ctx, cmd, c)
	})
}

// receiptItem is a receipt, in a list or alone.
type receiptItem struct {
	EventID       string         `json:"event_id"`
	Purpose       string         `json:"purpose"`
	Status        string         `json:"status"`
	StatusCode    int            `json:"status_code"`
	Waived        bool           `json:"waived"`
	InDoubt       bool           `json:"in_doubt"` // an earlier attempt may have had its effect
	Attempts      int32          `json:"attempts"`
	NextAttemptAt operate.Moment `json:"next_attempt_at"`
	ErrorCode     string         `json:"error_code"`
	ErrorMessage  string         `json:"error_message"`
	Age           *float64       `json:"age_seconds"`
	CreatedAt     operate.Moment `json:"created_at"`
	FinishedAt    operate.Moment `json:"finished_at"`

	ClaimGeneration int32          `json:"claim_generation"`
	ClaimedBy       string         `json:"claimed_by"`
	LeaseUntil      operate.Moment `json:"lease_until"`
	EffectAt        operate.Moment `json:"effect_at"`
	RequestDigest   string         `json:"request_digest"` // hexadecimal
	ProviderRef     string         `json:"provider_ref"`
}

var receiptHeader = []string{"EVENT_ID", "PURPOSE", "AGE", "STATUS", "ATTEMPTS", "NEXT_ATTEMPT_AT", "ERROR_CODE", "IN_DOUBT", "ERROR_MESSAGE"}

func newReceiptItem(r *operate.Receipt, at time.Time) receiptItem {
	return receiptItem{EventID: r.EventID.String(), Purpose: r.Purpose, Status: r.Status.String(), StatusCode: int(r.Status), Waived: r.Waived(),
		InDoubt: r.InDoubt(), Attempts: r.Attempts, NextAttemptAt: r.NextAttemptAt, ErrorCode: r.Code, ErrorMessage: r.Message,
		Age: age(r.CreatedAt, at), CreatedAt: r.CreatedAt, FinishedAt: r.FinishedAt, ClaimGeneration: r.Generation, ClaimedBy: r.ClaimedBy,
		LeaseUntil: r.LeaseUntil, EffectAt: r.EffectAt, RequestDigest: hex.EncodeToString(r.Digest), ProviderRef: r.ProviderRef}
}

func (i *receiptItem) cells(at time.Time) []string {
	status := i.Status
	if i.Waived {
		status += ", waived"
	}
	return []string{i.EventID, i.Purpose, ageCell(i.Age), status, strconv.Itoa(int(i.Attempts)), momentText(i.NextAttemptAt, at), cell(i.ErrorCode),
		strconv.FormatBool(i.InDoubt), cell(i.ErrorMessage)}
}

func (a *app) printReceipts(c *config.Config, list *operate.ReceiptList) error {
	items := make([]receiptItem, len(list.Rows))
	rows := make([][]string, len(list.Rows))
	for i := range list.Rows {
		items[i] = newReceiptItem(&list.Rows[i], list.At)
		rows[i] = items[i].cells(list.At)
	}
	note := ""
	switch {
	case list.More:
		note = "there are more: raise --limit, or pick fewer by flags"
	case list.Walked:
		note = fmt.Sprintf("only the newest %d receipts were looked at", operate.MaxWalk)
	}
	return a.printTable(receiptAnswer{newEnvelope(c.Pipeline, list.At), items, list.More, list.Walked}, receiptHeader, rows, note)
}

// receiptAnswer is a list of receipts.
type receiptAnswer struct {
	envelope
	Items  []receiptItem `json:"items"`
	More   bool          `json:"more"`   // there are more than --limit
	Walked bool          `json:"walked"` // older ones were not looked at
}
