package operate

import "strings"

// Code is what is to be said about an error code.
type Code struct {
	Class     string // record, topic, consumer; "" for one that is not ours
	Permanent bool   // FAILED at once, whatever attempts are left
	Meaning   string // one clause, without a full stop
	Remedy    string // what to do before a replay can help
}

// errorCodes are the error codes of cdc-relay. They are part of the contract.
var errorCodes = map[string]Code{
	"RECORD_TOO_LARGE": {"record", true, "the record is larger than its topic or the broker allows",
		"raise max.message.bytes of the topic (and kafka.batch_bytes), or skip it and write a smaller event"},
	"RECORD_INVALID": {"record", true, "the broker refuses the record: a compacted topic takes none without a key, or its format is too old",
		"correct the topic's cleanup.policy or format"},
	"NULL_PAYLOAD": {"record", true, "the payload is NULL, and tombstones are not allowed",
		"set outbox.tombstones if it is meant as one"},
	"HEADERS_INVALID": {"record", true, "the row's headers cannot become headers of a record, or use a name that belongs to the relay",
		"correct the headers column, as the error message says"},
	"TOPIC_NOT_ALLOWED": {"record", true, "the row names a topic that record.topic_allow does not list",
		"add the topic to record.topic_allow and restart the relay"},
	"TOPIC_NAME_INVALID": {"record", true, "Kafka does not accept the name of the topic",
		"correct the row's topic, or record.topic"},
	"TIMESTAMP_INVALID": {"record", false, "the record's timestamp is outside of what the topic accepts",
		"raise message.timestamp.before.max.ms and after.max.ms of the topic, or set record.timestamp: send"},
	"POLICY_VIOLATION": {"record", false, "a policy of the broker refuses the record",
		"ask who runs the cluster what its policy allows"},
	"TOPIC_UNKNOWN": {"topic", false, "the topic does not exist",
		"create the topic"},
	"TOPIC_DENIED": {"topic", false, "the relay's Kafka login may not write to the topic",
		"grant it Write and Describe on the topic"},
	"CONSUMER_DATA": {"consumer", true, "the consumer cannot process this event's data",
		"correct the consumer"},
	"CONSUMER_SYSTEM": {"consumer", false, "something that the consumer needs did not work",
		"look at the consumer's log"},
	"CONSUMER_PANIC": {"consumer", false, "the consumer's handler panicked",
		"correct the consumer"},
	"CONSUMER_ABANDONED": {"consumer", false, "attempts ended without an outcome: the consumer's process ended, or lost its claim",
		"look in the consumer's log for what ends its process, and whether its lease is long enough"},
	"CONSUMER_AMBIGUOUS": {"consumer", false, "the consumer cannot tell whether its external effect took place",
		"find out at the external system; skip the event if it did, replay it if not"},
}

// doubtful reports whether an error code says that an attempt may have had its
// effect.
func doubtful(code string) bool { return code == "CONSUMER_ABANDONED" || code == "CONSUMER_AMBIGUOUS" }

// Explain tells what an error code means. One that is not known has no class.
func Explain(code string) Code {
	if known, ok := errorCodes[code]; ok {
		return known
	}
	if strings.HasPrefix(code, "APP_") {
		return Code{"consumer", true, "the consumer refused the event, for a reason of its own", "look at the error message and the consumer's log"}
	}
	return Code{Meaning: "this version of cdc-relay does not know the code", Remedy: "look at the error message"}
}
