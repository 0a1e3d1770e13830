package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// kitFlags say where consumers keep their quarantine and receipts.
type kitFlags struct {
	dsn    string
	schema string
}

func (f *kitFlags) add(cmd *cobra.Command) {
	s := cmd.PersistentFlags()
	s.StringVar(&f.dsn, "dsn", "", "the consumer's database, if it has one of its own; else postgres.dsn; without a password: $PGPASSWORD and a password file apply")
	s.StringVar(&f.schema, "schema", "", "its `schema`; else that of outbox.table")
}

// withKit runs a command on what consumers keep, within --timeout.
func (a *app) withKit(cmd *cobra.Command, flags *kitFlags, run func(context.Context, *config.Config, *operate.Kit) error) error {
	use := config.UseDatabase
	if flags.dsn != "" {
		use = config.UseNone
		if err := config.CheckDSN(flags.dsn); err != nil {
			return usageError(fmt.Errorf("--dsn %w", err))
		}
	}
	if !utf8.ValidString(flags.schema) {
		return usageError(errors.New("--schema is not UTF-8 text"))
	}
	loaded, err := a.loadConfig(use)
	if err != nil {
		return err
	}
	a.warn(loaded.Warnings)
	c := &loaded.Config
	ctx, cancel := context.WithTimeout(cmd.Context(), a.timeout)
	defer cancel()
	options, err := flags.options(c)
	if err != nil {
		return err
	}
	conn, _, err := pg.Connect(ctx, options, nil)
	if err != nil {
		return err
	}
	defer pg.Close(conn)
	schema := flags.schema
	if schema == "" {
		schema = c.Outbox.Table.Schema
	}
	kit, err := operate.OpenKit(ctx, conn, schema, person())
	if err != nil {
		return err
	}
	return run(ctx, c, kit)
}

func (f *kitFlags) options(c *config.Config) (pg.Options, error) {
	if f.dsn == "" {
		return sqlOptions(c)
	}
	return pg.Options{
		DSN:              f.dsn,
		ApplicationName:  applicationName(c),
		ConnectTimeout:   c.Postgres.ConnectTimeout,
		StatementTimeout: c.Postgres.StatementTimeout,
	}, nil
}

// kitOrder is a *operate.QuarantineOrder or a *operate.ReceiptOrder.
type kitOrder interface {
	Pick(context.Context) (operate.KitPicked, error)
	Apply(context.Context, operate.KitPicked) ([]operate.KitResult, error)
}

// kitAct is one command line that changes what consumers keep, understood.
type kitAct struct {
	app    *app
	flags  *consentFlags
	order  kitOrder
	action operate.Action
	named  bool
	header []string
	cells  func(*kitItem) []string
	note   string // for people, once something was changed
}

// run carries it out: what is named at once, what a filter picks only when the
// number is confirmed.
func (k *kitAct) run(ctx context.Context, cmd *cobra.Command, c *config.Config) error {
	picked, err := k.order.Pick(ctx)
	if err != nil {
		return err
	}
	dry, refusal := k.flags.ask(cmd, picked.Matched, picked.Total, k.named)
	if dry {
		shown := k.print(c, picked, picked.Results, true)
		if refusal == nil {
			refusal = k.verdict(picked.Results)
		}
		return errors.Join(shown, refusal)
	}
	if refusal != nil {
		return refusal
	}
	results, err := k.order.Apply(ctx, picked)
	if err != nil {
		return err
	}
	return errors.Join(k.print(c, picked, results, false), k.verdict(results))
}

// verdict is an error if one has not become what was asked for.
func (k *kitAct) verdict(results []operate.KitResult) error {
	outcomes := make([]operate.Outcome, len(results))
	for i := range results {
		outcomes[i] = results[i].Outcome
	}
	return verdict(k.action, outcomes)
}

// print shows what became of each.
func (k *kitAct) print(c *config.Config, picked operate.KitPicked, results []operate.KitResult, dryRun bool) error {
	answer := actAnswer{envelope: newEnvelope(c.Pipeline, time.Now().UTC()), Action: string(k.action), DryRun: dryRun,
		Matched: picked.Matched, Total: picked.Total}
	items := make([]kitItem, len(results))
	rows := make([][]string, len(results))
	for i := range results {
		items[i] = newKitItem(&results[i])
		rows[i] = k.cells(&items[i])
		if results[i].Changed() {
			answer.Changed++
		}
	}
	answer.Items = items
	note := ""
	if answer.Changed > 0 && k.note != "" {
		note = "; " + k.note
	}
	return k.app.printTable(answer, k.header, rows, answer.summary()+note)
}

// kitItem is what became of a quarantined record or a receipt. Null is not
// known.
type kitItem struct {
	ID        *int64  `json:"id,omitempty"` // of a quarantined record
	EventID   *string `json:"event_id"`
	Purpose   string  `json:"purpose,omitempty"` // of a receipt
	Result    string  `json:"result"`
	Status    *string `json:"status"`
	ErrorCode *string `json:"error_code"`
	Detail    string  `json:"detail"`
}

func newKitItem(r *operate.KitResult) kitItem {
	item := kitItem{Purpose: r.Purpose, Result: string(r.Outcome), EventID: orNull(r.EventID), Status: orNull(r.Status),
		ErrorCode: orNull(r.Code), Detail: r.Detail}
	if r.ID != 0 {
		item.ID = &r.ID
	}
	return item
}

// orNull is a text that JSON shows as null when it is empty.
func orNull(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func (i *kitItem) idText() string {
	if i.ID == nil {
		return "-"
	}
	return strconv.FormatInt(*i.ID, 10)
}
