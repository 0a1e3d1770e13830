package consumer

import (
	"hash/maphash"
	"slices"
	"strconv"
	"time"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Headers that carry the event's identity and the relay's own facts. Which of
// the former are there depends on the header preset.
var (
	idHeaders            = []string{"ce_id", "id", "event-id"}
	typeHeaders          = []string{"ce_type", "event-type"}
	aggregateTypeHeaders = []string{"ce_aggregatetype", "aggregate-type"}
	aggregateIDHeaders   = []string{"ce_subject", "aggregate-id"}
)

const (
	contentTypeHeader = "content-type"
	rowHeader         = "cdcr-id"
	tombstoneHeader   = "cdcr-tombstone"
)

// defect says why a record goes to the quarantine.
type defect struct {
	reason  string
	message string // a safe sentence
}

// decode makes an event of a record. A record without a readable identity has a
// defect; what the payload means is the handler's to say.
func decode(r group.Record) (*Event, *defect) {
	ev := &Event{
		AggregateID: string(r.Key), Payload: r.Value,
		Topic: r.Topic, Partition: r.Number, Offset: r.Offset, Time: r.Time,
		Headers: make([]Header, len(r.Headers)),
	}
	for i, h := range r.Headers {
		ev.Headers[i] = Header(h)
	}
	ev.Type, _ = first(ev, typeHeaders)
	ev.AggregateType, _ = first(ev, aggregateTypeHeaders)
	if id, ok := first(ev, aggregateIDHeaders); ok {
		ev.AggregateID = id
	}
	ev.ContentType = ev.Header(contentTypeHeader)
	ev.Tombstone = ev.Header(tombstoneHeader) == "1"
	text, ok := first(ev, idHeaders)
	if !ok {
		return ev, &defect{store.ReasonNoEventID, "no header ce_id, id or event-id"}
	}
	id, err := outbox.ParseID(text)
	if err != nil || id.IsZero() {
		return ev, &defect{store.ReasonBadHeaders, "the event id is no UUID"}
	}
	ev.ID = id
	row, ok := first(ev, []string{rowHeader})
	if !ok {
		return ev, nil
	}
	if ev.OutboxID, err = strconv.ParseInt(row, 10, 64); err != nil || ev.OutboxID < 1 {
		ev.OutboxID = 0
		return ev, &defect{store.ReasonBadHeaders, "header cdcr-id is no row id"}
	}
	return ev, nil
}

// first returns the value of the first header that has one of these names. The
// relay writes its own before those of the row, which may be called like the
// ones of another preset.
func first(ev *Event, names []string) (string, bool) {
	for _, h := range ev.Headers {
		if slices.Contains(names, h.Name) {
			return string(h.Value), true
		}
	}
	return "", false
}

// beyond tells a record that is older than the horizon.
func beyond(ev *Event, horizon time.Duration, now time.Time) *defect {
	if horizon == 0 || now.Sub(ev.Time) <= horizon {
		return nil
	}
	return &defect{store.ReasonBeyondHorizon, "the record is older than the horizon: its receipt may be purged"}
}

var laneSeed = maphash.MakeSeed()

// lane is what events that must not run side by side have in common: the key,
// or the event itself without one.
func lane(r group.Record, ev *Event) uint64 {
	if len(r.Key) > 0 {
		return maphash.Bytes(laneSeed, r.Key)
	}
	return maphash.Bytes(laneSeed, ev.ID[:])
}
