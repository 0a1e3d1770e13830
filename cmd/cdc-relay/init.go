package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/doctor"
	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

func (a *app) initCommand() *cobra.Command {
	var apply, printSQL bool
	cmd := &cobra.Command{
		Use:   "init",
		Short: "Plan what the database still needs: tables, grants, publication, slot",
		Long: "Print what the database has and still needs: tables, grants, publication, slot, in this\n" +
			"order. Grants are those of the roles cdc_relay_consumer and cdc_relay_operator, where they\n" +
			"exist. Nothing is changed without --apply, and nothing is ever dropped. What exists and is\n" +
			"not as it must be is refused with the statement that puts it right.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if apply && printSQL {
				return usageError(errors.New("--apply and --print-sql exclude each other"))
			}
			return a.withDatabase(cmd, func(ctx context.Context, c *config.Config) error {
				return forOwner(a.initDatabase(ctx, c, apply, printSQL))
			})
		},
	}
	cmd.Flags().BoolVar(&apply, "apply", false, "do what the plan says; doing it again changes nothing")
	cmd.Flags().BoolVar(&printSQL, "print-sql", false, "print only the SQL of what is still to do")
	return cmd
}

// forOwner says who may do what the server has refused to this login.
func forOwner(err error) error {
	if pg.Code(err) == pg.CodeNoPrivilege && fault.AsBlocked(err) == nil {
		return fmt.Errorf("%w; run it as the owner of the schema, who may create in the database", err)
	}
	return err
}

// planItem is a step as it is shown.
type planItem struct {
	Step  string `json:"step"`
	Name  string `json:"name"`
	State string `json:"state"` // exists, to do, done
	SQL   string `json:"sql"`   // of what is to do or was done
}

// initDatabase walks the steps in order. Each looks at the database when its
// turn comes, so it sees what the steps before it have made.
func (a *app) initDatabase(ctx context.Context, c *config.Config, apply, printSQL bool) error {
	conn, _, err := connectSQL(ctx, c)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	roles, err := doctor.Roles(ctx, conn)
	if err != nil {
		return err
	}
	var items []planItem
	for _, step := range initSteps(c, conn, roles) {
		item, err := takeStep(ctx, step, apply)
		if err != nil {
			// What was done before stays done: show it.
			return errors.Join(err, a.printPlan(c, items, printSQL))
		}
		items = append(items, item)
	}
	return a.printPlan(c, items, printSQL)
}

func takeStep(ctx context.Context, step initStep, apply bool) (planItem, error) {
	item := planItem{Step: step.kind, Name: step.name, State: "exists"}
	sql, err := step.missing(ctx)
	if err != nil || sql == "" {
		return item, err
	}
	item.State, item.SQL = "to do", sql
	if !apply {
		return item, nil
	}
	err = step.make(ctx, sql)
	if code := pg.Code(err); code == codeDuplicateObject || code == codeUniqueViolation {
		// Somebody else has just made it; whether it is right is looked at.
		sql, err = step.missing(ctx)
		item.State, item.SQL = "exists", sql
		return item, err
	}
	if err != nil {
		return item, fmt.Errorf("creating %s %s: %w", step.kind, step.name, err)
	}
	item.State = "done"
	return item, nil
}

// What the server answers when somebody else has made it: before, or at the
// same moment.
const (
	codeDuplicateObject = "42710"
	codeUniqueViolation = "23505"
)

func (a *app) printPlan(c *config.Config, items []planItem, printSQL bool) error {
	if printSQL {
		for _, item := range items {
			if item.SQL == "" {
				continue
			}
			if _, err := fmt.Fprintf(a.stdout, "-- %s %s\n%s\n", item.Step, item.Name, item.SQL); err != nil {
				return fmt.Errorf("writing the SQL: %w", err)
			}
		}
		return nil
	}
	rows := make([][]string, len(items))
	for i, item := range items {
		rows[i] = []string{item.Step, item.Name, item.State, firstLine(item)}
	}
	return a.printItems(c.Pipeline, items, []string{"STEP", "NAME", "STATE", "SQL"}, rows)
}

// firstLine is the SQL of a step where a table has room for it.
func firstLine(item planItem) string {
	switch {
	case item.Step == stepTables && item.SQL != "":
		return "shown by cdc-relay migrate print"
	case strings.Contains(item.SQL, "\n"):
		return "shown by cdc-relay init --print-sql"
	}
	return item.SQL
}

// initStep is one thing that the database needs.
type initStep struct {
	kind string
	name string
	// missing returns the SQL that makes it, "" if it is there and right. What
	// is there and wrong is a *fault.Blocked with a remedy.
	missing func(ctx context.Context) (sql string, err error)
	make    func(ctx context.Context, sql string) error
}

const stepTables = "tables"

func initSteps(c *config.Config, conn *pgx.Conn, roles []string) []initStep {
	execute := func(ctx context.Context, sql string) error {
		// several statements, perhaps
		_, err := conn.PgConn().Exec(ctx, sql).ReadAll()
		return err
	}
	steps := []initStep{
		{
			kind: stepTables, name: c.Outbox.Table.Schema,
			missing: func(ctx context.Context) (string, error) { return missingTables(ctx, conn, c.Outbox.Table.Schema) },
			make: func(ctx context.Context, _ string) error {
				_, err := migrateUp(ctx, c)
				return err
			},
		},
	}
	for _, role := range roles {
		steps = append(steps, initStep{
			kind: "grants", name: role,
			missing: func(ctx context.Context) (string, error) { return missingGrants(ctx, conn, c, role) },
			make:    execute,
		})
	}
	return append(steps, initStep{
		kind: "publication", name: c.Slot.Publication,
		missing: func(ctx context.Context) (string, error) { return missingPublication(ctx, conn, c) },
		make:    execute,
	}, initStep{
		kind: "slot", name: c.Slot.Name,
		missing: func(ctx context.Context) (string, error) { return missingSlot(ctx, conn, c) },
		make:    func(ctx context.Context, sql string) error { return makeSlot(ctx, conn, c, sql) },
	})
}
