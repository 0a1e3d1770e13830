package operate

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func TestTopics(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := newBench(t, db)
		const hostile = "x'; DROP TABLE cdc_relay_topic; --"
		b.exec(t, "INSERT INTO cdc_relay_topic VALUES ('b', 3, NULL, 'infinity'), ('B', 1, 2, now()), ($1, 3, NULL, now())", hostile)
		topics := NewTopics(b.conn, pg.Table{Schema: "public", Name: "outbox"}, testPerson)
		listed := func() (list []Topic) {
			list, err := topics.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i := range list {
				list[i].ChangedAt = Moment{}
			}
			return list
		}
		if diff := cmp.Diff([]Topic{{Name: "B", Pinned: 1, Wanted: 2}, {Name: "b", Pinned: 3}, {Name: hostile, Pinned: 3}}, listed()); diff != "" {
			t.Errorf("topics (-want +got):\n%s", diff)
		}
		if err := topics.Repin(t.Context(), Topic{Name: hostile, Pinned: 3}, 6, ""); err != nil {
			t.Error(err)
		}
		for name, stale := range map[string]Topic{"switched meanwhile": {Name: "b", Pinned: 2}, "deleted meanwhile": {Name: "c", Pinned: 3}} {
			if err := topics.Repin(t.Context(), stale, 6, ""); !errors.Is(err, ErrChanged) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if diff := cmp.Diff([]Topic{{Name: "B", Pinned: 1, Wanted: 2}, {Name: "b", Pinned: 3}, {Name: hostile, Pinned: 3, Wanted: 6}}, listed()); diff != "" {
			t.Errorf("topics after the repins (-want +got):\n%s", diff)
		}
		filter := "topic " + hostile + ": 3 -> 6 partitions"
		if diff := cmp.Diff([]auditEntry{{Actor: b.login + " (" + testPerson + ")", Action: "repin", Filter: &filter}}, b.audit(t)); diff != "" {
			t.Errorf("audit (-want +got):\n%s", diff)
		}
	})
}
