package main

import (
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func (a *app) replayCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay [ID..]",
		Short: "Publish FAILED events anew",
		Long: "Set FAILED rows back to READY, due now and as if never tried: the relay publishes them\n" +
			"in the order of their aggregate. Rows are named by id or event id and replayed at once,\n" +
			"or picked by flags: then nothing happens without --confirm and their number.\n" +
			"With --status sent also rows that were SENT: their consumers see them again.",
	}
	flags := addAct(cmd)
	cmd.Flags().DurationVar(&flags.wait, "wait", 0, "wait this `long` until each row is SENT (exit 0) or FAILED again (exit 1)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkReason(flags.reason, false); err != nil {
			return err
		}
		act, err := a.newAct(cmd, args, flags, operate.Replay, outbox.Failed, outbox.Sent)
		if err != nil {
			return err
		}
		return act.run(cmd)
	}
	return cmd
}
