package main

import (
	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/sink/record"
)

// checkParts finds what only the parts themselves can tell of a configuration,
// without connecting. An error is a *config.Error.
func checkParts(c *config.Config, use config.Use) error {
	problems := checkDSNs(c)
	if use == config.UseAll {
		problems = append(problems, checkPublishing(c)...)
	}
	if len(problems) > 0 {
		return &config.Error{Problems: problems}
	}
	return nil
}

// checkDSNs asks the driver, which also reads the service files and
// certificates that a DSN names. Its own text may quote the DSN.
func checkDSNs(c *config.Config) []config.Problem {
	var problems []config.Problem
	for _, dsn := range []struct {
		path  string
		value config.Secret
	}{{"postgres.dsn", c.Postgres.DSN}, {"postgres.replication_dsn", c.Postgres.ReplicationDSN}} {
		text, err := dsn.value.Read()
		if err == nil {
			_, err = pgx.ParseConfig(text)
		}
		if err != nil {
			problems = append(problems, config.Problem{Path: dsn.path,
				What: "is not accepted by the PostgreSQL driver, or names a file or service that cannot be read",
				Hint: "write postgres://user@host:5432/database, with special characters percent-encoded, or host=... user=... dbname=..."})
		}
	}
	return problems
}

func checkPublishing(c *config.Config) []config.Problem {
	publishing, err := sinkConfig(c)
	if err != nil {
		return []config.Problem{{Path: "kafka.tls", What: err.Error(), Hint: "name PEM files that this process may read"}}
	}
	if _, err := record.NewFormat(publishing.Record); err != nil {
		return []config.Problem{{Path: "record", What: err.Error(), Hint: "cdc-relay config show --defaults tells what each key takes"}}
	}
	return nil
}
