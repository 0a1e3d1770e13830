// Command bench measures the relay against what PostgreSQL alone can do, and the
// consumer kit one event at a time against a chunk at a time, in one run on one
// machine. It prints figures and asserts nothing: rates on a shared machine are
// noise, their ratio within a run is not.
//
// It needs the development stack: make bench.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var d drain
	flag.IntVar(&d.rows, "rows", 1_000_000, "backlog: single-row transactions")
	flag.IntVar(&d.partitions, "partitions", 12, "partitions of the topic")
	flag.StringVar(&d.relay, "relay", "bin/cdc-relay", "the binary to measure")
	flag.StringVar(&d.recvlogical, "pg_recvlogical", "", "pg_recvlogical; default: beside $CDC_TEST_PSQL")
	flag.Parse()
	if err := d.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}
