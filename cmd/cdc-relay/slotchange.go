package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/slot"
)

// slotOrder is what a person asked for.
type slotOrder struct {
	confirm   string
	confirmed bool // confirm was given
	dryRun    bool
	reason    string
}

func (o *slotOrder) addReason(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.reason, "reason", "", "why, for the audit trail")
}

func (o *slotOrder) addConfirm(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.confirm, "confirm", "", "`name` of the slot")
	cmd.Flags().BoolVar(&o.dryRun, "dry-run", false, "show what would happen, change nothing")
	o.addReason(cmd)
}

// What becomes of a change; part of the JSON contract.
const (
	slotCreated      = "created"
	slotRecreated    = "recreated"
	slotRecreatable  = "would_recreate"
	slotAdopted      = "adopted"
	slotAdoptable    = "would_adopt"
	slotAdvanced     = "advanced"
	slotAdvanceable  = "would_advance"
	slotNothingToDo  = "nothing_to_do"
	readyGoOutFirst  = "READY rows go out at the next start of the relay, before what the slot shows"
	nothingIsChanged = "nothing was changed; to do it, run: cdc-relay slot %s --confirm %s"
)

// slotChange is the answer as JSON. What does not belong to the command is
// left out.
type slotChange struct {
	envelope
	Result          string `json:"result"`
	Name            string `json:"name"`
	ConsistentPoint string `json:"consistent_point,omitempty"`
	*adoptedItem
	*advancedItem
}

type adoptedItem struct {
	OriginalID string `json:"original_system_identifier"`
	SystemID   string `json:"system_identifier"`
	ParkedRows int64  `json:"parked_rows"`
}

type advancedItem struct {
	Confirmed string `json:"confirmed"` // before
	To        string `json:"to"`
	ReadyRows int64  `json:"ready_rows"` // that the next start publishes from the table
}

// print shows what became of the slot; text is the same for people.
func (w *slotWork) print(change slotChange, text string) error {
	change.envelope, change.Name = newEnvelope(w.c.Pipeline, time.Now().UTC()), w.c.Slot.Name
	return w.app.print(change, func(out io.Writer) { fmt.Fprintln(out, text) })
}

// decide tells whether to go on: not in a dry run, and not unless the slot's
// name was confirmed. preview shows what would happen.
func (o *slotOrder) decide(name, command string, preview func() error) (goOn bool, err error) {
	switch {
	case o.dryRun:
		return false, preview()
	case !o.confirmed:
		return false, errors.Join(preview(), refused(nothingIsChanged, command, name))
	case o.confirm != name:
		return false, refused("the slot is %s, not %s: nothing was changed", name, printable(o.confirm))
	}
	return true, nil
}

func (a *app) slotCreateCommand() *cobra.Command {
	var order slotOrder
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create the slot",
		Long: "Create the slot as the login that streams. That waits for the end of every transaction of\n" +
			"the cluster that is writing. What is READY by then is in no WAL that the slot shows: the\n" +
			"relay publishes it from the table at its next start.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkReason(order.reason, false); err != nil {
				return err
			}
			return a.withSlot(cmd, order.create)
		},
	}
	order.addReason(cmd)
	return cmd
}

func (o *slotOrder) create(ctx context.Context, w *slotWork) error {
	if err := w.creatable(); err != nil {
		return err
	}
	_, err := w.slot.Look(ctx)
	var missing *slot.Missing
	if err == nil {
		return refused("the slot %s exists; cdc-relay slot show tells how it is", w.c.Slot.Name)
	}
	if !errors.As(err, &missing) {
		return err
	}
	at, err := w.make(ctx, func(conn *pgx.Conn) (pglogrepl.LSN, error) { return w.slot.Create(ctx, conn, o.reason) })
	if err != nil {
		return err
	}
	return w.print(slotChange{Result: slotCreated, ConsistentPoint: at.String()},
		fmt.Sprintf("slot %s created at %s; %s", w.c.Slot.Name, at, readyGoOutFirst))
}

// creatable refuses a slot that this server cannot make.
func (w *slotWork) creatable() error {
	if w.c.Slot.Failover && w.server.Version < failoverSlots {
		return noFailoverSlots()
	}
	return nil
}

// make makes a slot as the login that streams.
func (w *slotWork) make(ctx context.Context, create func(*pgx.Conn) (pglogrepl.LSN, error)) (at pglogrepl.LSN, err error) {
	err = w.streaming(ctx, func(conn *pgx.Conn) error {
		at, err = create(conn)
		return waitedForWriters(ctx, w.conn, err)
	})
	return at, err
}

func (a *app) slotRecreateCommand() *cobra.Command {
	var order slotOrder
	cmd := &cobra.Command{
		Use:   "recreate --confirm NAME",
		Short: "Drop the slot and create it anew",
		Long: "Drop the slot, which nobody may be streaming from, and create it anew: for one that is\n" +
			"lost, that is older than its publication, or that is to become a failover slot. Nothing\n" +
			"is lost: the relay publishes the READY rows of the table at its next start. Some events may\n" +
			"be published twice. Without --confirm nothing is changed: what would happen is shown.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkReason(order.reason, false); err != nil {
				return err
			}
			order.confirmed = cmd.Flags().Changed("confirm")
			return a.withSlot(cmd, order.recreate)
		},
	}
	order.addConfirm(cmd)
	return cmd
}

func (o *slotOrder) recreate(ctx context.Context, w *slotWork) error {
	if err := w.creatable(); err != nil {
		return err
	}
	if _, err := w.slot.Recreatable(ctx); err != nil {
		return err
	}
	name := w.c.Slot.Name
	goOn, err := o.decide(name, "recreate", func() error {
		return w.print(slotChange{Result: slotRecreatable}, fmt.Sprintf("slot %s can be dropped and created anew; %s", name, readyGoOutFirst))
	})
	if err != nil || !goOn {
		return err
	}
	at, err := w.make(ctx, func(conn *pgx.Conn) (pglogrepl.LSN, error) { return w.slot.Recreate(ctx, conn, o.reason) })
	if err != nil {
		return err
	}
	return w.print(slotChange{Result: slotRecreated, ConsistentPoint: at.String()},
		fmt.Sprintf("slot %s created anew at %s; %s", name, at, readyGoOutFirst))
}

func (a *app) slotAdoptCommand() *cobra.Command {
	var order slotOrder
	cmd := &cobra.Command{
		Use:   "adopt --confirm NAME",
		Short: "Let this copy of the database publish from now on",
		Long: "A restored dump, or an upgraded cluster, is another database system than the one that the\n" +
			"slot was last led on, and a relay on it is blocked (slot.system): a copy must not publish\n" +
			"by accident what its original publishes. Adopt it when the original is gone, or no relay\n" +
			"serves it any more. What the copy holds as READY is then published first.\n" +
			"Without --confirm nothing is changed: what would happen is shown.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkReason(order.reason, false); err != nil {
				return err
			}
			order.confirmed = cmd.Flags().Changed("confirm")
			return a.withSlot(cmd, order.adopt)
		},
	}
	order.addConfirm(cmd)
	return cmd
}

func (o *slotOrder) adopt(ctx context.Context, w *slotWork) error {
	name := w.c.Slot.Name
	plan, err := w.slot.PlanAdopt(ctx, w.server)
	if err != nil {
		return err
	}
	if !plan.Needed {
		return w.printAdoption(slotNothingToDo, plan, fmt.Sprintf("slot %s belongs to no other database system: nothing to do", name))
	}
	goOn, err := o.decide(name, "adopt", func() error {
		return w.printAdoption(slotAdoptable, plan, fmt.Sprintf("slot %s was last led on system %d and can be adopted by this one, %d; %s",
			name, plan.From, plan.To, readyGoOutFirst))
	})
	if err != nil || !goOn {
		return err
	}
	done, err := w.slot.Adopt(ctx, w.server, o.reason)
	if err != nil {
		return err
	}
	return w.printAdoption(slotAdopted, done, fmt.Sprintf("slot %s adopted by system %d, with %d parked rows; %s", name, done.To, done.Parked, readyGoOutFirst))
}

func (w *slotWork) printAdoption(result string, a slot.Adoption, text string) error {
	item := &adoptedItem{SystemID: systemText(a.To), ParkedRows: a.Parked}
	if a.From != 0 {
		item.OriginalID = systemText(a.From)
	}
	return w.print(slotChange{Result: result, adoptedItem: item}, text)
}

func (a *app) slotAdvanceCommand() *cobra.Command {
	var order slotOrder
	var to string
	var apply bool
	cmd := &cobra.Command{
		Use:   "advance-guard --to LSN|current",
		Short: "Move the slot on, and let the table make up for it",
		Long: "Move the slot on, which nobody may be streaming from: past WAL that cannot be decoded, such\n" +
			"as that before its publication was created (PostgreSQL 14 to 17). The saved position stays\n" +
			"behind, and that makes the relay publish the READY rows of the table at its next start: how\n" +
			"many those are is told. Without --apply nothing is changed.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkReason(order.reason, false); err != nil {
				return err
			}
			target, err := parseTarget(to)
			if err != nil {
				return err
			}
			return a.withSlot(cmd, func(ctx context.Context, w *slotWork) error { return order.advance(ctx, w, target, apply) })
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "`LSN`, or current: the end of the WAL of now")
	cmd.Flags().BoolVar(&apply, "apply", false, "do it")
	order.addReason(cmd)
	return cmd
}

var lsnForm = regexp.MustCompile(`^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$`)

// parseTarget is 0 for the end of WAL.
func parseTarget(to string) (pglogrepl.LSN, error) {
	if to == "current" {
		return 0, nil
	}
	lsn, err := pglogrepl.ParseLSN(to) // which passes over what follows, and over digits too many
	if err != nil || lsn == 0 || !lsnForm.MatchString(to) {
		return 0, usageError(errors.New("--to takes a position such as 1/2A3B4C5D, or current"))
	}
	return lsn, nil
}

func (o *slotOrder) advance(ctx context.Context, w *slotWork, to pglogrepl.LSN, apply bool) error {
	name := w.c.Slot.Name
	plan, err := w.slot.PlanAdvance(ctx, to)
	if err != nil {
		return err
	}
	rows := fmt.Sprintf("the next start of the relay publishes %d READY rows from the table", plan.Ready)
	switch {
	case plan.From == plan.To:
		return w.printMove(slotNothingToDo, plan, fmt.Sprintf("slot %s is at %s: nothing to do; %s", name, plan.From, rows))
	case !apply:
		return w.printMove(slotAdvanceable, plan, fmt.Sprintf("slot %s would move from %s to %s; %s; to do it, add --apply", name, plan.From, plan.To, rows))
	}
	err = w.streaming(ctx, func(conn *pgx.Conn) error {
		plan.To, err = w.slot.Advance(ctx, conn, plan, o.reason)
		return err
	})
	if err != nil {
		return err
	}
	return w.printMove(slotAdvanced, plan, fmt.Sprintf("slot %s moved from %s to %s; %s", name, plan.From, plan.To, rows))
}

func (w *slotWork) printMove(result string, m slot.Move, text string) error {
	return w.print(slotChange{Result: result, advancedItem: &advancedItem{m.From.String(), m.To.String(), m.Ready}}, text)
}
