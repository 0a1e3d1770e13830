package main

import (
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
)

// listAnswer is a list that may go on.
type listAnswer struct {
	envelope
	Items any `json:"items"`
	// After is what to give to --after for what follows; null: nothing does.
	After *int64 `json:"after"`
	// Walked is how many of the newest rows were looked at; null: the rows come
	// from an index that has all of them, or the list ended at its limit.
	Walked *int64 `json:"walked"`
}

// printList shows a list; item makes of a row what JSON shows, and the cells of
// the table.
func printList[T any](a *app, c *config.Config, list *operate.List, header []string, item func(*operate.Listed, time.Time) (T, []string)) error {
	items := make([]T, len(list.Rows))
	cells := make([][]string, len(list.Rows))
	for i := range list.Rows {
		items[i], cells[i] = item(&list.Rows[i], list.At)
	}
	answer := listAnswer{newEnvelope(c.Pipeline, list.At), items, positive(list.Page.After), positive(list.Page.Walked)}
	return a.printTable(answer, header, cells, pageNote(list.Page))
}

// pageNote says that there may be more.
func pageNote(p operate.Page) string {
	switch {
	case p.After == 0:
		return ""
	case p.Walked == 0:
		return fmt.Sprintf("there are more: --after %d", p.After)
	default:
		return fmt.Sprintf("only %d rows were looked at, the newest ones; go on with --after %d", p.Walked, p.After)
	}
}

func positive(n int64) *int64 {
	if n == 0 {
		return nil
	}
	return &n
}

// widest is how many characters of a text fit into a cell.
const widest = 64

// cell is a text in a table.
func cell(text string) string {
	text = printable(text)
	if text == "" {
		return "-"
	}
	if runes := []rune(text); len(runes) > widest {
		return string(runes[:widest-1]) + "…"
	}
	return text
}

// age is how long ago a moment was, in seconds, never negative: clocks differ.
func age(m operate.Moment, at time.Time) *float64 {
	if !m.Finite() {
		return nil
	}
	seconds := max(0, at.Sub(m.Time).Seconds())
	return &seconds
}

func ageCell(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	return ageText(*seconds)
}

// momentText is a moment in UTC and how far from now it is.
func momentText(m operate.Moment, at time.Time) string {
	switch {
	case !m.IsSet():
		return "-"
	case m.Never():
		return "never by itself"
	case !m.Finite():
		return "always"
	case m.Time.After(at):
		return fmt.Sprintf("%s (in %s)", m.Time.UTC().Format(time.RFC3339), ageText(m.Time.Sub(at).Seconds()))
	default:
		return fmt.Sprintf("%s (%s ago)", m.Time.UTC().Format(time.RFC3339), ageText(at.Sub(m.Time).Seconds()))
	}
}
