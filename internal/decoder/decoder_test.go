package decoder_test

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/internal/decoder"
	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/waltest"
)

var commitTime = time.Date(2026, 1, 2, 3, 4, 5, 678900_000, time.UTC)

// setup returns a decoder that knows the outbox table and has a transaction
// open, and the builder that led it there.
func setup(t testing.TB) (*decoder.Decoder, *waltest.Builder) {
	t.Helper()
	d, b := decoder.New(decoder.Config{Table: waltest.DefaultTable}), &waltest.Builder{}
	mustDecode(t, d, b.BeginAt(0x100, 7, commitTime))
	mustDecode(t, d, b.Relation())
	return d, b
}

// payload is a frame without its header, as Decode takes it.
func payload(frame []byte) []byte { return frame[5:] }

func mustDecode(t testing.TB, d *decoder.Decoder, frame []byte) decoder.Message {
	t.Helper()
	var m decoder.Message
	if err := d.Decode(payload(frame), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func diff(t testing.TB, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmp.AllowUnexported(event.Due{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestDecodeMessages(t *testing.T) {
	t.Parallel()
	b := &waltest.Builder{}
	begin := b.BeginAt(0x100, 7, commitTime)
	tests := []struct {
		name  string
		frame []byte
		want  decoder.Message
	}{
		{"keepalive", b.Keepalive(0x99, false), decoder.Message{Kind: decoder.Keepalive, ServerEnd: 0x99}},
		{"keepalive that asks for a reply", b.Keepalive(0x99, true),
			decoder.Message{Kind: decoder.Keepalive, ServerEnd: 0x99, ReplyRequested: true}},
		{"begin", begin, decoder.Message{Kind: decoder.Begin, LSN: 0x100, XID: 7, CommitLSN: 0x100, CommitTime: commitTime.UnixMicro()}},
		{"relation", b.Relation(), decoder.Message{Kind: decoder.Ignored, Type: 'R'}},
		{"relation of another table", b.RelationOf(1, nil), decoder.Message{Kind: decoder.Ignored, Type: 'R'}},
		{"insert into another table", b.InsertInto(1, []byte("x")), decoder.Message{Kind: decoder.Ignored, LSN: 0x100, Type: 'I'}},
		{"type", waltest.XLogData(5, []byte("Y....")), decoder.Message{Kind: decoder.Ignored, LSN: 5, Type: 'Y'}},
		{"origin", waltest.XLogData(5, []byte("O....")), decoder.Message{Kind: decoder.Ignored, LSN: 5, Type: 'O'}},
		{"update", waltest.XLogData(5, []byte("U....")), decoder.Message{Kind: decoder.Ignored, LSN: 5, Type: 'U'}},
		{"delete", waltest.XLogData(5, []byte("D....")), decoder.Message{Kind: decoder.Ignored, LSN: 5, Type: 'D'}},
		{"truncate", waltest.XLogData(5, []byte("T....")), decoder.Message{Kind: decoder.Ignored, LSN: 5, Type: 'T'}},
		{"logical message of the transaction", b.Message("p", "12"),
			decoder.Message{Kind: decoder.Logical, LSN: 0x100, Transactional: true, Prefix: []byte("p"), Content: []byte("12")}},
		{"logical message of none", b.LooseMessage(0x50, "", ""),
			decoder.Message{Kind: decoder.Logical, LSN: 0x50, Prefix: []byte{}, Content: []byte{}}},
		{"commit", b.Commit(0x120), decoder.Message{Kind: decoder.Commit, LSN: 0x120, EndLSN: 0x120}},
	}
	d := decoder.New(decoder.Config{Table: waltest.DefaultTable})
	for _, tt := range tests { // in the order of one stream
		t.Run(tt.name, func(t *testing.T) { diff(t, tt.want, mustDecode(t, d, tt.frame)) })
	}
}

func TestDecodeInsert(t *testing.T) {
	t.Parallel()
	row := waltest.Row{
		ID: 42, EventID: [16]byte{1, 2, 3}, AggregateType: "order", AggregateID: "o-1", EventType: "created",
		Payload: []byte("{}"), Headers: `{"a": 1}`, ContentType: "text/plain", Topic: "t", Priority: -3,
		CreatedAt: commitTime.Add(-time.Second), Due: commitTime.Add(time.Hour), Attempts: 9, Status: 3,
	}
	full := event.Event{
		Ref: event.Ref{ID: 42, CommitLSN: 0x100, Due: event.DueAt(row.Due), Attempts: 9,
			Bytes: int32(len("order" + "o-1" + "created" + "{}" + `{"a": 1}` + "text/plain" + "t"))},
		EventID: row.EventID, AggregateType: []byte("order"), AggregateID: []byte("o-1"), EventType: []byte("created"),
		ContentType: []byte("text/plain"), Payload: []byte("{}"), Headers: []byte(`{"a": 1}`), Topic: []byte("t"),
		CreatedAt: row.CreatedAt.UnixMicro(), Status: 3, Priority: -3,
	}
	tests := []struct {
		name   string
		change func(*waltest.Row, *event.Event)
	}{
		{"all columns", func(*waltest.Row, *event.Event) {}},
		{"null payload", func(r *waltest.Row, e *event.Event) {
			r.Payload, e.Payload, e.PayloadNull, e.Bytes = nil, nil, true, e.Bytes-2
		}},
		{"empty payload", func(r *waltest.Row, e *event.Event) { r.Payload, e.Payload, e.Bytes = []byte{}, []byte{}, e.Bytes-2 }},
		{"null topic", func(r *waltest.Row, e *event.Event) { r.Topic, e.Topic, e.Bytes = "", nil, e.Bytes-1 }},
		{"not parked", func(r *waltest.Row, e *event.Event) { r.Due, e.Due = time.Time{}, event.Due{} }},
		{"infinity", func(r *waltest.Row, e *event.Event) { r.Due, e.Due = waltest.Infinity, event.DueInfinity() }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, b := setup(t)
			row, want := row, full
			tt.change(&row, &want)
			diff(t, want, mustDecode(t, d, b.Insert(row)).Event)
		})
	}
}

// A table made by somebody else: other names, other types, optional columns
// missing.
func TestDecodeMappedTable(t *testing.T) {
	t.Parallel()
	b := &waltest.Builder{}
	d := decoder.New(decoder.Config{Table: 5, Columns: map[string]string{"id": "nr", "event_type": "kind"}})
	mustDecode(t, d, b.BeginAt(0x100, 7, commitTime))
	mustDecode(t, d, b.RelationOf(5, []waltest.Column{
		{Name: "kind", Type: 1043}, {Name: "nr", Type: 23}, {Name: "other", Type: 99999}, {Name: "event_id", Type: 2950},
		{Name: "aggregate_type", Type: 1042}, {Name: "aggregate_id", Type: 25}, {Name: "payload", Type: 3802},
		{Name: "send_status", Type: 20}, {Name: "next_attempt_at", Type: 1184},
	}))
	got := mustDecode(t, d, b.InsertInto(5, []byte("k"), []byte{0, 0, 0, 9}, []byte("ignored"), make([]byte, 16),
		[]byte("t"), []byte("a"), []byte("\x01{}"), make([]byte, 8), nil)).Event
	want := event.Event{
		Ref:       event.Ref{ID: 9, CommitLSN: 0x100, Bytes: 5},
		EventType: []byte("k"), AggregateType: []byte("t"), AggregateID: []byte("a"), Payload: []byte("{}"),
		ContentType: []byte("application/json"), CreatedAt: commitTime.UnixMicro(),
	}
	diff(t, want, got)
}

// textInsert is an inserted row with all values in text format.
func textInsert(values ...string) []byte {
	m := append([]byte("I\x00\x00\x40\x01N"), 0, byte(len(values)))
	for _, v := range values {
		m = append(m, 't')
		m = binary.BigEndian.AppendUint32(m, uint32(len(v)))
		m = append(m, v...)
	}
	return waltest.XLogData(1, m)
}

func TestDecodeText(t *testing.T) {
	t.Parallel()
	values := []string{
		"42", "01020304-0506-0708-090a-0b0c0d0e0f10", "order", "o", "e", `\x00ff`, "{}", "c", "t", "-1",
		"2026-01-02 03:04:05.6789+00", "2", "3", "infinity", "0/16",
	}
	want := event.Event{
		Ref:     event.Ref{ID: 42, CommitLSN: 0x100, Due: event.DueInfinity(), Attempts: 3, Bytes: 13},
		EventID: [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, AggregateType: []byte("order"),
		AggregateID: []byte("o"), EventType: []byte("e"), Payload: []byte{0, 255}, Headers: []byte("{}"),
		ContentType: []byte("c"), Topic: []byte("t"), Priority: -1, CreatedAt: commitTime.UnixMicro(), Status: 2,
	}
	d, _ := setup(t)
	diff(t, want, mustDecode(t, d, textInsert(values...)).Event)

	bad := map[int]string{0: "x", 1: "01020304-0506-0708-090a-0b0c0d0e0fzz", 5: "00ff", 9: "32768", 10: "yesterday", 11: "1.5"}
	for i, v := range bad {
		t.Run("bad "+v, func(t *testing.T) {
			t.Parallel()
			d, _ := setup(t)
			broken := slices.Clone(values)
			broken[i] = v
			wantError(t, d, textInsert(broken...), "column")
		})
	}
}

func TestDecodeTimestamps(t *testing.T) {
	t.Parallel()
	utc := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		text string
		want event.Due
	}{
		{"2026-01-02 08:34:05+05:30", event.DueAt(utc)},
		{"2026-01-02 03:57:28+00:53:23", event.DueAt(utc)},
		{"2026-01-02 03:04:05", event.DueAt(utc)},
		{"2026-01-01 19:04:05-08", event.DueAt(utc)},
		{"-infinity", event.DueAtMicros(math.MinInt64)},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			t.Parallel()
			d, _ := setup(t)
			m := mustDecode(t, d, textInsert("1", "01020304-0506-0708-090a-0b0c0d0e0f10", "", "", "", "\\x", "", "", "", "0", tt.text, "0", "0", tt.text, ""))
			diff(t, tt.want, m.Event.Due)
		})
	}
}

// The last centuries of PostgreSQL's calendar lie beyond the microseconds of
// the Unix epoch: a writer may still insert such a time.
func TestDecodeFarTimes(t *testing.T) {
	t.Parallel()
	d, b := setup(t)
	frame := b.Insert(waltest.Row{ID: 1, Due: time.UnixMicro(math.MaxInt64)})
	// write the greatest finite timestamp over it: the value before commit_lsn's null marker
	binary.BigEndian.PutUint64(frame[len(frame)-9:], math.MaxInt64-1)
	diff(t, event.DueAtMicros(math.MaxInt64), mustDecode(t, d, frame).Event.Due)
}

func wantError(t testing.TB, d *decoder.Decoder, frame []byte, text string) {
	t.Helper()
	var m decoder.Message
	err := d.Decode(payload(frame), &m)
	var typed *decoder.Error
	if !errors.As(err, &typed) {
		t.Fatalf("got %v, want a *decoder.Error", err)
	}
	if !strings.Contains(err.Error(), text) {
		t.Errorf("error %q does not tell %q", err, text)
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	row := waltest.Row{ID: 1}
	replace := func(frame []byte, old, new string) []byte {
		i := strings.LastIndex(string(frame), old)
		out := slices.Clone(frame)
		copy(out[i:], new)
		return out
	}
	tests := []struct {
		name  string
		frame func(*waltest.Builder) []byte
		text  string
	}{
		{"empty frame", func(*waltest.Builder) []byte { return waltest.CopyData(nil) }, "shorter"},
		{"unknown frame", func(*waltest.Builder) []byte { return waltest.CopyData([]byte("z")) }, "unknown type 'z'"},
		{"no pgoutput message", func(*waltest.Builder) []byte { return waltest.XLogData(1, nil) }, "shorter"},
		{"unknown pgoutput message", func(*waltest.Builder) []byte { return waltest.XLogData(0x1F, []byte("S")) }, "LSN 0/1F"},
		{"begin within a transaction", func(b *waltest.Builder) []byte { return b.Begin(1, 1) }, "within a transaction"},
		{"negative id", func(b *waltest.Builder) []byte { return b.Insert(waltest.Row{ID: -1}) }, `column "id"`},
		{"id 0", func(b *waltest.Builder) []byte { return b.Insert(waltest.Row{}) }, `column "id"`},
		{"unchanged value in an insert", func(b *waltest.Builder) []byte {
			return replace(b.Insert(row), "n", "u")
		}, "without this value"},
		{"value of unknown kind", func(b *waltest.Builder) []byte { return replace(b.Insert(row), "n", "q") }, "unknown kind"},
		{"old tuple", func(b *waltest.Builder) []byte { return replace(b.Insert(row), "N", "O") }, "unknown kind 'O'"},
		{"jsonb version 2", func(b *waltest.Builder) []byte { return replace(b.Insert(row), "\x01{}", "\x02{}") }, `column "headers"`},
		{"null id", func(b *waltest.Builder) []byte { return b.InsertInto(waltest.DefaultTable, make([][]byte, 15)...) }, `column "id": it is NULL`},
		{"wrong length", func(b *waltest.Builder) []byte {
			values := make([][]byte, 15)
			values[0] = []byte{1}
			return b.InsertInto(waltest.DefaultTable, values...)
		}, "wrong length"},
		{"too few columns", func(b *waltest.Builder) []byte { return b.InsertInto(waltest.DefaultTable, nil) }, "1 columns"},
		{"overlong", func(b *waltest.Builder) []byte { return append(b.Insert(row), 0) }, "longer"},
		{"overlong keepalive", func(b *waltest.Builder) []byte { return append(b.Keepalive(1, false), 0) }, "longer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, b := setup(t)
			wantError(t, d, tt.frame(b), tt.text)
		})
	}
}

func TestDecodeRefusesOutsideOfTransaction(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		frame func(*waltest.Builder) []byte
	}{
		{"insert", func(b *waltest.Builder) []byte { return b.Insert(waltest.Row{ID: 1}) }},
		{"commit", func(b *waltest.Builder) []byte { return b.Commit(1) }},
		{"message", func(b *waltest.Builder) []byte { return b.Message("p", "c") }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, b := setup(t)
			mustDecode(t, d, b.Commit(0x120))
			wantError(t, d, tt.frame(b), "outside of a transaction")
		})
	}
}

func TestDecodeRefusesUndescribedTable(t *testing.T) {
	t.Parallel()
	d, b := decoder.New(decoder.Config{Table: waltest.DefaultTable}), &waltest.Builder{}
	mustDecode(t, d, b.Begin(1, 1))
	wantError(t, d, b.Insert(waltest.Row{ID: 1}), "no Relation message")
}

// Every message cut short anywhere is an error, and none is a panic.
func TestDecodeTruncated(t *testing.T) {
	t.Parallel()
	messages := map[string]func(*waltest.Builder) []byte{
		"relation":  (*waltest.Builder).Relation,
		"insert":    func(b *waltest.Builder) []byte { return b.Insert(waltest.Row{ID: 1, Payload: []byte("p")}) },
		"message":   func(b *waltest.Builder) []byte { return b.Message("p", "c") },
		"commit":    func(b *waltest.Builder) []byte { return b.Commit(0x120) },
		"keepalive": func(b *waltest.Builder) []byte { return b.Keepalive(1, true) },
	}
	for name, build := range messages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, b := setup(t)
			whole := build(b)
			for n := 5; n < len(whole); n++ {
				d, _ := setup(t)
				wantError(t, d, whole[:n], "decoding the replication message")
			}
		})
	}
	t.Run("begin", func(t *testing.T) {
		t.Parallel()
		whole := (&waltest.Builder{}).Begin(1, 1)
		for n := 5; n < len(whole); n++ {
			wantError(t, decoder.New(decoder.Config{}), whole[:n], "decoding the replication message")
		}
	})
}

func TestRelationChecksColumns(t *testing.T) {
	t.Parallel()
	good := []waltest.Column{
		{Name: "id", Type: 20}, {Name: "event_id", Type: 2950}, {Name: "aggregate_type", Type: 25}, {Name: "aggregate_id", Type: 25},
		{Name: "event_type", Type: 25}, {Name: "payload", Type: 17}, {Name: "send_status", Type: 21}, {Name: "next_attempt_at", Type: 1184},
	}
	retyped := func(name string, oid uint32) []waltest.Column {
		out := slices.Clone(good)
		out[slices.IndexFunc(out, func(c waltest.Column) bool { return c.Name == name })].Type = oid
		return out
	}
	tests := []struct {
		name    string
		columns []waltest.Column
		mapping map[string]string
		text    string // of the error, empty for none
	}{
		{"only what is required", good, nil, ""},
		{"required column missing", good[1:], nil, `"id" (id) is missing`},
		{"mapped column missing", good, map[string]string{"topic": "thema"}, `"thema" (topic) is missing`},
		{"mapped twice", good, map[string]string{"event_type": "aggregate_type"}, "mapped twice"},
		{"id as numeric", retyped("id", 1700), nil, `"id" (id) has the type with OID 1700; it must be smallint, integer, bigint`},
		{"event_id as text", retyped("event_id", 25), nil, "must be uuid"},
		{"payload as json", retyped("payload", 114), nil, ""},
		{"payload as an array", retyped("payload", 1009), nil, "bytea, json, jsonb, text, varchar"},
		{"next_attempt_at without zone", retyped("next_attempt_at", 1114), nil, "must be timestamptz"},
		{"status as text", retyped("send_status", 25), nil, "send_status"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := decoder.New(decoder.Config{Table: 5, Columns: tt.mapping})
			frame := (&waltest.Builder{}).RelationOf(5, tt.columns)
			if tt.text == "" {
				mustDecode(t, d, frame)
				return
			}
			wantError(t, d, frame, tt.text)
		})
	}
}

// Rule: no allocation per event on the line.
func TestDecodeDoesNotAllocate(t *testing.T) {
	d, b := setup(t)
	insert := payload(b.Insert(waltest.Row{ID: 1, AggregateID: "a", Payload: []byte("payload"), Topic: "t", Due: commitTime}))
	frames := [][]byte{insert, insert, payload(b.Message("p", "1")), payload(b.Commit(0x120)), payload(b.Keepalive(1, true)), payload(b.Begin(0x200, 8))}
	var m decoder.Message
	allocs := testing.AllocsPerRun(100, func() {
		for _, f := range frames {
			if err := d.Decode(f, &m); err != nil {
				t.Fatal(err)
			}
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for %d messages, want 0", allocs, len(frames))
	}
}

func BenchmarkDecodeInsert(bm *testing.B) {
	d, b := setup(bm)
	insert := payload(b.Insert(waltest.Row{ID: 1, AggregateID: "aggregate-1", Payload: make([]byte, 200)}))
	var m decoder.Message
	bm.ReportAllocs()
	for bm.Loop() {
		if err := d.Decode(insert, &m); err != nil {
			bm.Fatal(err)
		}
	}
}

func TestWiden(t *testing.T) {
	t.Parallel()
	const epoch = 1 << 32
	tests := []struct {
		name string
		xid  uint32
		near uint64
		want uint64
	}{
		{"the same", 7, epoch + 7, epoch + 7},
		{"a little later", 9, epoch + 7, epoch + 9},
		{"a little earlier", 5, epoch + 7, epoch + 5},
		{"later, across an epoch", 3, 2*epoch - 2, 2*epoch + 3},
		{"earlier, across an epoch", math.MaxUint32, 2*epoch + 1, 2*epoch - 1},
		{"no epoch before the first", math.MaxUint32, 3, math.MaxUint32},
		{"first epoch", 3, 700, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := decoder.Widen(tt.xid, tt.near); got != tt.want {
				t.Errorf("Widen(%d, %d) = %d, want %d", tt.xid, tt.near, got, tt.want)
			}
		})
	}
}

// FuzzDecode takes what a golden file holds: the OID of the table, and frames.
func FuzzDecode(f *testing.F) {
	b := &waltest.Builder{}
	table := []byte{0, 0, 0x40, 1} // waltest.DefaultTable
	f.Add(slices.Concat(table, b.Begin(1, 1), b.Relation(), b.Insert(waltest.Row{ID: 1, Topic: "t"}), b.Commit(2)))
	f.Add(slices.Concat(table, b.LooseMessage(1, "p", "c"), b.Keepalive(2, true)))
	for _, recording := range goldenFrames(f) {
		f.Add(recording)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) < 4 {
			return
		}
		d := decoder.New(decoder.Config{Table: binary.BigEndian.Uint32(in)})
		var m decoder.Message
		for in = in[4:]; len(in) >= 5; {
			size := min(max(int(binary.BigEndian.Uint32(in[1:]))+1, 5), len(in))
			if err := d.Decode(in[5:size], &m); err != nil {
				var typed *decoder.Error
				if !errors.As(err, &typed) {
					t.Fatalf("error of another type: %v", err)
				}
				return
			}
			if m.Kind == decoder.Insert && m.Event.ID <= 0 {
				t.Fatalf("event with id %d", m.Event.ID)
			}
			in = in[size:]
		}
	})
}
