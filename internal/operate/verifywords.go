package operate

import (
	"fmt"
	"strings"
)

// FindingName names what Verify can find. The names are part of the contract.
type FindingName string

// The findings.
const (
	FoundOtherSystem  FindingName = "other_system"
	FoundSlotMissing  FindingName = "slot_missing"
	FoundSlotLost     FindingName = "slot_lost"
	FoundSlotHeld     FindingName = "slot_held"
	FoundSlotInactive FindingName = "slot_inactive"
	FoundSlotPosition FindingName = "slot_position"
	FoundMissing      FindingName = "missing"
	FoundStalled      FindingName = "stalled"
	FoundLocked       FindingName = "locked"
	FoundStranded     FindingName = "stranded"
	FoundUnreleased   FindingName = "unreleased"
	FoundOverdue      FindingName = "overdue"
	FoundAbandoned    FindingName = "abandoned"
	FoundFailed       FindingName = "failed"
	FoundNoTopic      FindingName = "topic_missing"
	FoundNoRecord     FindingName = "no_record"
	FoundNoRow        FindingName = "no_row"
	FoundOutOfOrder   FindingName = "delayed_or_out_of_order"
)

// worstFirst is the order of findings in a report.
var worstFirst = []FindingName{
	FoundOtherSystem, FoundSlotMissing, FoundSlotLost, FoundSlotHeld, FoundSlotInactive, FoundSlotPosition,
	FoundMissing, FoundStalled, FoundLocked, FoundStranded, FoundUnreleased, FoundOverdue, FoundAbandoned,
	FoundFailed, FoundNoTopic, FoundNoRecord, FoundNoRow, FoundOutOfOrder,
}

// findingWords are what is said about a finding.
type findingWords struct {
	check   string // the id of the check that doctor and blocked use; "" if there is none
	meaning string // without a full stop
	next    string // {slot} is the slot, {id} the first row
}

var wordsOf = map[FindingName]findingWords{
	FoundOtherSystem: {"slot.system", "this server is not the one that the slot was led on: it is a copy, restored or upgraded, and publishes nothing by itself",
		"cdc-relay slot adopt --confirm {slot}, if this copy is to publish"},
	FoundSlotMissing: {"slot.exists", "there is no slot of this name in this database: nothing comes from the WAL",
		"start the relay, or cdc-relay slot create; what is READY is then published from the table"},
	FoundSlotLost: {"slot.wal_status", "the slot has lost WAL that it needs and can never be streamed from again",
		"start the relay (slot.recreate_if_lost), or cdc-relay slot recreate --confirm {slot}; what is READY is then published from the table"},
	FoundSlotHeld: {"slot.active", "somebody who is no relay streams from the slot: no relay can, and what that one confirms the slot does not show again",
		"find it with cdc-relay slot show and end it; a relay then takes the slot, and publishes from the table what it has missed"},
	FoundSlotInactive: {"relay.leader", "nobody streams from the slot: nothing is published, tried again or released, and WAL piles up",
		"cdc-relay status, and start the relay"},
	FoundSlotPosition: {"slot.position", "the slot is beyond the position that the relay has saved, or on another timeline: what lies between may not be published",
		"start the relay, which publishes READY rows from the table first; if it runs, restart it"},
	FoundMissing: {"relay.missed", "READY, not parked, and the slot is past them: the WAL will not bring them any more",
		"wait a minute, as the relay looks for such rows and requeues them; else start it"},
	FoundStalled: {"", "READY rows are behind the slot, and its position has not moved at all while it was watched",
		"cdc-relay status"},
	FoundLocked: {"table.locked", "a session has locked them, and the relay cannot write their status",
		"end that session's transaction"},
	FoundStranded: {"table.stranded", "READY at infinity without a commit position: they wait for nobody",
		"UPDATE the row SET next_attempt_at = now()"},
	FoundUnreleased: {"", "held although nothing comes before them in their aggregate any more, for longer than it takes the relay to release them; rows behind them wait too",
		"cdc-relay status, whether a partition does not answer; cdc-relay events show {id}"},
	FoundOverdue: {"table.trigger", "due for more than 5 minutes, and the relay has not requeued them",
		"cdc-relay status; cdc-relay events show {id}"},
	FoundAbandoned: {"", "claimed by a consumer or poller whose lease has been over for more than 5 minutes",
		"look whether consumers run; cdc-relay events show {id}"},
	FoundFailed: {"relay.failed", "FAILED, and wait for a person",
		"cdc-relay failed list; cdc-relay failed show {id}"},
	FoundNoTopic: {"kafka.topics", "SENT to a topic that Kafka does not have, or does not show to this login",
		"find out who deleted the topic; cdc-relay events show {id}"},
	FoundNoRecord: {"", "SENT, but there is no record of them where it should be",
		"cdc-relay events show {id} --locate; if it is not there, cdc-relay replay {id} --status sent"},
	FoundNoRow: {"", "records of rows that are not in the table: deleted since, or forgotten by the database in a failover or restore",
		"ask whether rows were deleted or the database restored; consumers have got these events"},
	FoundOutOfOrder: {"", "their first records come after those of events of the same aggregate that were written more than a minute later; that is right if they were " +
		"delayed, or their transactions were open that long, which nothing tells once they are SENT",
		"ask whether they were inserted with next_attempt_at; cdc-relay events show {id} --locate"},
}

// Meaning says what the name stands for.
func (n FindingName) Meaning() string { return wordsOf[n].meaning }

// Check is the id of the check by which the relay and its documents call it, ""
// if there is none.
func (n FindingName) Check() string { return wordsOf[n].check }

// Lesser reports whether what it stands for may well be right: such a finding
// is worth a look, and no fault.
func (n FindingName) Lesser() bool { return n == FoundOutOfOrder }

// next is what to do about a finding.
func (v *verification) next(name FindingName, ids []int64) string {
	id := "ID"
	if len(ids) > 0 {
		id = fmt.Sprint(ids[0])
	}
	return strings.NewReplacer("{slot}", v.t.cfg.Slot, "{id}", id).Replace(wordsOf[name].next)
}
