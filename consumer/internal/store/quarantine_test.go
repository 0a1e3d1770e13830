package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/consumer/internal/store"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const quarantineTable = `"public"."outbox_quarantine"`

func eachQuarantine(t *testing.T, test func(t *testing.T, f *fixture, q *store.Quarantine)) {
	t.Helper()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		f := setup(t, db, kinds[0])
		test(t, f, store.NewQuarantine(f.pool, quarantineTable, "mailer"))
	})
}

// hostile is a record with all that a column may refuse.
var hostile = store.Record{
	Topic: "outbox.event.user", Partition: 3, Offset: 1 << 40, Time: time.UnixMilli(1_790_000_000_123).UTC(),
	Key: []byte("a\x00b\xff"), Value: []byte{0, 1, 2, 0xff},
	Headers: []store.Header{{Name: "", Value: nil}, {Name: "a\x00\xff", Value: []byte{}}, {Name: "a", Value: []byte("\x00\xff")}},
	EventID: outbox.NewID(), RowID: 7, Reason: store.ReasonMissing, Message: "no row has this id and event id",
}

func TestQuarantineKeepsTheRecord(t *testing.T) {
	t.Parallel()
	bare := store.Record{Topic: "t", Reason: store.ReasonNoEventID, Message: "no header"}
	empty := bare
	empty.Key, empty.Value, empty.Offset = []byte{}, []byte{}, 1
	eachQuarantine(t, func(t *testing.T, f *fixture, q *store.Quarantine) {
		want := []store.Record{hostile, bare, empty}
		for _, r := range want {
			if err := q.Put(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		if list, err := q.AskedToRetry(t.Context(), 0, 10); len(list) > 0 || err != nil {
			t.Errorf("nobody has asked, but: %v, %v", list, err)
		}
		f.mustExec(t, "UPDATE outbox_quarantine SET resolution = 'retry', resolved_by = 'ann'")
		list, err := q.AskedToRetry(t.Context(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		got := []store.Record{}
		for _, s := range list {
			s.Time = s.Time.UTC()
			got = append(got, s.Record)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if first, err := q.AskedToRetry(t.Context(), 0, 1); err != nil || len(first) != 1 || first[0].ID != list[0].ID {
			t.Errorf("the first one: %v, %v", first, err)
		}
		other := store.NewQuarantine(f.pool, quarantineTable, "mailer/bill")
		if list, err := other.AskedToRetry(t.Context(), 0, 10); len(list) > 0 || err != nil {
			t.Errorf("those of another consumer: %v, %v", list, err)
		}
	})
}

// TestQuarantineTellsRecordsApart: a topic that is made anew repeats offsets; a
// record that comes again is counted.
func TestQuarantineTellsRecordsApart(t *testing.T) {
	t.Parallel()
	eachQuarantine(t, func(t *testing.T, f *fixture, q *store.Quarantine) {
		change := func(set func(*store.Record)) store.Record {
			r := hostile
			set(&r)
			return r
		}
		different := []store.Record{
			hostile,
			change(func(r *store.Record) { r.Offset++ }),
			change(func(r *store.Record) { r.Partition++ }),
			change(func(r *store.Record) { r.Topic = "other" }),
			change(func(r *store.Record) { r.Key = nil }),
			change(func(r *store.Record) { r.Key = []byte{} }),
			change(func(r *store.Record) { r.Key, r.Value = []byte("a\x00b"), []byte{0xff, 0, 1, 2, 0xff} }), // the border moved
			change(func(r *store.Record) { r.Value = nil }),
			change(func(r *store.Record) { r.Headers = nil }),
		}
		for range 3 {
			for _, r := range different {
				if err := q.Put(t.Context(), r); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := store.NewQuarantine(f.pool, quarantineTable, "other").Put(t.Context(), hostile); err != nil {
			t.Fatal(err)
		}
		var rows, seen int
		if err := f.admin.QueryRow(t.Context(), "SELECT count(*), sum(seen) FROM outbox_quarantine").Scan(&rows, &seen); err != nil {
			t.Fatal(err)
		}
		if n := len(different); rows != n+1 || seen != 3*n+1 {
			t.Errorf("%d rows, seen %d times; want %d, %d", rows, seen, n+1, 3*n+1)
		}
	})
}

func TestQuarantineTakesNonsense(t *testing.T) {
	t.Parallel()
	eachQuarantine(t, func(t *testing.T, f *fixture, q *store.Quarantine) {
		for name, r := range map[string]store.Record{
			"time beyond the column": {Topic: "t", Offset: 1, Time: time.UnixMilli(1 << 62)},
			"time before the column": {Topic: "t", Offset: 2, Time: time.UnixMilli(-1 << 62)},
			"message":                {Topic: "t", Offset: 3, Message: "a\x00b\xffc" + strings.Repeat("ü", 400)},
		} {
			if err := q.Put(t.Context(), r); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		var longest, times int
		err := f.admin.QueryRow(t.Context(), "SELECT max(octet_length(message)), count(record_time) FROM outbox_quarantine").Scan(&longest, &times)
		if err != nil || longest > 500 || times > 0 {
			t.Errorf("a message of %d bytes, %d times, %v", longest, times, err)
		}
	})
}

// TestQuarantineRetry: a row that a person wants to be retried is closed, or
// open again, once; what the person decides meanwhile stays.
func TestQuarantineRetry(t *testing.T) {
	t.Parallel()
	type resolved struct {
		Resolution, By, Why, Reason string
		At                          bool
	}
	const asked = "resolution = 'retry', resolved_by = 'ann', resolved_reason = 'fixed'"
	const dropped = "resolution = 'dropped', resolved_at = now(), resolved_by = 'ann', resolved_reason = 'junk'"
	for _, test := range []struct {
		name, set string
		resolve   bool // or reopen
		after     resolved
	}{
		{"retried", asked, true, resolved{"retried", "ann", "fixed", "MISSING", true}},
		{"failed again", asked, false, resolved{"", "", "", "STATE_CONFLICT", false}},
		{"retried, but dropped meanwhile", dropped, true, resolved{"dropped", "ann", "junk", "MISSING", true}},
		{"failed, but dropped meanwhile", dropped, false, resolved{"dropped", "ann", "junk", "MISSING", true}},
		{"never asked for", "resolution = NULL", true, resolved{"", "", "", "MISSING", false}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			eachQuarantine(t, func(t *testing.T, f *fixture, q *store.Quarantine) {
				if err := q.Put(t.Context(), hostile); err != nil {
					t.Fatal(err)
				}
				f.mustExec(t, "UPDATE outbox_quarantine SET "+test.set)
				var err error
				if test.resolve {
					err = q.Resolve(t.Context(), 1, store.Retried)
				} else {
					_, err = q.Reopen(t.Context(), 1, store.ReasonStateConflict, "the row is FAILED")
				}
				if err != nil {
					t.Fatal(err)
				}
				var got resolved
				err = f.admin.QueryRow(t.Context(), `SELECT coalesce(resolution, ''), coalesce(resolved_by, ''), coalesce(resolved_reason, ''),
					reason, resolved_at IS NOT NULL FROM outbox_quarantine`).Scan(&got.Resolution, &got.By, &got.Why, &got.Reason, &got.At)
				if diff := cmp.Diff(test.after, got); err != nil || diff != "" {
					t.Errorf("%v (-want +got):\n%s", err, diff)
				}
				if list, err := q.AskedToRetry(t.Context(), 0, 1); len(list) > 0 || err != nil {
					t.Errorf("still asked for: %v, %v", list, err)
				}
			})
		})
	}
}

// TestQuarantineOfAnotherConsumer: the ids of two consumers are of one
// table.
func TestQuarantineOfAnotherConsumer(t *testing.T) {
	t.Parallel()
	eachQuarantine(t, func(t *testing.T, f *fixture, q *store.Quarantine) {
		if err := q.Put(t.Context(), hostile); err != nil {
			t.Fatal(err)
		}
		f.mustExec(t, "UPDATE outbox_quarantine SET resolution = 'retry'")
		other := store.NewQuarantine(f.pool, quarantineTable, "other")
		if err := other.Resolve(t.Context(), 1, store.Retried); err != nil {
			t.Error(err)
		}
		if _, err := other.Reopen(t.Context(), 1, store.ReasonMissing, ""); err != nil {
			t.Error(err)
		}
		if list, err := q.AskedToRetry(t.Context(), 0, 1); len(list) != 1 || err != nil {
			t.Errorf("asked for: %v, %v", list, err)
		}
	})
}
