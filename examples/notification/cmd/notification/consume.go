package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/consumer"
	"github.com/cdc-relay/cdc-relay/examples/notification/mailer"
	"github.com/cdc-relay/cdc-relay/examples/notification/notice"
	"github.com/cdc-relay/cdc-relay/examples/notification/provider/client"
	"github.com/cdc-relay/cdc-relay/examples/notification/telemetry"
)

// consumeSettings are those of the command consume.
type consumeSettings struct {
	dsn, provider, ambiguity, metrics, traces string
	ring                                      *notice.Ring
	timeout                                   time.Duration
	kafka                                     consumer.Config // without the database
}

func (e *env) consumeSettings() (consumeSettings, error) {
	s := consumeSettings{
		dsn: e.required(dsn), provider: e.required(providerURL), ring: e.ring(),
		ambiguity: e.choice(ambiguity, "repeat", "query", "hold"), traces: e.choice(traces, "off", "log"),
		metrics: e.or(metricsListen, "127.0.0.1:8471"), timeout: e.duration(timeout, 10*time.Second),
		kafka: consumer.Config{
			Brokers: e.requiredList(brokers), Group: e.or(group, "notification"), Topics: list(e.or(topics, defaultTopic)),
		},
	}
	return s, e.err()
}

// consume sends e-mails.
func consume(ctx context.Context, e *env, logger *slog.Logger) error {
	s, err := e.consumeSettings()
	if err != nil {
		return err
	}
	spans := newSpans(s.traces, logger)
	defer spans.close()
	if s.kafka.DB, err = pgxpool.New(ctx, s.dsn); err != nil {
		return fmt.Errorf("connecting to the database: %w", err)
	}
	defer s.kafka.DB.Close()
	reg := prometheus.NewRegistry()
	c, err := newConsumer(s, reg, spans, logger)
	if err != nil {
		return err
	}
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(running) })
	g.Go(func() error { return serve(running, s.metrics, status(c, reg), nil, logger) })
	return g.Wait()
}

func newConsumer(s consumeSettings, reg *prometheus.Registry, spans spans, logger *slog.Logger) (*consumer.Consumer, error) {
	m, err := newMailer(s.ring, s.provider, logger)
	if err != nil {
		return nil, err
	}
	metrics, err := telemetry.NewMetrics(reg, s.kafka.Topics...)
	if err != nil {
		return nil, err
	}
	tracing, err := telemetry.NewTracing(spans.provider, reg)
	if err != nil {
		return nil, err
	}
	policies := map[string]consumer.Policy{"repeat": consumer.Repeat, "query": consumer.Query(m.Found), "hold": consumer.Hold}
	return consumer.New(s.kafka, m.Handle,
		consumer.Concurrency(8), // e-mails of different users at a time, of each partition
		consumer.HandlerTimeout(s.timeout),
		consumer.Ambiguity(policies[s.ambiguity]),
		consumer.Metrics(metrics), consumer.Logger(logger), consumer.Use(tracing.Consume))
}

// newMailer logs each answer that arrives: the client's own observation.
func newMailer(ring *notice.Ring, url string, logger *slog.Logger) (*mailer.Mailer, error) {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		MaxIdleConnsPerHost: 16,
		IdleConnTimeout:     time.Minute,
	}
	c, err := client.New(url, client.Observe(telemetry.Call(transport), func(r client.Received) {
		logger.Info("the provider's answer is here", "attempt_id", r.Attempt, "method", r.Method, "status", r.Status, "replayed", r.Replayed)
	}))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", providerURL, err)
	}
	return mailer.New(ring, c), nil
}

// stallAfter is how long a partition with a lag may stand still, and how long
// joining the group may take.
const stallAfter = 5 * time.Minute

// healthy reports whether nothing is wrong that lasts. Who is no member of the
// group has no partitions that could stand still.
func healthy(h consumer.Health) bool {
	away := !h.Joined && !h.Since.IsZero() && time.Since(h.Since) > stallAfter
	return !away && len(h.TopicsMissing) == 0 && len(h.Stalled(stallAfter)) == 0
}

// status serves metrics and health.
func status(c *consumer.Consumer, reg *prometheus.Registry) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		h := c.Health()
		w.Header().Set("Content-Type", "application/json")
		if !healthy(h) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		json.NewEncoder(w).Encode(h) // who asked and left needs no answer
	})
	return mux
}
