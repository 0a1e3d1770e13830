// Package event holds what travels on the line: outbox rows as events, and
// what becomes of them. It is pure data, shared by the parts that must not
// import each other.
package event

import (
	"time"

	"github.com/jackc/pglogrepl"
)

// Seq numbers the events that the ledger tracks, in the order in which they
// were received within one session. It means nothing outside that session.
type Seq uint64

// Untracked is the number of an event that the ledger does not track.
const Untracked Seq = 1<<64 - 1

// Ref is what the line keeps of an event after its bytes have been handed to
// Kafka: enough to write the row's status and to resolve the event.
type Ref struct {
	Seq Seq
	ID  int64 // primary key of the outbox row
	// XID is the inserting (or requeueing) transaction, widened to 64 bits.
	// It decides whether a row that an UPDATE did not find is not visible
	// yet or deleted.
	XID uint64
	// CommitLSN is the commit position of the insert (Begin's final LSN).
	// It is written to the row when the row is first parked; 0 when the
	// position is not known (a row read from the table that has none).
	CommitLSN pglogrepl.LSN
	// Due is next_attempt_at as last seen: the value a compare-and-set names.
	Due Due
	// Attempts is the number of failed attempts so far, as last seen.
	Attempts int32
	// Bytes is what the event's text and payload occupy until it is acked.
	Bytes int32
	// Aggregate is a hash of aggregate type and id. It means nothing outside
	// this process, and two aggregates may share one.
	Aggregate uint64
	// Kind picks the policy for the event's type.
	Kind uint8
	// Ordered tells that later events of the aggregate must wait when this one
	// is parked, and this one for earlier ones: its type says block, and the
	// commit position is known.
	Ordered bool
}

// Event is one outbox row. The byte slices are views into a buffer of whoever
// made the event; they are valid until the call that hands the event over
// returns, so a receiver copies what it keeps.
type Event struct {
	Ref
	EventID       [16]byte
	AggregateType []byte // picks the topic
	AggregateID   []byte // the Kafka key
	EventType     []byte
	ContentType   []byte
	Payload       []byte
	PayloadNull   bool   // a tombstone: Payload is no value, not an empty one
	Headers       []byte // text of a JSON object; empty means none
	Topic         []byte // the row's own topic; empty means by template
	CreatedAt     int64  // microseconds since the Unix epoch
	Status        int16  // send_status
	Priority      int16
}

// Clone returns a copy that owns its bytes.
func (e *Event) Clone() Event {
	c := *e
	views := []*[]byte{&c.AggregateType, &c.AggregateID, &c.EventType, &c.ContentType, &c.Payload, &c.Headers, &c.Topic}
	size := 0
	for _, v := range views {
		size += len(*v)
	}
	buf := make([]byte, 0, size)
	for _, v := range views {
		start := len(buf)
		buf = append(buf, *v...)
		*v = buf[start:len(buf):len(buf)]
	}
	return c
}

// Due is a next_attempt_at: NULL (the zero value), a time, or infinity.
type Due struct {
	micros int64
	kind   dueKind
}

type dueKind uint8

const (
	dueNull dueKind = iota
	dueTime
	dueInfinity
)

// DueAt is a time to the microsecond, PostgreSQL's resolution.
func DueAt(t time.Time) Due { return Due{micros: t.UnixMicro(), kind: dueTime} }

// DueAtMicros is a time in microseconds since the Unix epoch.
func DueAtMicros(micros int64) Due { return Due{micros: micros, kind: dueTime} }

// DueInfinity waits for a release or a person.
func DueInfinity() Due { return Due{kind: dueInfinity} }

// IsNull reports whether the row is not parked.
func (d Due) IsNull() bool { return d.kind == dueNull }

// IsInfinity reports whether the row waits for a release or a person.
func (d Due) IsInfinity() bool { return d.kind == dueInfinity }

// Time returns the time; ok is false for NULL and infinity.
func (d Due) Time() (t time.Time, ok bool) {
	return time.UnixMicro(d.micros).UTC(), d.kind == dueTime
}

// Class says whose fault a failed publish is, and so what happens to the event.
type Class uint8

const (
	// ClassRecord blames the record itself: its attempt is recorded on its row.
	ClassRecord Class = iota + 1
	// ClassTopic blames the topic: unknown after a grace time, or not authorised.
	ClassTopic
)

// String returns the class as metrics and documents name it.
func (c Class) String() string {
	switch c {
	case ClassRecord:
		return "record"
	case ClassTopic:
		return "topic"
	}
	return "unknown"
}

// Failure is why an event could not be published. Message is our own
// sentence, at most 500 bytes, without payload, key, broker text or secret.
type Failure struct {
	Class     Class
	Code      string // stable: RECORD_TOO_LARGE, TOPIC_UNKNOWN, ...
	Message   string
	Permanent bool // FAILED at once, whatever attempts are left
}

// Park is a committed-to-be decision about a row that is not published now.
type Park struct {
	Ref
	Action  Action
	Failure Failure       // of ParkRetry and ParkFailed
	Delay   time.Duration // until the next try, of ParkRetry and ParkLater
}

// Action is what parking does to a row.
type Action uint8

const (
	// ParkRetry records a failed attempt; the row is due after the delay.
	ParkRetry Action = iota
	// ParkFailed records the last attempt: the row is FAILED and waits for a
	// person.
	ParkFailed
	// ParkHeld costs no attempt: the row waits, at infinity, for its release.
	// Its commit position must be known.
	ParkHeld
	// ParkLater costs no attempt: the row is due after the delay.
	ParkLater
)

// Reason says why an event was not published though nothing is wrong with it.
type Reason uint8

const (
	// HeldByOrder: an earlier event of its aggregate was refused.
	HeldByOrder Reason = iota
	// HeldByPartition: its partition does not answer while others do.
	HeldByPartition
)

// Aggregate names an aggregate that has parked rows, and the first of them by
// commit position and id. Rows without a commit position do not count.
type Aggregate struct {
	Type, ID string
	Priority int16 // of the first row
	// First is the id of the first parked row, 0 if there is none (any more).
	First int64
	// Held tells that the first row only waits for its release: READY, at
	// infinity.
	Held bool
}

// Fate is what the table says of an event: one that the stream delivers again,
// or one whose row was requeued.
type Fate uint8

const (
	// FatePublish: the row is READY and not parked, or not visible yet; of a
	// requeued row: READY and due.
	FatePublish Fate = iota
	// FateSettled: the row is SENT or further, or parked; the table owns it.
	FateSettled
	// FateGone: the row's transaction is visible and the row is not there.
	FateGone
)

// Found is what the table holds of a requeued row.
type Found struct {
	Fate Fate
	// Event is the row as it is now, with its Due, Attempts and CommitLSN;
	// only its id is set unless Fate is FatePublish. It owns its bytes.
	Event Event
	// Behind tells that a row of the same aggregate with a smaller commit
	// position, or the same one and a smaller id, is parked. It is false for a
	// row without a commit position.
	Behind bool
}

// Gulp is a run of whole replication messages, in the order of the stream.
type Gulp struct {
	// Frames holds the CopyData messages as they came, each with its five
	// bytes of header ('d' and a big-endian length that includes itself).
	Frames []byte
	// Paused tells that the server had nothing more to send at the end of
	// this gulp: whatever was collected should go out now.
	Paused bool
	// Release gives the buffer back to the reader. Call it exactly once.
	Release func()
}

// Session identifies what was learnt from a server: it belongs to that server
// on that timeline under that epoch, and dies with it.
type Session struct {
	SystemID uint64
	Timeline uint32
	Epoch    int64
}
