package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/slot"
)

func (a *app) slotCommand() *cobra.Command {
	return group(&cobra.Command{Use: "slot", Short: "Show the replication slot, and do with it what only a person may decide"},
		a.slotShowCommand(), a.slotCreateCommand(), a.slotRecreateCommand(), a.slotAdoptCommand(), a.slotAdvanceCommand())
}

// slotWork is what a command on the slot works with.
type slotWork struct {
	app    *app
	c      *config.Config
	conn   *pgx.Conn
	server pg.Server
	slot   *slot.Slot
}

// withSlot runs a command on the slot, within --timeout, which alone decides
// how long a statement may take. What the slot does not allow gets its exit
// code.
func (a *app) withSlot(cmd *cobra.Command, run func(context.Context, *slotWork) error) error {
	return a.withDatabase(cmd, func(ctx context.Context, c *config.Config) error {
		options, err := sqlOptions(c)
		if err != nil {
			return err
		}
		if deadline, ok := ctx.Deadline(); ok {
			options.StatementTimeout = time.Until(deadline)
		}
		conn, server, err := pg.Connect(ctx, options, nil)
		if err != nil {
			return err
		}
		defer pg.Close(conn)
		s := slot.New(conn, slot.Config{Name: c.Slot.Name, Table: pg.Table(c.Outbox.Table), Failover: c.Slot.Failover, Person: person()})
		return slotExit(run(ctx, &slotWork{a, c, conn, server, s}))
	})
}

// slotExit chooses the exit code of what the slot does not allow.
func slotExit(err error) error {
	var missing *slot.Missing
	var no *slot.Refused
	switch {
	case errors.As(err, &missing):
		return &exitError{exitNotFound, err}
	case errors.As(err, &no):
		return &exitError{exitRefused, err}
	}
	return err
}

// streaming runs f on a connection of the login that streams.
func (w *slotWork) streaming(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := connectStreaming(ctx, w.c)
	if err != nil {
		return err
	}
	defer pg.Close(conn)
	return f(conn)
}

// slotItem is the slot as it is shown, and what the relay keeps about it. What
// is null is not there, or this server does not tell it.
type slotItem struct {
	Name            string  `json:"name"`
	Plugin          string  `json:"plugin"` // "" for a physical slot
	Active          bool    `json:"active"`
	ActivePID       *int32  `json:"active_pid"`
	ApplicationName *string `json:"application_name"`
	Confirmed       *string `json:"confirmed"`
	Restart         *string `json:"restart"`
	Saved           *string `json:"saved"`
	RetainedBytes   *int64  `json:"retained_bytes"`
	SafeBytes       *int64  `json:"safe_bytes"`
	WALStatus       *string `json:"wal_status"`
	Invalidation    *string `json:"invalidation_reason"`
	Failover        *bool   `json:"failover"`
	Synced          *bool   `json:"synced"`
	// Of the lease. Identifiers are text: not every reader of JSON keeps 64
	// bits of a number.
	SystemID   *string    `json:"system_identifier"`
	Timeline   *int32     `json:"timeline"`
	Epoch      *int64     `json:"epoch"`
	Owner      *string    `json:"owner"`
	LeaseUntil *time.Time `json:"lease_until"`
	// Of the server that was asked.
	ServerSystemID string `json:"server_system_identifier"`
	ServerTimeline uint32 `json:"server_timeline"`
}

func newSlotItem(name string, st *slot.State, server pg.Server) slotItem {
	item := slotItem{
		Name: name, Plugin: st.Plugin, Active: st.Active, ActivePID: st.ActivePID, ApplicationName: orNull(st.ApplicationName),
		Confirmed: orNull(st.Confirmed), Restart: orNull(st.Restart), Saved: orNull(st.Saved),
		RetainedBytes: st.RetainedBytes, SafeBytes: st.SafeBytes, WALStatus: orNull(st.WALStatus), Invalidation: orNull(st.Invalidation),
		Failover: st.Failover, Synced: st.Synced,
		Timeline: st.Timeline, Epoch: st.Epoch, Owner: orNull(st.Owner), LeaseUntil: st.LeaseUntil,
		ServerSystemID: systemText(server.SystemID), ServerTimeline: server.Timeline,
	}
	if st.SystemID != nil {
		item.SystemID = orNull(systemText(uint64(*st.SystemID)))
	}
	if item.LeaseUntil != nil {
		utc := item.LeaseUntil.UTC()
		item.LeaseUntil = &utc
	}
	return item
}

func systemText(id uint64) string { return strconv.FormatUint(id, 10) }

// slotAnswer is the answer as JSON.
type slotAnswer struct {
	envelope
	slotItem
}

func (a *app) slotShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show the slot and what the relay keeps about it",
		Long: "Show the slot as the server has it: who streams from it, where it stands, how much WAL\n" +
			"it holds and how much more may be written until it is lost; and the lease: the saved\n" +
			"position, the system and the timeline that it was saved on, and who leads.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withSlot(cmd, func(ctx context.Context, w *slotWork) error {
				st, err := w.slot.Look(ctx)
				if err != nil {
					return err
				}
				item := newSlotItem(w.c.Slot.Name, st, w.server)
				return a.print(slotAnswer{newEnvelope(w.c.Pipeline, time.Now().UTC()), item}, item.write)
			})
		},
	}
}

// write writes the slot for people: a line each, without what is not there.
func (i *slotItem) write(w io.Writer) {
	lines := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := lineWriter(lines)
	line("name", i.Name)
	line("plugin", i.Plugin)
	line("active", strconv.FormatBool(i.Active))
	line("active_pid", valueText(i.ActivePID))
	line("application_name", valueText(i.ApplicationName))
	line("confirmed", valueText(i.Confirmed))
	line("restart", valueText(i.Restart))
	line("saved", valueText(i.Saved))
	line("retained_bytes", valueText(i.RetainedBytes))
	line("safe_bytes", valueText(i.SafeBytes))
	line("wal_status", valueText(i.WALStatus))
	line("invalidation_reason", valueText(i.Invalidation))
	line("failover", valueText(i.Failover))
	line("synced", valueText(i.Synced))
	line("system_identifier", valueText(i.SystemID))
	line("timeline", valueText(i.Timeline))
	line("epoch", valueText(i.Epoch))
	line("owner", valueText(i.Owner))
	if i.LeaseUntil != nil {
		line("lease_until", i.LeaseUntil.Format(time.RFC3339))
	}
	line("server_system_identifier", i.ServerSystemID)
	line("server_timeline", strconv.FormatUint(uint64(i.ServerTimeline), 10))
	lines.Flush() // writes to a strings.Builder do not fail
}

// valueText is a value as text, "" for none.
func valueText[T any](value *T) string {
	if value == nil {
		return ""
	}
	return fmt.Sprint(*value)
}
