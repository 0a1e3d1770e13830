package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/examples/notification/mailer"
	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider/client"
	"github.com/cdc-relay/cdc-relay/examples/notification/users"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// Some users register at the notification example, which has them get an e-mail.
// Its provider refuses one with a 500, and accepts one without an answer.
const (
	userType      = users.AggregateType
	registrations = 8
)

func address(user int) string { return fmt.Sprintf("user-%d@example.com", user) }

var faults = []provider.Fault{
	{Match: address(1), Do: provider.Status, Status: http.StatusInternalServerError, Times: 1},
	{Match: address(2), Do: provider.AcceptReset, Times: 1},
}

// site is the notification example: its API and the stand-in for a provider,
// both behind HTTP, and the handler of its consumer.
type site struct {
	w        *world
	stub     *provider.Server
	api      *web
	provider *web
	mailer   *mailer.Mailer
	events   []check.Event // of the registrations

	mu       sync.Mutex
	received map[string]bool // attempts whose answer came
}

// newSite returns what it has made even if it fails, to be closed.
func newSite(ctx context.Context, w *world) (s *site, err error) {
	s = &site{w: w, stub: provider.New(provider.Config{}), received: map[string]bool{}}
	if err := s.stub.SetFaults(faults...); err != nil {
		return s, err
	}
	if _, err := w.pool.Exec(ctx, users.Schema); err != nil {
		return s, fmt.Errorf("making the table of users: %w", err)
	}
	key := make([]byte, 32)
	rand.Read(key)
	ring, err := notice.ParseRing("demo:" + base64.StdEncoding.EncodeToString(key))
	if err != nil {
		return s, err
	}
	writer, err := outbox.NewWriter()
	if err != nil {
		return s, err
	}
	if s.api, err = serve(ctx, users.New(w.pool, writer, ring, slog.New(slog.NewTextHandler(w.log, nil)))); err != nil {
		return s, err
	}
	if s.provider, err = serve(ctx, s.stub); err != nil {
		return s, err
	}
	c, err := client.New(s.provider.url, client.Observe(&http.Transport{}, s.note))
	if err != nil {
		return s, err
	}
	s.mailer = mailer.New(ring, c)
	return s, nil
}

// note is what the client of the provider has observed.
func (s *site) note(r client.Received) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received[r.Attempt] = true
}

// got reports whether the answer of an attempt came.
func (s *site) got(attempt string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received[attempt]
}

// register lets the users register, and records their events.
func (s *site) register(ctx context.Context) error {
	for user := range registrations {
		asked := time.Now()
		if err := s.post(ctx, "/users", http.StatusAccepted, map[string]string{"email": address(user)}); err != nil {
			return fmt.Errorf("registering a user: %w", err)
		}
		e := check.Event{Aggregate: check.Aggregate{Type: userType}}
		err := s.w.pool.QueryRow(ctx, `SELECT id, event_id, aggregate_id FROM `+table+` WHERE aggregate_type = $1 ORDER BY id DESC LIMIT 1`,
			userType).Scan(&e.ID, &e.EventID, &e.Aggregate.ID)
		if err != nil {
			return fmt.Errorf("reading the event of a registration: %w", err)
		}
		s.w.history.Add([]check.Event{e}, 0, asked)
		s.events = append(s.events, e)
	}
	return nil
}

// post calls the API.
func (s *site) post(ctx context.Context, path string, want int, fields map[string]string) error {
	body, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.api.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != want {
		return &statusError{path, resp.StatusCode, want}
	}
	return nil
}

// statusError is an answer of the API that was not expected.
type statusError struct {
	path      string
	got, want int
}

func (e *statusError) Error() string {
	return fmt.Sprintf("POST %s: status %d, not %d", e.path, e.got, e.want)
}

// close ends both servers.
func (s *site) close() error { return errors.Join(s.api.close(), s.provider.close()) }

// web is an HTTP server on a free port of this machine.
type web struct {
	url    string
	server *http.Server
	ended  chan error
}

func serve(ctx context.Context, handler http.Handler) (*web, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	s := &web{
		url: "http://" + listener.Addr().String(), server: &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute},
		ended: make(chan error, 1),
	}
	go func() { s.ended <- s.server.Serve(listener) }()
	return s, nil
}

// close cuts what is open. A server that was never made has nothing to close.
func (s *web) close() error {
	if s == nil {
		return nil
	}
	err := s.server.Close()
	if ended := <-s.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
