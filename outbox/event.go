package outbox

import "time"

// Event is what a [Writer] adds to the outbox.
type Event struct {
	// ID identifies the event for consumers. The zero ID lets the Writer make
	// one. A caller that may write the same event twice, because it was asked
	// to twice, chooses an id that is the same both times: the table refuses
	// the second one.
	ID ID

	// AggregateType picks the topic: 1 to 200 of A-Z a-z 0-9 . _ and -.
	AggregateType string

	// AggregateID is the key of the Kafka record, 1 to 1024 bytes of UTF-8.
	// Events of one aggregate are published in the order of their commits.
	AggregateID string

	// EventType says what happened, 1 to 255 bytes of UTF-8.
	EventType string

	// Payload is the value of the Kafka record, byte for byte. Empty but not
	// nil is an empty value.
	Payload []byte

	// Tombstone publishes a null value, by which a compacted topic forgets the
	// key. Payload is nil then. The Writer must allow it (AllowTombstones),
	// and the relay too (outbox.tombstones).
	Tombstone bool

	// Headers become headers of the Kafka record, UTF-8 without zero bytes.
	// The relay's own names are reserved: what starts with ce_ or cdcr-, and
	// the names in any of its presets (content-type, id, event-id, event-type,
	// aggregate-id, occurred-at, aggregate-type).
	Headers map[string]string

	// ContentType of the payload, at most 255 bytes of UTF-8; empty is
	// application/json.
	ContentType string

	// Topic overrides the topic where the relay allows it (record.topic_allow):
	// at most 249 of A-Z a-z 0-9 . _ and -, but neither "." nor "..". Empty:
	// AggregateType decides.
	Topic string

	// Priority decides between aggregates when events are retried or come due,
	// higher first; never within one aggregate.
	Priority int16

	// NotBefore delays the event: it comes due at that time, by the clock of
	// the database and rounded up to a microsecond, and is published at the
	// relay's next look at what is due, outside the order of its aggregate. A
	// time in the past comes due at once, but takes that way too. The zero
	// time does not delay. Years 1 to 9999.
	NotBefore time.Time
}
