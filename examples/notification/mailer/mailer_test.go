package mailer_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/examples/notification/mailer"
	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider/client"
	"github.com/cdc-relay/cdc-relay/examples/notification/templates"
	"github.com/cdc-relay/cdc-relay/outbox"
)

const (
	address = "ada@example.com"
	token   = "c2VjcmV0IHRva2Vu"
	theKey  = "k:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)

// transport answers requests without a network.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func newMailer(t *testing.T, keys string, f transport) *mailer.Mailer {
	t.Helper()
	ring, err := notice.ParseRing(keys)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New("http://provider.invalid", f)
	if err != nil {
		t.Fatal(err)
	}
	return mailer.New(ring, c)
}

// event is one that asks for an e-mail; change may spoil the notice.
func event(t *testing.T, change func(*notice.Notice)) *consumer.Event {
	t.Helper()
	ring, err := notice.ParseRing(theKey)
	if err != nil {
		t.Fatal(err)
	}
	n := notice.Notice{
		Purpose: mailer.Purpose, Template: templates.Current, Locale: "en", To: address, Token: token,
		Expires: time.Now().Add(time.Hour),
	}
	if change != nil {
		change(&n)
	}
	ev := &consumer.Event{ID: outbox.NewID(), Time: time.Now(), Attempt: 1}
	if ev.Payload, err = ring.Seal(ev.ID, n); err != nil {
		t.Fatal(err)
	}
	return ev
}

// answers returns these statuses one after the other.
func answers(statuses ...int) transport {
	return func(*http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		w.WriteHeader(statuses[0])
		statuses = statuses[1:]
		return w.Result(), nil
	}
}

// verdict makes the kit's error around one that is not known beforehand.
type verdict func(error) error

func data(code string) verdict {
	return func(err error) error { return consumer.DataError(code, err) }
}

// expect checks that err is what the verdict makes, and shows nothing secret.
func expect(t *testing.T, err error, want verdict) {
	t.Helper()
	if want == nil {
		if err != nil {
			t.Errorf("error %v, want none", err)
		}
		return
	}
	if err == nil {
		t.Fatal("no error")
	}
	if !reflect.DeepEqual(err, want(errors.Unwrap(err))) {
		t.Errorf("error %#v, want %#v", err, want(errors.Unwrap(err)))
	}
	for _, secret := range []string{address, "ada", token} {
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%q is in the error %q", secret, err)
		}
	}
}

// noAddress makes it an event for "no address", which nobody can seal here: see
// the vectors of package notice.
func noAddress(ev *consumer.Event) {
	ev.ID, _ = outbox.ParseID("0192a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
	ev.Payload = []byte(`{"v":1,"kid":"2026-11","purpose":"verify_email","tpl":"verify_email@3","locale":"en","sealed":` +
		`"ZGVmZ2hpamtsbW5vMzmqCVvTdPBRQj6MvhcPjjHgKij_A5gXyfOWap_knDrOvnTiYDD-fI3RQg7Ke_n_K2uo1xA3cr5SpJ26cnue3GRD8lWYRw"}`)
}

func TestWhatIsWrongWithAnEvent(t *testing.T) {
	t.Parallel()
	minute := func(n int) time.Duration { return time.Duration(n) * time.Minute }
	field := func(name string, value any) func(*consumer.Event) {
		return func(ev *consumer.Event) {
			var fields map[string]any
			if err := json.Unmarshal(ev.Payload, &fields); err != nil {
				panic(err)
			}
			fields[name] = value
			ev.Payload, _ = json.Marshal(fields)
		}
	}
	for _, tc := range []struct {
		name   string
		notice func(*notice.Notice)
		event  func(*consumer.Event)
		age    time.Duration
		want   verdict
	}{
		{name: "no JSON", event: func(ev *consumer.Event) { ev.Payload = []byte(`{"to":"ada@example.com"`) }, want: data("APP_PAYLOAD")},
		{name: "empty", event: func(ev *consumer.Event) { ev.Payload = []byte{} }, want: data("APP_PAYLOAD")},
		{name: "a tombstone", event: func(ev *consumer.Event) { ev.Payload, ev.Tombstone = nil, true }, want: data("APP_PAYLOAD")},
		{name: "another purpose", notice: func(n *notice.Notice) { n.Purpose = "reset_password" }, want: data("APP_PURPOSE")},
		{name: "another event's", event: func(ev *consumer.Event) { ev.ID = outbox.NewID() }, want: data("APP_SEAL")},
		{name: "no address", event: noAddress, want: data("APP_ADDRESS")},
		{name: "expired", age: minute(60), want: data("APP_EXPIRED")},
		{name: "a key that is new", event: field("kid", "next"), age: minute(15) - 1, want: consumer.SystemError},
		{name: "a key that nobody knows", event: field("kid", "next"), age: minute(15), want: data("APP_KEY")},
		{name: "a format that is new", event: field("v", 2), age: minute(15) - 1, want: consumer.SystemError},
		{name: "a format that nobody knows", event: field("v", 2), age: minute(15), want: data("APP_VERSION")},
		{name: "a template that is new", event: field("tpl", "verify_email@99"), age: minute(15) - 1, want: consumer.SystemError},
		{name: "a template that nobody knows", event: field("tpl", "verify_email@99"), age: minute(15), want: data("APP_TEMPLATE")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ev := event(t, tc.notice)
				if tc.event != nil {
					tc.event(ev)
				}
				<-time.After(tc.age)
				m := newMailer(t, theKey+",2026-11:"+strings.TrimPrefix(theKey, "k:"), func(*http.Request) (*http.Response, error) {
					t.Error("the provider was called")
					return nil, io.ErrUnexpectedEOF
				})
				expect(t, m.Handle(t.Context(), ev), tc.want)
			})
		})
	}
}

func TestWhatAnAnswerMeans(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		want   verdict
	}{
		{200, nil}, {202, nil},
		{302, data("APP_REFUSED")}, {400, data("APP_REFUSED")}, {404, data("APP_REFUSED")},
		{409, consumer.Ambiguous}, {500, consumer.Ambiguous}, {503, consumer.Ambiguous},
		{422, consumer.InDoubt},
		{429, func(err error) error { return consumer.Delay(time.Minute, err) }},
	} {
		t.Run(http.StatusText(tc.status), func(t *testing.T) {
			t.Parallel()
			m := newMailer(t, theKey, answers(tc.status))
			expect(t, m.Handle(t.Context(), event(t, nil)), tc.want)
		})
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	t.Parallel()
	m := newMailer(t, theKey, func(*http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		return w.Result(), nil
	})
	expect(t, m.Handle(t.Context(), event(t, nil)), func(err error) error { return consumer.Delay(7*time.Second, err) })
}

func TestNoAnswer(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		err  error
		want verdict
	}{
		{"no connection", &net.OpError{Op: "dial", Err: errors.New("connection refused")}, consumer.SystemError},
		{"cut", &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}, consumer.Ambiguous},
		{"late", context.DeadlineExceeded, consumer.Ambiguous},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			m := newMailer(t, theKey, func(*http.Request) (*http.Response, error) { return nil, tc.err })
			err := m.Handle(t.Context(), event(t, nil))
			expect(t, err, tc.want)
			if !errors.Is(err, tc.err) {
				t.Errorf("error %v does not wrap %v", err, tc.err)
			}
		})
	}
}

func TestAContextThatEndedBeforeTheCall(t *testing.T) {
	t.Parallel()
	m := newMailer(t, theKey, func(*http.Request) (*http.Response, error) {
		t.Error("the provider was called")
		return nil, io.ErrUnexpectedEOF
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Handle(ctx, event(t, nil)); !errors.Is(err, consumer.ErrNotStarted) {
		t.Errorf("error %v", err)
	}
}

// A provider that has stored an error gives it again and again.
func TestAStoredErrorIsForAPerson(t *testing.T) {
	t.Parallel()
	stub := provider.New(provider.Config{})
	if err := stub.SetFaults(provider.Fault{Do: provider.Status, Status: 500, AfterAccept: true}); err != nil {
		t.Fatal(err)
	}
	m := newMailer(t, theKey, serve(stub))
	one, other := event(t, nil), event(t, nil)
	for i, want := range []verdict{
		consumer.Ambiguous,                                       // the answer itself
		consumer.Ambiguous, consumer.Ambiguous, consumer.InDoubt, // its repetitions
		consumer.Ambiguous, consumer.Ambiguous, consumer.InDoubt, // a person asked for it again
	} {
		expect(t, m.Handle(t.Context(), one), want)
		if i < 2 { // another event has a count of its own
			expect(t, m.Handle(t.Context(), other), consumer.Ambiguous)
		}
	}
}

// Three errors are not three times the same one.
func TestStoredErrorsInBetween(t *testing.T) {
	t.Parallel()
	script := []struct {
		status   int
		replayed bool
	}{{500, true}, {500, true}, {503, true}, {503, true}, {409, false}, {503, true}, {503, true}, {503, true}}
	m := newMailer(t, theKey, func(*http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		if script[0].replayed {
			w.Header().Set(provider.HeaderReplayed, "true")
		}
		w.WriteHeader(script[0].status)
		script = script[1:]
		return w.Result(), nil
	})
	ev := event(t, nil)
	for len(script) > 1 {
		expect(t, m.Handle(t.Context(), ev), consumer.Ambiguous)
	}
	expect(t, m.Handle(t.Context(), ev), consumer.InDoubt)
}

// serve runs a handler without a network.
func serve(h http.Handler) transport {
	return func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result(), nil
	}
}

func TestAttemptsHaveOneKeyAndOneBody(t *testing.T) {
	t.Parallel()
	stub := provider.New(provider.Config{})
	if err := stub.SetFaults(provider.Fault{Do: provider.Status, Status: 500, Times: 1}); err != nil {
		t.Fatal(err)
	}
	ev := event(t, nil)
	expect(t, newMailer(t, theKey, serve(stub)).Handle(t.Context(), ev), consumer.Ambiguous)
	ev.Attempt = 2
	for range 2 { // other processes
		expect(t, newMailer(t, theKey, serve(stub)).Handle(t.Context(), ev), nil)
	}
	var attempts []string
	for _, o := range stub.Log() {
		if o.Key != ev.ID.String()+":verify_email" {
			t.Errorf("key %s", o.Key)
		}
		if o.What == provider.Answered {
			attempts = append(attempts, o.Attempt)
		}
	}
	if slices.Sort(attempts); len(slices.Compact(attempts)) != 3 {
		t.Errorf("attempt ids %v, want three", attempts)
	}
	mailbox := stub.Mailbox()
	if len(mailbox) != 1 {
		t.Fatalf("%d e-mails, want 1", len(mailbox))
	}
	var message struct{ To, Text string }
	if err := json.Unmarshal([]byte(mailbox[0].Body), &message); err != nil {
		t.Fatal(err)
	}
	if message.To != address || !strings.Contains(message.Text, token) {
		t.Errorf("e-mail %+v", message)
	}
}

func TestFound(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		answer transport
		want   consumer.Found
		fails  bool
	}{
		{"present", answers(200), consumer.Present, false},
		{"absent", answers(404), consumer.Absent, false},
		{"running", answers(409), consumer.Unknown, false},
		{"broken", answers(500), consumer.Unknown, false},
		{"no answer", func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, consumer.Unknown, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := newMailer(t, theKey, tc.answer).Found(t.Context(), event(t, nil))
			if got != tc.want || (err != nil) != tc.fails {
				t.Errorf("%v, error %v", got, err)
			}
		})
	}
}

func TestFoundAsksForTheKeyOfHandle(t *testing.T) {
	t.Parallel()
	stub := provider.New(provider.Config{})
	m, ev := newMailer(t, theKey, serve(stub)), event(t, nil)
	var got []consumer.Found
	for _, send := range []bool{false, true} {
		if send {
			expect(t, m.Handle(t.Context(), ev), nil)
		}
		found, err := m.Found(t.Context(), ev)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, found)
	}
	if diff := cmp.Diff([]consumer.Found{consumer.Absent, consumer.Present}, got); diff != "" {
		t.Errorf("before and after (-want +got)\n%s", diff)
	}
}
