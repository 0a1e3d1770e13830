package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// quickLooks lets the sampler, and with it what is known of the schema, follow
// the database closely; not faster than sampler.timeout.
var quickLooks = relayproc.Config{"sampler.interval": "2s"}

// TestHealthOfLeaderAndStandby: both are ready; one that drains is not, until
// it has ended and the other has taken over.
func TestHealthOfLeaderAndStandby(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: quickLooks})
		leader := startProbed(t, b, nil)
		leader.waitHealth("/readyz", http.StatusOK, "streaming", "")
		leader.waitHealth("/startupz", http.StatusOK, "streaming", "")
		standby := startProbed(t, b, nil)
		standby.waitHealth("/readyz", http.StatusOK, "standby", "")
		letWrite := lockTable(t, b, "cdc_relay_slot") // no SENT can be written
		b.Insert(harness.Row("order", "order-1", "{}"))
		b.Wait("the ack", func() bool { return leader.figure("events_acked_total") == 1 })
		leader.SendTerm()
		leader.waitHealth("/readyz", http.StatusServiceUnavailable, "draining", "relay.state")
		letWrite()
		if code := leader.WaitExit(); code != 0 {
			t.Errorf("exit code %d, want 0", code)
		}
		standby.waitHealth("/readyz", http.StatusOK, "streaming", "")
		b.Finish(harness.Allow{})
	})
}

// TestHealthWhileBlocked: alive and started, but not ready, for a reason that
// is named; ready once it is mended.
func TestHealthWhileBlocked(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: quickLooks})
		b.Exec(`ALTER PUBLICATION ` + b.Slot + ` SET (publish = 'insert, update')`)
		relay := startProbed(t, b, nil)
		relay.waitHealth("/readyz", http.StatusServiceUnavailable, "blocked", "pub.ops")
		relay.waitHealth("/startupz", http.StatusOK, "blocked", "")
		b.Exec(`ALTER PUBLICATION ` + b.Slot + ` SET (publish = 'insert')`)
		relay.waitHealth("/readyz", http.StatusOK, "streaming", "")
		b.Write(20, 8)
		b.Finish(harness.Allow{})
	})
}

// TestHealthWithoutABroker takes over half a minute: so long may no broker
// answer before a person is called. An event waits for it all the time, longer
// than one thing may take a part that is alive. One version suffices: it is
// about Kafka.
func TestHealthWithoutABroker(t *testing.T) {
	t.Parallel()
	broker := harness.StartBroker(t)
	b := harness.NewBed(t, pgtest.New(t, 18), harness.Options{Kafka: broker.Kafka, Config: quickLooks.With(relayproc.Config{
		// what a part may be at follows the longest of these, and is 30 s at least
		"postgres.statement_timeout": "5s", "kafka.request_timeout": "2s", "kafka.dial_timeout": "1s",
	})})
	relay := startProbed(t, b, nil)
	relay.waitHealth("/readyz", http.StatusOK, "streaming", "")
	broker.Stop()
	b.Insert(harness.Row("order", "order-1", "{}"))
	relay.waitHealth("/readyz", http.StatusServiceUnavailable, "blocked", "kafka.connect")
	broker.Start()
	relay.waitHealth("/readyz", http.StatusOK, "streaming", "")
	b.Finish(harness.Allow{})
}

// Metrics by name, without prefix: those of the parts, and those that tell
// what the last look at the database has shown.
var (
	metricsOfParts = []string{
		"build_info", "pipeline_info", "leader", "state", "source_connected", "sink_connected", "position_bytes",
		"replication_lag_seconds", "source_last_message_timestamp_seconds", "probe_roundtrip_seconds_count",
		"events_received_total", "events_acked_total", "topic_events_acked_total", "publish_requests_total",
		"publish_errors_total", "publish_duration_seconds_count", "end_to_end_seconds_count", "inflight_events",
		"inflight_bytes", "topic_partitions", "status_writes_total", "status_write_duration_seconds_count",
		"duplicates_skipped_total", "requeued_total", "reconcile_missed_total", "fenced_total", "rows_gone_total",
		"messages_ignored_total", "producer_identity", "stats_last_success_timestamp_seconds",
	}
	metricsOfSamples = []string{
		"slot_active", "slot_wal_status", "slot_retained_wal_bytes", "slot_confirmed_lag_bytes", "slot_catalog_xmin_age",
		"outbox_rows", "outbox_oldest_age_seconds", "outbox_leases_expired", "outbox_sample_complete",
	}
	// metricsThatLast are there whatever happens to the database.
	metricsThatLast = []string{"build_info", "state", "events_received_total", "events_acked_total", "stats_last_success_timestamp_seconds"}
)

// TestMetricsWithoutADatabase: what only the database can tell is absent as
// soon as it is gone, not frozen, and comes back with it.
func TestMetricsWithoutADatabase(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: quickLooks})
		relay := startProbed(t, b, nil)
		relay.waitHealth("/readyz", http.StatusOK, "streaming", "")
		b.Write(20, 8)
		b.Settle()
		relay.waitMetrics(slices.Concat(metricsOfParts, metricsOfSamples), nil)
		allowConnections(t, db, false)
		relay.waitMetrics(metricsThatLast, metricsOfSamples)
		relay.waitUnready()
		allowConnections(t, db, true)
		b.Pool.Reset()
		relay.waitHealth("/readyz", http.StatusOK, "streaming", "")
		relay.waitMetrics(slices.Concat(metricsOfParts, metricsOfSamples), nil)
		b.Write(20, 8)
		b.Finish(harness.Allow{})
	})
}

// allowConnections opens a database, or ends all connections and lets nobody in.
func allowConnections(t *testing.T, db *pgtest.DB, allow bool) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), pgtest.Env(t, fmt.Sprintf("CDC_TEST_PG%d_DSN", db.Version)))
	if err != nil {
		t.Fatalf("connecting as the superuser: %v", err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	exec(t, conn, fmt.Sprintf(`ALTER DATABASE %s ALLOW_CONNECTIONS %t`, db.Name, allow))
	if !allow {
		exec(t, conn, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1`, db.Name)
	}
}

// statusAnswer is what `cdc-relay status --json` prints, as far as it is looked at.
type statusAnswer struct {
	V          int     `json:"v"`
	Source     string  `json:"source"`
	State      string  `json:"state"`
	What       string  `json:"what"`
	Leader     *bool   `json:"leader"`
	Slot       string  `json:"slot"`
	SlotActive *bool   `json:"slot_active"`
	Saved      *string `json:"saved"`
	Confirmed  *string `json:"confirmed"`
	Rows       []struct {
		Status string  `json:"status"`
		Count  float64 `json:"count"`
	} `json:"rows"`
}

func (s *statusAnswer) sent() (n float64) {
	for _, r := range s.Rows {
		if r.Status == "SENT" {
			n += r.Count
		}
	}
	return n
}

// TestStatusCommand asks the relay, and the database once there is none.
func TestStatusCommand(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		const rows = 20
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: quickLooks})
		relay := startProbed(t, b, nil)
		relay.waitHealth("/readyz", http.StatusOK, "streaming", "")
		b.Write(rows, 8)
		b.Settle()
		var s *statusAnswer
		b.Wait("the relay's last look at the rows", func() bool {
			s = relay.status()
			return s.sent() == rows
		})
		if s.V != 1 || s.Source != "relay" || s.State != "streaming" || s.Slot != b.Slot || !is(s.Leader, true) || !is(s.SlotActive, true) {
			t.Errorf("with a relay: %+v", *s)
		}
		if code, _ := relay.Terminate(); code != 0 {
			t.Errorf("exit code %d after SIGTERM, want 0", code)
		}
		s = relay.status()
		if s.V != 1 || s.Source != "database" || s.State != "unknown" || s.Slot != b.Slot || s.Leader != nil || !is(s.SlotActive, false) {
			t.Errorf("without a relay: %+v", *s)
		}
		if s.What == "" || s.Saved == nil || s.Confirmed == nil || s.sent() != rows {
			t.Errorf("without a relay: %+v, want a sentence, positions and %d rows SENT", *s, rows)
		}
		if err := b.Check(harness.Allow{}).Err(); err != nil {
			t.Error(err)
		}
	})
}

func is(b *bool, want bool) bool { return b != nil && *b == want }

// probed is a relay that is asked on its health paths.
type probed struct {
	*harness.Relay
	t    *testing.T
	bed  *harness.Bed
	addr string // of its listener
}

// startProbed starts a relay. Whatever the test does to it and around it,
// /livez must never answer anything but 200.
func startProbed(t *testing.T, b *harness.Bed, config relayproc.Config) *probed {
	t.Helper()
	addr, err := relayproc.FreeAddr()
	if err != nil {
		t.Fatal(err)
	}
	p := &probed{t: t, bed: b, addr: addr, Relay: b.Start(relayproc.Config{"http.listen": addr}.With(config))}
	p.watchLive()
	return p
}

// watchLive asks for /livez again and again until the relay or the test ends.
func (p *probed) watchLive() {
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-p.Done():
				return
			case <-ctx.Done():
				return
			}
			if h, err := p.health(ctx, "/livez"); err == nil && h.code != http.StatusOK {
				p.t.Errorf("/livez: %v", h)
				return
			}
		}
	}()
	p.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// health is the answer of a health path.
type health struct {
	code   int
	State  string `json:"state"`
	Checks []struct {
		ID     string `json:"id"`
		State  string `json:"state"`
		Detail string `json:"detail"`
	} `json:"checks"`
}

// fails reports whether the check id is among those that are not ok, or with
// an empty id whether all are ok.
func (h health) fails(id string) bool {
	all := true
	for _, c := range h.Checks {
		if c.State != "ok" {
			if c.ID == id {
				return true
			}
			all = false
		}
	}
	return id == "" && all
}

func (p *probed) health(ctx context.Context, path string) (h health, err error) {
	code, body, err := p.get(ctx, path)
	if err != nil {
		return h, err
	}
	h.code = code
	return h, json.Unmarshal(body, &h)
}

func (p *probed) get(ctx context.Context, path string) (code int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+path, nil)
	if err != nil {
		return 0, nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

// waitHealth waits until a health path answers with a code in a state. What
// then fails is the check id, or nothing if that is empty.
func (p *probed) waitHealth(path string, code int, state, id string) {
	p.t.Helper()
	var last health
	defer func() {
		if p.t.Failed() {
			p.t.Logf("last answer of %s: %v", path, last)
		}
	}()
	p.bed.Wait(fmt.Sprintf("%s to answer %d in state %s, %q failing", path, code, state, id), func() bool {
		h, err := p.health(p.t.Context(), path)
		if err == nil {
			last = h
		}
		return err == nil && h.code == code && h.State == state && h.fails(id)
	})
}

// waitUnready waits until /readyz answers 503 for whatever reason.
func (p *probed) waitUnready() {
	p.t.Helper()
	p.bed.Wait("/readyz to answer 503", func() bool {
		h, err := p.health(p.t.Context(), "/readyz")
		return err == nil && h.code == http.StatusServiceUnavailable && !h.fails("")
	})
}

// waitMetrics waits until /metrics has all of some metrics and none of others.
func (p *probed) waitMetrics(present, absent []string) {
	p.t.Helper()
	var missing, left []string
	defer func() {
		if p.t.Failed() {
			p.t.Logf("/metrics lacks %v, and still has %v", missing, left)
		}
	}()
	p.bed.Wait("metrics", func() bool {
		names, ok := p.metrics()
		has := func(name string) bool { return names["cdc_relay_"+name] }
		missing = slices.DeleteFunc(slices.Clone(present), has)
		left = slices.DeleteFunc(slices.Clone(absent), func(name string) bool { return !has(name) })
		return ok && len(missing) == 0 && len(left) == 0
	})
}

// metrics are the names that /metrics shows.
func (p *probed) metrics() (names map[string]bool, ok bool) {
	code, body, err := p.get(p.t.Context(), "/metrics")
	if err != nil || code != http.StatusOK {
		return nil, false
	}
	names = map[string]bool{}
	for line := range strings.Lines(string(body)) {
		if end := strings.IndexAny(line, "{ "); end > 0 {
			names[line[:end]] = true
		}
	}
	return names, true
}

// figure is a counter of /statusz, 0 while it does not answer.
func (p *probed) figure(name string) float64 {
	s, err := relayproc.ReadStatus(p.t.Context(), p.addr)
	if err != nil {
		return 0
	}
	return s.Counters[name]
}

// status runs `cdc-relay status --json` with the relay's configuration.
func (p *probed) status() *statusAnswer {
	p.t.Helper()
	output, code := p.bed.Command(relayproc.Config{"http.listen": p.addr}, "status", "--json")
	var s statusAnswer
	if err := json.Unmarshal([]byte(output), &s); err != nil || code != 0 {
		p.t.Fatalf("cdc-relay status --json: exit code %d, %v\n%s", code, err, output)
	}
	return &s
}
