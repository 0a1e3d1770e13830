package outbox

import "strconv"

// Status is the send_status of an outbox row. The codes are stored and part of
// the contract: they never change.
type Status int16

// The states of a row, in the table as their number.
const (
	// Ready waits to be published, or to be tried again if next_attempt_at is set.
	Ready Status = 0
	// InProgress is claimed by a relay that polls.
	InProgress Status = 1
	// Sent was acknowledged by the broker and may be claimed by its consumer.
	Sent Status = 2
	// Failed waits for a person: unpublished while sent_at is not set, refused
	// by its consumer otherwise.
	Failed Status = 3
	// Consumed is done.
	Consumed Status = 4
	// Consuming is claimed by a consumer.
	Consuming Status = 5
)

var names = [...]string{"READY", "INPROGRESS", "SENT", "FAILED", "CONSUMED", "CONSUMING"}

// String returns the name that documents, metrics and the view outbox_readable
// use.
func (s Status) String() string {
	if s < 0 || int(s) >= len(names) {
		return "Status(" + strconv.Itoa(int(s)) + ")"
	}
	return names[s]
}
