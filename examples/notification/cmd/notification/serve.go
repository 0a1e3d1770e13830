package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

// shutdownTime is how long requests may take to end after a stop.
const shutdownTime = 10 * time.Second

// serve serves until ctx ends, then lets requests end. release, if there is one,
// ends those that wait.
func serve(ctx context.Context, addr string, handler http.Handler, release func(), logger *slog.Logger) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("listening: %w", err)
	}
	logger.Info("serving", "addr", listener.Addr().String())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	g, serving := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serving: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		<-serving.Done()
		if release != nil {
			release()
		}
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
		defer cancel()
		if err := server.Shutdown(ending); err != nil {
			server.Close()
			return fmt.Errorf("ending requests: %w", err)
		}
		return nil
	})
	return g.Wait()
}
