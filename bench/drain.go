package main

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/e2e/topics"
)

const (
	database = "cdc_relay_bench"
	slot     = "bench"
	floor    = "bench_floor" // a copy of the slot for pg_recvlogical
)

// drain is the time a relay needs for a backlog in the slot, compared with
// pg_recvlogical, which only reads it.
type drain struct {
	rows, partitions int
	relay            string
	recvlogical      string

	dir   string
	dsn   string
	addr  string // of /statusz
	topic string
	conn  *pgx.Conn
	admin *topics.Admin
	conf  relayproc.Config
}

func (d *drain) run(ctx context.Context) (err error) {
	if err := d.setUp(ctx); err != nil {
		return err
	}
	defer os.RemoveAll(d.dir)
	defer d.admin.Close()
	defer func() {
		if e := d.tearDown(context.WithoutCancel(ctx)); err == nil {
			err = e
		}
	}()
	if err := d.once(ctx); err != nil {
		return err
	}
	if err := d.load(ctx); err != nil {
		return err
	}
	floorTime, err := d.readAlone(ctx)
	if err != nil {
		return err
	}
	r, err := d.drainWithRelay(ctx)
	if err != nil {
		return err
	}
	d.report(floorTime, r)
	return d.consume(ctx)
}

func (d *drain) report(floorTime time.Duration, r result) {
	rate := func(t time.Duration) float64 { return float64(d.rows) / t.Seconds() }
	fmt.Printf("drain of %d single-row transactions, %d partitions, acks=all, SENT written back\n", d.rows, d.partitions)
	fmt.Printf("  pg_recvlogical alone          %8.0f events/s\n", rate(floorTime))
	fmt.Printf("  relay, first to last record   %8.0f events/s   %.2f times\n", rate(r.published), floorTime.Seconds()/r.published.Seconds())
	fmt.Printf("  relay, until all are SENT     %8.0f events/s   %.2f times\n", rate(r.sent), floorTime.Seconds()/r.sent.Seconds())
	fmt.Printf("  relay, start-up included      %8.0f events/s   %.2f times\n", rate(r.total), floorTime.Seconds()/r.total.Seconds())
	fmt.Printf("  relay CPU per event           %8.2f us, peak resident memory %.0f MiB\n", r.cpu.Seconds()*1e6/float64(d.rows), r.peakMiB)
	fmt.Printf("  via the slot                  %8.0f of %d\n", r.viaSlot, d.rows)
}

func (d *drain) setUp(ctx context.Context) error {
	server, kafka := os.Getenv("CDC_TEST_PG18_DSN"), os.Getenv("CDC_TEST_KAFKA")
	if server == "" || kafka == "" {
		return fmt.Errorf("CDC_TEST_PG18_DSN and CDC_TEST_KAFKA are not set; run: make bench")
	}
	if d.recvlogical == "" {
		d.recvlogical = filepath.Join(filepath.Dir(os.Getenv("CDC_TEST_PSQL")), "pg_recvlogical")
	}
	u, err := url.Parse(server)
	if err != nil {
		return fmt.Errorf("reading CDC_TEST_PG18_DSN: it is no URL")
	}
	u.Path = database
	d.dsn = u.String()
	d.topic = fmt.Sprintf("bench-%d", os.Getpid())
	if err := d.createDatabase(ctx, server); err != nil {
		return err
	}
	if d.admin, err = topics.NewAdmin(kafka); err != nil {
		return err
	}
	if err := d.admin.Create(ctx, int32(d.partitions), nil, d.topic); err != nil {
		return err
	}
	return d.configure(kafka)
}

func (d *drain) createDatabase(ctx context.Context, server string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return fmt.Errorf("connecting to the server: %w", err)
	}
	defer conn.Close(ctx)
	if err := dropDatabase(ctx, conn); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+database); err != nil {
		return fmt.Errorf("creating the database: %w", err)
	}
	if d.conn, err = pgx.Connect(ctx, d.dsn); err != nil {
		return fmt.Errorf("connecting to the database: %w", err)
	}
	return nil
}

func dropDatabase(ctx context.Context, conn *pgx.Conn) error {
	for _, sql := range []string{
		"SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = '" + database + "'",
		"DROP DATABASE IF EXISTS " + database + " WITH (FORCE)",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("removing an old database: %w", err)
		}
	}
	return nil
}

func (d *drain) tearDown(ctx context.Context) error {
	d.conn.Close(ctx)
	conn, err := pgx.Connect(ctx, os.Getenv("CDC_TEST_PG18_DSN"))
	if err != nil {
		return fmt.Errorf("connecting to the server: %w", err)
	}
	defer conn.Close(ctx)
	if err := dropDatabase(ctx, conn); err != nil {
		return err
	}
	return d.admin.Delete(ctx, d.topic)
}

func (d *drain) configure(kafka string) (err error) {
	if d.dir, err = os.MkdirTemp("", "cdc-relay-bench"); err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	if d.addr, err = relayproc.FreeAddr(); err != nil {
		return err
	}
	d.conf = relayproc.Config{
		"postgres.dsn": d.dsn, "slot.name": slot, "slot.publication": slot, "kafka.brokers": []string{kafka},
		"record.topic": d.topic, "record.source": "/bench", "http.listen": d.addr,
	}
	return d.conf.Write(d.file("relay.yaml"))
}

func (d *drain) file(name string) string { return filepath.Join(d.dir, name) }

func (d *drain) start(args ...string) (*relayproc.Process, error) {
	return relayproc.Start(d.file("relay.log"), nil, d.relay, append(args, "--config", d.file("relay.yaml"))...)
}

// once migrates, and runs the relay until it streams, so that the backlog is
// loaded behind a slot that has been in use.
func (d *drain) once(ctx context.Context) error {
	for _, args := range [][]string{{"migrate", "up"}, {"init", "--apply"}} {
		p, err := d.start(args...)
		if err != nil {
			return err
		}
		switch code, err := p.Wait(ctx); {
		case err != nil:
			return fmt.Errorf("%v: %w: %s", args, err, p.Tail(5))
		case code != 0:
			return fmt.Errorf("%v ended with code %d: %s", args, code, p.Tail(5))
		}
	}
	p, err := d.start("run")
	if err != nil {
		return err
	}
	err = d.until(ctx, p, func(s *relayproc.Status) bool { return s.State == "streaming" })
	if e := p.Stop(30 * time.Second); err == nil {
		err = e
	}
	return err
}

// until polls the status of a running relay.
func (d *drain) until(ctx context.Context, p *relayproc.Process, done func(*relayproc.Status) bool) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.Done():
			return fmt.Errorf("the relay ended: %s", p.Tail(5))
		case <-time.After(100 * time.Millisecond): // each look costs the relay about a millisecond
		}
		if s, err := relayproc.ReadStatus(ctx, d.addr); err == nil && done(s) {
			return nil
		}
	}
}

const loader = `
CREATE PROCEDURE bench_load(first bigint, n bigint) LANGUAGE plpgsql AS $$
BEGIN
  FOR x IN first .. first + n - 1 LOOP
    INSERT INTO public.outbox (aggregate_type, aggregate_id, event_type, payload)
    VALUES ('order', 'order-' || (x::bigint * 7919 % 10000), 'order.paid', convert_to(format(
      '{"seq": %s, "sku": "%s", "note": "%s", "amount": %s, "status": "PAID", "currency": "EUR", "customer": "%s"}',
      x, md5(x::text), md5((x + 1)::text), 10000 + x % 90000, md5((x + 2)::text)), 'UTF8'));
    COMMIT;
  END LOOP;
END $$`

func (d *drain) load(ctx context.Context) error {
	fmt.Fprintf(os.Stderr, "loading %d rows, one a transaction\n", d.rows)
	if _, err := d.conn.Exec(ctx, loader); err != nil {
		return fmt.Errorf("creating the loader: %w", err)
	}
	const sessions = 2
	group, ctx := errgroup.WithContext(ctx)
	for i := range sessions {
		first, n := d.rows*i/sessions, d.rows*(i+1)/sessions-d.rows*i/sessions
		group.Go(func() error {
			conn, err := pgx.Connect(ctx, d.dsn)
			if err != nil {
				return err
			}
			defer conn.Close(ctx)
			if _, err := conn.Exec(ctx, "SET synchronous_commit = off"); err != nil {
				return err
			}
			_, err = conn.Exec(ctx, fmt.Sprintf("CALL bench_load(%d, %d)", first, n))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("loading: %w", err)
	}
	_, err := d.conn.Exec(context.WithoutCancel(ctx), "CHECKPOINT")
	return err
}

// readAlone lets pg_recvlogical read the same backlog and write nothing.
func (d *drain) readAlone(ctx context.Context) (time.Duration, error) {
	var end string
	if _, err := d.conn.Exec(ctx, "SELECT pg_copy_logical_replication_slot($1, $2)", slot, floor); err != nil {
		return 0, fmt.Errorf("copying the slot: %w", err)
	}
	if err := d.conn.QueryRow(ctx, "SELECT pg_current_wal_lsn()::text").Scan(&end); err != nil {
		return 0, fmt.Errorf("asking for the end of the WAL: %w", err)
	}
	began := time.Now()
	out, err := exec.CommandContext(ctx, d.recvlogical, "-d", d.dsn, "-S", floor, "--start", "-f", "/dev/null", "--no-loop", "-F", "0",
		"--endpos="+end, "-o", "proto_version=1", "-o", "publication_names="+slot, "-o", "binary=true", "-o", "messages=true").CombinedOutput()
	took := time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("pg_recvlogical: %w: %s", err, out)
	}
	if _, err := d.conn.Exec(ctx, "SELECT pg_drop_replication_slot($1)", floor); err != nil {
		return 0, fmt.Errorf("dropping the copy of the slot: %w", err)
	}
	_, err = d.conn.Exec(ctx, "CHECKPOINT")
	return took, err
}
