package monitor

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pulse"
)

var (
	now    = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	limits = Limits{StallAfter: 2 * time.Minute, Lease: 3 * time.Second, Beat: 30 * time.Second}
)

func ago(seconds float64) time.Time { return now.Add(-time.Duration(seconds * float64(time.Second))) }

// streaming is a leader that is well, with events in flight.
func streaming() Health {
	return Health{
		State: "streaming", Schema: OK, LeaseAt: ago(0.5),
		Parts:    []pulse.Part{{Name: "line", Since: ago(0.1)}, {Name: "lease"}},
		Stream:   Stream{Connected: true, MessageAt: ago(10), EventAt: ago(30), SenderTimeout: time.Minute},
		BrokerAt: ago(1), InFlight: 5, MovedAt: ago(1),
	}
}

// verdicts is a report without its details.
func verdicts(r Report) map[string]Verdict {
	got := map[string]Verdict{}
	for _, c := range r {
		if c.Verdict != OK {
			got[c.ID] = c.Verdict
		}
	}
	return got
}

func TestReady(t *testing.T) {
	t.Parallel()
	type none = map[string]Verdict
	standby := func(h *Health) { *h = Health{State: "standby", Schema: OK, LeaseAt: ago(1)} }
	tests := []struct {
		name   string
		change func(*Health)
		want   map[string]Verdict // what is not ok
	}{
		{"streaming", func(*Health) {}, none{}},
		{"recovering", func(h *Health) { h.State = "recovering" }, none{}},
		{"degraded", func(h *Health) { h.State = "degraded" }, none{}},
		{"backlog and nothing else", func(h *Health) { h.InFlight = 50000; h.Stream.HeldBack = true }, none{}},
		{"long idle", func(h *Health) { h.InFlight, h.MovedAt = 0, time.Time{} }, none{}},

		{"starting", func(h *Health) { h.State = "starting" }, none{"relay.state": Fail}},
		{"draining", func(h *Health) { h.State = "draining" }, none{"relay.state": Fail}},
		{"blocked", func(h *Health) { h.State, h.Reason = "blocked", "pub.table" }, none{"pub.table": Fail}},

		{"broker down", func(h *Health) { h.BrokerAt = ago(61) }, none{"kafka.connect": Fail}},
		{"broker at the limit", func(h *Health) { h.BrokerAt = ago(60) }, none{}},
		{"broker never answered", func(h *Health) { h.BrokerAt = time.Time{} }, none{"kafka.connect": Unknown}},
		{"lease not renewed", func(h *Health) { h.LeaseAt = ago(3.1) }, none{"relay.leader": Fail}},
		{"stream down", func(h *Health) { h.Stream.Connected = false }, none{"pg.replication_conn": Fail}},
		{"stream silent", func(h *Health) { h.Stream.MessageAt = ago(91) }, none{"pg.replication_conn": Fail}},
		{"stream silent at the limit", func(h *Health) { h.Stream.MessageAt = ago(90) }, none{}},
		{"stream silent without a time-out", func(h *Health) { h.Stream.SenderTimeout, h.Stream.MessageAt = 0, ago(61) },
			none{"pg.replication_conn": Fail}},
		{"stream silent because it is held back", func(h *Health) { h.Stream.MessageAt, h.Stream.HeldBack = ago(500), true }, none{}},
		{"nothing ever came", func(h *Health) { h.Stream.MessageAt, h.Stream.EventAt = time.Time{}, time.Time{} },
			none{"pg.replication_conn": Unknown, "relay.probe": Unknown}},
		{"keepalives, but no probe comes back", func(h *Health) { h.Stream.EventAt = ago(121) }, none{"relay.probe": Fail}},
		{"watermark stands still", func(h *Health) { h.MovedAt = ago(121) }, none{"relay.stalled": Fail}},
		{"watermark stands still while the stream is down", func(h *Health) { h.MovedAt, h.Stream.Connected = ago(121), false },
			none{"relay.stalled": Fail, "pg.replication_conn": Fail}},

		{"standby", standby, none{}},
		{"standby that does not reach the database", func(h *Health) { standby(h); h.LeaseAt = ago(11) }, none{"relay.leader": Fail}},
		{"standby that never did", func(h *Health) { standby(h); h.LeaseAt = time.Time{} }, none{"relay.leader": Unknown}},
		{"standby, schema not known", func(h *Health) { standby(h); h.Schema = Unknown }, none{"table.schema_version": Unknown}},
		{"standby, schema too new", func(h *Health) { standby(h); h.Schema = Fail }, none{"table.schema_version": Fail}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := streaming()
			tt.change(&h)
			report := Ready(h, limits, now)
			if diff := cmp.Diff(tt.want, verdicts(report)); diff != "" {
				t.Errorf("not ok (-want +got):\n%s", diff)
			}
			if report.Healthy() != (len(tt.want) == 0) {
				t.Errorf("healthy is %v: %v", report.Healthy(), report)
			}
			// None of it is a reason to restart.
			if live := Live(h, limits, now); h.State != "standby" && !live.Healthy() {
				t.Errorf("not live: %v", live)
			}
		})
	}
}

func TestLive(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		parts []pulse.Part
		want  Report
	}{
		{"nobody tells", nil, Report{{"relay.beat", Unknown, "no part tells"}}},
		{"resting", []pulse.Part{{Name: "line"}}, Report{{"relay.beat", OK, "line waits for something to do"}}},
		{"working", []pulse.Part{{Name: "line", Since: ago(30)}},
			Report{{"relay.beat", OK, "last beat of the line 30.0 s ago, limit 30.0 s"}}},
		{"hung", []pulse.Part{{Name: "lease"}, {Name: "line", Since: ago(31)}},
			Report{{"relay.beat", OK, "lease waits for something to do"}, {"relay.beat", Fail, "last beat of the line 31.0 s ago, limit 30.0 s"}}},
		{"clock was set back", []pulse.Part{{Name: "line", Since: ago(-5)}},
			Report{{"relay.beat", OK, "last beat of the line 0.0 s ago, limit 30.0 s"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, Live(Health{Parts: tt.parts}, limits, now)); diff != "" {
				t.Errorf("report (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStarted(t *testing.T) {
	t.Parallel()
	for verdict, want := range map[Verdict]Report{
		Unknown: {{"table.schema_version", Unknown, "the database has not answered yet"}},
		OK:      {{"table.schema_version", OK, "accepted"}},
		Fail:    {{"table.schema_version", Fail, "refused"}},
	} {
		got := Started(Health{State: "blocked", Schema: verdict}, limits, now)
		if diff := cmp.Diff(want, got); diff != "" || got.Healthy() != (verdict == OK) {
			t.Errorf("report, healthy is %v (-want +got):\n%s", got.Healthy(), diff)
		}
	}
}

func TestHealthPaths(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		path   string
		health func(*Health)
		code   int
		want   string
	}{
		{"live", "/livez", func(*Health) {}, 200,
			`{"ok":true,"state":"standby","checks":[{"id":"relay.beat","state":"ok","detail":"line waits for something to do"}]}`},
		{"hung", "/livez", func(h *Health) { h.Parts[0].Since = time.Now().Add(-time.Hour) }, 503,
			`{"ok":false,"state":"standby","checks":[{"id":"relay.beat","state":"fail","detail":"last beat of the line _ s ago, limit _ s"}]}`},
		{"ready", "/readyz", func(*Health) {}, 200,
			`{"ok":true,"state":"standby","checks":[{"id":"relay.leader","state":"ok","detail":"last look at the lease _ s ago, limit _ s"},` +
				`{"id":"table.schema_version","state":"ok","detail":"accepted"}]}`},
		{"blocked", "/readyz", func(h *Health) { h.State, h.Reason = "blocked", "pub.exists" }, 503,
			`{"ok":false,"state":"blocked","checks":[{"id":"pub.exists","state":"fail","detail":"blocked"}]}`},
		{"started", "/startupz", func(*Health) {}, 200,
			`{"ok":true,"state":"standby","checks":[{"id":"table.schema_version","state":"ok","detail":"accepted"}]}`},
		{"not started", "/startupz", func(h *Health) { h.Schema = Unknown }, 503,
			`{"ok":false,"state":"standby","checks":[{"id":"table.schema_version","state":"unknown","detail":"the database has not answered yet"}]}`},
	}
	seconds := regexp.MustCompile(`\d+\.\d s`)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := options()
			o.Health = func() Health {
				h := Health{State: "standby", Schema: OK, LeaseAt: time.Now(), Parts: []pulse.Part{{Name: "line"}}}
				tt.health(&h)
				return h
			}
			response, body := request(t, http.MethodGet, start(t, o)+tt.path)
			var document struct {
				V  int
				At time.Time
			}
			if err := json.Unmarshal([]byte(body), &document); err != nil || document.V != 1 || document.At.IsZero() {
				t.Errorf("body %s: %v", body, err)
			}
			_, rest, _ := strings.Cut(body, `"ok":`)
			got := `{"ok":` + seconds.ReplaceAllString(strings.TrimSpace(rest), "_ s")
			if response.StatusCode != tt.code || got != tt.want {
				t.Errorf("status %d, want %d\ngot  %s\nwant %s", response.StatusCode, tt.code, got, tt.want)
			}
			if response.Header.Get("Content-Type") != "application/json" {
				t.Errorf("headers %v", response.Header)
			}
		})
	}
}

func TestNewRegistry(t *testing.T) {
	t.Parallel()
	registry, ours := NewRegistry("shop", Info{Version: "v1.2.3", Revision: "abc", Go: "go1.26",
		Slot: "s", Publication: "p", Table: "public.outbox", Source: "wal"})
	ours.MustRegister(newTestGauge("cdc_relay_leader", 1))
	o := options()
	o.Metrics = registry
	response, body := request(t, http.MethodGet, start(t, o)+"/metrics")
	if response.StatusCode != http.StatusOK || !strings.HasPrefix(response.Header.Get("Content-Type"), "text/plain") {
		t.Errorf("%s, %v", response.Status, response.Header)
	}
	for _, line := range []string{
		`cdc_relay_build_info{goversion="go1.26",pipeline="shop",revision="abc",version="v1.2.3"} 1`,
		`cdc_relay_pipeline_info{pipeline="shop",publication="p",slot="s",source="wal",table="public.outbox"} 1`,
		`cdc_relay_leader{pipeline="shop"} 1`,
		"# TYPE go_goroutines gauge",
		"# TYPE process_start_time_seconds gauge",
	} {
		if !strings.Contains(body, "\n"+line+"\n") {
			t.Errorf("no line %s in\n%s", line, body)
		}
	}
}
