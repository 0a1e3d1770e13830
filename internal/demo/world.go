package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/e2e/load"
	"github.com/cdc-relay/cdc-relay/e2e/relayproc"
	"github.com/cdc-relay/cdc-relay/e2e/topics"
)

const (
	table      = `"public"."outbox"`
	partitions = 4
)

// types are the aggregate types of the load, a topic each.
var types = []string{"order", "shipment"}

// world is what the demo makes and removes again. What was not made yet is nil
// or empty.
type world struct {
	version string // of PostgreSQL
	admin   string // DSN of the database postgres
	name    string // of database, slot and publication, and before the dot in topics
	dsn     string
	broker  string
	program string
	dir     string
	pool    *pgxpool.Pool
	topics  *topics.Admin
	made    []string // topics
	groups  []string // of consumers
	log     *os.File // of the consumers
	relay   *relayproc.Process
	status  string // host:port of the relay's /statusz
	history *load.History
	due     time.Time // of the delayed event, by the server's clock
}

// newWorld returns what it has made even if it fails, to be removed.
func newWorld(ctx context.Context, program string) (*world, error) {
	w := &world{
		admin: os.Getenv("CDC_TEST_PG18_DSN"), broker: os.Getenv("CDC_TEST_KAFKA"),
		program: program, history: load.NewHistory(),
	}
	if w.admin == "" || w.broker == "" {
		return w, errors.New("CDC_TEST_PG18_DSN and CDC_TEST_KAFKA are not both set: run make demo, which starts the servers")
	}
	for _, step := range []func(context.Context) error{w.makeDatabase, w.connectKafka, w.setUp, w.startRelay} {
		if err := step(ctx); err != nil {
			return w, err
		}
	}
	return w, nil
}

func (w *world) makeDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, w.admin)
	if err != nil {
		return fmt.Errorf("connecting to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	suffix := make([]byte, 4)
	rand.Read(suffix)
	name := "cdc_demo_" + hex.EncodeToString(suffix)
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		return fmt.Errorf("creating a database: %w", err)
	}
	w.name = name
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&w.version); err != nil {
		return fmt.Errorf("asking for the server's version: %w", err)
	}
	u, err := url.Parse(w.admin)
	if err != nil {
		return errors.New("CDC_TEST_PG18_DSN is no URL")
	}
	u.Path = "/" + name
	w.dsn = u.String()
	w.pool, err = pgxpool.New(ctx, w.dsn)
	return err
}

// topic is named as in the relay's configuration below.
func (w *world) topic(aggregateType string) string { return w.name + "." + aggregateType }

// group names a consumer group, to be removed.
func (w *world) group(name string) string {
	w.groups = append(w.groups, w.name+"."+name)
	return w.name + "." + name
}

// connectKafka makes the topics that are there from the start.
func (w *world) connectKafka(ctx context.Context) (err error) {
	if w.topics, err = topics.NewAdmin(w.broker); err != nil {
		return err
	}
	return w.makeTopics(ctx, append([]string{delayedType, userType}, types...)...)
}

func (w *world) makeTopics(ctx context.Context, aggregateTypes ...string) error {
	for _, t := range aggregateTypes {
		if err := w.topics.Create(ctx, partitions, nil, w.topic(t)); err != nil {
			return err
		}
		w.made = append(w.made, w.topic(t))
	}
	return nil
}

// setUp writes the relay's configuration and lets its commands make tables,
// publication and slot.
func (w *world) setUp(ctx context.Context) (err error) {
	if w.dir, err = os.MkdirTemp("", "cdc-relay-demo-"); err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	if w.log, err = os.Create(filepath.Join(w.dir, "consumers.log")); err != nil {
		return fmt.Errorf("making a file: %w", err)
	}
	if w.status, err = relayproc.FreeAddr(); err != nil {
		return err
	}
	config := relayproc.Config{
		"postgres.dsn": w.dsn, "slot.name": w.name, "slot.publication": w.name, "kafka.brokers": []string{w.broker},
		"record.topic": w.topic("{aggregate_type}"), "record.source": "/demo", "http.listen": w.status,
		// so that retries follow each other fast
		"kafka.unknown_topic_grace": "1s", "retry.base": "500ms",
	}
	if err := config.Write(w.configFile()); err != nil {
		return err
	}
	for _, command := range [][]string{{"migrate", "up"}, {"init", "--apply"}} {
		p, err := w.start(command...)
		if err != nil {
			return err
		}
		switch code, err := p.Wait(ctx); {
		case err != nil:
			return fmt.Errorf("cdc-relay %v: %w\n%s", command, err, p.Tail(20))
		case code != 0:
			return fmt.Errorf("cdc-relay %v: exit code %d\n%s", command, code, p.Tail(20))
		}
	}
	return nil
}

func (w *world) configFile() string { return filepath.Join(w.dir, "cdc-relay.yaml") }

func (w *world) start(args ...string) (*relayproc.Process, error) {
	output := filepath.Join(w.dir, args[0]+".log")
	return relayproc.Start(output, nil, w.program, append([]string{"--config", w.configFile()}, args...)...)
}

// startRelay returns when the relay streams.
func (w *world) startRelay(ctx context.Context) (err error) {
	if w.relay, err = w.start("run"); err != nil {
		return err
	}
	return until(ctx, "the relay to stream", func() (bool, error) {
		if w.relay.Exited() {
			return false, errors.New("the relay has ended")
		}
		s, err := relayproc.ReadStatus(ctx, w.status)
		return err == nil && s.State == "streaming", nil
	})
}

// watchRelay returns an error when the relay ends before ctx.
func (w *world) watchRelay(ctx context.Context) error {
	select {
	case <-w.relay.Done():
		return errors.New("the relay has ended")
	case <-ctx.Done():
		return nil
	}
}

// logTail returns the last lines of the consumers' log.
func (w *world) logTail(lines int) string {
	if w.log == nil {
		return ""
	}
	data, err := os.ReadFile(w.log.Name())
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

func (w *world) connect(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, w.dsn) }

// settle waits until every row is CONSUMED and the slot is at the end.
func (w *world) settle(ctx context.Context) error {
	if err := until(ctx, "every row to be CONSUMED", func() (bool, error) {
		var left int
		err := w.pool.QueryRow(ctx, `SELECT count(*) FROM `+table+` WHERE send_status <> 4`).Scan(&left)
		return left == 0, err
	}); err != nil {
		return err
	}
	var end string
	if err := w.pool.QueryRow(ctx, `SELECT pg_current_wal_flush_lsn()::text`).Scan(&end); err != nil {
		return fmt.Errorf("asking for the WAL's end: %w", err)
	}
	return until(ctx, "the slot to reach the end", func() (bool, error) {
		var there bool
		err := w.pool.QueryRow(ctx, `SELECT confirmed_flush_lsn >= $1::pg_lsn FROM pg_replication_slots WHERE slot_name = $2`, end, w.name).Scan(&there)
		return there, err
	})
}

// remove deletes everything that was made, also after a failure.
func (w *world) remove(ctx context.Context) error {
	var errs []error
	if w.relay != nil {
		errs = append(errs, w.relay.Stop(10*time.Second))
	}
	if w.topics != nil {
		if len(w.made) > 0 {
			errs = append(errs, w.topics.Delete(ctx, w.made...))
		}
		if len(w.groups) > 0 {
			errs = append(errs, w.topics.DeleteGroups(ctx, w.groups...))
		}
		w.topics.Close()
	}
	if w.pool != nil {
		w.pool.Close()
	}
	if w.name != "" {
		errs = append(errs, w.dropDatabase(ctx))
	}
	if w.log != nil {
		errs = append(errs, w.log.Close())
	}
	if w.dir != "" {
		errs = append(errs, os.RemoveAll(w.dir))
	}
	return errors.Join(errs...)
}

func (w *world) dropDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, w.admin)
	if err != nil {
		return fmt.Errorf("connecting to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	// a slot is free a moment after its client is gone
	if err := until(ctx, "the slot to be free", func() (bool, error) {
		var left int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM (SELECT CASE WHEN NOT active THEN pg_drop_replication_slot(slot_name) END
			FROM pg_replication_slots WHERE database = $1 OFFSET 0) s`, w.name).Scan(&left)
		return left == 0, err
	}); err != nil {
		return err
	}
	if _, err := conn.Exec(ctx, "DROP DATABASE "+w.name+" WITH (FORCE)"); err != nil {
		return fmt.Errorf("dropping the database: %w", err)
	}
	return nil
}

// until asks for a condition every few milliseconds until it holds, fails or
// ctx ends.
func until(ctx context.Context, what string, condition func() (bool, error)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := condition(); err != nil {
			return fmt.Errorf("waiting for %s: %w", what, err)
		} else if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
}
