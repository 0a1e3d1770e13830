package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/operate"
)

// envelope is what every JSON answer begins with.
type envelope struct {
	V        int       `json:"v"`
	At       time.Time `json:"at"`
	Pipeline string    `json:"pipeline"`
}

func newEnvelope(pipeline string, at time.Time) envelope { return envelope{1, at, pipeline} }

// answer is a list, and nothing more.
type answer struct {
	envelope
	Items any `json:"items"`
}

// print shows an answer: as JSON, or as write writes it, for people.
func (a *app) print(answer any, write func(io.Writer)) error {
	if a.json {
		return a.printJSON(answer)
	}
	var b strings.Builder
	write(&b)
	if _, err := io.WriteString(a.stdout, b.String()); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}

// printTable shows an answer: as JSON, or as a table of the same and a last line,
// if there is one.
func (a *app) printTable(answer any, header []string, rows [][]string, last string) error {
	return a.print(answer, func(w io.Writer) {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, strings.Join(header, "\t"))
		for _, row := range rows {
			fmt.Fprintln(table, strings.Join(row, "\t"))
		}
		table.Flush() // writes to a strings.Builder do not fail
		if last != "" {
			fmt.Fprintln(w, last)
		}
	})
}

// printItems shows rows: as JSON items, or as a table of the same.
func (a *app) printItems(pipeline string, items any, header []string, rows [][]string) error {
	return a.printTable(answer{newEnvelope(pipeline, time.Now().UTC()), items}, header, rows, "")
}

func (a *app) printJSON(v any) error {
	encoder := json.NewEncoder(a.stdout)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}

// lineWriter writes a name and what there is to say, if anything, a line each.
func lineWriter(w io.Writer) func(name, text string) {
	return func(name, text string) {
		if text != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, printable(text))
		}
	}
}

// momentWriter writes lines for moments that are known, as seen from at.
func momentWriter(line func(name, text string), at time.Time) func(name string, m operate.Moment) {
	return func(name string, m operate.Moment) {
		if m.IsSet() {
			line(name, momentText(m, at))
		}
	}
}
