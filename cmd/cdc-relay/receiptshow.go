package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
)

func (a *app) receiptsShowCommand(kit *kitFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "show EVENT_ID[:PURPOSE]",
		Short: "Tell what a consumer remembers of an event, and what to do",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := operate.ParseReceiptKey(args[0])
			if err != nil {
				return usageError(err)
			}
			return a.withKit(cmd, kit, func(ctx context.Context, c *config.Config, k *operate.Kit) error {
				list, err := k.ShowReceipts(ctx, key)
				if errors.Is(err, operate.ErrNoReceipt) {
					return notFound("receipt %s: %w", args[0], err)
				}
				if err != nil {
					return err
				}
				return a.printShownReceipts(c, list)
			})
		},
	}
}

// shownReceipt is all that is told of a receipt.
type shownReceipt struct {
	receiptItem
	Meaning      string   `json:"meaning"`
	Doubt        string   `json:"doubt"` // "": there is none
	ErrorMeaning string   `json:"error_meaning"`
	NextSteps    []string `json:"next_steps"`
}

func newShownReceipt(r *operate.Receipt, at time.Time) shownReceipt {
	s := shownReceipt{receiptItem: newReceiptItem(r, at), Meaning: r.Meaning(at), Doubt: r.Doubt(), NextSteps: notNil(r.NextSteps())}
	if r.Code != "" {
		s.ErrorMeaning = operate.Explain(r.Code).Meaning
	}
	return s
}

// printShownReceipts shows the receipts of an event as JSON, or for people.
func (a *app) printShownReceipts(c *config.Config, list *operate.ReceiptList) error {
	items := make([]shownReceipt, len(list.Rows))
	for i := range list.Rows {
		items[i] = newShownReceipt(&list.Rows[i], list.At)
	}
	return a.print(answer{newEnvelope(c.Pipeline, list.At), items}, func(w io.Writer) {
		for i := range items {
			if i > 0 {
				fmt.Fprintln(w)
			}
			items[i].write(w, list.At)
		}
	})
}

func (s *shownReceipt) write(w io.Writer, at time.Time) {
	lines := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := lineWriter(lines)
	line("receipt", s.EventID+":"+s.Purpose)
	line("status", s.Status+": "+s.Meaning)
	line("doubt", s.Doubt)
	if s.ErrorCode != "" {
		line("error", s.ErrorCode+": "+s.ErrorMeaning)
		line("message", s.ErrorMessage)
	}
	for _, text := range s.NextSteps {
		line("next step", text)
	}
	moment := momentWriter(line, at)
	moment("created", s.CreatedAt)
	line("attempts", fmt.Sprint(s.Attempts))
	moment("next attempt", s.NextAttemptAt)
	if s.ClaimGeneration > 0 {
		line("claim", strings.TrimSuffix(fmt.Sprintf("generation %d, %s", s.ClaimGeneration, s.ClaimedBy), ", "))
		moment("lease until", s.LeaseUntil)
	}
	moment("effect begun", s.EffectAt)
	line("request", s.RequestDigest)
	line("provider ref", s.ProviderRef)
	moment("finished", s.FinishedAt)
	lines.Flush() // writes to a strings.Builder do not fail
}
