package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/jackc/pglogrepl"
)

// write writes what is known, a line each, and a table of the rows.
func (s *status) write(w io.Writer) {
	lines := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := lineWriter(lines)
	line("pipeline", fmt.Sprintf("%s, slot %s (source: %s, %s)", s.Pipeline, s.Slot, s.Source, s.At.UTC().Format(time.RFC3339)))
	line("state", s.stateText())
	line("reason", s.Reason)
	line("what", s.What)
	line("remedy", s.Remedy)
	line("leader", s.leaderText())
	line("slot", s.slotText())
	line("positions", s.positionsText())
	if s.InflightEvents != nil && s.InflightBytes != nil && s.Leader != nil && *s.Leader {
		line("in flight", fmt.Sprintf("%.0f events, %s", *s.InflightEvents, bytesText(*s.InflightBytes)))
	}
	if s.OldestReadyAge != nil {
		line("oldest READY", ageText(*s.OldestReadyAge))
	}
	if s.LeasesExpired != nil && *s.LeasesExpired > 0 {
		line("expired", fmt.Sprintf("%.0f rows are claimed by somebody whose lease has run out", *s.LeasesExpired))
	}
	lines.Flush() // writes to a strings.Builder do not fail

	if len(s.Rows) == 0 {
		fmt.Fprintln(w, "\nrows are not known: the last look at the database failed; see the log of the relay")
		return
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "STATUS\tKIND\tROWS\tOLDEST")
	for _, r := range s.Rows {
		oldest := ""
		if r.OldestAge != nil && r.Count > 0 {
			oldest = ageText(*r.OldestAge)
		}
		fmt.Fprintf(table, "%s\t%s\t%.0f\t%s\n", r.Status, r.Kind, r.Count, oldest)
	}
	table.Flush()
	if !s.RowsComplete {
		fmt.Fprintln(w, "there may be more rows: not all of the table was looked at")
	}
}

func (s *status) stateText() string {
	if s.Since == nil {
		return s.State
	}
	return fmt.Sprintf("%s for %s", s.State, ageText(s.At.Sub(*s.Since).Seconds()))
}

func (s *status) leaderText() string {
	who := s.LeaderInstance
	switch {
	case who == "" && s.Leader != nil && *s.Leader:
		who = "the relay that answers"
	case who == "":
		return "nobody holds the lease"
	case s.Leader != nil && *s.Leader:
		who += ", which answers"
	}
	text := fmt.Sprintf("%s, epoch %d", who, s.Epoch)
	if s.RenewedAge != nil {
		text += ", renewed " + ageText(*s.RenewedAge) + " ago"
	}
	return text
}

func (s *status) slotText() string {
	switch {
	case s.WALStatus == "":
		return "" // the last sample failed
	case s.Source == "database" && s.SlotActive == nil:
		return "does not exist"
	}
	parts := []string{"WAL " + s.WALStatus}
	if s.SlotActive != nil && *s.SlotActive {
		parts = append(parts, "active")
	} else {
		parts = append(parts, "not active")
	}
	if s.RetainedBytes != nil {
		parts = append(parts, "retains "+bytesText(*s.RetainedBytes))
	}
	if s.ConfirmedLagBytes != nil {
		parts = append(parts, "confirmed lag "+bytesText(*s.ConfirmedLagBytes))
	}
	if s.SafeBytes != nil {
		safe := bytesText(*s.SafeBytes) + " until it may be lost"
		if s.TimeToLoss != nil {
			safe += ", in " + ageText(*s.TimeToLoss)
		}
		parts = append(parts, safe)
	}
	return strings.Join(parts, ", ")
}

// positionsText names the positions that are known, and how far each lies
// behind the server's.
func (s *status) positionsText() string {
	var server pglogrepl.LSN
	if s.Server != nil {
		server, _ = pglogrepl.ParseLSN(*s.Server) // 0 then: no distance is shown
	}
	var parts []string
	for _, p := range []struct {
		name string
		text *string
	}{{"received", s.Received}, {"watermark", s.Watermark}, {"saved", s.Saved}, {"confirmed", s.Confirmed}, {"server", s.Server}} {
		if p.text == nil {
			continue
		}
		part := p.name + " " + *p.text
		if lsn, err := pglogrepl.ParseLSN(*p.text); err == nil && lsn != 0 && lsn < server {
			part += " (-" + bytesText(float64(server-lsn)) + ")"
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}

// printable is a text for a terminal: on one line, without control characters.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
}

func bytesText(n float64) string {
	for _, unit := range []struct {
		name string
		size float64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= unit.size {
			return fmt.Sprintf("%.1f %s", n/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%.0f B", n)
}

// ageText is a number of seconds in its largest fitting unit.
func ageText(seconds float64) string {
	for _, unit := range []struct {
		name string
		size float64
	}{{"d", 86400}, {"h", 3600}, {"min", 60}} {
		if seconds >= 2*unit.size {
			return fmt.Sprintf("%.1f %s", seconds/unit.size, unit.name)
		}
	}
	return fmt.Sprintf("%.1f s", seconds)
}
