// Package doctor tells whether a database is fit to be streamed from.
//
// Look reads what matters about the server, the table, the publication and
// the slot; Facts.Problems judges it, without any I/O. Each problem carries
// the id of its check and a remedy. What is checked here would otherwise lose
// events without a word, make the application wait, or fail later with an
// error that nobody understands.
//
// The package owns nothing and changes nothing. It needs no privileges beyond
// those of the relay's own login.
package doctor

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// Config says what the database is to be fit for.
type Config struct {
	Table pg.Table
	// Columns gives, for a column of the design, the name of the table's
	// column that plays its part. What is missing has the same name.
	Columns     map[string]string
	Publication string
	Slot        string
	// ApplicationName is that of the replication connection.
	ApplicationName string
}

// Check looks at the database and returns the first of its problems, a
// *fault.Blocked; any other error means that it could not look. The facts are
// complete unless it could not.
func Check(ctx context.Context, conn *pgx.Conn, cfg Config) (Facts, error) {
	facts, err := Look(ctx, conn, cfg)
	if err != nil {
		return Facts{}, err
	}
	if problems := facts.Problems(cfg); len(problems) > 0 {
		return facts, problems[0]
	}
	return facts, nil
}

// Problems returns all that is wrong, what comes first in the order of
// repairing it first.
func (f Facts) Problems(cfg Config) []*fault.Blocked {
	var problems []*fault.Blocked
	for _, check := range []func(Facts, Config) []*fault.Blocked{
		checkServer, checkTable, checkTrigger, checkGrants, checkPublication, checkStandbySlots, checkSlot,
	} {
		problems = append(problems, check(f, cfg)...)
	}
	return problems
}
