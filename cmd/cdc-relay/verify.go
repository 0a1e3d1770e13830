package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/config"
	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

const (
	// verifyLimit is how many rows are walked over if not told otherwise.
	verifyLimit = 1_000_000
	// verifyWait is longer than the time in which a relay finds by itself what a
	// person has changed (reconcile.interval).
	verifyWait = 75 * time.Second
)

// verifyFlags are what verify was asked to do.
type verifyFlags struct {
	filter    *filterFlags
	topicScan bool
	wait      time.Duration
}

func (a *app) verifyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Tell whether anything is missing, stuck or doubled",
		Long: "Look at the slot, at rows and, with --topic-scan, at their records in Kafka, and tell\n" +
			"whether anything is missing, stuck or doubled, and what to do. It changes nothing, and\n" +
			"may run beside a relay at work: what is on its way is not missing. What the relay may be\n" +
			"dealing with is looked at again, for at most --wait.\n" +
			"Rows are walked over from the newest on, --limit of them; the filter's conditions apply\n" +
			"to rows, never to the slot.\n" +
			"Exit code 0: fine, though something may be worth a look. 3: something is wrong. 1: could\n" +
			"not look.",
		Args: cobra.NoArgs,
	}
	flags := verifyFlags{filter: addFilter(cmd, verifyLimit)}
	cmd.Flags().BoolVar(&flags.topicScan, "topic-scan", false, "also read the topics, as far as they hold records of the rows' time")
	cmd.Flags().DurationVar(&flags.wait, "wait", verifyWait, "look again for at most this `time` at what may be under way, which counts as stuck then: a minute is the least that a relay may need; it comes on top of --timeout")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return a.verify(cmd, flags) }
	return cmd
}

func (a *app) verify(cmd *cobra.Command, flags verifyFlags) error {
	filter, err := flags.filter.parse(nil, time.Now())
	switch {
	case err != nil:
		return err
	case flags.wait < 0:
		return usageError(errors.New("--wait must not be negative"))
	}
	if flags.topicScan { // which needs all that the relay needs
		if _, err := a.loadConfig(config.UseAll); err != nil {
			return err
		}
	}
	a.timeout += flags.wait
	return a.withDatabase(cmd, func(ctx context.Context, c *config.Config) error {
		report, err := a.lookAtAll(ctx, c, filter, flags)
		if err != nil {
			return err
		}
		answer := newVerifyAnswer(c, report)
		if err := a.print(answer, answer.write); err != nil || answer.Fine {
			return err
		}
		return &exitError{exitFindings, errors.New("verify found " + answer.found(false))}
	})
}

// lookAtAll verifies over connections of its own.
func (a *app) lookAtAll(ctx context.Context, c *config.Config, filter operate.Filter, flags verifyFlags) (*operate.Report, error) {
	conn, server, err := connectSQL(ctx, c)
	if err != nil {
		return nil, err
	}
	defer pg.Close(conn)
	table, err := openTable(ctx, c, conn)
	if err != nil {
		return nil, err
	}
	how := operate.VerifyConfig{Server: server, Wait: flags.wait, Source: c.Record.Source, Waiting: func(what string) {
		fmt.Fprintf(a.stderr, "looking again for up to %s: %s\n", flags.wait, what)
	}}
	if flags.topicScan {
		log, end, err := newLocator(c)
		if err != nil {
			return nil, err
		}
		defer end()
		how.Log = log
	}
	return table.Verify(ctx, filter, how)
}

// verifyAnswer is the answer as JSON.
type verifyAnswer struct {
	envelope
	Fine     bool           `json:"fine"`
	Findings []findingItem  `json:"findings"`
	Rows     rowsItem       `json:"rows"`
	Topics   []topicScanned `json:"topics"` // empty without --topic-scan
	Notes    []string       `json:"notes"`
}

// findingItem is one thing that is not as it must be, or may not be.
type findingItem struct {
	Finding string  `json:"finding"`
	Count   int64   `json:"count"`
	IDs     []int64 `json:"ids"`    // some of the rows
	Lesser  bool    `json:"lesser"` // may well be right, and does not count against fine
	Check   string  `json:"check"`  // the id that doctor and blocked use, "" if there is none
	Meaning string  `json:"meaning"`
	Detail  string  `json:"detail"`
	Next    string  `json:"next"`
}

// rowsItem is which rows were looked at.
type rowsItem struct {
	Walked         int64  `json:"walked"`
	From           int64  `json:"from_id"`
	To             int64  `json:"to_id"`
	After          *int64 `json:"after"` // what to give to --after for the rest; null: nothing is left
	Parked         int64  `json:"parked"`
	ParkedComplete bool   `json:"parked_complete"`
	OnTheWay       int64  `json:"on_the_way"`
}

// topicScanned is what was read of a topic.
type topicScanned struct {
	Topic       string     `json:"topic"`
	Partitions  int        `json:"partitions"`
	Rows        int64      `json:"rows"`
	Records     int64      `json:"records"`
	Since       *time.Time `json:"since"` // null: no record
	Removed     bool       `json:"older_removed"`
	NotRead     bool       `json:"older_not_read"`
	Compacted   bool       `json:"compacted"`
	NotJudged   int64      `json:"rows_not_judged"`
	Doubled     int64      `json:"doubled"`
	Repetitions int64      `json:"repetitions"`
	Close       int64      `json:"close_together"`
	Purged      int64      `json:"rows_purged"`
}

func newVerifyAnswer(c *config.Config, r *operate.Report) *verifyAnswer {
	v := &verifyAnswer{envelope: newEnvelope(c.Pipeline, r.At), Fine: r.Fine(), Findings: []findingItem{}, Topics: []topicScanned{},
		Rows:  rowsItem{r.Rows.Walked, r.Rows.From, r.Rows.To, positive(r.Rows.After), r.Rows.Parked, r.Rows.ParkedComplete, r.Rows.OnTheWay},
		Notes: append([]string{}, r.Notes...)}
	for _, f := range r.Findings {
		v.Findings = append(v.Findings, findingItem{string(f.Name), f.Count, append([]int64{}, f.IDs...), f.Name.Lesser(), f.Name.Check(), f.Name.Meaning(), f.Detail, f.Next})
	}
	for _, t := range r.Topics {
		item := topicScanned{t.Topic, t.Partitions, t.Rows, t.Records, nil, t.Removed, t.NotRead, t.Compacted, t.NotJudged, t.Doubled, t.Repetitions, t.Close, t.Purged}
		if !t.Since.IsZero() {
			item.Since = &t.Since
		}
		v.Topics = append(v.Topics, item)
	}
	return v
}
