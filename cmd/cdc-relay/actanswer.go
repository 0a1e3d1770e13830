package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cdc-relay/cdc-relay/internal/operate"
)

// actAnswer is the answer, as JSON, of a command that changes rows.
type actAnswer struct {
	envelope
	Action string `json:"action"`
	DryRun bool   `json:"dry_run"`
	// Matched rows were picked, at most --limit; Total is how many there are.
	Matched int   `json:"matched"`
	Total   int64 `json:"total"`
	Changed int   `json:"changed"`
	Items   any   `json:"items"`
}

// summary is the last line of the table.
func (r *actAnswer) summary() string {
	text := fmt.Sprintf("matched %d, changed %d", r.Matched, r.Changed)
	if r.DryRun {
		text += " (dry run)"
	}
	if r.Total > int64(r.Matched) {
		text += fmt.Sprintf("; %d rows match in all, the first of them are taken: --limit", r.Total)
	}
	return text
}

// Outcomes that are what was asked for, and the others in the order in which
// they are told.
var (
	asAsked = []operate.Outcome{operate.Replayed, operate.Skipped, operate.WouldReplay, operate.WouldSkip, operate.Sent,
		operate.Asked, operate.Retried, operate.Dropped, operate.WouldRetry, operate.WouldDrop}
	notAsAsked = []operate.Outcome{operate.FailedAgain, operate.StillWaiting, operate.Locked, operate.NotFailed, operate.NotOpen,
		operate.NoRecord, operate.Waived, operate.NotFound}
)

// verdict is an error if a row has not become what was asked for.
func verdict(action operate.Action, outcomes []operate.Outcome) error {
	counts := map[operate.Outcome]int{}
	bad := 0
	for _, outcome := range outcomes {
		if !slices.Contains(asAsked, outcome) {
			counts[outcome]++
			bad++
		}
	}
	if bad == 0 {
		return nil
	}
	var parts []string
	for _, outcome := range notAsAsked {
		if n := counts[outcome]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, strings.ReplaceAll(string(outcome), "_", " ")))
		}
	}
	code := exitFailed
	if counts[operate.NotFound] == bad {
		code = exitNotFound
	}
	text := fmt.Sprintf("%s: of %d rows %s", strings.ReplaceAll(string(action), "_", " "), len(outcomes), strings.Join(parts, ", "))
	if counts[operate.StillWaiting] > 0 {
		text += "; --wait is over, which changes nothing for them: look later with cdc-relay events show, and whether a relay runs with cdc-relay status"
	}
	return &exitError{code, errors.New(text)}
}
