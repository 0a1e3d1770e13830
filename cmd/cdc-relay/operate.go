package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// withTable runs a command about the rows of the outbox, within --timeout.
func (a *app) withTable(cmd *cobra.Command, run func(context.Context, *config.Config, *operate.Table) error) error {
	return a.withDatabase(cmd, func(ctx context.Context, c *config.Config) error {
		conn, _, err := connectSQL(ctx, c)
		if err != nil {
			return err
		}
		defer pg.Close(conn)
		table, err := openTable(ctx, c, conn)
		if err != nil {
			return err
		}
		return run(ctx, c, table)
	})
}

// openTable is the outbox over a connection.
func openTable(ctx context.Context, c *config.Config, conn *pgx.Conn) (*operate.Table, error) {
	return operate.Open(ctx, conn, operate.Config{
		Table:         pg.Table(c.Outbox.Table),
		Columns:       c.Outbox.Columns,
		Slot:          c.Slot.Name,
		TopicTemplate: c.Record.Topic,
		Blocks:        c.Failure.Blocks,
	})
}
