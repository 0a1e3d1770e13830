package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// sqlOptions is how to reach the database for statements.
func sqlOptions(c *config.Config) (pg.Options, error) {
	return postgresOptions(c, c.Postgres.DSN, c.Postgres.Password)
}

// replicationOptions is how to reach it as the login that streams. What is not
// set apart for it is that of the statements.
func replicationOptions(c *config.Config) (pg.Options, error) {
	dsn, password := c.Postgres.DSN, c.Postgres.Password
	if c.Postgres.ReplicationDSN.IsSet() {
		dsn, password = c.Postgres.ReplicationDSN, c.Postgres.ReplicationPassword
	} else if c.Postgres.ReplicationPassword.IsSet() {
		password = c.Postgres.ReplicationPassword
	}
	return postgresOptions(c, dsn, password)
}

func postgresOptions(c *config.Config, dsn, password config.Secret) (pg.Options, error) {
	text, err := dsn.Read()
	if err != nil {
		return pg.Options{}, fmt.Errorf("reading the PostgreSQL DSN: %w", err)
	}
	return pg.Options{
		DSN:              text,
		Password:         password.Read,
		ApplicationName:  c.Postgres.ApplicationName + "/" + c.Slot.Name,
		ConnectTimeout:   c.Postgres.ConnectTimeout,
		StatementTimeout: c.Postgres.StatementTimeout,
	}, nil
}

// connectSQL connects to the primary for a command.
func connectSQL(ctx context.Context, c *config.Config) (*pgx.Conn, pg.Server, error) {
	options, err := sqlOptions(c)
	if err != nil {
		return nil, pg.Server{}, err
	}
	return pg.Connect(ctx, options, nil)
}
