package client_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cdc-relay/cdc-relay/examples/notification/provider/client"
)

func TestNewRefusesWhatIsNoAddress(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "localhost:8025", "ftp://localhost", "http://", "http://\x00"} {
		if _, err := client.New(address, http.DefaultTransport); err == nil {
			t.Errorf("%q: no error", address)
		}
	}
}

// setup is a client of a server with this handler, and how many answers it has
// received.
func setup(t *testing.T, handler http.HandlerFunc) (*client.Client, *int) {
	t.Helper()
	web := httptest.NewServer(handler)
	t.Cleanup(web.Close)
	received, transport := new(int), &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	c, err := client.New(web.URL, client.Observe(transport, func(client.Received) { *received++ }))
	if err != nil {
		t.Fatal(err)
	}
	return c, received
}

func TestHalfAnAnswerIsNotReceived(t *testing.T) {
	t.Parallel()
	c, received := setup(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusAccepted)
		w.Write([]byte(`{"id":`))
	})
	if a, err := c.Send(t.Context(), "k", "a", nil); err == nil {
		t.Errorf("answer %+v, want an error", a)
	}
	if *received != 0 {
		t.Error("it was observed as received")
	}
}

func TestErrorsNameNoKey(t *testing.T) {
	t.Parallel()
	c, _ := setup(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, sent := c.Send(ctx, "a-key", "a", nil)
	_, asked := c.Find(ctx, "a-key", "a")
	for _, err := range []error{sent, asked} {
		if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "a-key") {
			t.Errorf("error %q, want a canceled context and no key", err)
		}
	}
}

func TestRedirectsAreAnswers(t *testing.T) {
	t.Parallel()
	calls := 0
	c, _ := setup(t, func(w http.ResponseWriter, r *http.Request) {
		calls++
		http.Redirect(w, r, "/elsewhere", http.StatusFound)
	})
	if a, err := c.Send(t.Context(), "k", "a", nil); err != nil || a.Status != http.StatusFound || calls != 1 {
		t.Errorf("answer %+v, error %v after %d calls; want 302 after 1", a, err, calls)
	}
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		header string
		want   time.Duration
	}{
		{"", 0}, {"0", 0}, {"7", 7 * time.Second}, {"-1", 0}, {"1.5", 0},
		{"Wed, 21 Oct 2026 07:28:00 GMT", 0}, {"86400", 24 * time.Hour}, {"999999999", 24 * time.Hour},
	} {
		c, _ := setup(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", tc.header)
			w.WriteHeader(http.StatusTooManyRequests)
		})
		a, err := c.Send(t.Context(), "k", "a", nil)
		if err != nil {
			t.Fatal(err)
		}
		if a.RetryAfter != tc.want {
			t.Errorf("%q: %v, want %v", tc.header, a.RetryAfter, tc.want)
		}
	}
}
