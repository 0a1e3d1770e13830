package consumer

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const someID = "018f3a2b-0000-7000-8000-00000000002a"

func headers(pairs ...string) []group.Header {
	var list []group.Header
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, group.Header{Name: pairs[i], Value: []byte(pairs[i+1])})
	}
	return list
}

func TestDecode(t *testing.T) {
	t.Parallel()
	id, err := outbox.ParseID(someID)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		headers []group.Header
		want    Event
		reason  string // of the defect
	}{
		"cloudevents": {
			headers: headers("ce_id", someID, "ce_type", "user.registered", "ce_subject", "42", "content-type", "application/json",
				"ce_aggregatetype", "user", "cdcr-id", "7"),
			want: Event{ID: id, OutboxID: 7, Type: "user.registered", AggregateID: "42", AggregateType: "user", ContentType: "application/json"},
		},
		"debezium": {
			headers: headers("id", someID, "cdcr-id", "7"),
			want:    Event{ID: id, OutboxID: 7, AggregateID: "the key"},
		},
		"plain": {
			headers: headers("event-id", someID, "event-type", "paid", "aggregate-id", "9", "content-type", "text/plain",
				"aggregate-type", "order", "cdcr-id", "7"),
			want: Event{ID: id, OutboxID: 7, Type: "paid", AggregateID: "9", AggregateType: "order", ContentType: "text/plain"},
		},
		"tombstone":             {headers: headers("ce_id", someID, "cdcr-tombstone", "1"), want: Event{ID: id, AggregateID: "the key", Tombstone: true}},
		"upper case id":         {headers: headers("ce_id", "018F3A2B-0000-7000-8000-00000000002A"), want: Event{ID: id, AggregateID: "the key"}},
		"no row id":             {headers: headers("ce_id", someID), want: Event{ID: id, AggregateID: "the key"}},
		"no header":             {reason: store.ReasonNoEventID},
		"no event id":           {headers: headers("cdcr-id", "7"), reason: store.ReasonNoEventID},
		"event id is no UUID":   {headers: headers("ce_id", "42"), reason: store.ReasonBadHeaders},
		"event id is empty":     {headers: headers("ce_id", ""), reason: store.ReasonBadHeaders},
		"event id is zero":      {headers: headers("ce_id", outbox.ID{}.String()), reason: store.ReasonBadHeaders},
		"row id is no number":   {headers: headers("ce_id", someID, "cdcr-id", "x"), reason: store.ReasonBadHeaders},
		"row id is not above 0": {headers: headers("ce_id", someID, "cdcr-id", "0"), reason: store.ReasonBadHeaders},
		"row id is too large":   {headers: headers("ce_id", someID, "cdcr-id", "9223372036854775808"), reason: store.ReasonBadHeaders},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := time.Unix(1_800_000_000, 0)
			got, bad := decode(group.Record{
				Partition: group.Partition{Topic: "t", Number: 3}, Offset: 5, Time: at,
				Key: []byte("the key"), Value: []byte("bytes"), Headers: tc.headers,
			})
			if tc.reason != "" {
				if bad == nil || bad.reason != tc.reason {
					t.Fatalf("defect %+v, want reason %s", bad, tc.reason)
				}
				return
			}
			if bad != nil {
				t.Fatalf("unexpected defect %+v", bad)
			}
			tc.want.Topic, tc.want.Partition, tc.want.Offset, tc.want.Time, tc.want.Payload = "t", 3, 5, at, []byte("bytes")
			got.Headers = nil
			if diff := cmp.Diff(&tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestBeyondHorizon(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	for name, tc := range map[string]struct {
		age, horizon time.Duration
		want         bool
	}{
		"inside":     {time.Hour, 2 * time.Hour, false},
		"exactly":    {time.Hour, time.Hour, false},
		"beyond":     {time.Hour + 1, time.Hour, true},
		"no horizon": {1000 * time.Hour, 0, false},
	} {
		got := beyond(&Event{Time: now.Add(-tc.age)}, tc.horizon, now)
		if (got != nil) != tc.want || got != nil && got.reason != store.ReasonBeyondHorizon {
			t.Errorf("%s: defect %+v", name, got)
		}
	}
}

func TestLane(t *testing.T) {
	t.Parallel()
	a, b := &Event{ID: outbox.NewID()}, &Event{ID: outbox.NewID()}
	key := func(k string) group.Record { return group.Record{Key: []byte(k)} }
	if lane(key("x"), a) != lane(key("x"), b) {
		t.Error("events of one key are in two lanes")
	}
	if lane(key("x"), a) == lane(key("y"), a) {
		t.Error("two keys share a lane")
	}
	if lane(key(""), a) == lane(key(""), b) {
		t.Error("events without a key share a lane")
	}
}
