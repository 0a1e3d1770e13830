package record

import "github.com/cdc-relay/cdc-relay/internal/event"

var failNullPayload = &event.Failure{
	Class:     event.ClassRecord,
	Code:      "NULL_PAYLOAD",
	Message:   "the payload is NULL and tombstones are not allowed: set outbox.tombstones if a null value is meant",
	Permanent: true,
}

// headersInvalid is the failure of an event whose headers column is unusable.
func headersInvalid(err error) *event.Failure {
	return &event.Failure{
		Class:     event.ClassRecord,
		Code:      "HEADERS_INVALID",
		Message:   "the headers column " + err.Error(),
		Permanent: true,
	}
}

// FailTopicNotAllowed is the failure of an event whose row names a topic that
// no pattern allows.
func FailTopicNotAllowed() event.Failure {
	return event.Failure{
		Class:     event.ClassRecord,
		Code:      "TOPIC_NOT_ALLOWED",
		Message:   "the row names a topic of its own that record.topic_allow does not match",
		Permanent: true,
	}
}

// FailTopicName is the failure of an event whose topic cannot exist.
func FailTopicName() event.Failure {
	return event.Failure{
		Class:     event.ClassRecord,
		Code:      "TOPIC_NAME_INVALID",
		Message:   "the topic name is not 1 to 249 of A-Z a-z 0-9 . _ - or is . or ..",
		Permanent: true,
	}
}
