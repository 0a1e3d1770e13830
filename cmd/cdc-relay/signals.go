package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// withSignals returns a context that the first SIGINT or SIGTERM cancels, for
// an ordered stop. A second one ends the process at once with code 130. stop
// gives the signals back to their default.
func withSignals(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watchSignals(signals, done, cancel, os.Exit)
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(done)
		<-ended
		cancel()
	}
}

// watchSignals cancels at the first signal and exits at the second, until done
// is closed.
func watchSignals(signals <-chan os.Signal, done <-chan struct{}, cancel func(), exit func(int)) {
	actions := []func(){cancel, func() { exit(exitSignal) }}
	for _, act := range actions {
		select {
		case <-signals:
			act()
		case <-done:
			return
		}
	}
}
