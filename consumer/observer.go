package consumer

import "time"

// Outcome is what became of a record, the label of records_total.
type Outcome string

// Outcomes of a record.
const (
	// Consumed: the handler succeeded, and that is recorded.
	Consumed Outcome = "consumed"
	// Duplicate: the event had its outcome already.
	Duplicate Outcome = "duplicate"
	// Deferred: the handler asked for a delay, or another attempt holds the
	// event.
	Deferred Outcome = "deferred"
	// NotSentYet: the row was not SENT when its record came.
	NotSentYet Outcome = "not_sent_yet"
	// FailedData: FAILED, for a person.
	FailedData Outcome = "data_error"
	// FailedSystem: SENT again with a delay, or FAILED once its attempts are used
	// up.
	FailedSystem Outcome = "system_error"
	// Quarantined: a quarantine row has it.
	Quarantined Outcome = "quarantined"
)

// Observer is told what the metrics of the kit count; the application passes one
// by [Metrics] and gives it to its own registry. All methods are called from
// several goroutines and must not block; they may call [Consumer.Health]. The
// names in the comments are those of the documentation, below the prefix
// cdc_consumer_.
type Observer interface {
	// Records: records_total{topic,outcome}. A record counts once for each
	// outcome it meets.
	Records(topic string, outcome Outcome, n int)
	// Processed: process_duration_seconds{topic}, of a handler.
	Processed(topic string, d time.Duration)
	// Claimed: claim_duration_seconds, of a statement that claims events which are
	// free.
	Claimed(d time.Duration)
	// Renewed: lease_renewals_total{result}; ok says that the claim lives on. Otherwise
	// it is lost, which ClaimLost tells, or the database did not answer.
	Renewed(ok bool, n int)
	// Paused: partition_paused{topic,partition,reason}, 1 or 0. Partition -1 is
	// all of a topic that does not exist, or while this is no member of the group.
	Paused(topic string, partition int, reason Reason, paused bool)
	// QuarantineRow: quarantined_total{topic,reason}.
	QuarantineRow(topic, reason string)
	// ClaimLost: lost_claims_total.
	ClaimLost()
}

// Reason says why a partition does not move.
type Reason string

// Reasons of a partition that waits and needs nobody.
const (
	// WaitingDelay: an event failed and is to be tried again later.
	WaitingDelay Reason = "delay"
	// WaitingNotSent: the relay has not written SENT yet.
	WaitingNotSent Reason = "not_sent"
	// WaitingClaim: another attempt holds the event.
	WaitingClaim Reason = "claimed"
	// WaitingMissing: there is no row yet; see [Quarantined].
	WaitingMissing Reason = "missing"
	// WaitingDatabase: PostgreSQL cannot be reached or refuses.
	WaitingDatabase Reason = "database"
	// WaitingKafka: the partition cannot be read.
	WaitingKafka Reason = "kafka"
)

// Reasons of a partition that waits for a person.
const (
	// BlockedTopicMissing: a topic of the group does not exist.
	BlockedTopicMissing Reason = "topic_missing"
	// BlockedOffsetLost: records were deleted before they were read. Requeue
	// their rows, cdc-relay replay --status sent, then run with
	// [ResumeAtStart].
	BlockedOffsetLost Reason = "offset_lost"
	// BlockedOffsetAhead: the committed offset is beyond the end of the log, so
	// the topic was made anew.
	BlockedOffsetAhead Reason = "offset_ahead"
	// BlockedUndecodable: a batch cannot be read: damaged, or in an unknown
	// compression. [SkipUndecodable] quarantines its range.
	BlockedUndecodable Reason = "batch_undecodable"
	// BlockedFlood: too many records were to be quarantined, see
	// [QuarantineLimit]; it goes on at that rate.
	BlockedFlood Reason = "quarantine_flood"
	// BlockedWrongDatabase: many records in a row have no row. If it is the right
	// database, and their rows were deleted, move the group's offset behind them.
	BlockedWrongDatabase Reason = "wrong_database"
)

// nobody is the Observer of consumers without one.
type nobody struct{}

func (nobody) Records(string, Outcome, int)     {}
func (nobody) Processed(string, time.Duration)  {}
func (nobody) Claimed(time.Duration)            {}
func (nobody) Renewed(bool, int)                {}
func (nobody) Paused(string, int, Reason, bool) {}
func (nobody) QuarantineRow(string, string)     {}
func (nobody) ClaimLost()                       {}
