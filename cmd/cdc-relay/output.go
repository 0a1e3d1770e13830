package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
)

// answer is the envelope of every JSON answer.
type answer struct {
	V        int       `json:"v"`
	At       time.Time `json:"at"`
	Pipeline string    `json:"pipeline"`
	Items    any       `json:"items"`
}

// printItems shows rows: as JSON items, or as a table of the same.
func (a *app) printItems(pipeline string, items any, header []string, rows [][]string) error {
	if a.json {
		return a.printJSON(answer{V: 1, At: time.Now().UTC(), Pipeline: pipeline, Items: items})
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, strings.Join(header, "\t"))
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}

func (a *app) printJSON(v any) error {
	encoder := json.NewEncoder(a.stdout)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		return fmt.Errorf("writing the answer: %w", err)
	}
	return nil
}
