package main

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/migrations"
)

func (a *app) migrateCommand() *cobra.Command {
	return group(&cobra.Command{Use: "migrate", Short: "Create or upgrade the tables"},
		a.migrateUpCommand(), a.migrateStatusCommand(), a.migratePrintCommand())
}

// migrationItem is a migration as it is shown.
type migrationItem struct {
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"` // null: not applied
}

func (a *app) printMigrations(c *config.Config, list []migrations.Migration) error {
	items := make([]migrationItem, len(list))
	rows := make([][]string, len(list))
	for i, m := range list {
		items[i] = migrationItem{Version: m.Version, Name: m.Name}
		at := "-"
		if !m.AppliedAt.IsZero() {
			utc := m.AppliedAt.UTC()
			items[i].AppliedAt = &utc
			at = utc.Format(time.RFC3339)
		}
		rows[i] = []string{strconv.FormatInt(m.Version, 10), m.Name, at}
	}
	return a.printItems(c.Pipeline, items, []string{"VERSION", "NAME", "APPLIED_AT"}, rows)
}

func (a *app) migrateUpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "up",
		Short: "Apply what is not applied yet; any number of processes may do so at once",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withDatabase(cmd, func(ctx context.Context, c *config.Config) error {
				applied, err := migrateUp(ctx, c)
				if err != nil {
					return err
				}
				return a.printMigrations(c, applied)
			})
		},
	}
}

func migrateUp(ctx context.Context, c *config.Config) ([]migrations.Migration, error) {
	options, err := sqlOptions(c)
	if err != nil {
		return nil, err
	}
	conf, err := options.ConnConfig()
	if err != nil {
		return nil, err
	}
	applied, err := migrations.Up(ctx, conf, c.Outbox.Table.Schema)
	return applied, forOwner(pg.Explain(err))
}

func (a *app) migrateStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "List the migrations and when each was applied",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withDatabase(cmd, func(ctx context.Context, c *config.Config) error {
				conn, _, err := connectSQL(ctx, c)
				if err != nil {
					return err
				}
				defer conn.Close(context.WithoutCancel(ctx))
				list, err := migrations.Status(ctx, conn, c.Outbox.Table.Schema)
				if err != nil {
					return forOwner(err)
				}
				return a.printMigrations(c, list)
			})
		},
	}
}

func (a *app) migratePrintCommand() *cobra.Command {
	var from, to int64
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the SQL, for those who migrate by other means",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			loaded, err := a.loadConfig(config.UseNone)
			if err != nil {
				return err
			}
			a.warn(loaded.Warnings)
			return migrations.Print(a.stdout, loaded.Config.Outbox.Table.Schema, from, to)
		},
	}
	cmd.Flags().Int64Var(&from, "from", 0, "version that is applied already; 0: none")
	cmd.Flags().Int64Var(&to, "to", 0, "version to reach; 0: the newest")
	return cmd
}
