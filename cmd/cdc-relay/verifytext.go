package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// write is the answer for people: what was found, what to do about it, what was
// looked at, and last of all the verdict.
func (v *verifyAnswer) write(w io.Writer) {
	if len(v.Findings) > 0 {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "FINDING\tCOUNT\tIDS\tCHECK")
		for _, f := range v.Findings {
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", f.Finding, f.Count, f.idsText(), cell(f.Check))
		}
		table.Flush() // writes to a strings.Builder do not fail
		fmt.Fprintln(w)
	}
	for _, f := range v.Findings {
		fmt.Fprintf(w, "%s: %s%s\n  next: %s\n", f.Finding, f.Meaning, inBrackets(f.Detail), printable(f.Next))
	}
	lines := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, t := range v.Topics {
		fmt.Fprintf(lines, "topic\t%s\n", printable(t.text()))
	}
	for _, note := range v.Notes {
		fmt.Fprintf(lines, "note\t%s\n", printable(note))
	}
	fmt.Fprintf(lines, "rows\t%s\n", v.Rows.text())
	lines.Flush()
	fmt.Fprintln(w, v.verdict())
}

// idsText lists the ids, and tells that there are more.
func (f *findingItem) idsText() string {
	if len(f.IDs) == 0 {
		return "-"
	}
	parts := make([]string, len(f.IDs))
	for i, id := range f.IDs {
		parts[i] = strconv.FormatInt(id, 10)
	}
	text := strings.Join(parts, " ")
	if f.Count > int64(len(f.IDs)) {
		text += " .."
	}
	return text
}

func inBrackets(detail string) string {
	if detail == "" {
		return ""
	}
	return " (" + printable(detail) + ")"
}

func (r *rowsItem) text() string {
	text := "none"
	if r.Walked > 0 {
		text = fmt.Sprintf("%d, ids %d to %d", r.Walked, r.From, r.To)
	}
	if r.After != nil {
		text += fmt.Sprintf("; older ones were not looked at, go on with --after %d or a larger --limit", *r.After)
	}
	text += fmt.Sprintf("; %d parked", r.Parked)
	if !r.ParkedComplete {
		text += " and more, which were not looked at"
	}
	return text + fmt.Sprintf("; %d on their way", r.OnTheWay)
}

func (t *topicScanned) text() string {
	text := fmt.Sprintf("%s: %d rows, %d records in %d partitions", t.Topic, t.Rows, t.Records, t.Partitions)
	if t.Since != nil {
		text += " since " + t.Since.Format(time.RFC3339)
	}
	for _, more := range []struct {
		is   bool
		text string
	}{
		{t.Compacted, "; compacted"},
		{t.Removed, "; older records were removed (retention)"},
		{t.NotRead, "; older records were not read, they are too many: give a later --since"},
		{t.NotJudged > 0, fmt.Sprintf("; %d rows not judged for that", t.NotJudged)},
		{t.Doubled > 0, fmt.Sprintf("; %d events doubled, which is allowed (%d records too many)", t.Doubled, t.Repetitions)},
		{t.Close > 0, fmt.Sprintf("; %d events in another order than their ids, created within a minute of each other", t.Close)},
		{t.Purged > 0, fmt.Sprintf("; %d events whose rows were purged", t.Purged)},
	} {
		if more.is {
			text += more.text
		}
	}
	return text
}

// verdict is the line for somebody who reads no other.
func (v *verifyAnswer) verdict() string {
	if !v.Fine {
		return fmt.Sprintf("NOT FINE: %s; begin with %s", v.found(false), v.Findings[0].Finding)
	}
	text := "FINE: nothing is missing or stuck"
	if len(v.Topics) > 0 {
		text += ", and the topics hold what was sent"
	}
	if v.Rows.After != nil || !v.Rows.ParkedComplete {
		text += ", as far as was looked"
	}
	if len(v.Findings) > 0 {
		text += "; worth a look: " + v.found(true)
	}
	return text
}

// found names the findings, the lesser ones or the others.
func (v *verifyAnswer) found(lesser bool) string {
	var parts []string
	for _, f := range v.Findings {
		if f.Lesser == lesser {
			parts = append(parts, fmt.Sprintf("%s %d", f.Finding, f.Count))
		}
	}
	return strings.Join(parts, ", ")
}
