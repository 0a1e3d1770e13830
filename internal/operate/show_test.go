package operate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestShow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newView(t, db)
		db.Exec(t, zoo+`;
			UPDATE outbox SET payload = '\x00ff', headers = '{"k": [1]}' WHERE id = 3;
			INSERT INTO cdc_relay_lease (slot, instance, renewed_at, lease_until) VALUES ('s', 'host/1', now(), now() + '1 h'), ('other', 'x', now(), now());
			INSERT INTO cdc_relay_topic VALUES ('outbox.event.order', 12, NULL, '2026-01-01T00:00:00Z');
			INSERT INTO cdc_relay_audit (at, actor, action, id, reason, filter) VALUES
			 ('2026-01-02T01:00:00Z', 'anna', 'replay', 3, 'first', NULL), ('2026-01-02T02:00:00Z', 'bob', 'replay', 3, NULL, '--topic x'),
			 (now(), 'carl', 'skip', 4, 'another', NULL)`)
		d, err := v.table.Show(t.Context(), Filter{IDs: []int64{3}})
		if err != nil {
			t.Fatal(err)
		}
		want := &Detail{
			Row: Row{ID: 3, EventID: outbox.ID{15: 3}, AggregateType: "order", AggregateID: "o-1", EventType: "shipped",
				ContentType: "application/json", Topic: "outbox.event.order", CreatedAt: moment(at(t, "2026-01-01T03:00:00Z")),
				NextAttemptAt: never, CommitLSN: "0/20"},
			PayloadBytes: 2,
			First:        Head{ID: 1, Status: outbox.Failed, ErrorCode: "RECORD_TOO_LARGE", NextAttemptAt: never},
			Leader:       Leader{Instance: "host/1", Leads: true},
			Pinned:       Pinned{Partitions: 12, ChangedAt: moment(at(t, "2026-01-01T00:00:00Z"))},
			Audit: []AuditEntry{
				{At: at(t, "2026-01-02T02:00:00Z"), Actor: "bob", Action: "replay", Filter: "--topic x"},
				{At: at(t, "2026-01-02T01:00:00Z"), Actor: "anna", Action: "replay", Reason: "first"},
			},
		}
		if d.At.IsZero() || !d.Leader.RenewedAt.Finite() {
			t.Errorf("at %v, renewed %v", d.At, d.Leader.RenewedAt)
		}
		d.At, d.Leader.RenewedAt = time.Time{}, Moment{}
		equalMoments := cmp.Comparer(func(a, b Moment) bool {
			return a.Valid == b.Valid && a.InfinityModifier == b.InfinityModifier && a.Time.Equal(b.Time)
		})
		if diff := cmp.Diff(want, d, equalMoments, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("detail (-want +got):\n%s", diff)
		}
		if payload, err := v.table.Payload(t.Context(), 3); err != nil || !cmp.Equal(payload, []byte{0, 0xff}) {
			t.Errorf("payload %x, %v", payload, err)
		}
		if headers, err := v.table.Headers(t.Context(), 3); err != nil || headers != `{"k": [1]}` {
			t.Errorf("headers %s, %v", headers, err)
		}
		first, err := v.table.Show(t.Context(), Filter{EventIDs: []outbox.ID{{15: 1}}})
		if err != nil || first.ID != 1 || first.First.ID != 0 || first.Blocking != 2 {
			t.Errorf("the first of its aggregate: %+v, %v", first, err)
		}
		for _, f := range []Filter{{IDs: []int64{99}}, {EventIDs: []outbox.ID{{15: 99}}}} {
			if _, err := v.table.Show(t.Context(), f); !errors.Is(err, ErrNotFound) {
				t.Errorf("%+v: %v", f, err)
			}
		}
	})
}

// TestOnlyBlockingTypesWait: where order is not kept, an earlier row that waits
// holds nobody but those that are held already.
func TestOnlyBlockingTypesWait(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		db.Exec(t, `INSERT INTO outbox (id, aggregate_type, aggregate_id, event_type, send_status, attempts, next_attempt_at, commit_lsn) OVERRIDING SYSTEM VALUE
			SELECT n * 10 + i, CASE n WHEN 1 THEN 'waits' ELSE 'passes' END, 'a', 'x', CASE i WHEN 1 THEN 3 ELSE 0 END, 1,
			       CASE i WHEN 2 THEN timestamptz '2999-01-01' ELSE 'infinity' END, '0/1' FROM generate_series(1, 2) n, generate_series(1, 3) i`)
		table := openTable(t, db.DSN, Config{Table: outboxTable, Slot: "s", TopicTemplate: "t", Blocks: func(name string) bool { return name == "waits" }})
		for id, want := range map[int64]int64{11: 0, 12: 11, 13: 11, 21: 0, 22: 0, 23: 21} {
			if d, err := table.Show(t.Context(), Filter{IDs: []int64{id}}); err != nil || d.First.ID != want {
				t.Errorf("row %d waits for %d, want %d; %v", id, d.First.ID, want, err)
			}
		}
	})
}

// TestShowTellsWhoHasTheRow: a lock and an update that are not ended, and no
// more once they are.
func TestShowTellsWhoHasTheRow(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newView(t, db)
		db.Exec(t, zoo)
		lockers := func() []Locker {
			d, err := v.table.Show(t.Context(), Filter{IDs: []int64{1}})
			if err != nil {
				t.Fatal(err)
			}
			return d.Lockers
		}
		for _, sql := range []string{"SELECT FROM outbox WHERE id = 1 FOR UPDATE", "UPDATE outbox SET priority = 1 WHERE id = 1"} {
			conn := db.Conn(t)
			if _, err := conn.Exec(t.Context(), "SET application_name = 'psql'; BEGIN; "+sql); err != nil {
				t.Fatal(err)
			}
			want := []Locker{{PID: int32(conn.PgConn().PID()), Application: "psql"}}
			if diff := cmp.Diff(want, lockers()); diff != "" {
				t.Errorf("%s: lockers (-want +got):\n%s", sql, diff)
			}
			if _, err := conn.Exec(context.Background(), "ROLLBACK"); err != nil {
				t.Fatal(err)
			}
			if left := lockers(); len(left) > 0 {
				t.Errorf("%s: after its end: %v", sql, left)
			}
		}
	})
}

// moment is a time as a row has it.
func moment(at time.Time) Moment { return Moment{pgtype.Timestamptz{Time: at, Valid: true}} }

var (
	never  = Moment{pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}}
	always = Moment{pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}}
)

func TestMomentJSON(t *testing.T) {
	t.Parallel()
	zone := time.FixedZone("", 7200)
	for want, m := range map[string]Moment{
		"null": {}, `"infinity"`: never, `"-infinity"`: always,
		`"2026-01-02T03:04:05.000006Z"`: moment(time.Date(2026, 1, 2, 5, 4, 5, 6000, zone)),
	} {
		if got, err := m.MarshalJSON(); err != nil || string(got) != want {
			t.Errorf("%+v: %s, %v; want %s", m, got, err, want)
		}
	}
}

func TestWords(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	before, after := moment(now.Add(-time.Minute)), moment(now.Add(time.Minute))
	leads := Leader{Instance: "host/1", Leads: true, RenewedAt: before}
	failedHead := Head{ID: 7, Status: outbox.Failed, ErrorCode: "RECORD_TOO_LARGE", NextAttemptAt: never}
	tests := []struct {
		name   string
		detail Detail
		kind   Kind
		holds  string // joined by "; "
		next   string
	}{
		{"new", Detail{Leader: leads}, KindNew, "", "cdc-relay status"},
		{"new without a leader", Detail{Leader: Leader{Instance: "host/1", RenewedAt: before}}, KindNew,
			"no relay leads the slot; host/1 did so until 2026-01-02T03:03:05Z", "cdc-relay status"},
		{"new, and nobody ever led", Detail{}, KindNew, "no relay has ever led this slot", "cdc-relay status"},
		{"new and locked", Detail{Leader: leads, Lockers: []Locker{{5, "psql"}, {6, ""}}}, KindNew,
			"pid 5 (psql) has locked the row or changed it, and not ended its transaction; " +
				"pid 6 has locked the row or changed it, and not ended its transaction", "cdc-relay status"},
		{"held", Detail{Row: Row{NextAttemptAt: never, CommitLSN: "0/1"}, Leader: leads, First: failedHead}, KindHeld,
			"row 7 (FAILED, RECORD_TOO_LARGE) comes before it in its aggregate", "cdc-relay failed show 7"},
		{"held behind one that is retried", Detail{Row: Row{NextAttemptAt: never, CommitLSN: "0/1"}, Leader: leads,
			First: Head{ID: 7, NextAttemptAt: after, ErrorCode: "TOPIC_UNKNOWN"}}, KindHeld,
			"row 7 (READY, next attempt at 2026-01-02T03:05:05Z, TOPIC_UNKNOWN) comes before it in its aggregate", "cdc-relay events show 7"},
		{"held behind a held one", Detail{Row: Row{NextAttemptAt: never, CommitLSN: "0/1"}, Leader: leads, First: Head{ID: 7, NextAttemptAt: never}},
			KindHeld, "row 7 (READY, held) comes before it in its aggregate", "cdc-relay events show 7"},
		{"held by nothing", Detail{Row: Row{NextAttemptAt: never, CommitLSN: "0/1"}, Leader: leads}, KindHeld,
			"nothing comes before it any more: the relay releases it within a minute, unless the partition does not answer", "cdc-relay status"},
		{"delayed", Detail{Row: Row{NextAttemptAt: after}, Leader: leads}, KindDelayed, "", ""},
		{"retrying", Detail{Row: Row{NextAttemptAt: after, Attempts: 2, CommitLSN: "0/1", ErrorCode: "TOPIC_UNKNOWN"}, Leader: leads}, KindRetrying,
			"attempt 2 failed: the topic does not exist", "create the topic"},
		{"put off", Detail{Row: Row{NextAttemptAt: after, CommitLSN: "0/1"}, Leader: leads}, KindRetrying, "", "cdc-relay status"},
		{"due", Detail{Row: Row{NextAttemptAt: before}, Leader: leads}, KindDue, "", "cdc-relay status"},
		{"due since ever", Detail{Row: Row{NextAttemptAt: always}, Leader: leads}, KindDue, "", "cdc-relay status"},
		{"due behind another", Detail{Row: Row{NextAttemptAt: before, CommitLSN: "0/1"}, Leader: leads, First: failedHead}, KindDue,
			"row 7 (FAILED, RECORD_TOO_LARGE) comes before it in its aggregate", "cdc-relay failed show 7"},
		{"polled", Detail{Row: Row{Status: outbox.InProgress, ClaimedBy: "p"}}, KindPolled, "it is claimed by p", ""},
		{"sent", Detail{Row: Row{ID: 3, Status: outbox.Sent, SentAt: before}}, KindSent, "", "cdc-relay events show 3 --locate"},
		{"put off by its consumer", Detail{Row: Row{ID: 3, Status: outbox.Sent, SentAt: before, NextAttemptAt: after}}, KindConsumerDelay, "",
			"cdc-relay events show 3 --locate"},
		{"consuming", Detail{Row: Row{Status: outbox.Consuming, ClaimedBy: "c", LeaseUntil: after}}, KindConsuming, "it is claimed by c", ""},
		{"abandoned", Detail{Row: Row{Status: outbox.Consuming, ClaimedBy: "c", LeaseUntil: before}}, KindAbandoned, "it is claimed by c", ""},
		{"consumed", Detail{Row: Row{ID: 3, Status: outbox.Consumed, FinishedAt: before}}, KindConsumed, "", "cdc-relay events show 3 --locate"},
		{"failed to be published", Detail{Row: Row{ID: 3, Status: outbox.Failed, NextAttemptAt: never, ErrorCode: "TOPIC_DENIED"}}, KindFailedPublish, "",
			"grant it Write and Describe on the topic; cdc-relay replay 3 --wait 30s --reason '...'; cdc-relay skip 3 --reason '...'"},
		{"failed without a code", Detail{Row: Row{ID: 3, Status: outbox.Failed, SentAt: before}}, KindFailedConsume, "",
			"cdc-relay replay 3 --wait 30s --reason '...'; cdc-relay skip 3 --reason '...'"},
		{"waived", Detail{Row: Row{ID: 3, Status: outbox.Failed, FinishedAt: before}}, KindWaived, "",
			"cdc-relay replay 3 --include-waived --wait 30s --reason '...'"},
		{"unknown", Detail{Row: Row{Status: 9}}, KindUnknown, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.detail.At = now
			got := []string{string(tt.detail.Kind()), strings.Join(tt.detail.Holds(), "; "), strings.Join(tt.detail.NextSteps(), "; ")}
			if diff := cmp.Diff([]string{string(tt.kind), tt.holds, tt.next}, got); diff != "" {
				t.Errorf("kind, holds, next steps (-want +got):\n%s", diff)
			}
			if tt.detail.Meaning() == "" {
				t.Error("no meaning")
			}
		})
	}
}

func TestEffects(t *testing.T) {
	t.Parallel()
	now := moment(time.Now())
	const anew = "sets it READY and due with no attempts; the relay publishes it"
	for _, tt := range []struct {
		name         string
		detail       Detail
		replay, skip string
	}{
		{"alone", Detail{}, anew, "gives it up: it is never published and no longer alerts"},
		{"with one behind it", Detail{Blocking: 1}, anew + ", and then the 1 held event behind it, in order",
			"gives it up: it is never published and no longer alerts, and the 1 held event behind it follow within a tick"},
		{"with many behind it", Detail{Blocking: MaxBlocking}, anew + ", and then the 1000 or more held events behind it, in order",
			"gives it up: it is never published and no longer alerts, and the 1000 or more held events behind it follow within a tick"},
		{"at its consumer", Detail{Row: Row{SentAt: now}}, anew + " to Kafka again, with the same event id, and its consumer gets another try",
			"gives it up: no consumer gets it again from here, and it no longer alerts"},
		{"in doubt", Detail{Row: Row{SentAt: now, ErrorCode: "CONSUMER_AMBIGUOUS"}},
			anew + " to Kafka again, with the same event id, and its consumer gets another try, as if no earlier one could have had its effect",
			"gives it up: no consumer gets it again from here, and it no longer alerts"},
		{"waived", Detail{Row: Row{FinishedAt: now}}, anew + ", after what was published meanwhile; it needs --include-waived",
			"nothing: it is skipped already"},
	} {
		tt.detail.Status = outbox.Failed
		if diff := cmp.Diff([]string{tt.replay, tt.skip}, []string{tt.detail.ReplayEffect(), tt.detail.SkipEffect()}); diff != "" {
			t.Errorf("%s: replay, skip (-want +got):\n%s", tt.name, diff)
		}
	}
}
