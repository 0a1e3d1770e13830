package sampler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
	"github.com/cdc-relay/cdc-relay/internal/pulse"
	"github.com/cdc-relay/cdc-relay/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs s until the test ends.
func run(t *testing.T, s *Sampler) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// gather returns metrics as name{values of labels}, without prefix.
func gather(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append([]string{l.GetValue()}, labels...) // status before kind
			}
			got[fmt.Sprintf("%s{%s}", strings.TrimPrefix(f.GetName(), "cdc_relay_"), strings.Join(labels, " "))] = m.GetGauge().GetValue()
		}
	}
	return got
}

func options() Config {
	return Config{
		Connect: func(context.Context) (*pgx.Conn, pg.Server, error) {
			return nil, pg.Server{}, errors.New("nobody there")
		},
		Accept:   func(context.Context, *pgx.Conn) error { return nil },
		Table:    pg.Table{Schema: "public", Name: "outbox"},
		Slot:     "s",
		Interval: 15 * time.Second,
		Timeout:  2 * time.Second,
		MaxRows:  100,
	}
}

func to[T any](v T) *T { return &v }

func TestMetrics(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 500_000_000, time.UTC)
	sample := func() *Sample {
		s := &Sample{At: at, Slot: Slot{Exists: true, WALStatus: "extended", RetainedBytes: to[int64](10), ConfirmedLagBytes: to[int64](7)}}
		for _, g := range Groups {
			s.Rows = append(s.Rows, Rows{Group: g})
		}
		return s
	}
	tests := []struct {
		name   string
		latest latest
		want   map[string]float64 // some of them
		absent []string
	}{
		{"never", latest{}, map[string]float64{"stats_last_success_timestamp_seconds{}": 0},
			[]string{"slot_active{}", "outbox_rows{READY new}", "outbox_sample_complete{new}", "slot_wal_status{unknown}"}},
		{"failed", latest{success: at}, map[string]float64{"stats_last_success_timestamp_seconds{}": 1767323045.5},
			[]string{"slot_active{}", "outbox_rows{READY new}", "outbox_sample_complete{new}", "slot_wal_status{unknown}"}},
		{"no limit", latest{sample: sample(), success: at},
			map[string]float64{
				"slot_wal_status{extended}": 1, "slot_wal_status{reserved}": 0, "slot_wal_status{lost}": 0,
				"slot_active{}": 0, "slot_retained_wal_bytes{}": 10, "slot_confirmed_lag_bytes{}": 7,
				"outbox_rows{READY new}": 0, "outbox_rows{SENT }": 0, "outbox_sample_complete{consume}": 0,
			},
			[]string{"slot_safe_wal_bytes{}", "slot_time_to_loss_seconds{}", "slot_catalog_xmin_age{}",
				"outbox_oldest_age_seconds{READY new}", "outbox_leases_expired{}"}},
		{"limit", latest{success: at, sample: func() *Sample {
			s := sample()
			s.Slot.Active, s.Slot.SafeBytes, s.Slot.CatalogXminAge, s.WALRate = true, to[int64](1000), to[int64](3), to(10.0)
			s.Rows[0] = Rows{Group{outbox.Ready, "new"}, 12, to(4.5)}
			s.LeasesExpired, s.Complete = to[int64](2), Complete{New: true}
			return s
		}()},
			map[string]float64{
				"slot_active{}": 1, "slot_safe_wal_bytes{}": 1000, "slot_time_to_loss_seconds{}": 100, "slot_catalog_xmin_age{}": 3,
				"outbox_rows{READY new}": 12, "outbox_oldest_age_seconds{READY new}": 4.5, "outbox_leases_expired{}": 2,
				"outbox_sample_complete{new}": 1, "outbox_sample_complete{attention}": 0,
			}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			reg := prometheus.NewPedanticRegistry()
			reg.MustRegister(newCollector(func() latest { return tt.latest }))
			got := gather(t, reg)
			for name, want := range tt.want {
				if value, ok := got[name]; !ok || value != want {
					t.Errorf("%s is %v, %v; want %v", name, value, ok, want)
				}
			}
			for _, name := range tt.absent {
				if value, ok := got[name]; ok {
					t.Errorf("%s is %v, want none", name, value)
				}
			}
		})
	}
}

func TestTimeToLoss(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		safe    *int64
		rate    *float64
		seconds float64
		ok      bool
	}{
		{"no limit", nil, to(1.0), 0, false},
		{"rate unknown", to[int64](5), nil, 0, false},
		{"nothing left", to[int64](0), nil, 0, true},
		{"no WAL written", to[int64](5), to(0.0), math.Inf(1), true},
		{"limit", to[int64](1000), to(4.0), 250, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			seconds, ok := (&Sample{Slot: Slot{SafeBytes: tt.safe}, WALRate: tt.rate}).TimeToLoss()
			if seconds != tt.seconds || ok != tt.ok {
				t.Errorf("got %v, %v; want %v, %v", seconds, ok, tt.seconds, tt.ok)
			}
		})
	}
}

func TestRate(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	type step struct {
		after time.Duration // since start
		end   pglogrepl.LSN
		rate  float64
		ok    bool
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"first", []step{{0, 100, 0, false}}},
		{"same moment", []step{{0, 100, 0, false}, {0, 200, 0, false}}},
		{"steady", []step{{0, 0, 0, false}, {10 * time.Second, 100, 10, true}, {20 * time.Second, 200, 10, true}}},
		{"another server", []step{{0, 1000, 0, false}, {10 * time.Second, 100, 0, false}, {20 * time.Second, 150, 5, true}}},
		{"forgets what is older than the window", []step{
			{0, 0, 0, false}, {1 * time.Minute, 6000, 100, true}, {6 * time.Minute, 6300, 1, true}, {7 * time.Minute, 6360, 1, true},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var r rate
			for i, s := range tt.steps {
				if got, ok := r.add(start.Add(s.after), s.end); got != s.rate || ok != s.ok {
					t.Errorf("step %d: %v, %v; want %v, %v", i, got, ok, s.rate, s.ok)
				}
			}
		})
	}
}

// fakeTake is a database that answers in turn.
type fakeTake struct {
	answers []func(context.Context) (*Sample, error)
	at      []time.Time
}

func (f *fakeTake) take(ctx context.Context) (*Sample, error) {
	f.at = append(f.at, time.Now())
	if len(f.answers) == 0 {
		return nil, errors.New("no more answers")
	}
	answer := f.answers[0]
	f.answers = f.answers[1:]
	return answer(ctx)
}

func sees(status string) func(context.Context) (*Sample, error) {
	return func(context.Context) (*Sample, error) {
		return &Sample{At: time.Now(), Slot: Slot{Exists: true, WALStatus: status}}, nil
	}
}

func fails(err error) func(context.Context) (*Sample, error) {
	return func(context.Context) (*Sample, error) { return nil, err }
}

func hangs(ctx context.Context) (*Sample, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// logged keeps the lines of a log without their times.
func logged(b *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

func TestRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		cfg := options()
		cfg.Pulse = pulse.NewBoard()
		s, err := New(cfg, logged(&log), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		fake := &fakeTake{answers: []func(context.Context) (*Sample, error){
			sees("reserved"), hangs, fails(errors.New("connection lost")), sees("reserved"), sees("extended"), sees("extended"), sees("lost"),
			sees("lost"),
		}}
		closed := false
		s.take, s.end = fake.take, func() { closed = true }
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		start := time.Now()
		go func() { ended <- s.Run(ctx) }()

		present := []bool{true, false, false, true, true, true, true}
		for i, want := range present {
			// A hung sample ends after its time-out, and holds up no other.
			<-time.After(3 * time.Second)
			synctest.Wait()
			if diff := cmp.Diff([]pulse.Part{{Name: "sampler"}}, cfg.Pulse.Parts()); diff != "" {
				t.Errorf("after sample %d it rests (-want +got):\n%s", i, diff)
			}
			if got := s.Last() != nil; got != want {
				t.Errorf("after sample %d: present is %v, want %v", i, got, want)
			}
			<-time.After(12 * time.Second)
		}
		cancel()
		if err := <-ended; err != nil || !closed {
			t.Errorf("Run: %v, connection closed: %v", err, closed)
		}
		for i, at := range fake.at[:len(present)] {
			if got, want := at.Sub(start), time.Duration(i)*15*time.Second; got != want {
				t.Errorf("sample %d after %v, want %v", i, got, want)
			}
		}
		want := `level=WARN msg="cannot sample the slot and the outbox, trying again" slot=s err="context deadline exceeded"
level=INFO msg="sampling the slot and the outbox again" slot=s
level=WARN msg="the slot's WAL status changed" slot=s wal_status=extended was=reserved exists=true
level=ERROR msg="the slot's WAL status changed" slot=s wal_status=lost was=extended exists=true
`
		if diff := cmp.Diff(want, log.String()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
	})
}

func TestSchema(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("reading: %w", &fault.Blocked{Reason: "table.schema_version"})
	other := &fault.Blocked{Reason: "pg.connect"}
	ok := &Sample{}
	tests := []struct {
		name    string
		answers []error
		want    Schema
	}{
		{"not asked yet", nil, SchemaUnknown},
		{"no answer", []error{errors.New("down")}, SchemaUnknown},
		{"login refused", []error{other}, SchemaUnknown},
		{"accepted", []error{nil}, SchemaAccepted},
		{"refused", []error{refused}, SchemaRefused},
		{"accepted, then no answer", []error{nil, errors.New("down")}, SchemaAccepted},
		{"refused, then migrated", []error{refused, nil}, SchemaAccepted},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var s Sampler
			for _, err := range tt.answers {
				if err != nil {
					s.keep(nil, err)
				} else {
					s.keep(ok, nil)
				}
			}
			if got := s.Schema(); got != tt.want {
				t.Errorf("schema %d, want %d", got, tt.want)
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		spoil func(*Config)
	}{
		{"no connect", func(c *Config) { c.Connect = nil }},
		{"no verdict", func(c *Config) { c.Accept = nil }},
		{"no table", func(c *Config) { c.Table.Name = "" }},
		{"no slot", func(c *Config) { c.Slot = "" }},
		{"no interval", func(c *Config) { c.Interval = 0 }},
		{"no time-out", func(c *Config) { c.Timeout = 0 }},
		{"no rows", func(c *Config) { c.MaxRows = 0 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := options()
			tt.spoil(&cfg)
			if _, err := New(cfg, slog.New(slog.DiscardHandler), prometheus.NewRegistry()); err == nil {
				t.Error("no error")
			}
			if _, err := Once(t.Context(), cfg); err == nil {
				t.Error("no error of Once")
			}
		})
	}
}

// TestMarkPassesNothing lets transactions take ids and commit in any order,
// and settles rows: a mark never passes a row that is, or becomes, visible and
// of interest.
func TestMarkPassesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type row struct {
			xid              int64
			committed, found bool // found: of interest
		}
		var rows []row // id is the place + 1
		open := map[int64]bool{}
		xids := int64(1)
		w := newWalk()
		oldest := func() int64 {
			least := xids
			for x := range open {
				least = min(least, x)
			}
			return least
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(t *rapid.T) {
				xid := xids
				xids++
				open[xid] = true
				for range rapid.IntRange(1, 3).Draw(t, "rows") {
					rows = append(rows, row{xid: xid, found: rapid.Bool().Draw(t, "of interest")})
				}
			},
			"commit": func(t *rapid.T) {
				if len(open) == 0 {
					return
				}
				n := rapid.IntRange(1, int(xids)).Draw(t, "transaction")
				for i := range rows {
					if rows[i].xid == int64(n) {
						rows[i].committed = true
					}
				}
				delete(open, int64(n))
			},
			"settle": func(t *rapid.T) {
				for i := range rows {
					if rows[i].committed && rapid.Bool().Draw(t, "settled") {
						rows[i].found = false
					}
				}
			},
			"walk": func(t *rapid.T) {
				most := rapid.IntRange(1, 5).Draw(t, "page")
				last, clean, walked := w.mark, int64(math.MinInt64), 0
				for i, r := range rows {
					id := int64(i + 1)
					if id <= w.mark || !r.committed || walked == most {
						continue
					}
					walked++
					if r.found && clean == math.MinInt64 {
						clean = id - 1
					}
					last = id
				}
				if clean == math.MinInt64 {
					clean = last
				}
				w.ended(clean, last, oldest(), xids)
			},
			"": func(t *rapid.T) {
				for i, r := range rows {
					if r.found && int64(i+1) <= w.mark && (r.committed || open[r.xid]) {
						t.Fatalf("mark %d passed row %d, of interest", w.mark, i+1)
					}
				}
			},
		})
	})
}
