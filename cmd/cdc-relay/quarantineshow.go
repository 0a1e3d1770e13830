package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
)

func (a *app) quarantineShowCommand(kit *kitFlags) *cobra.Command {
	var payload bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Tell where a record is from, why it is here, and what to do",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := parseRecordID(args[0])
			if err != nil {
				return usageError(err)
			}
			return a.withKit(cmd, kit, func(ctx context.Context, c *config.Config, k *operate.Kit) error {
				detail, err := k.ShowQuarantined(ctx, id)
				if errors.Is(err, operate.ErrNotQuarantined) {
					return notFound("record %d: %w", id, err)
				}
				if err != nil {
					return err
				}
				answer := newQuarantineAnswer(c.Pipeline, detail, payload)
				return a.print(answer, answer.write)
			})
		},
	}
	cmd.Flags().BoolVar(&payload, "payload", false, "also show key, value and the values of headers")
	return cmd
}

// quarantineAnswer is all that is told of a quarantined record.
type quarantineAnswer struct {
	envelope
	quarantineItem
	Meaning      string        `json:"meaning"`
	ErrorMeaning string        `json:"error_meaning"`
	NextSteps    []string      `json:"next_steps"`
	Headers      []shownHeader `json:"headers"` // null: what is stored cannot be read
	Key          *content      `json:"key,omitempty"`
	Value        *content      `json:"value,omitempty"`
}

// shownHeader is a header of a record.
type shownHeader struct {
	Name  string   `json:"name"`
	Bytes *int     `json:"bytes"` // of the value; null: a null value
	Value *content `json:"value,omitempty"`
}

func newQuarantineAnswer(pipeline string, d *operate.QuarantineDetail, payload bool) *quarantineAnswer {
	a := &quarantineAnswer{envelope: newEnvelope(pipeline, d.At), quarantineItem: newQuarantineItem(&d.Quarantined, d.At),
		Meaning: d.Meaning(), ErrorMeaning: operate.ExplainQuarantine(d.Code).Meaning, NextSteps: notNil(d.NextSteps())}
	if !d.HeadersUnreadable {
		a.Headers = []shownHeader{}
	}
	for _, h := range d.Headers {
		shown := shownHeader{Name: h.Name}
		if h.Value != nil {
			size := len(h.Value)
			shown.Bytes = &size
		}
		if payload {
			shown.Value = newContent(h.Value)
		}
		a.Headers = append(a.Headers, shown)
	}
	if payload {
		a.Key, a.Value = newContent(d.Key), newContent(d.Value)
	}
	return a
}

func (q *quarantineAnswer) write(w io.Writer) {
	lines := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := lineWriter(lines)
	line("record", fmt.Sprintf("%d, of consumer %s", q.ID, q.Consumer))
	line("status", string(q.Status)+": "+q.Meaning)
	line("error", q.ErrorCode+": "+q.ErrorMeaning)
	line("message", q.Message)
	for _, text := range q.NextSteps {
		line("next step", text)
	}
	line("from", fmt.Sprintf("topic %s, partition %d, offset %d", q.Topic, q.Partition, q.Offset))
	moment := momentWriter(line, q.At)
	moment("record time", q.RecordTime)
	line("event", textOr(q.EventID))
	if q.OutboxID != nil {
		line("row", strconv.FormatInt(*q.OutboxID, 10))
	}
	line("key", sizeText(q.KeyBytes))
	line("value", sizeText(q.ValueBytes))
	line("seen", fmt.Sprint(q.Seen))
	moment("created", q.CreatedAt)
	moment("resolved", q.ResolvedAt)
	line("by", q.ResolvedBy)
	line("reason", q.ResolvedReason)
	lines.Flush() // writes to a strings.Builder do not fail
	q.writeHeaders(w)
	writeContent(w, "key", q.Key)
	writeContent(w, "value", q.Value)
}

// sizeText is a number of bytes; nil is a null.
func sizeText(n *int64) string {
	if n == nil {
		return "null"
	}
	return bytesText(float64(*n))
}

func (q *quarantineAnswer) writeHeaders(w io.Writer) {
	if q.Headers == nil {
		fmt.Fprintln(w, "\nwhat is stored as headers cannot be read")
		return
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "HEADER\tBYTES\tVALUE")
	for _, h := range q.Headers {
		size, value := "null", "-"
		if h.Bytes != nil {
			size = strconv.Itoa(*h.Bytes)
		}
		if h.Value != nil && !h.Value.Null {
			value = printable(h.Value.Data)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", cell(h.Name), size, value)
	}
	table.Flush()
}
