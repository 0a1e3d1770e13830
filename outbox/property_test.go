package outbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// TestWriterAndTableAgree: what Write accepts the table accepts, unchanged, and
// what the table would refuse Write refuses, with nothing lost but that call.
// For a field that has a constraint it refuses nothing else.
func TestWriterAndTableAgree(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		conn := db.Conn(t)
		w := newWriter(t, outbox.MaxPayload(16), outbox.AllowTombstones())
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background())
		ctx := t.Context()
		rapid.Check(t, func(t *rapid.T) {
			e := drawEvent(t)
			tableErr := insertPlainly(ctx, t, tx, e)
			ids, err := w.Write(ctx, tx, e)
			switch {
			case err == nil && tableErr != nil:
				t.Fatalf("accepted, but the table refuses it: %v", tableErr)
			case err == nil:
				compareRow(ctx, t, tx, ids[0], e)
			case errors.Is(err, outbox.ErrField) || errors.Is(err, outbox.ErrTopicName):
				if tableErr == nil {
					t.Fatalf("%v, but the table accepts it", err)
				}
			case !errors.Is(err, outbox.ErrHeader) && !errors.Is(err, outbox.ErrTooLarge) && !errors.Is(err, outbox.ErrNullPayload):
				t.Fatalf("sent, and refused by the table: %v", err)
			}
		})
	})
}

// insertPlainly tells what the table says of an event without its headers.
func insertPlainly(ctx context.Context, t *rapid.T, tx pgx.Tx, e outbox.Event) error {
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		t.Fatalf("the transaction is not usable: %v", err)
	}
	defer savepoint.Rollback(ctx)
	var topic *string
	if e.Topic != "" {
		topic = &e.Topic
	}
	if e.ContentType == "" {
		e.ContentType = "application/json"
	}
	var due *time.Time
	if !e.NotBefore.IsZero() {
		due = &e.NotBefore
	}
	_, err = savepoint.Exec(ctx, `INSERT INTO outbox
		(aggregate_type, aggregate_id, event_type, payload, content_type, topic, priority, next_attempt_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		e.AggregateType, e.AggregateID, e.EventType, e.Payload, e.ContentType, topic, e.Priority, due)
	return err
}

func compareRow(ctx context.Context, t *rapid.T, tx pgx.Tx, id outbox.ID, want outbox.Event) {
	t.Helper()
	got := outbox.Event{ID: id}
	var headers string
	var due *time.Time
	err := tx.QueryRow(ctx, `SELECT aggregate_type, aggregate_id, event_type, payload, payload IS NULL, headers, content_type,
		coalesce(topic, ''), priority, next_attempt_at FROM outbox WHERE event_id = $1`, id).
		Scan(&got.AggregateType, &got.AggregateID, &got.EventType, &got.Payload, &got.Tombstone, &headers, &got.ContentType,
			&got.Topic, &got.Priority, &due)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(headers), &got.Headers); err != nil {
		t.Fatal(err)
	}
	if due != nil {
		got.NotBefore = *due
	}
	want.ID = id
	if want.ContentType == "" {
		want.ContentType = "application/json"
	}
	if late := got.NotBefore.Sub(want.NotBefore); late >= 0 && late < time.Microsecond {
		want.NotBefore = got.NotBefore
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("row (-want +got):\n%s", diff)
	}
}

func drawEvent(t *rapid.T) outbox.Event {
	e := outbox.Event{
		AggregateType: drawName(t, "aggregate type", 200),
		AggregateID:   drawText(t, "aggregate id", 1024),
		EventType:     drawText(t, "event type", 255),
		ContentType:   drawText(t, "content type", 255),
		Topic:         drawName(t, "topic", 249),
		Priority:      rapid.Int16().Draw(t, "priority"),
		NotBefore:     drawTime(t),
		Tombstone:     rapid.IntRange(0, 4).Draw(t, "tombstone") == 0,
	}
	if !e.Tombstone {
		e.Payload = rapid.SliceOfN(rapid.Byte(), 0, 17).Draw(t, "payload")
	}
	if rapid.IntRange(0, 2).Draw(t, "with headers") == 0 {
		e.Headers = map[string]string{}
		for i := range rapid.IntRange(0, 3).Draw(t, "headers") {
			e.Headers[drawText(t, fmt.Sprint("header name ", i), 20)] = drawText(t, fmt.Sprint("header value ", i), 300)
		}
	}
	return e
}

// drawText is mostly a valid text of up to limit bytes, often one at a border,
// and now and then one that PostgreSQL does not take.
func drawText(t *rapid.T, label string, limit int) string {
	unit := rapid.SampledFrom([]string{"a", "ä", "€", "😀", "\u007f", `"`, `\`, "'", "{", ",", "\n", "\uffff"}).Draw(t, label+": of")
	s := strings.Repeat(unit, drawLength(t, label, limit)/len(unit))
	if rapid.IntRange(0, 3).Draw(t, label+": end") == 0 {
		s += rapid.SampledFrom([]string{"", "a", "aa", "NULL", "\x00", "\xff", "\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80"}).
			Draw(t, label+": ends in")
	}
	return s
}

// drawName is the same for names of topics and the like.
func drawName(t *rapid.T, label string, limit int) string {
	if rapid.IntRange(0, 9).Draw(t, label+": kind") == 0 {
		return rapid.SampledFrom([]string{"", ".", "..", "...", "a b", "a/b", "a\n", "\n", "ä", "a\x00", "\xff", "a:b", "a@", "[", "`", "{"}).
			Draw(t, label)
	}
	unit := rapid.StringOfN(rapid.RuneFrom([]rune("azAZ09._-")), 1, 1, -1).Draw(t, label+": of")
	return strings.Repeat(unit, drawLength(t, label, limit))
}

// drawLength favours what lies around the limits.
func drawLength(t *rapid.T, label string, limit int) int {
	return rapid.OneOf(
		rapid.IntRange(1, limit),
		rapid.IntRange(1, 10),
		rapid.SampledFrom([]int{0, 1, limit - 1, limit, limit + 1}),
	).Draw(t, label+": length")
}

// drawTime stays within the years that Write accepts: the table knows more.
func drawTime(t *rapid.T) time.Time {
	first, last := time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
	switch rapid.IntRange(0, 5).Draw(t, "not before: kind") {
	case 0:
		return first
	case 1:
		return last
	case 2:
		seconds := rapid.Int64Range(first.Unix()+1, last.Unix()-1).Draw(t, "not before")
		zone := time.FixedZone("", rapid.IntRange(-14*3600, 14*3600).Draw(t, "not before: zone"))
		return time.Unix(seconds, rapid.Int64Range(0, 999_999_999).Draw(t, "not before: nanoseconds")).In(zone)
	}
	return time.Time{}
}
