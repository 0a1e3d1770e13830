// Package monitor shows the outside what the relay is doing.
//
// Server answers GET and HEAD on one listener: /statusz with the state of the
// line and the metrics in one JSON document, /metrics with the metrics for
// Prometheus, and /livez, /readyz and /startupz with 200 or 503 and the checks
// behind that. Health is judged by pure functions from what the parts tell of
// their progress, not from process life (G8): what is not known is never ok.
//
// It owns the listener and its goroutines, changes nothing and never touches
// PostgreSQL or Kafka, so it answers whatever their state is. Bodies hold no
// address, DSN, key or payload: what is wrong is told by the id of a check, a
// sentence in which addresses are hidden, and a remedy.
package monitor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits that keep a slow or hostile client from holding the server.
const (
	readTimeout     = 10 * time.Second
	writeTimeout    = 10 * time.Second
	idleTimeout     = time.Minute
	shutdownTimeout = 2 * time.Second
	maxHeaderBytes  = 16 << 10
)

// Options is what a Server needs; all fields but Hidden are required.
type Options struct {
	// Listen is host:port; port 0 takes a free one.
	Listen string
	// Pipeline is the name of this line in answers.
	Pipeline string
	// Status tells the state of the line. It is called for every request, by
	// several goroutines at once, and must not block.
	Status func() Status
	// Health tells how the parts are, under the same conditions.
	Health func() Health
	Limits Limits
	// Metrics is the registry of this process.
	Metrics prometheus.Gatherer
	// Hidden are addresses that a sentence may hold; they are shown as ***.
	Hidden []string
	Log    *slog.Logger
}

// Server is the HTTP listener.
type Server struct {
	options  Options
	hide     *strings.Replacer
	listened chan struct{} // closed when addr is decided
	addr     net.Addr
}

// New checks the options. It does not listen yet.
func New(o Options) (*Server, error) {
	if _, _, err := net.SplitHostPort(o.Listen); err != nil {
		return nil, errors.New("http.listen is not host:port; write it as 127.0.0.1:8470")
	}
	if o.Status == nil || o.Health == nil || o.Metrics == nil || o.Log == nil {
		return nil, errors.New("monitor needs a status, health, metrics and a logger")
	}
	if o.Limits.StallAfter <= 0 || o.Limits.Lease <= 0 || o.Limits.Beat <= 0 {
		return nil, errors.New("monitor needs positive limits")
	}
	return &Server{options: o, hide: hider(o.Hidden), listened: make(chan struct{})}, nil
}

// hider replaces each text of hidden. Where one begins another, the longer
// one counts.
func hider(hidden []string) *strings.Replacer {
	sorted := slices.Clone(hidden)
	slices.SortFunc(sorted, func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, text := range sorted {
		if text != "" {
			pairs = append(pairs, text, "***")
		}
	}
	return strings.NewReplacer(pairs...)
}

// Addr waits until Run listens and returns the address, nil if that failed.
func (s *Server) Addr() net.Addr {
	<-s.listened
	return s.addr
}

// Run listens and answers until ctx ends, then lets answers that are under way
// finish. It is called once. An error says that the address cannot be listened
// on, or that the listener broke.
func (s *Server) Run(ctx context.Context) error {
	listener, err := s.listen(ctx)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:        s.handler(),
		ReadTimeout:    readTimeout,
		WriteTimeout:   writeTimeout,
		IdleTimeout:    idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(s.options.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serving http: %w", err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if server.Shutdown(ending) != nil {
		server.Close() // a client that takes its time is cut off
	}
	<-served
	return nil
}

func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	defer close(s.listened)
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.options.Listen)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listening on %s: the address is in use; stop the process that uses it, or set http.listen to a free port", s.options.Listen)
	case err != nil:
		return nil, fmt.Errorf("listening on %s: %w; correct http.listen", s.options.Listen, err)
	}
	s.addr = listener.Addr()
	return listener, nil
}

// handler serves the paths with the rules that hold for all of them.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/statusz", s.statusz)
	mux.Handle("/metrics", promhttp.HandlerFor(s.options.Metrics, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(s.options.Log.Handler(), slog.LevelWarn),
		ErrorHandling: promhttp.ContinueOnError, // one broken metric hides no other
	}))
	mux.Handle("/livez", s.health(Live))
	mux.Handle("/readyz", s.health(Ready))
	mux.Handle("/startupz", s.health(Started))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD", http.StatusMethodNotAllowed)
			return
		}
		mux.ServeHTTP(w, r)
	})
}
