package record

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

var update = flag.Bool("update", false, "write the golden files anew")

var presets = map[string]Preset{"cloudevents": CloudEvents, "debezium": Debezium, "plain": Plain}

const (
	testNow     = 1_800_000_000_000     // milliseconds
	testCreated = 1_767_323_045_678_900 // microseconds: 2026-01-02T03:04:05.678900Z
)

// order is an ordinary event.
func order() event.Event {
	return event.Event{
		Ref:           event.Ref{ID: 42},
		EventID:       [16]byte{0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF, 0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF},
		AggregateType: []byte("order"),
		AggregateID:   []byte("order-1"),
		EventType:     []byte("OrderPlaced"),
		ContentType:   []byte("application/json"),
		Payload:       []byte(`{"total": 12.50}`),
		Headers:       []byte("{}"),
		CreatedAt:     testCreated,
	}
}

func config(preset Preset) Config {
	return Config{
		TopicTemplate: "outbox.event.{aggregate_type}", Schema: "public", TopicAllow: []string{"audit.*"},
		Partitioner: Murmur2, Headers: preset, Source: "/shop/orders", EventTypeHeader: "eventType",
	}
}

// The bytes of key, value and each header, in order, are a contract with every
// consumer: testdata/record/PRESET/CASE.txt. Run with -update to write them anew.
func TestGolden(t *testing.T) {
	t.Parallel()
	cases := map[string]func(*event.Event, *Config){
		"plain": func(*event.Event, *Config) {},
		"row_headers": func(e *event.Event, _ *Config) {
			e.Headers = []byte(`{"array": ["x", "y"], "bool": true, "escape": "a\"\\\n\u00fc", "null": null, "number": -1.50, "text": "grüß"}`)
		},
		"tombstone":   func(e *event.Event, c *Config) { e.Payload, e.PayloadNull, c.Tombstones = nil, true, true },
		"empty_value": func(e *event.Event, _ *Config) { e.Payload = []byte{} },
		"row_topic":   func(e *event.Event, _ *Config) { e.Topic = []byte("audit.orders") },
		"template": func(e *event.Event, c *Config) {
			c.TopicTemplate = "{schema}.{aggregate_type}.{event_type}"
		},
		"json_string_key": func(_ *event.Event, c *Config) { c.KeyJSON = true },
		"json_string_key_escaped": func(e *event.Event, c *Config) {
			e.AggregateID, c.KeyJSON = []byte("a\"b\\c\n\x01ü"), true
		},
		"non_ascii_key": func(e *event.Event, _ *Config) { e.AggregateID = []byte("grüß-7") },
		"long_key":      func(e *event.Event, _ *Config) { e.AggregateID = bytes.Repeat([]byte("k"), 1024) },
		"attempt_3":     func(e *event.Event, _ *Config) { e.Attempts = 2 },
		"trace": func(e *event.Event, _ *Config) {
			e.Headers = []byte(`{"b": "after", "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "v=1"}`)
		},
		"trace_extension": func(e *event.Event, c *Config) {
			e.Headers = []byte(`{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "v=1"}`)
			c.TraceExtension = true
		},
		"jsonb_payload":        func(e *event.Event, _ *Config) { e.Payload = []byte(`{"id": 1, "text": "grüß"}`) },
		"event_time":           func(_ *event.Event, c *Config) { c.EventTime = true },
		"event_time_in_future": func(e *event.Event, c *Config) { e.CreatedAt, c.EventTime = testNow*1000+5_000_000, true },
		"no_event_type_header": func(_ *event.Event, c *Config) { c.EventTypeHeader = "" },
	}
	for presetName, preset := range presets {
		for name, change := range cases {
			t.Run(presetName+"/"+name, func(t *testing.T) {
				t.Parallel()
				e, cfg := order(), config(preset)
				change(&e, &cfg)
				got := describe(t, &e, cfg)
				file := filepath.Join("testdata", "record", presetName, name+".txt")
				if *update {
					if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(want), got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", file, diff)
				}
			})
		}
	}
}

// describe is a record as a golden file shows it.
func describe(t *testing.T, e *event.Event, cfg Config) string {
	t.Helper()
	f, err := NewFormat(cfg)
	if err != nil {
		t.Fatal(err)
	}
	r, failure := f.Record(e, testNow)
	if failure != nil {
		t.Fatalf("refused: %v", failure)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "topic      %s\n", f.AppendTopic(nil, e))
	fmt.Fprintf(&out, "partition  %d of 12\n", f.Partition(r, 12))
	fmt.Fprintf(&out, "timestamp  %d\n", r.Timestamp)
	fmt.Fprintf(&out, "key        %s\n", strconv.Quote(string(r.Key)))
	value := strconv.Quote(string(r.Value))
	if r.Null {
		value = "null"
	}
	fmt.Fprintf(&out, "value      %s\n", value)
	for _, h := range cutHeaders(r.Headers, r.HeaderCount) {
		value := strconv.Quote(h.Value)
		if h.Null {
			value = "null"
		}
		fmt.Fprintf(&out, "header     %s: %s\n", h.Name, value)
	}
	return out.String()
}

func TestRefusedRecords(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*event.Event)
		code   string
	}{
		"null payload":   {func(e *event.Event) { e.Payload, e.PayloadNull = nil, true }, "NULL_PAYLOAD"},
		"headers":        {func(e *event.Event) { e.Headers = []byte(`[]`) }, "HEADERS_INVALID"},
		"a reserved one": {func(e *event.Event) { e.Headers = []byte(`{"content-type": "x"}`) }, "HEADERS_INVALID"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := NewFormat(config(CloudEvents))
			if err != nil {
				t.Fatal(err)
			}
			e := order()
			tc.change(&e)
			r, failure := f.Record(&e, testNow)
			if r != nil || failure == nil {
				t.Fatalf("a record came out: %+v", r)
			}
			if failure.Code != tc.code || failure.Class != event.ClassRecord || !failure.Permanent {
				t.Errorf("failure %+v, want a permanent %s", failure, tc.code)
			}
			e = order() // and the next one is none the worse for it
			if r, failure := f.Record(&e, testNow); failure != nil || len(cutHeaders(r.Headers, r.HeaderCount)) != 10 {
				t.Errorf("the next record: %+v, %v", r, failure)
			}
		})
	}
}

// Each preset keeps its own names from the rows, and no others.
func TestReservedNames(t *testing.T) {
	t.Parallel()
	for presetName, reserved := range map[string][]string{
		"cloudevents": {"ce_id", "ce_anything", "cdcr-id", "cdcr-anything", "content-type"},
		"debezium":    {"ce_id", "cdcr-id", "id", "eventType"},
		"plain":       {"ce_id", "cdcr-id", "event-id", "event-type", "aggregate-id", "occurred-at", "content-type", "aggregate-type"},
	} {
		t.Run(presetName, func(t *testing.T) {
			t.Parallel()
			f, err := NewFormat(config(presets[presetName]))
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range reserved {
				e := order()
				e.Headers = []byte(`{"` + name + `": "x"}`)
				if _, failure := f.Record(&e, testNow); failure == nil {
					t.Errorf("a row may bring the header %s", name)
				}
			}
			for _, name := range []string{"x", "CE_id", "cdcr", "traceparent", ""} {
				e := order()
				e.Headers = []byte(`{"` + name + `": "x"}`)
				if _, failure := f.Record(&e, testNow); failure != nil {
					t.Errorf("header %q is refused: %v", name, failure.Message)
				}
			}
		})
	}
}

func TestNewFormat(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*Config)
		want   string // in the error; empty: none
	}{
		"fine":                   {func(*Config) {}, ""},
		"no variable":            {func(c *Config) { c.TopicTemplate = "events" }, ""},
		"no template":            {func(c *Config) { c.TopicTemplate = "" }, "template is required"},
		"unknown variable":       {func(c *Config) { c.TopicTemplate = "{tenant}" }, "unknown variable {tenant}"},
		"unfinished variable":    {func(c *Config) { c.TopicTemplate = "a.{schema" }, "has no }"},
		"bad glob":               {func(c *Config) { c.TopicAllow = []string{"[a"} }, "syntax error"},
		"no partitioner":         {func(c *Config) { c.Partitioner = 0 }, "partitioner is required"},
		"no preset":              {func(c *Config) { c.Headers = 0 }, "preset is required"},
		"no source":              {func(c *Config) { c.Source = "" }, "need a source"},
		"plain needs no source":  {func(c *Config) { c.Headers, c.Source = Plain, "" }, ""},
		"reserved header":        {func(c *Config) { c.EventTypeHeader = "cdcr-type" }, "belongs to the relay"},
		"header of the event id": {func(c *Config) { c.EventTypeHeader = "id" }, "belongs to the relay"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(CloudEvents)
			tc.change(&cfg)
			_, err := NewFormat(cfg)
			if tc.want == "" {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestTopicNames(t *testing.T) {
	t.Parallel()
	for name, valid := range map[string]bool{
		"a": true, "A.b_c-9": true, strings.Repeat("a", 249): true,
		"": false, ".": false, "..": false, "...": true, strings.Repeat("a", 250): false, "a b": false, "ü": false, "a/b": false,
	} {
		if got := ValidTopic([]byte(name)); got != valid {
			t.Errorf("ValidTopic(%q) = %v", name, got)
		}
	}
	f, err := NewFormat(config(Plain))
	if err != nil {
		t.Fatal(err)
	}
	for name, allowed := range map[string]bool{"audit.orders": true, "audit.": true, "audit": false, "other": false} {
		if got := f.Allowed(name); got != allowed {
			t.Errorf("Allowed(%q) = %v", name, got)
		}
	}
}

func TestParsePreset(t *testing.T) {
	t.Parallel()
	for name, want := range presets {
		if got, err := ParsePreset(name); err != nil || got != want {
			t.Errorf("ParsePreset(%q) = %v, %v", name, got, err)
		}
	}
	if _, err := ParsePreset("xml"); err == nil {
		t.Error("an unknown preset was accepted")
	}
}

// Times come out as the standard library writes them, also when the second is
// the one of the record before.
func TestTimes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var h headers
		micros := rapid.Int64Range(-62_135_596_800_000_000, 253_402_300_799_999_999).Draw(t, "first") // years 1 to 9999
		for _, step := range rapid.SliceOfN(rapid.Int64Range(-1_500_000, 1_500_000), 1, 5).Draw(t, "steps") {
			h.buf, h.count = h.buf[:0], 0
			h.addTime("t", micros)
			want := time.UnixMicro(micros).UTC().Format("2006-01-02T15:04:05.000000Z")
			if got := cutHeaders(h.buf, h.count)[0].Value; got != want {
				t.Fatalf("%d is %s, want %s", micros, got, want)
			}
			micros += step
		}
	})
}

// Making a record and adding it to a batch that has room allocates nothing,
// whatever the preset and the row's headers.
func TestRecordsAllocateNothing(t *testing.T) { // not parallel: it counts allocations
	for presetName, preset := range presets {
		cfg := config(preset)
		cfg.KeyJSON = true
		f, err := NewFormat(cfg)
		if err != nil {
			t.Fatal(err)
		}
		e := order()
		e.Headers = []byte(`{"a": ["x", "y\n"], "b": 1, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}`)
		var b Batch
		var topic []byte
		fillOnce := func() {
			b.Reset()
			for range 100 {
				topic = f.AppendTopic(topic[:0], &e)
				r, failure := f.Record(&e, testNow)
				if failure != nil {
					t.Fatal(failure)
				}
				f.Partition(r, 12)
				b.Add(r, e.Ref)
			}
		}
		fillOnce()
		if n := testing.AllocsPerRun(100, fillOnce); n != 0 {
			t.Errorf("%s: %v allocations in 100 records", presetName, n)
		}
	}
}

func BenchmarkRecord(b *testing.B) {
	for presetName, preset := range presets {
		b.Run(presetName, func(b *testing.B) {
			f, err := NewFormat(config(preset))
			if err != nil {
				b.Fatal(err)
			}
			e := order()
			e.Payload = bytes.Repeat([]byte("x"), 200)
			var batch Batch
			b.ReportAllocs()
			for b.Loop() {
				if batch.Len() == 500 {
					batch.Reset()
				}
				r, _ := f.Record(&e, testNow)
				batch.Add(r, e.Ref)
			}
		})
	}
}
