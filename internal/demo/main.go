// Command demo sends real rows through the whole line and prints what came of
// them: writers commit events of 50 aggregates in transactions of mixed
// shapes, a relay publishes them, and consumers made with the consumer kit claim
// each row by compare-and-set, SENT to CONSUMING to CONSUMED. Among them are a
// delayed event and some whose topic is missing at first, which come back
// through the WAL, and those of the notification example: users register by
// HTTP, and a consumer sends their e-mails by a provider that refuses one and
// loses an answer. It ends with 0 only if every event made the whole way, once,
// in order and not before its time, nothing is left READY, and every user got
// one e-mail with a token that works.
//
// It needs CDC_TEST_PG18_DSN, a superuser's DSN of the database postgres, and
// CDC_TEST_KAFKA, host:port of a broker; `make demo` brings both. It works in
// a database and topics of its own and removes them, whatever happens.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/e2e/load"
)

const (
	events     = 2000
	aggregates = 50
	writers    = 4
	largeBytes = 300_000
	pace       = 80 * time.Millisecond // between the transactions of a writer
	// patience ends a demo that does not get anywhere.
	patience = 2 * time.Minute
)

func main() {
	relay := flag.String("relay", "bin/cdc-relay", "the relay's program")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, cancel := context.WithTimeout(ctx, patience)
	err := demo(ctx, *relay)
	cancel()
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo makes a world, runs events through it, prints the report and removes
// the world.
func demo(ctx context.Context, program string) (err error) {
	w, err := newWorld(ctx, program)
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if failed := err != nil; failed && w.relay != nil {
			fmt.Fprintf(os.Stderr, "the relay's last lines:\n%s\nthe consumers' last lines:\n%s\n", w.relay.Tail(20), w.logTail(20))
		}
		err = errors.Join(err, w.remove(ending))
	}()
	if err != nil {
		return err
	}
	fmt.Printf("cdc-relay demo: PostgreSQL %s, Kafka at %s, database %s\n\n", w.version, w.broker, w.name)
	s, err := newSite(ctx, w)
	defer func() { err = errors.Join(err, s.close()) }()
	if err != nil {
		return err
	}
	c, err := newConsumers(w, s)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := run(ctx, w, s, c); err != nil {
		return err
	}
	r, err := newReport(ctx, w, s, c, time.Since(start))
	if err != nil {
		return err
	}
	fmt.Print("\n", r)
	if err := r.verdict(); err != nil {
		return err
	}
	fmt.Println("\nEvery event went READY -> SENT -> CONSUMED, once, in order and not before its time. Every user got one e-mail, and its token worked.")
	return nil
}

// run writes and consumes until every committed event is CONSUMED.
func run(ctx context.Context, w *world, s *site, c *consumers) error {
	running, finish := context.WithCancel(ctx)
	defer finish()
	g, running := errgroup.WithContext(running)
	g.Go(func() error { return c.run(running) })
	g.Go(func() error { return w.watchRelay(running) })
	g.Go(func() error {
		defer finish()
		if err := c.join(running); err != nil {
			return err
		}
		if err := s.register(running); err != nil {
			return err
		}
		if err := write(running, w); err != nil {
			return err
		}
		return w.settle(running)
	})
	g.Go(func() error { return w.makeLateTopic(running) })
	g.Go(func() error { return showProgress(running, w) })
	if err := g.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// write commits the events: those that have to wait, a large one alone, the
// others in transactions of one or many rows, with savepoints and rollbacks
// between them.
func write(ctx context.Context, w *world) error {
	conn, err := w.connect(ctx)
	if err != nil {
		return fmt.Errorf("connecting: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := w.insertWaiting(ctx, conn); err != nil {
		return err
	}
	large := load.Row{EventType: "exported", Payload: make([]byte, largeBytes)}
	large.Aggregate.Type, large.Aggregate.ID = types[0], "a large one"
	if err := load.Insert(ctx, conn, table, w.history, large); err != nil {
		return fmt.Errorf("writing the large event: %w", err)
	}
	const special = registrations + delayedEvents + lateEvents + 1 // each has an aggregate of its own
	spec := load.Spec{
		Connect: w.connect, Table: table, Types: types, Aggregates: aggregates - special, Writers: writers,
		Events: events - special, Seed: uint64(time.Now().UnixNano()), Pace: pace,
	}
	return spec.Run(ctx, w.history)
}
