package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/cdc-relay/cdc-relay/internal/operate"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestFilterFlags(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	const event = "0190163d-8694-739b-aea5-966c26f8ad91"
	eventID, err := outbox.ParseID(event)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		args []string
		want operate.Filter
		err  string
	}{
		{name: "none", want: operate.Filter{Limit: 50}},
		{name: "ids of all kinds", args: []string{"7", event, "--id", "8,9", "--event-id", event, "--id=10"},
			want: operate.Filter{IDs: []int64{8, 9, 10, 7}, EventIDs: []outbox.ID{eventID, eventID}, Limit: 50}},
		{name: "every condition", args: []string{"--aggregate-type", "order", "--aggregate-id", "a,b c", "--topic", "t", "--event-type", "e",
			"--status", "FAILED,sent", "--phase", "publish", "--error-code", "X", "--since", "2h", "--until", "2026-01-02T13:00:00+02:00",
			"--limit", "3", "--after", "5"},
			want: operate.Filter{AggregateType: "order", AggregateID: "a,b c", Topic: "t", EventType: "e",
				Statuses: []outbox.Status{outbox.Failed, outbox.Sent}, Open: true, Phase: operate.PhasePublish, ErrorCode: "X",
				Since: now.Add(-2 * time.Hour), Until: now.Add(-time.Hour), Limit: 3, After: 5}},
		{name: "waived ones too", args: []string{"--status", "failed", "--include-waived"},
			want: operate.Filter{Statuses: []outbox.Status{outbox.Failed}, Limit: 50}},
		{name: "not an id", args: []string{"4x"}, err: `"4x" is no id; write the number of a row, or an event id such as 0190163d-8694-739b-aea5-966c26f8ad91`},
		{name: "a number as event id", args: []string{"--event-id", "4"}, err: "--event-id: an id is 32 hexadecimal digits in groups of 8-4-4-4-12"},
		{name: "unknown status", args: []string{"--status", "done"}, err: `status "done" is unknown; use one of ready, inprogress, sent, failed, consumed, consuming`},
		{name: "unknown phase", args: []string{"--phase", "x"}, err: `--phase "x" is unknown; use publish or consume`},
		{name: "no time", args: []string{"--since", "yesterday"}, err: `"yesterday" is no time; write 2026-01-02T15:04:05Z, or how long ago: 90m, 2h, 7d`},
		{name: "times in the wrong order", args: []string{"--since", "1h", "--until", "2h"}, err: "--since must be before --until"},
		{name: "no rows", args: []string{"--limit", "0"}, err: "--limit must be 1 or more"},
		{name: "more rows than an answer can hold", args: []string{"--limit", "9223372036854775807"}, err: "--limit must be at most 10000000"},
		// A variable of a script that is not set must not pick all rows.
		{name: "an empty condition", args: []string{"--aggregate-type", "order", "--aggregate-id", ""}, err: "--aggregate-id is empty; leave it out to pick any, or give it a value"},
		{name: "an empty time", args: []string{"--since="}, err: "--since is empty; leave it out to pick any, or give it a value"},
		{name: "an empty list", args: []string{"--status", ""}, err: "--status is empty; leave it out to pick any, or give it a value"},
		{name: "an empty event id", args: []string{"--event-id", ""}, err: "--event-id is empty; leave it out to pick any, or give it a value"},
		{name: "negative after", args: []string{"--after", "-1"}, err: "--after must be the id that a list ended with"},
		{name: "a zero byte", args: []string{"--topic", "a\x00b"}, err: "--topic is not UTF-8 text, so no row has it"},
		{name: "not UTF-8", args: []string{"--aggregate-id", "\xff"}, err: "--aggregate-id is not UTF-8 text, so no row has it"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := &cobra.Command{}
			flags := addFilter(cmd, listLimit)
			if err := cmd.ParseFlags(tt.args); err != nil {
				t.Fatal(err)
			}
			got, err := flags.parse(cmd.Flags().Args(), now)
			if diff := cmp.Diff(tt.want, got); tt.err == "" && (err != nil || diff != "") {
				t.Errorf("%v; filter (-want +got):\n%s", err, diff)
			}
			if tt.err != "" && (err == nil || err.Error() != tt.err+"; run cdc-relay help" || exitCode(err) != exitUsage) {
				t.Errorf("error %v\nwant  %s", err, tt.err)
			}
		})
	}
}
