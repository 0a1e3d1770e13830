package operate

import (
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// quarantineCodes are the reasons for which consumers quarantine records. They
// are part of the contract.
var quarantineCodes = map[string]Code{
	"NO_EVENT_ID": {Meaning: "the record carries no event id, so it was not published by cdc-relay, or was altered on its way",
		Remedy: "find out who else writes to the topic, then drop the record"},
	"BAD_HEADERS": {Meaning: "the record's event id or row id cannot be read",
		Remedy: "find out who else writes to the topic, then drop the record"},
	"MISSING": {Meaning: "no outbox row has the ids of the record: it was purged or deleted, or the consumer uses another database than the relay",
		Remedy: "compare the consumer's database with the relay's, and how long rows are kept with the topic's retention; retry if the row is there now, else drop the record"},
	"STATE_CONFLICT": {Meaning: "the record is in the topic, and its row is FAILED as one that was never published",
		Remedy: "look at the row with cdc-relay failed show, replay or skip it, then drop the record: a replayed event comes again"},
	beyondHorizon: {Meaning: "the record is older than the consumer's horizon: its receipt may have been purged, and it would look new",
		Remedy: "it was handled most likely, long ago: drop the record; if it was not, replay the event"},
	skippedRange: {Meaning: "a batch of records could not be read and was passed over, as the consumer was told to",
		Remedy: "replay the events of that time (cdc-relay replay --status sent --topic .. --since .. --until ..), then drop the record"},
}

// ExplainQuarantine tells what the code of a quarantined record means.
func ExplainQuarantine(code string) Code {
	if known, ok := quarantineCodes[code]; ok {
		return known
	}
	return Code{Meaning: "this version of cdc-relay does not know the code", Remedy: "look at the message"}
}

// Meaning says where the record is.
func (r *Quarantined) Meaning() string {
	switch r.State {
	case QuarantineAsked:
		return "a person asks for another try; its consumer makes it when it runs"
	case QuarantineRetried:
		return "another try, which a person asked for, had its outcome"
	case QuarantineDropped:
		return "a person gave it up"
	default:
		return "it waits for a person"
	}
}

// NextSteps say what to do now; none if there is nothing to be done.
func (r *Quarantined) NextSteps() []string {
	if r.State != QuarantineOpen {
		return nil
	}
	steps := []string{ExplainQuarantine(r.Code).Remedy}
	if r.Code != skippedRange && r.Code != beyondHorizon {
		steps = append(steps, fmt.Sprintf("cdc-relay quarantine retry %d", r.ID))
	}
	return append(steps, fmt.Sprintf("cdc-relay quarantine drop %d --reason '...'", r.ID))
}

// Meaning says where the receipt is at a time.
func (r *Receipt) Meaning(at time.Time) string {
	switch r.Status {
	case outbox.Sent:
		if r.NextAttemptAt.After(at) {
			return "an attempt failed; the consumer tries again at the next attempt, if it has the record"
		}
		return "it is due: the consumer tries again when it has the record"
	case outbox.Consuming:
		if r.LeaseUntil.After(at) {
			return "the consumer is working on it"
		}
		return "the consumer claimed it and its lease is over; whoever gets the record takes it over"
	case outbox.Consumed:
		return "the consumer is done with it"
	case outbox.Failed:
		if r.Waived() {
			return "it failed and a person dropped it: a record that comes again is a duplicate"
		}
		return "the consumer failed, and it waits for a person"
	default:
		return "its status is none that cdc-relay knows"
	}
}

// Doubt says why the effect is in doubt, "" if it is not.
func (r *Receipt) Doubt() string {
	switch {
	case !r.InDoubt():
		return ""
	case r.EffectAt.IsSet():
		return "the call of the effect may have left the process, and no answer is recorded"
	default:
		return "an earlier attempt may have had its effect"
	}
}

// ComesAgain says what a receipt that is due waits for.
const ComesAgain = "a consumer tries again when it gets the record again: publish the event anew (cdc-relay replay --status sent --event-id ..), or reset the offset of its group"

// NextSteps say what to do now; none if there is nothing to be done.
func (r *Receipt) NextSteps() []string {
	if r.Status != outbox.Failed || r.Waived() {
		return nil
	}
	name := r.EventID.String() + ":" + r.Purpose
	var steps []string
	if r.Code != "" {
		steps = append(steps, Explain(r.Code).Remedy)
	}
	if r.InDoubt() {
		steps = append(steps, "find out at the receiver of the effect whether it happened; drop the receipt if it did, retry it with --clear-doubt if not")
	}
	return append(steps, "cdc-relay receipts retry "+name+"; "+ComesAgain, "cdc-relay receipts drop "+name+" --reason '...'")
}
