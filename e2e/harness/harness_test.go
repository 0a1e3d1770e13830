package harness

import (
	"context"
	"encoding/hex"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// TestCheckerSeesPlantedFaultsOnRealServers plays the relay by hand, once well
// and once with each fault: what the checker reads from real servers must show
// it, and nothing else.
func TestCheckerSeesPlantedFaultsOnRealServers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		plant func([]record) []record
		want  []check.Kind
	}{
		{"nothing planted", func(rs []record) []record { return rs }, nil},
		{"a loss", func(rs []record) []record { return slices.Delete(rs, 7, 8) }, []check.Kind{check.Loss, check.Unproven}},
		{"a disorder", func(rs []record) []record {
			i := len(rs) - 1
			j := slices.IndexFunc(rs, func(r record) bool { return r.key == rs[i].key })
			rs[i], rs[j] = rs[j], rs[i]
			return rs
		}, []check.Kind{check.Disorder}},
		{"a duplicate", func(rs []record) []record { return append(rs, rs[3]) }, []check.Kind{check.Duplicate}},
		{"a changed byte", func(rs []record) []record {
			rs[3].value = slices.Clone(rs[3].value)
			rs[3].value[0]++
			return rs
		}, []check.Kind{check.Corrupt}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t, 18)
			db.Migrate(t, "public")
			b := NewBed(t, db, Options{Kafka: Shared(t), OwnTable: true})
			b.Write(200, 8)
			b.publish(t, tc.plant(b.sendAll(t)))
			report := b.Check(Allow{})
			var got []check.Kind
			for _, p := range report.Problems {
				if !slices.Contains(got, p.Kind) {
					got = append(got, p.Kind)
				}
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("problems (-want +got):\n%s\n%v", d, report.Err())
			}
			if report.Committed != 200 {
				t.Errorf("%d events committed, want 200", report.Committed)
			}
		})
	}
}

// record is one outbox row to publish.
type record struct {
	id      int64
	eventID [16]byte
	typ     string
	key     string
	value   []byte
}

// sendAll marks all rows SENT and returns them in commit order.
func (b *Bed) sendAll(t *testing.T) []record {
	t.Helper()
	b.Exec(`UPDATE outbox SET send_status = 2, sent_at = now()`)
	got, err := b.Pool.Query(t.Context(), `SELECT id, event_id, aggregate_type, aggregate_id, payload FROM outbox`)
	if err != nil {
		t.Fatal(err)
	}
	byID := map[int64]record{}
	rows, err := pgx.CollectRows(got, func(row pgx.CollectableRow) (r record, err error) {
		err = row.Scan(&r.id, &r.eventID, &r.typ, &r.key, &r.value)
		return r, err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		byID[r.id] = r
	}
	var records []record
	for _, e := range b.History.Events() {
		records = append(records, byID[e.ID])
	}
	return records
}

func (b *Bed) publish(t *testing.T, records []record) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(Shared(t).Test))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var batch []*kgo.Record
	for _, r := range records {
		batch = append(batch, &kgo.Record{
			Topic: b.Topic(r.typ), Key: []byte(r.key), Value: r.value,
			Headers: []kgo.RecordHeader{
				{Key: "ce_id", Value: []byte(hex.EncodeToString(r.eventID[:]))},
				{Key: "cdcr-id", Value: []byte(strconv.FormatInt(r.id, 10))},
			},
		})
	}
	if err := client.ProduceSync(t.Context(), batch...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// TestSamplerSeesASlotThatIsAhead moves a slot over READY rows by hand.
func TestSamplerSeesASlotThatIsAhead(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t, 18)
	db.Migrate(t, "public")
	b := NewBed(t, db, Options{Kafka: Shared(t), OwnTable: true})
	b.Exec(`SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, b.Slot)
	conn := b.Conn()
	s := &sampler{bed: b}
	first, err := s.sample(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	b.Write(50, 8)
	b.Exec(`SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())`, b.Slot)
	second, err := s.sample(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	report := check.Run{Samples: []check.Sample{first}}.Check()
	if report.Has(check.Position) {
		t.Errorf("a slot that has not moved: %v", report.Err())
	}
	if second.Confirmed <= second.Saved || len(second.Passed) == 0 {
		t.Errorf("a slot moved by hand over READY rows: %+v", second)
	}
}

func TestLoadCommitsWhatItRecords(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		b := NewBed(t, db, Options{Kafka: Shared(t), OwnTable: true})
		b.Write(3000, 40)
		if n := b.Count(`SELECT count(*) FROM outbox`); n != 3000 || b.History.Len() != n {
			t.Errorf("%d rows and %d events recorded, want 3000", n, b.History.Len())
		}
		gaps := b.Count(`SELECT max(id) - count(*) FROM outbox`)
		if gaps == 0 {
			t.Error("nothing was rolled back")
		}
		sizes := b.Count(`SELECT count(*) FROM (SELECT 1 FROM outbox GROUP BY xmin::text HAVING count(*) > 1) s`)
		if sizes == 0 {
			t.Error("no transaction has several rows")
		}
	})
}

// TestBrokerKeepsItsData stops a broker of its own in each way.
func TestBrokerKeepsItsData(t *testing.T) {
	t.Parallel()
	broker := StartBroker(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Relay), kgo.DefaultProduceTopic("t"), kgo.DefaultProduceTopicAlways())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	b := &Bed{t: t, prefix: "", types: []string{"t"}}
	b.makeTopics(Options{Kafka: broker.Kafka})
	produce := func(ctx context.Context) {
		t.Helper()
		if err := client.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	produce(t.Context())
	broker.Stop()
	broker.Start()
	produce(t.Context())
	broker.Kill()
	broker.Start()
	broker.Freeze()
	broker.Thaw()
	broker.Proxy.CutAnswers(1)
	produce(t.Context()) // franz-go sends it again under the same sequence
	if got := broker.Proxy.Cut(); got != 1 {
		t.Errorf("%d answers cut, want 1", got)
	}
	ends, err := b.Admin.Ends(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	if ends != 3 {
		t.Errorf("the topic holds %d records, want 3", ends)
	}
}

func TestMain(m *testing.M) { Main(m) }
