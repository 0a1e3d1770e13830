package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

func to[T any](v T) *T { return &v }

// answering is a relay that answers /statusz with a document, and how a
// command finds it.
func answering(t *testing.T, code int, document string) (environ []string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/statusz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(code)
		fmt.Fprint(w, document)
	}))
	t.Cleanup(server.Close)
	return []string{"CDC_RELAY_HTTP__LISTEN=" + strings.TrimPrefix(server.URL, "http://")}
}

// liveDocument is what a leader answers.
const liveDocument = `{"v":1,"at":"2026-01-02T03:04:05Z","pipeline":"shop","state":"blocked","since":"2026-01-02T03:02:00Z",
	"reason":"kafka.connect","what":"no broker answers","remedy":"start\u001b[31m one","leader":true,"slot":"cdc_relay","epoch":7,
	"leader_instance":"host/1",
	"positions":{"received":"0/2000","watermark":"0/1000","saved":"0/1000","confirmed":"0/800","server":"0/100800"},
	"counters":{"inflight_events":12,"inflight_bytes":2048,"slot_active":1,"slot_wal_status{wal_status=\"extended\"}":1,
	"slot_wal_status{wal_status=\"lost\"}":0,"slot_retained_wal_bytes":3221225472,"slot_confirmed_lag_bytes":1048576,
	"slot_safe_wal_bytes":1073741824,"slot_time_to_loss_seconds":7200,"outbox_leases_expired":3,
	"outbox_sample_complete{part=\"attention\"}":1,"outbox_sample_complete{part=\"new\"}":0,"outbox_sample_complete{part=\"consume\"}":1,
	"outbox_rows{kind=\"new\",status=\"READY\"}":100,"outbox_oldest_age_seconds{kind=\"new\",status=\"READY\"}":61.5,
	"outbox_rows{kind=\"delayed\",status=\"READY\"}":2,"outbox_oldest_age_seconds{kind=\"delayed\",status=\"READY\"}":500000,
	"outbox_rows{kind=\"publish\",status=\"FAILED\"}":0,"outbox_oldest_age_seconds{kind=\"publish\",status=\"FAILED\"}":0}}`

func TestStatusOfARelay(t *testing.T) {
	t.Parallel()
	environ := append(answering(t, http.StatusOK, liveDocument), "CDC_RELAY_PIPELINE=shop", "CDC_RELAY_POSTGRES__DSN=postgres://u@db.invalid/app")
	got := runCommand(t, environ, "status")
	want := `pipeline      shop, slot cdc_relay (source: relay, 2026-01-02T03:04:05Z)
state         blocked for 2.1 min
reason        kafka.connect
what          no broker answers
remedy        start [31m one
leader        host/1, which answers, epoch 7
slot          WAL extended, active, retains 3.0 GiB, confirmed lag 1.0 MiB, 1.0 GiB until it may be lost, in 2.0 h
positions     received 0/2000 (-1018.0 KiB), watermark 0/1000 (-1022.0 KiB), saved 0/1000 (-1022.0 KiB), confirmed 0/800 (-1.0 MiB), server 0/100800
in flight     12 events, 2.0 KiB
oldest READY  61.5 s
expired       3 rows are claimed by somebody whose lease has run out

STATUS  KIND     ROWS  OLDEST
READY   new      100   61.5 s
READY   delayed  2     5.8 d
FAILED  publish  0     
there may be more rows: not all of the table was looked at
`
	if diff := cmp.Diff(want, got.stdout); diff != "" || got.code != 0 || got.stderr != "" {
		t.Errorf("code %d, stderr %q, stdout (-want +got):\n%s", got.code, got.stderr, diff)
	}

	got = runCommand(t, environ, "status", "--json")
	var document map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &document); err != nil || got.code != 0 {
		t.Fatalf("status --json: %v: %+v", err, got)
	}
	for field, want := range map[string]any{
		"v": 1.0, "pipeline": "shop", "source": "relay", "state": "blocked", "reason": "kafka.connect", "epoch": 7.0,
		"leader": true, "leader_instance": "host/1", "lease_age_seconds": nil, "confirmed": "0/800", "wal_status": "extended",
		"safe_bytes": 1073741824.0, "time_to_loss_seconds": 7200.0, "oldest_ready_age_seconds": 61.5, "rows_complete": false,
		"rows": []any{
			map[string]any{"status": "READY", "status_code": 0.0, "kind": "new", "count": 100.0, "oldest_age_seconds": 61.5},
			map[string]any{"status": "READY", "status_code": 0.0, "kind": "delayed", "count": 2.0, "oldest_age_seconds": 500000.0},
			map[string]any{"status": "FAILED", "status_code": 3.0, "kind": "publish", "count": 0.0, "oldest_age_seconds": 0.0},
		},
	} {
		if diff := cmp.Diff(want, document[field]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", field, diff)
		}
	}
}

func TestWriteStatus(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		name   string
		status status
		want   string
	}{
		{"standby whose last sample failed", status{
			envelope: newEnvelope("p", at), Source: "relay", Slot: "s", State: "standby", Since: to(at.Add(-time.Second)), Leader: to(false),
		}, `pipeline  p, slot s (source: relay, 2026-01-02T03:04:05Z)
state     standby for 1.0 s
leader    nobody holds the lease

rows are not known: the last look at the database failed; see the log of the relay
`},
		{"standby", status{
			envelope: newEnvelope("p", at), Source: "relay", Slot: "s", State: "standby", Since: &at, Leader: to(false), LeaderInstance: "other/2",
			Epoch: 3, WALStatus: "lost", SlotActive: to(false), SafeBytes: to(0.0), RowsComplete: true,
			Rows: []statusRow{{Status: "SENT", StatusCode: 2, Count: 5}},
		}, `pipeline  p, slot s (source: relay, 2026-01-02T03:04:05Z)
state     standby for 0.0 s
leader    other/2, epoch 3
slot      WAL lost, not active, 0 B until it may be lost

STATUS  KIND  ROWS  OLDEST
SENT          5     
`},
		{"leader that the sampler has not seen", status{
			envelope: newEnvelope("p", at), Source: "relay", Slot: "s", State: "streaming", Since: &at, Leader: to(true), Epoch: 3,
		}, `pipeline  p, slot s (source: relay, 2026-01-02T03:04:05Z)
state     streaming for 0.0 s
leader    the relay that answers, epoch 3

rows are not known: the last look at the database failed; see the log of the relay
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var b strings.Builder
			tt.status.write(&b)
			if diff := cmp.Diff(tt.want, b.String()); diff != "" {
				t.Errorf("text (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStatusOfTheDatabase has no relay, or a strange one, on http.listen.
func TestStatusOfTheDatabase(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		d := newDatabase(db)
		silent := "CDC_RELAY_HTTP__LISTEN=127.0.0.1:0"
		if got := runCommand(t, append(d.environ, silent), "status"); got.code != 1 || got.stdout != "" ||
			!strings.HasPrefix(got.stderr, "error: asking the relay: http.listen names no port to ask; asking the database: table.schema_version: ") {
			t.Errorf("status of an empty database: %+v", got)
		}
		if _, got := d.plan(t, "--apply"); got.code != 0 {
			t.Fatalf("init --apply: %+v", got)
		}
		db.Exec(t, `INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('a', 'b', 'c', '{}');
			INSERT INTO cdc_relay_lease (slot, epoch, instance, renewed_at, lease_until, saved_lsn)
			VALUES ('`+d.slot+`', 7, 'host/1', now() - interval '1 hour', now() + interval '1 hour', '0/1')`)

		strange := answering(t, http.StatusOK, liveDocument)
		for _, tt := range []struct {
			name    string
			environ []string
			what    string
		}{
			{"nobody listens", []string{silent}, "http.listen names no port to ask"},
			{"another pipeline", strange, "serves another pipeline or slot"},
			{"no relay", answering(t, http.StatusNotFound, "404"), "is not a relay of this version"},
			{"broken answer", answering(t, http.StatusOK, liveDocument[:100]), "is not a relay of this version"},
			{"redirected", answering(t, http.StatusFound, liveDocument), "is not a relay of this version"},
		} {
			got := runCommand(t, append(d.environ, tt.environ...), "status", "--json")
			var s status
			if err := json.Unmarshal([]byte(got.stdout), &s); err != nil || got.code != 0 || got.stderr != "" {
				t.Fatalf("%s: %v: %+v", tt.name, err, got)
			}
			if s.Source != "database" || s.State != "unknown" || !strings.Contains(s.What, tt.what) || s.Leader != nil {
				t.Errorf("%s: %s", tt.name, got.stdout)
			}
			if s.LeaderInstance != "host/1" || s.Epoch != 7 || *s.RenewedAge < 3600 || *s.Saved != "0/1" || s.Received != nil {
				t.Errorf("%s: lease: %s", tt.name, got.stdout)
			}
			if s.WALStatus != "reserved" || *s.SlotActive || s.RetainedBytes == nil || s.Confirmed == nil || s.Server == nil {
				t.Errorf("%s: slot: %s", tt.name, got.stdout)
			}
			if len(s.Rows) != 9 || s.Rows[0].Count != 1 || !s.RowsComplete || *s.OldestReadyAge <= 0 {
				t.Errorf("%s: rows: %s", tt.name, got.stdout)
			}
		}

		db.Exec(t, "SELECT pg_drop_replication_slot('"+d.slot+"'); UPDATE cdc_relay_lease SET lease_until = NULL")
		got := runCommand(t, append(d.environ, silent), "status")
		for _, line := range []string{
			"state         unknown\n", "what          http.listen names no port to ask\n", "leader        nobody holds the lease\n",
			"slot          does not exist\n", "READY       new       1 ",
		} {
			if !strings.Contains(got.stdout, line) {
				t.Errorf("no line %q in\n%s", line, got.stdout)
			}
		}
	})
}

func TestStatusWithoutAnybody(t *testing.T) {
	t.Parallel()
	got := runCommand(t, []string{"CDC_RELAY_HTTP__LISTEN=127.0.0.1:0", "CDC_RELAY_POSTGRES__CONNECT_TIMEOUT=5s",
		"CDC_RELAY_POSTGRES__DSN=postgres://u:" + planted + "@127.0.0.1:1/app"}, "status")
	if got.code != 1 || got.stdout != "" || strings.Contains(got.stderr, planted) ||
		!strings.HasPrefix(got.stderr, "error: asking the relay: http.listen names no port to ask; asking the database: connecting to PostgreSQL") {
		t.Errorf("%+v", got)
	}
}

// counting is an output that ends the command after some answers.
type counting struct {
	written bytes.Buffer
	left    int
	stop    context.CancelFunc
}

func (c *counting) Write(p []byte) (int, error) {
	if strings.Contains(string(p), `"v":1`) || strings.Contains(string(p), "pipeline") {
		if c.left--; c.left == 0 {
			defer c.stop()
		}
	}
	return c.written.Write(p)
}

func TestWatchStatus(t *testing.T) {
	t.Parallel()
	environ := append(answering(t, http.StatusOK, liveDocument), "CDC_RELAY_PIPELINE=shop", "CDC_RELAY_POSTGRES__DSN=postgres://u@db.invalid/app")
	for _, tt := range []struct {
		name string
		args []string
		mark string
		want int // times
	}{
		{"json", []string{"--json"}, "\n", 3},
		{"text", nil, "\n\npipeline", 2}, // an empty line between
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			stdout := &counting{left: 3, stop: cancel}
			var stderr bytes.Buffer
			code := execute(ctx, append([]string{"status", "--watch", "1ms"}, tt.args...), environ, stdout, &stderr)
			if code != 0 || stderr.Len() > 0 {
				t.Errorf("code %d, stderr %q", code, stderr.String())
			}
			if n := strings.Count(stdout.written.String(), tt.mark); n != tt.want {
				t.Errorf("%q %d times, want %d, in\n%s", tt.mark, n, tt.want, stdout.written.String())
			}
		})
	}
}

func TestStatusURL(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]string{
		"127.0.0.1:8470":  "http://127.0.0.1:8470/statusz",
		"0.0.0.0:8470":    "http://127.0.0.1:8470/statusz",
		":8470":           "http://127.0.0.1:8470/statusz",
		"[::]:8470":       "http://[::1]:8470/statusz",
		"[::1]:8470":      "http://[::1]:8470/statusz",
		"relay.test:8470": "http://relay.test:8470/statusz",
		"127.0.0.1:0":     "",
	} {
		if got, err := statusURL(listen); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", listen, got, err, want)
		}
	}
}
