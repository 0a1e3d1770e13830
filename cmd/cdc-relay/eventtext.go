package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/cdc-relay/cdc-relay/internal/operate"
)

// write writes what is known of an event, a line each: first what a person asks
// for, then the columns of the row.
func (e *eventAnswer) write(w io.Writer) {
	lines := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := lineWriter(lines)
	line("event", fmt.Sprintf("%d, %s", e.ID, e.EventID))
	line("status", e.Status+": "+e.Meaning)
	if e.ErrorCode != "" {
		line("error", e.errorText())
		line("message", e.ErrorMessage)
	}
	for _, text := range e.Holds {
		line("holds", text)
	}
	if e.Blocking > 0 {
		line("blocking", operate.HeldText(e.Blocking)+" of its aggregate")
	}
	if e.Effects != nil {
		line("replay", e.Effects.Replay)
		line("skip", e.Effects.Skip)
	}
	for _, text := range e.NextSteps {
		line("next step", text)
	}
	if e.Location != nil {
		e.Location.write(line)
	}
	e.writeRow(line)
	lines.Flush() // writes to a strings.Builder do not fail
	e.writeContent(w)
	writeAudit(w, e.Audit)
}

func (e *eventAnswer) errorText() string {
	text := e.ErrorCode
	if e.Effects != nil && e.Effects.ErrorClass != "" {
		text += " (" + e.Effects.ErrorClass
		if e.Effects.Permanent {
			text += ", permanent"
		}
		text += ")"
	}
	return text + ": " + e.ErrorMeaning
}

// writeRow writes the columns of the row.
func (e *eventAnswer) writeRow(line func(name, text string)) {
	moment := momentWriter(line, e.At)
	line("aggregate", e.AggregateType+" "+e.AggregateID)
	line("event type", e.EventType)
	line("topic", e.topicText())
	line("payload", e.payloadText())
	line("priority", fmt.Sprint(e.Priority))
	moment("created", e.CreatedAt)
	line("attempts", fmt.Sprint(e.Attempts))
	moment("next attempt", e.NextAttemptAt)
	if e.CommitLSN != nil {
		line("commit LSN", *e.CommitLSN)
	}
	moment("sent", e.SentAt)
	if e.ClaimGeneration > 0 || e.ClaimedBy != "" {
		line("claim", strings.TrimSuffix(fmt.Sprintf("generation %d, %s", e.ClaimGeneration, e.ClaimedBy), ", "))
		moment("lease until", e.LeaseUntil)
	}
	moment("finished", e.FinishedAt)
}

func (e *eventAnswer) topicText() string {
	if e.Pinned == nil {
		return e.Topic + ", not pinned yet"
	}
	return fmt.Sprintf("%s, pinned to %d partitions", e.Topic, *e.Pinned)
}

func (e *eventAnswer) payloadText() string {
	if e.PayloadBytes == nil {
		return "none: a tombstone"
	}
	return bytesText(float64(*e.PayloadBytes)) + ", " + e.ContentType
}

// write says where the record is, or where it was looked for.
func (l *location) write(line func(name, text string)) {
	if l.Partition == nil {
		line("Kafka", fmt.Sprintf("topic %s: %s", l.Topic, l.Note))
		return
	}
	at := fmt.Sprintf("topic %s, partition %d", l.Topic, *l.Partition)
	for _, r := range l.Records {
		line("Kafka", fmt.Sprintf("%s, offset %d, %s", at, r.Offset, r.Timestamp.Format(time.RFC3339Nano)))
	}
	if len(l.Records) == 0 {
		line("Kafka", "not found in "+at+": "+l.searchedText())
	}
	line("note", l.Note)
}

func (l *location) searchedText() string {
	if len(l.Searched) == 0 {
		return "it has no records of that time"
	}
	var parts []string
	for _, s := range l.Searched {
		parts = append(parts, fmt.Sprintf("%d to %d", s.From, s.To))
	}
	return fmt.Sprintf("searched %d records, offsets %s", l.Read, strings.Join(parts, " and "))
}

// writeContent writes headers and payload as they are, but for characters that
// would steer a terminal.
func (e *eventAnswer) writeContent(w io.Writer) {
	if e.Headers != nil {
		fmt.Fprintf(w, "\nheaders:\n%s\n", printableLines(string(e.Headers)))
	}
	if e.Payload != nil && e.Payload.Null {
		fmt.Fprintln(w, "\nno payload: a tombstone")
		return
	}
	writeContent(w, "payload", e.Payload)
}

// writeContent writes bytes that were asked for.
func writeContent(w io.Writer, name string, c *content) {
	switch {
	case c == nil:
	case c.Null:
		fmt.Fprintf(w, "\n%s: null\n", name)
	case c.Encoding == "utf8":
		fmt.Fprintf(w, "\n%s:\n%s\n", name, printableLines(c.Data))
	default:
		fmt.Fprintf(w, "\n%s, in %s:\n%s\n", name, c.Encoding, c.Data)
	}
}

// printableLines is printable with line breaks and tabs left.
func printableLines(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return ' '
		}
		return r
	}, text)
}

func writeAudit(w io.Writer, entries []operate.AuditEntry) {
	if len(entries) == 0 {
		return
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "AT\tACTOR\tACTION\tREASON\tFILTER")
	for _, e := range entries {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", e.At.Format(time.RFC3339), cell(e.Actor), cell(e.Action), cell(e.Reason), cell(e.Filter))
	}
	table.Flush()
}
