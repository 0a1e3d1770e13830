package outbox_test

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// fakeTx records what is executed in it and answers that rows were inserted.
type fakeTx struct {
	pgx.Tx
	rows       string // how many
	err        error
	statements []string
	args       [][]any
}

func (tx *fakeTx) Exec(_ context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tx.statements = append(tx.statements, sql)
	tx.args = append(tx.args, args)
	return pgconn.NewCommandTag("INSERT 0 " + tx.rows), tx.err
}

// secret is in every value that no error may repeat.
const secret = "s3cret"

// valid is an event that nothing is wrong with, with some changes.
func valid(changes ...func(*outbox.Event)) outbox.Event {
	e := outbox.Event{AggregateType: "order", AggregateID: secret, EventType: "order.paid", Payload: []byte(secret)}
	for _, change := range changes {
		change(&e)
	}
	return e
}

func newWriter(t testing.TB, opts ...outbox.Option) *outbox.Writer {
	t.Helper()
	w, err := outbox.NewWriter(opts...)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func header(name, value string) func(*outbox.Event) {
	return func(e *outbox.Event) { e.Headers = map[string]string{name: value} }
}

func TestRefusedEvents(t *testing.T) {
	t.Parallel()
	long := func(n int) string { return strings.Repeat("a", n) }
	for name, test := range map[string]struct {
		change func(*outbox.Event)
		want   error
		why    string // a part of the error's text
	}{
		"no aggregate type":          {func(e *outbox.Event) { e.AggregateType = "" }, outbox.ErrField, "aggregate type has 0 bytes"},
		"long aggregate type":        {func(e *outbox.Event) { e.AggregateType = long(201) }, outbox.ErrField, "aggregate type has 201 bytes, not 1 to 200"},
		"space in aggregate type":    {func(e *outbox.Event) { e.AggregateType = secret + " b" }, outbox.ErrField, "aggregate type has other characters"},
		"letter from abroad in it":   {func(e *outbox.Event) { e.AggregateType = secret + "ä" }, outbox.ErrField, "aggregate type"},
		"line end in it":             {func(e *outbox.Event) { e.AggregateType = secret + "\n" }, outbox.ErrField, "aggregate type"},
		"no aggregate id":            {func(e *outbox.Event) { e.AggregateID = "" }, outbox.ErrField, "aggregate id has 0 bytes"},
		"long aggregate id":          {func(e *outbox.Event) { e.AggregateID = long(1025) }, outbox.ErrField, "aggregate id has 1025 bytes"},
		"aggregate id counts bytes":  {func(e *outbox.Event) { e.AggregateID = strings.Repeat("ä", 513) }, outbox.ErrField, "aggregate id has 1026 bytes"},
		"aggregate id is no UTF-8":   {func(e *outbox.Event) { e.AggregateID = secret + "\xff" }, outbox.ErrField, "aggregate id is not UTF-8"},
		"zero byte in aggregate id":  {func(e *outbox.Event) { e.AggregateID = secret + "\x00" }, outbox.ErrField, "aggregate id is not UTF-8"},
		"no event type":              {func(e *outbox.Event) { e.EventType = "" }, outbox.ErrField, "event type has 0 bytes"},
		"long event type":            {func(e *outbox.Event) { e.EventType = long(256) }, outbox.ErrField, "event type has 256 bytes"},
		"event type is no UTF-8":     {func(e *outbox.Event) { e.EventType = secret + "\xc3" }, outbox.ErrField, "event type is not UTF-8"},
		"long content type":          {func(e *outbox.Event) { e.ContentType = long(256) }, outbox.ErrField, "content type has 256 bytes"},
		"zero byte in content type":  {func(e *outbox.Event) { e.ContentType = secret + "\x00" }, outbox.ErrField, "content type is not UTF-8"},
		"nil payload":                {func(e *outbox.Event) { e.Payload = nil }, outbox.ErrNullPayload, "an empty one is not nil"},
		"tombstone without leave":    {func(e *outbox.Event) { e.Tombstone, e.Payload = true, nil }, outbox.ErrNullPayload, "AllowTombstones"},
		"payload over the limit":     {func(e *outbox.Event) { e.Payload = make([]byte, 1001) }, outbox.ErrTooLarge, "the payload has 1001 bytes, more than 1000"},
		"topic .":                    {func(e *outbox.Event) { e.Topic = "." }, outbox.ErrTopicName, ". and .. are no topics"},
		"topic ..":                   {func(e *outbox.Event) { e.Topic = ".." }, outbox.ErrTopicName, ". and .. are no topics"},
		"long topic":                 {func(e *outbox.Event) { e.Topic = long(250) }, outbox.ErrTopicName, "topic has 250 bytes"},
		"slash in topic":             {func(e *outbox.Event) { e.Topic = secret + "/b" }, outbox.ErrTopicName, "topic has other characters"},
		"header without name":        {header("", secret), outbox.ErrHeader, "a name is empty"},
		"header name is no UTF-8":    {header(secret+"\xff", "a"), outbox.ErrHeader, "a name is empty, not UTF-8"},
		"zero byte in header name":   {header(secret+"\x00", "a"), outbox.ErrHeader, "a name is empty, not UTF-8"},
		"header value is no UTF-8":   {header("tenant", secret+"\xff"), outbox.ErrHeader, `the value of "tenant"`},
		"zero byte in header value":  {header("tenant", secret+"\x00"), outbox.ErrHeader, `the value of "tenant"`},
		"header of CloudEvents":      {header("ce_"+secret, "a"), outbox.ErrHeader, "start with ce_"},
		"header of the relay":        {header("cdcr-"+secret, "a"), outbox.ErrHeader, "start with cdcr-"},
		"header of a preset":         {header("content-type", secret), outbox.ErrHeader, "content-type is reserved"},
		"header of the other preset": {header("id", secret), outbox.ErrHeader, "id is reserved"},
		"large headers":              {header("tenant", long(1<<20)), outbox.ErrTooLarge, "the headers have 1048582 bytes"},
		"not before year 1":          {func(e *outbox.Event) { e.NotBefore = time.Time{}.Add(-time.Hour) }, outbox.ErrField, "years 1 to 9999"},
		"not before year 10000": {func(e *outbox.Event) {
			e.NotBefore = time.Date(9999, 12, 31, 23, 59, 59, 999_999_001, time.UTC)
		}, outbox.ErrField, "years 1 to 9999"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tx := &fakeTx{rows: "3"}
			ids, err := newWriter(t, outbox.MaxPayload(1000)).Write(t.Context(), tx, valid(), valid(test.change), valid())
			if !errors.Is(err, test.want) || ids != nil {
				t.Fatalf("%v, %v, want %v", ids, err, test.want)
			}
			if text := err.Error(); !strings.Contains(text, "writing to the outbox: events[1]: ") || !strings.Contains(text, test.why) {
				t.Errorf("the error does not tell %q of events[1]: %v", test.why, err)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the error tells a value: %v", err)
			}
			if len(tx.statements) > 0 {
				t.Error("something was sent")
			}
		})
	}
}

func TestATombstoneHasNoPayload(t *testing.T) {
	t.Parallel()
	tx := &fakeTx{rows: "1"}
	w := newWriter(t, outbox.AllowTombstones())
	if _, err := w.Write(t.Context(), tx, valid(func(e *outbox.Event) { e.Tombstone = true })); !errors.Is(err, outbox.ErrField) {
		t.Errorf("with a payload: %v", err)
	}
	if _, err := w.Write(t.Context(), tx, valid(func(e *outbox.Event) { e.Tombstone, e.Payload = true, nil })); err != nil {
		t.Errorf("without one: %v", err)
	}
	if _, err := w.Write(t.Context(), tx, valid(func(e *outbox.Event) { e.Payload = nil })); !errors.Is(err, outbox.ErrNullPayload) {
		t.Errorf("nil payload where tombstones are allowed: %v", err)
	}
}

func TestAnIDIsGivenOnce(t *testing.T) {
	t.Parallel()
	tx := &fakeTx{rows: "3"}
	same := func(e *outbox.Event) { e.ID = outbox.ID{15: 1} }
	_, err := newWriter(t).Write(t.Context(), tx, valid(same), valid(), valid(same))
	if !errors.Is(err, outbox.ErrDuplicateID) || !strings.Contains(err.Error(), "events[2]") || len(tx.statements) > 0 {
		t.Errorf("%v, %d statements", err, len(tx.statements))
	}
}

// A call is bounded as a whole: PostgreSQL would end the connection at 1 GiB.
func TestACallIsBounded(t *testing.T) {
	t.Parallel()
	tx := &fakeTx{rows: "16"}
	payload := make([]byte, 16<<20)
	events := make([]outbox.Event, 16)
	for i := range events {
		events[i] = valid(func(e *outbox.Event) { e.Payload = payload })
	}
	_, err := newWriter(t).Write(t.Context(), tx, events...)
	if !errors.Is(err, outbox.ErrTooLarge) || !strings.Contains(err.Error(), "events[15]") || len(tx.statements) > 0 {
		t.Errorf("%v, %d statements", err, len(tx.statements))
	}
}

func TestHeadersFromAreChecked(t *testing.T) {
	t.Parallel()
	tx := &fakeTx{rows: "1"}
	w := newWriter(t, outbox.HeadersFrom(func(context.Context) map[string]string {
		return map[string]string{"ce_" + secret: secret}
	}))
	_, err := w.Write(t.Context(), tx, valid())
	if !errors.Is(err, outbox.ErrHeader) || !strings.Contains(err.Error(), "headers from the context") ||
		strings.Contains(err.Error(), secret) || len(tx.statements) > 0 {
		t.Errorf("%v, %d statements", err, len(tx.statements))
	}
}

// Common headers and an event's own count together, and neither map changes.
func TestHeadersAreMerged(t *testing.T) {
	t.Parallel()
	common := map[string]string{"a": strings.Repeat("x", 1<<19), "b": "common"}
	own := map[string]string{"c": strings.Repeat("x", 1<<19)}
	w := newWriter(t, outbox.HeadersFrom(func(context.Context) map[string]string { return common }))
	withOwn := valid(func(e *outbox.Event) { e.Headers = own })
	if _, err := w.Write(t.Context(), &fakeTx{rows: "1"}, withOwn); !errors.Is(err, outbox.ErrTooLarge) {
		t.Errorf("over the limit together: %v", err)
	}
	own["a"], own["c"] = "own", "own"
	before := maps.Clone(common)
	if _, err := w.Write(t.Context(), &fakeTx{rows: "1"}, withOwn); err != nil {
		t.Errorf("the event's own one replaces the large one: %v", err)
	}
	if !maps.Equal(common, before) || len(own) != 2 {
		t.Error("a map of the caller's was changed")
	}
}

func TestNothingToWrite(t *testing.T) {
	t.Parallel()
	tx := &fakeTx{}
	ids, err := newWriter(t).Write(t.Context(), tx)
	if ids != nil || err != nil || len(tx.statements) > 0 {
		t.Errorf("%v, %v, %d statements", ids, err, len(tx.statements))
	}
}

func TestWithoutATransaction(t *testing.T) {
	t.Parallel()
	if _, err := newWriter(t).Write(t.Context(), nil, valid()); err == nil {
		t.Error("pgx: no error")
	}
	if _, err := newWriter(t).WriteSQL(t.Context(), nil, valid()); err == nil {
		t.Error("database/sql: no error")
	}
}

func TestErrorsOfTheDatabaseAreWrapped(t *testing.T) {
	t.Parallel()
	var answer *pgconn.PgError
	_, err := newWriter(t).Write(t.Context(), &fakeTx{err: &pgconn.PgError{Code: "42501"}}, valid())
	if !errors.As(err, &answer) || answer.Code != "42501" || !strings.HasPrefix(err.Error(), "writing to the outbox: ") {
		t.Errorf("got %v", err)
	}
}

// One statement serves any number of events, with parameters that every
// driver of database/sql takes.
func TestOneStatement(t *testing.T) {
	t.Parallel()
	tx := &fakeTx{rows: "1"}
	w := newWriter(t)
	if _, err := w.Write(t.Context(), tx, valid()); err != nil {
		t.Fatal(err)
	}
	tx.rows = "3"
	if _, err := w.Write(t.Context(), tx, valid(), valid(), valid()); err != nil {
		t.Fatal(err)
	}
	if len(tx.statements) != 2 || tx.statements[0] != tx.statements[1] {
		t.Errorf("statements: %q", tx.statements)
	}
	for i, arg := range tx.args[1] {
		if !driver.IsValue(arg) {
			t.Errorf("parameter %d is a %T", i+1, arg)
		}
	}
}

// The clock stands still in the bubble.
func TestIDsOfACallAscend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := make([]outbox.Event, 5000)
		for i := range events {
			events[i] = valid()
		}
		events[7].ID = outbox.ID{15: 1}
		ids, err := newWriter(t).Write(t.Context(), &fakeTx{rows: "5000"}, events...)
		if err != nil || len(ids) != len(events) {
			t.Fatalf("%d ids, %v", len(ids), err)
		}
		if ids[7] != events[7].ID {
			t.Errorf("the caller's id became %v", ids[7])
		}
		if !events[0].ID.IsZero() {
			t.Error("the caller's event was changed")
		}
		ids = append(ids[:7], ids[8:]...)
		for i := 1; i < len(ids); i++ {
			if bytes.Compare(ids[i-1][:], ids[i][:]) >= 0 {
				t.Fatalf("%v after %v", ids[i], ids[i-1])
			}
		}
	})
}

func TestOptions(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		opts []outbox.Option
		want string // a part of the statement, or of the error
		ok   bool
	}{
		"defaults":         {nil, `INSERT INTO "public"."outbox" ("event_id", "aggregate_type",`, true},
		"table":            {[]outbox.Option{outbox.Table("sales.Out box")}, `"sales"."Out box"`, true},
		"quotes":           {[]outbox.Option{outbox.Table(`sales.o"x`)}, `"sales"."o""x"`, true},
		"columns":          {[]outbox.Option{outbox.Columns(map[string]string{"topic": `to"pic`})}, `"content_type", "to""pic", "priority"`, true},
		"columns swapped":  {[]outbox.Option{outbox.Columns(map[string]string{"topic": "headers", "headers": "topic"})}, `"topic", "content_type", "headers"`, true},
		"largest payload":  {[]outbox.Option{outbox.MaxPayload(16 << 20)}, "", true},
		"no schema":        {[]outbox.Option{outbox.Table("outbox")}, "write schema.table", false},
		"no table":         {[]outbox.Option{outbox.Table("public.")}, "write schema.table", false},
		"long table":       {[]outbox.Option{outbox.Table("public." + strings.Repeat("a", 64))}, "write schema.table", false},
		"zero in table":    {[]outbox.Option{outbox.Table("public.a\x00")}, "write schema.table", false},
		"unknown column":   {[]outbox.Option{outbox.Columns(map[string]string{"key": "k"})}, `"key" is none of event_id, `, false},
		"relay's column":   {[]outbox.Option{outbox.Columns(map[string]string{"send_status": "s"})}, `"send_status" is none of`, false},
		"empty column":     {[]outbox.Option{outbox.Columns(map[string]string{"topic": ""})}, "the name for topic", false},
		"same column":      {[]outbox.Option{outbox.Columns(map[string]string{"topic": "headers"})}, `"headers" is given twice`, false},
		"no payload":       {[]outbox.Option{outbox.MaxPayload(0)}, "not 1 to 16777216", false},
		"too much payload": {[]outbox.Option{outbox.MaxPayload(16<<20 + 1)}, "not 1 to 16777216", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, err := outbox.NewWriter(test.opts...)
			if !test.ok {
				if w != nil || err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, %v, want %q", w, err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			tx := &fakeTx{rows: "1"}
			if _, err := w.Write(t.Context(), tx, valid()); err != nil || !strings.Contains(tx.statements[0], test.want) {
				t.Errorf("%v: %s", err, tx.statements)
			}
		})
	}
}
