package provider_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider/client"
)

// stub is a provider that serves, its client and what that received.
type stub struct {
	*provider.Server
	url    string
	client *client.Client

	mu       sync.Mutex
	received []client.Received
}

func setup(t *testing.T, cfg provider.Config) *stub {
	t.Helper()
	s := &stub{Server: provider.New(cfg)}
	web := httptest.NewServer(s.Server)
	t.Cleanup(func() {
		s.Reset() // ends what hangs
		web.Close()
	})
	s.url = web.URL
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c, err := client.New(web.URL, client.Observe(transport, func(r client.Received) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.received = append(s.received, r)
	}))
	if err != nil {
		t.Fatal(err)
	}
	s.client = c
	return s
}

func (s *stub) faults(t *testing.T, faults ...provider.Fault) {
	t.Helper()
	if err := s.SetFaults(faults...); err != nil {
		t.Fatal(err)
	}
}

// send returns the status, or 0 if there was no answer.
func (s *stub) send(ctx context.Context, key, attempt, body string) client.Answer {
	a, _ := s.client.Send(ctx, key, attempt, []byte(body))
	return a
}

// counts are the observations of both sides: accepted, answered, received.
func (s *stub) counts() [3]int {
	var n [3]int
	for _, o := range s.Log() {
		switch o.What {
		case provider.Accepted:
			n[0]++
		case provider.Answered:
			n[1]++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n[2] = len(s.received)
	return n
}

func TestKeys(t *testing.T) {
	t.Parallel()
	s := setup(t, provider.Config{})
	ctx := t.Context()
	for _, step := range []struct {
		name, key, body string
		want            client.Answer
	}{
		{"new", "k1", "hello", client.Answer{Status: 202, ID: "msg-1"}},
		{"repeated", "k1", "hello", client.Answer{Status: 202, ID: "msg-1", Replayed: true}},
		{"another body", "k1", "bye", client.Answer{Status: 422}},
		{"still the first", "k1", "hello", client.Answer{Status: 202, ID: "msg-1", Replayed: true}},
		{"another key, same body", "k2", "hello", client.Answer{Status: 202, ID: "msg-2"}},
	} {
		if diff := cmp.Diff(step.want, s.send(ctx, step.key, step.name, step.body)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", step.name, diff)
		}
	}
	want := []provider.Message{{ID: "msg-1", Key: "k1", Body: "hello"}, {ID: "msg-2", Key: "k2", Body: "hello"}}
	if diff := cmp.Diff(want, s.Mailbox()); diff != "" {
		t.Errorf("mailbox (-want +got)\n%s", diff)
	}
}

func TestBothObserversJoinOnTheAttempt(t *testing.T) {
	t.Parallel()
	s := setup(t, provider.Config{})
	s.send(t.Context(), "k", "a1", "hello")
	s.send(t.Context(), "k", "a2", "hello")
	s.send(t.Context(), "k", "a3", "bye")
	digest := "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"  // sha256sum of hello
	another := "b49f425a7e1f9cff3856329ada223f2f9d368f15a00cf48df16ca95986137fe8" // and of bye
	want := []provider.Observation{
		{What: provider.Accepted, Attempt: "a1", Key: "k", Digest: digest, Message: "msg-1"},
		{What: provider.Answered, Attempt: "a1", Key: "k", Digest: digest, Message: "msg-1", Status: 202},
		{What: provider.Accepted, Attempt: "a2", Key: "k", Digest: digest, Message: "msg-1", Replayed: true},
		{What: provider.Answered, Attempt: "a2", Key: "k", Digest: digest, Message: "msg-1", Replayed: true, Status: 202},
		{What: provider.Answered, Attempt: "a3", Key: "k", Digest: another, Status: 422},
	}
	if diff := cmp.Diff(want, s.Log()); diff != "" {
		t.Errorf("log (-want +got)\n%s", diff)
	}
	received := []client.Received{
		{Attempt: "a1", Key: "k", Method: "POST", Status: 202},
		{Attempt: "a2", Key: "k", Method: "POST", Status: 202, Replayed: true},
		{Attempt: "a3", Key: "k", Method: "POST", Status: 422},
	}
	if diff := cmp.Diff(received, s.received); diff != "" {
		t.Errorf("received (-want +got)\n%s", diff)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		fault  provider.Fault
		first  client.Answer // zero: none
		second client.Answer // of the same request, after the fault
		counts [3]int        // accepted, answered, received
	}{
		{"refuse", provider.Fault{Do: provider.Refuse, Times: 1},
			client.Answer{}, client.Answer{Status: 202, ID: "msg-1"}, [3]int{1, 1, 1}},
		{"accept, then reset", provider.Fault{Do: provider.AcceptReset, Times: 1},
			client.Answer{}, client.Answer{Status: 202, ID: "msg-1", Replayed: true}, [3]int{2, 1, 1}},
		{"accept, then hang for a while", provider.Fault{Do: provider.AcceptHang, Times: 1, Milliseconds: 1},
			client.Answer{Status: 202, ID: "msg-1"}, client.Answer{Status: 202, ID: "msg-1", Replayed: true}, [3]int{2, 2, 2}},
		{"500 before", provider.Fault{Do: provider.Status, Status: 500, Times: 1},
			client.Answer{Status: 500}, client.Answer{Status: 202, ID: "msg-1"}, [3]int{1, 2, 2}},
		{"500 after is stored", provider.Fault{Do: provider.Status, Status: 500, AfterAccept: true, Times: 1},
			client.Answer{Status: 500, ID: "msg-1"}, client.Answer{Status: 500, ID: "msg-1", Replayed: true}, [3]int{2, 2, 2}},
		{"400 before", provider.Fault{Do: provider.Status, Status: 400, Times: 1},
			client.Answer{Status: 400}, client.Answer{Status: 202, ID: "msg-1"}, [3]int{1, 2, 2}},
		{"slow", provider.Fault{Do: provider.Slow, Times: 1, Milliseconds: 1},
			client.Answer{Status: 202, ID: "msg-1"}, client.Answer{Status: 202, ID: "msg-1", Replayed: true}, [3]int{2, 2, 2}},
		{"throttle", provider.Fault{Do: provider.Throttle, Times: 1, Milliseconds: 1001},
			client.Answer{Status: 429, RetryAfter: 2 * time.Second}, client.Answer{Status: 202, ID: "msg-1"}, [3]int{1, 2, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, provider.Config{})
			s.faults(t, tc.fault)
			if diff := cmp.Diff(tc.first, s.send(t.Context(), "k", "a1", "hello")); diff != "" {
				t.Errorf("first (-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tc.second, s.send(t.Context(), "k", "a2", "hello")); diff != "" {
				t.Errorf("second (-want +got)\n%s", diff)
			}
			if got := s.counts(); got != tc.counts {
				t.Errorf("accepted, answered, received: %v, want %v", got, tc.counts)
			}
			if n := len(s.Mailbox()); n != 1 {
				t.Errorf("%d messages, want 1", n)
			}
		})
	}
}

// A connection that was used before and is reset is a reason for Go's transport
// to send a request again by itself.
func TestAResetOfAUsedConnectionIsOneAttempt(t *testing.T) {
	t.Parallel()
	s := setup(t, provider.Config{})
	s.send(t.Context(), "k1", "a1", "hello")
	s.faults(t, provider.Fault{Do: provider.AcceptReset, Times: 1})
	if a, err := s.client.Send(t.Context(), "k2", "a2", []byte("hello")); err == nil {
		t.Errorf("an answer came: %+v", a)
	}
	if got := s.counts(); got != [3]int{2, 1, 1} {
		t.Errorf("accepted, answered, received: %v", got)
	}
}

// awaitLog waits for n observations of a kind.
func (s *stub) awaitLog(t *testing.T, what provider.Event, n int) {
	t.Helper()
	tick, deadline := time.NewTicker(time.Millisecond), time.After(time.Minute)
	defer tick.Stop()
	for {
		got := 0
		for _, o := range s.Log() {
			if o.What == what {
				got++
			}
		}
		if got >= n {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d times %s, want %d", got, what, n)
		}
	}
}

func TestAHangEndsWithItsClient(t *testing.T) {
	t.Parallel()
	s := setup(t, provider.Config{})
	s.faults(t, provider.Fault{Do: provider.AcceptHang, Times: 1})
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := s.client.Send(ctx, "k", "a1", []byte("hello"))
		ended <- err
	}()
	s.awaitLog(t, provider.Accepted, 1)
	if a := s.send(t.Context(), "k", "a2", "hello"); a.Status != 202 || !a.Replayed {
		t.Errorf("while the first answer hangs: %+v, want the stored one", a)
	}
	leave()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if got := s.counts(); got != [3]int{2, 1, 1} {
		t.Errorf("accepted, answered, received: %v", got)
	}
}

func TestAResetEndsWhatHangs(t *testing.T) {
	t.Parallel()
	s := setup(t, provider.Config{})
	s.faults(t, provider.Fault{Do: provider.AcceptHang})
	ended := make(chan error)
	go func() {
		_, err := s.client.Send(t.Context(), "k", "a1", []byte("hello"))
		ended <- err
	}()
	s.awaitLog(t, provider.Accepted, 1)
	s.Reset()
	if err := <-ended; err == nil {
		t.Error("an answer came")
	}
	if len(s.Log()) != 0 || len(s.Mailbox()) != 0 {
		t.Errorf("left: %v, %v", s.Log(), s.Mailbox())
	}
	if a := s.send(t.Context(), "k", "a2", "hello"); a.Status != 202 || a.Replayed {
		t.Errorf("after the reset: %+v, want a new message without the fault", a)
	}
}

// call sends a message without a network, for tests in a bubble. The status is 0
// if the connection would have been cut.
func call(ctx context.Context, s *provider.Server, key, body string) (status int) {
	r := httptest.NewRequest("POST", "/v1/messages", strings.NewReader(body)).WithContext(ctx)
	r.Header.Set(provider.HeaderKey, key)
	w := httptest.NewRecorder()
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			panic(p)
		}
	}()
	s.ServeHTTP(w, r)
	return w.Code
}

func TestARunningKey(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := provider.New(provider.Config{})
		if err := s.SetFaults(provider.Fault{Do: provider.Slow, Times: 1, Milliseconds: 5000}); err != nil {
			t.Fatal(err)
		}
		start, status := time.Now(), make(chan int)
		go func() { status <- call(t.Context(), s, "k", "hello") }()
		synctest.Wait()
		if got := call(t.Context(), s, "k", "hello"); got != 409 {
			t.Errorf("the same key: %d, want 409", got)
		}
		if got := call(t.Context(), s, "k", "bye"); got != 422 {
			t.Errorf("the same key, another body: %d, want 422", got)
		}
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest("GET", "/v1/messages?key=k", nil))
		if w.Code != 409 {
			t.Errorf("asked for: %d, want 409", w.Code)
		}
		if got, took := <-status, time.Since(start); got != 202 || took != 5*time.Second {
			t.Errorf("the first: %d after %v, want 202 after 5 s", got, took)
		}
	})
}

func TestAClientThatLeavesASlowRequestLeavesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := provider.New(provider.Config{})
		if err := s.SetFaults(provider.Fault{Do: provider.Slow, Times: 1, Milliseconds: 5000}); err != nil {
			t.Fatal(err)
		}
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { call(ctx, s, "k", "hello"); close(done) }()
		synctest.Wait()
		leave()
		<-done
		if n := len(s.Log()); n != 0 {
			t.Errorf("%d observations, want none", n)
		}
		if got := call(t.Context(), s, "k", "bye"); got != 202 {
			t.Errorf("the key is still taken: %d", got)
		}
	})
}

func TestKeysAreForgottenMessagesAreNot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := provider.New(provider.Config{TTL: time.Hour})
		call(t.Context(), s, "k", "hello")
		<-time.After(time.Hour - time.Nanosecond) // of the bubble
		call(t.Context(), s, "k", "hello")
		if n := len(s.Mailbox()); n != 1 {
			t.Fatalf("%d messages before the hour is over, want 1", n)
		}
		<-time.After(time.Nanosecond)
		call(t.Context(), s, "k", "hello")
		if n := len(s.Mailbox()); n != 2 {
			t.Errorf("%d messages after an hour, want 2: the key is forgotten", n)
		}
	})
}

func TestFind(t *testing.T) {
	t.Parallel()
	s := setup(t, provider.Config{})
	s.send(t.Context(), "k", "a1", "hello")
	for _, tc := range []struct {
		key  string
		want client.Answer
	}{
		{"k", client.Answer{Status: 200, ID: "msg-1"}},
		{"another", client.Answer{Status: 404}},
	} {
		a, err := s.client.Find(t.Context(), tc.key, "q-"+tc.key)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tc.want, a); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", tc.key, diff)
		}
	}
	want := []provider.Observation{
		{What: provider.Asked, Attempt: "q-k", Key: "k", Message: "msg-1", Status: 200},
		{What: provider.Asked, Attempt: "q-another", Key: "another", Status: 404},
	}
	asked := cmpopts.IgnoreSliceElements(func(o provider.Observation) bool { return o.What != provider.Asked })
	if diff := cmp.Diff(want, s.Log(), asked); diff != "" {
		t.Errorf("log (-want +got)\n%s", diff)
	}
}

func TestWhichRequestsAFaultMeets(t *testing.T) {
	t.Parallel()
	s := setup(t, provider.Config{})
	s.faults(t,
		provider.Fault{Match: "ada", Nth: 2, Times: 2, Do: provider.Status, Status: 500},
		provider.Fault{Match: "k6", Do: provider.Status, Status: 503},
		provider.Fault{Nth: 8, Do: provider.Status, Status: 400},
		provider.Fault{Match: "k6", Do: provider.Status, Status: 418}, // comes after another one
	)
	for i, tc := range []struct {
		body string
		want int
	}{
		{"ada", 202}, {"bob", 202}, {"ada", 500}, {"ada", 500}, {"ada", 202}, {"bob", 503}, {"bob", 202}, {"bob", 400}, {"ada", 400},
	} {
		key := fmt.Sprintf("k%d", i+1)
		if a := s.send(t.Context(), key, "", tc.body); a.Status != tc.want {
			t.Errorf("request %d: %d, want %d", i+1, a.Status, tc.want)
		}
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		cfg    provider.Config
		second string // body
	}{
		{"messages", provider.Config{MaxMessages: 1}, "x"},
		{"bytes", provider.Config{MaxBytes: 8}, "hello"},
		{"log", provider.Config{MaxLog: 3}, "x"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := setup(t, tc.cfg)
			if a := s.send(t.Context(), "k1", "a1", "hello"); a.Status != 202 {
				t.Fatalf("first: %+v", a)
			}
			if a := s.send(t.Context(), "k2", "a2", tc.second); a.Status != 507 {
				t.Errorf("second: %+v, want 507", a)
			}
			if n := len(s.Mailbox()); n != 1 {
				t.Errorf("%d messages, want 1", n)
			}
			want := 202 // needs no room but in the log
			if tc.cfg.MaxLog > 0 {
				want = 507
			}
			if a := s.send(t.Context(), "k1", "a3", "hello"); a.Status != want {
				t.Errorf("first again: %+v, want %d", a, want)
			}
			s.Reset()
			if a := s.send(t.Context(), "k2", "a2", tc.second); a.Status != 202 {
				t.Errorf("after a reset: %+v", a)
			}
		})
	}
}

func TestRefusedRequests(t *testing.T) {
	t.Parallel()
	s := setup(t, provider.Config{})
	for _, tc := range []struct {
		name, key, attempt, body string
		want                     int
	}{
		{"no key", "", "a", "hello", 400},
		{"long key", strings.Repeat("k", 256), "a", "hello", 400},
		{"long attempt id", "k", strings.Repeat("a", 256), "hello", 400},
		{"large body", "k", "a", strings.Repeat("x", 64<<10+1), 413},
		{"largest body", "k", "a", strings.Repeat("x", 64<<10), 202},
	} {
		if a := s.send(t.Context(), tc.key, tc.attempt, tc.body); a.Status != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, a.Status, tc.want)
		}
	}
}
