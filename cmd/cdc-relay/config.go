package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
)

func (a *app) configCommand() *cobra.Command {
	return group(&cobra.Command{Use: "config", Short: "Show or check the configuration"},
		a.configShowCommand(), a.configValidateCommand())
}

func (a *app) configShowCommand() *cobra.Command {
	var defaults bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the effective values and where each comes from",
		Long: "Print the effective values and where each comes from: default, file, env NAME or flag.\n" +
			"Secrets are shown as ***.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if defaults {
				return a.showDefaults()
			}
			loaded, err := a.loadConfig(config.UseNone)
			if err != nil {
				return err
			}
			a.warn(loaded.Warnings)
			return a.showSettings(loaded)
		},
	}
	cmd.Flags().BoolVar(&defaults, "defaults", false, "print every key with its default and meaning; reads no configuration")
	return cmd
}

func (a *app) showSettings(loaded *config.Loaded) error {
	settings := loaded.Show()
	rows := make([][]string, len(settings))
	for i, s := range settings {
		rows[i] = []string{s.Key, s.Value, s.Origin}
	}
	return a.printItems(loaded.Config.Pipeline, settings, []string{"KEY", "VALUE", "ORIGIN"}, rows)
}

func (a *app) showDefaults() error {
	settings := config.Defaults().Show()
	rows := make([][]string, len(settings))
	for i, s := range settings {
		rows[i] = []string{s.Key, s.Value, s.Help}
	}
	return a.printItems("", settings, []string{"KEY", "DEFAULT", "MEANING"}, rows)
}

func (a *app) configValidateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate [FILE]",
		Short: "Check the configuration without connecting to anything",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				a.configFile = args[0]
			}
			loaded, err := a.loadConfig(config.UseAll)
			if err != nil {
				return err
			}
			a.warn(loaded.Warnings)
			if _, err := fmt.Fprintln(a.stdout, "the configuration is valid"); err != nil {
				return fmt.Errorf("writing the answer: %w", err)
			}
			return nil
		},
	}
}
