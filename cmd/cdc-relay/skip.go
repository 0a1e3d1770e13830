package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func (a *app) skipCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "skip [ID..] --reason TEXT",
		Short: "Give FAILED events up, so that what waits behind them follows",
		Long: "Waive FAILED rows: they are not published, or consumed, and nobody is alerted about\n" +
			"them any more. Events that are held behind them follow. Rows are named by id or event id\n" +
			"and skipped at once, or picked by flags: then nothing happens without --confirm and\n" +
			"their number. A skipped row can be replayed with --include-waived.",
	}
	flags := addAct(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkReason(flags.reason, true); err != nil {
			return err
		}
		if flags.filter.waived {
			return usageError(errors.New("--include-waived makes no sense here: those rows are skipped already"))
		}
		act, err := a.newAct(cmd, args, flags, operate.Skip, outbox.Failed)
		if err != nil {
			return err
		}
		return act.run(cmd)
	}
	return cmd
}
