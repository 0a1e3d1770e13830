package operate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/internal/kafkatest"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// sentRowSQL is a row of an aggregate that was created so many minutes ago, its
// event id made of its own. $ stands for the topic.
func sentRowSQL(id int, aggregate string, status int, minutes float64) string {
	kind := "order"
	if strings.HasPrefix(aggregate, "log") {
		kind = "log"
	}
	return fmt.Sprintf(`INSERT INTO outbox (id, event_id, aggregate_type, aggregate_id, event_type, topic, created_at, send_status, sent_at) OVERRIDING SYSTEM VALUE
		VALUES (%d, '00000000-0000-0000-0000-0000000000%02x', '%s', '%s', 'x', '$', now() - interval '%f minutes', %d, now() - interval '%f minutes');`,
		id, id, kind, aggregate, minutes, status, minutes)
}

// recordOf is a record of a row.
func recordOf(l *log, id int, aggregate string, minutes float64, more ...kgo.RecordHeader) *kgo.Record {
	partition, err := l.locator.partition("order", aggregate, 3)
	if err != nil {
		panic(err) // of the test's own making
	}
	r := eventAt(partition, time.Now().Add(-time.Duration(minutes*float64(time.Minute))), int64(id), outbox.ID{15: byte(id)})
	r.Headers = append(r.Headers, more...)
	return r
}

// A topic that is planted is found as it is, and nothing else.
func TestVerifyReadsTopics(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		configs map[string]string
		rows    string
		records func(l *log) []*kgo.Record
		remove  int64 // records of each partition, by retention
		most    int64 // records to read
		filter  Filter
		want    []string
		lesser  bool // all of it
		seen    TopicSeen
	}{
		{name: "as it must be, of each status", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 4, 50) + sentRowSQL(12, "b", 5, 40),
			records: func(l *log) []*kgo.Record {
				return []*kgo.Record{recordOf(l, 10, "a", 60), recordOf(l, 11, "a", 50), recordOf(l, 12, "b", 40)}
			}, seen: TopicSeen{Rows: 3, Records: 3}},
		{name: "no record", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 4, 50) + sentRowSQL(12, "b", 2, 40),
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 10, "a", 60)} },
			want:    []string{"no_record 2 [11 12]"}, seen: TopicSeen{Rows: 3, Records: 1}},
		{name: "no record, but not of the filter", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 4, 50) + sentRowSQL(12, "b", 2, 40), filter: Filter{AggregateID: "a"},
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 10, "a", 60), recordOf(l, 12, "b", 40)} },
			want:    []string{"no_record 1 [11]"}, seen: TopicSeen{Rows: 2, Records: 2}},
		{name: "no row, or an older one", rows: sentRowSQL(10, "a", 2, 60),
			records: func(l *log) []*kgo.Record {
				return []*kgo.Record{recordOf(l, 10, "a", 60), recordOf(l, 99, "b", 50), recordOf(l, 9, "b", 40)}
			}, want: []string{"no_row 1 [99]"}, seen: TopicSeen{Rows: 1, Records: 3, Purged: 1}},
		{name: "a row's id used again", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "b", 2, 50),
			records: func(l *log) []*kgo.Record {
				again := recordOf(l, 11, "b", 50)
				again.Headers[0].Value = []byte(outbox.ID{15: 0xff}.String())
				return []*kgo.Record{recordOf(l, 10, "a", 60), recordOf(l, 11, "b", 55), again}
			}, want: []string{"no_row 1 [11]"}, seen: TopicSeen{Rows: 2, Records: 3}},
		{name: "doubled", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 2, 59),
			records: func(l *log) []*kgo.Record {
				return []*kgo.Record{recordOf(l, 10, "a", 60), recordOf(l, 11, "a", 59), recordOf(l, 10, "a", 58), recordOf(l, 11, "a", 57), recordOf(l, 11, "a", 56)}
			}, seen: TopicSeen{Rows: 2, Records: 5, Doubled: 2, Repetitions: 3}},
		{name: "out of order", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 2, 50) + sentRowSQL(12, "b", 2, 60),
			records: func(l *log) []*kgo.Record {
				return []*kgo.Record{recordOf(l, 11, "a", 50), recordOf(l, 10, "a", 40), recordOf(l, 12, "b", 30)}
			}, want: []string{"delayed_or_out_of_order 1 [10]"}, lesser: true, seen: TopicSeen{Rows: 3, Records: 3}},
		{name: "out of order, and one without a record", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 2, 50) + sentRowSQL(12, "b", 2, 60),
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 11, "a", 50), recordOf(l, 10, "a", 40)} },
			want:    []string{"no_record 1 [12]", "delayed_or_out_of_order 1 [10]"}, seen: TopicSeen{Rows: 3, Records: 2}},
		{name: "out of order, by transactions at the same time", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 2, 59.5),
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 11, "a", 50), recordOf(l, 10, "a", 40)} },
			seen:    TopicSeen{Rows: 2, Records: 2, Close: 1}},
		{name: "out of order, as a person asked for", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 2, 50) + "INSERT INTO cdc_relay_audit (actor, action, id) VALUES ('anna', 'replay', 10);",
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 11, "a", 50), recordOf(l, 10, "a", 40)} },
			seen:    TopicSeen{Rows: 2, Records: 2}},
		{name: "out of order, of a type that does not keep it", rows: sentRowSQL(10, "log", 2, 60) + sentRowSQL(11, "log", 2, 50),
			records: func(l *log) []*kgo.Record {
				return []*kgo.Record{recordOf(l, 11, "log", 50), recordOf(l, 10, "log", 40)}
			},
			seen: TopicSeen{Rows: 2, Records: 2}},
		{name: "of others", rows: sentRowSQL(10, "a", 2, 60),
			records: func(l *log) []*kgo.Record {
				foreign := recordOf(l, 99, "a", 50, kgo.RecordHeader{Key: "ce_source", Value: []byte("/other")})
				bare := recordOf(l, 98, "a", 50)
				bare.Headers = bare.Headers[:1]
				return []*kgo.Record{recordOf(l, 10, "a", 60, kgo.RecordHeader{Key: "ce_source", Value: []byte("/shop")}), foreign, bare}
			}, seen: TopicSeen{Rows: 1, Records: 3}},
		{name: "before the time of the rows", rows: sentRowSQL(10, "a", 2, 60),
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 99, "a", 120), recordOf(l, 10, "a", 60)} },
			seen:    TopicSeen{Rows: 1, Records: 1}},
		{name: "since a time", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 2, 20), filter: Filter{Since: time.Now().Add(-30 * time.Minute)},
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 11, "a", 20)} },
			seen:    TopicSeen{Rows: 1, Records: 1}},
		{name: "removed by retention", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 2, 50) + sentRowSQL(12, "a", 2, 30) + sentRowSQL(13, "a", 2, 47), remove: 1,
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 10, "a", 60), recordOf(l, 11, "a", 50)} },
			want:    []string{"no_record 1 [12]"}, seen: TopicSeen{Rows: 4, Records: 1, Removed: true, NotJudged: 3}},
		{name: "removed from another partition", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "order-2", 2, 60), remove: 1,
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 10, "a", 60)} },
			want:    []string{"no_record 1 [11]"}, seen: TopicSeen{Rows: 2, Removed: true, NotJudged: 1}},
		{name: "removed from what may have been its partition", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "order-2", 2, 60) + "INSERT INTO cdc_relay_topic VALUES ('$', 3, NULL, now());", remove: 1,
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 10, "a", 60)} },
			seen:    TopicSeen{Rows: 2, Removed: true, NotJudged: 2}},
		{name: "all removed", rows: sentRowSQL(10, "a", 2, 60), remove: 1,
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 10, "a", 60)} },
			seen:    TopicSeen{Rows: 1, Removed: true, NotJudged: 1}},
		{name: "too many", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 2, 50) + sentRowSQL(12, "a", 2, 30), most: 2,
			records: func(l *log) []*kgo.Record {
				return []*kgo.Record{recordOf(l, 10, "a", 60), recordOf(l, 11, "a", 50), recordOf(l, 12, "a", 30), recordOf(l, 10, "a", 20)}
			}, seen: TopicSeen{Rows: 3, Records: 2, NotRead: true, NotJudged: 3}},
		{name: "compacted", rows: sentRowSQL(10, "a", 2, 60) + sentRowSQL(11, "a", 2, 50), configs: map[string]string{"cleanup.policy": "compact"},
			records: func(l *log) []*kgo.Record { return []*kgo.Record{recordOf(l, 11, "a", 50)} },
			seen:    TopicSeen{Rows: 2, Records: 1, Compacted: true, NotJudged: 2}},
	}
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newVerified(t, db)
		v.relay(t, false)
		for _, tt := range tests {
			l := newLog(t, tt.configs)
			db.Exec(t, "TRUNCATE outbox, cdc_relay_audit; "+strings.ReplaceAll(tt.rows, "$", l.topic))
			l.write(t, tt.records(l)...)
			if tt.remove > 0 {
				l.remove(t, tt.remove)
			}
			if tt.most > 0 {
				l.locator.mostScan = tt.most
			}
			tt.filter.Limit = 100
			got, err := v.table.Verify(t.Context(), tt.filter, VerifyConfig{Server: v.server, Wait: time.Second, Log: l.locator, Source: "/shop"})
			if err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if fine := len(tt.want) == 0 || tt.lesser; got.Fine() != fine {
				t.Errorf("%s: fine is %t, want %t", tt.name, got.Fine(), fine)
			}
			if diff := cmp.Diff(tt.want, foundIn(got)); diff != "" || len(got.Notes) > 0 {
				t.Errorf("%s: notes %q, found (-want +got):\n%s", tt.name, got.Notes, diff)
			}
			tt.seen.Topic, tt.seen.Partitions = l.topic, 3
			if diff := cmp.Diff([]TopicSeen{tt.seen}, got.Topics, cmpopts.IgnoreFields(TopicSeen{}, "Since")); diff != "" {
				t.Errorf("%s: seen (-want +got):\n%s", tt.name, diff)
			}
		}
	})
}

// remove deletes the first records of each partition that has any.
func (l *log) remove(t *testing.T, n int64) {
	t.Helper()
	adm := kafkatest.Admin(t, l.addr)
	ends, err := adm.ListEndOffsets(t.Context(), l.topic)
	if err != nil {
		t.Fatal(err)
	}
	upto := kadm.Offsets{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset >= n {
			upto.Add(kadm.Offset{Topic: o.Topic, Partition: o.Partition, At: n})
		}
	})
	if _, err := adm.DeleteRecords(t.Context(), upto); err != nil {
		t.Fatal(err)
	}
}

// TestVerifyTopicsThatAreGone, with a partition count that was changed, and a
// broker that does not answer.
func TestVerifyTopicsThatAreGone(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		v := newVerified(t, db)
		v.relay(t, false)
		gone := &log{addr: kafkatest.Broker(t), topic: kafkatest.Name(t)}
		l := newLog(t, nil)
		db.Exec(t, strings.ReplaceAll(sentRowSQL(10, "a", 2, 60), "$", gone.topic)+strings.ReplaceAll(sentRowSQL(11, "b", 2, 60), "$", l.topic)+
			"INSERT INTO cdc_relay_topic VALUES ('"+l.topic+"', 3, NULL, now())")
		moved := recordOf(l, 11, "b", 60)
		moved.Partition = (moved.Partition + 1) % 3
		l.write(t, moved)
		f, cfg := Filter{Limit: 100}, VerifyConfig{Server: v.server, Wait: time.Second, Log: l.locator}
		got, err := v.table.Verify(t.Context(), f, cfg)
		if diff := cmp.Diff([]string{"topic_missing 1 [10]"}, foundIn(got)); err != nil || diff != "" || len(got.Topics) != 1 {
			t.Errorf("%v, topics %+v, found (-want +got):\n%s", err, got.Topics, diff)
		}
		cfg.Log = newLocator(t, "127.0.0.1:1")
		if _, err := v.table.Verify(t.Context(), f, cfg); err == nil || !strings.Contains(err.Error(), "asking Kafka about the topics") {
			t.Errorf("no broker: %v", err)
		}
	})
}
