package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

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
		ApplicationName:  applicationName(c),
		ConnectTimeout:   c.Postgres.ConnectTimeout,
		StatementTimeout: c.Postgres.StatementTimeout,
	}, nil
}

// applicationName is what the server shows of every connection of this relay.
func applicationName(c *config.Config) string { return c.Postgres.ApplicationName + "/" + c.Slot.Name }

// addresses are those of all servers in the configuration, as they may appear
// in sentences about them. What cannot be told is left out.
func addresses(c *config.Config) []string {
	list := slices.Clone(c.Kafka.Brokers)
	for _, options := range []func(*config.Config) (pg.Options, error){sqlOptions, replicationOptions} {
		o, err := options(c)
		if err != nil {
			continue
		}
		conf, err := o.ConnConfig()
		if err != nil {
			continue
		}
		list = append(list, hostPort(conf.Host, conf.Port))
		for _, f := range conf.Fallbacks {
			list = append(list, hostPort(f.Host, f.Port))
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

func hostPort(host string, port uint16) string {
	return net.JoinHostPort(host, strconv.Itoa(int(port)))
}

// connectSQL connects to the primary for a command.
func connectSQL(ctx context.Context, c *config.Config) (*pgx.Conn, pg.Server, error) {
	options, err := sqlOptions(c)
	if err != nil {
		return nil, pg.Server{}, err
	}
	return pg.Connect(ctx, options, nil)
}
