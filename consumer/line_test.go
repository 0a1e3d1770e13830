package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cdc-relay/cdc-relay/consumer/internal/group"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// bed is a line on a real table, with records from a list.
type bed struct {
	t    *testing.T
	pool *pgxpool.Pool
	c    *Consumer
	p    *partition
	log  *records

	swap         func(memory) memory // wraps what keeps the claims, before start
	stop, revoke func()
	gone         chan struct{}
}

// records is a partition's log.
type records struct {
	mu    sync.Mutex
	list  []group.Record
	added chan struct{} // closed when there are more
	fail  error         // of the next reads
}

// Read implements source.
func (r *records) Read(ctx context.Context, _ group.Partition, from int64) (group.Batch, error) {
	for from = max(from, 0); ; {
		r.mu.Lock()
		list, added, err := r.list, r.added, r.fail
		r.mu.Unlock()
		if err != nil {
			return group.Batch{}, err
		}
		if n := int64(len(list)); from < n {
			return group.Batch{Records: slices.Clone(list[from:]), Next: n, End: n}, nil
		}
		select {
		case <-added:
		case <-ctx.Done():
			return group.Batch{}, ctx.Err()
		}
	}
}

func (r *records) add(list ...group.Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, rec := range list {
		rec.Partition = group.Partition{Topic: "t"}
		rec.Offset = int64(len(r.list))
		rec.Time = time.Now()
		r.list = append(r.list, rec)
	}
	close(r.added)
	r.added = make(chan struct{})
}

// newBed makes a database with an outbox, and a consumer of it that has not
// started.
func newBed(t *testing.T, version int, h Handler, opts ...Option) *bed {
	t.Helper()
	db := pgtest.New(t, version)
	db.Migrate(t, "public")
	pool, err := pgxpool.New(t.Context(), db.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b := &bed{t: t, pool: pool, log: &records{added: make(chan struct{})}}
	logger := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	opts = append([]Option{Logger(logger), RetryDelay(RetryPolicy{Base: 50 * time.Millisecond, Max: time.Second})}, opts...)
	b.c, err = New(Config{Brokers: []string{"127.0.0.1:1"}, Group: "g", Topics: []string{"t"}, DB: pool}, h, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// start runs the line until the test ends, or stop or revoke is called.
func (b *bed) start() {
	b.t.Helper()
	working, stopWorking := context.WithCancel(context.WithoutCancel(b.t.Context()))
	handling, stopHandling := context.WithCancelCause(working)
	b.c.working, b.c.handling = working, handling
	closeAll, err := b.c.open(working)
	if err != nil {
		b.t.Fatal(err)
	}
	if b.swap != nil {
		b.c.memory = b.swap(b.c.memory)
	}
	stopped, stop := context.WithCancel(b.t.Context())
	revoked, revoke := context.WithCancel(b.t.Context())
	b.stop, b.revoke, b.gone = stop, revoke, make(chan struct{})
	b.p = newPartition(b.c, group.Assignment{Partition: group.Partition{Topic: "t"}, Offset: -1}, b.log)
	context.AfterFunc(stopped, func() {
		time.AfterFunc(b.c.opt.drain, func() { stopHandling(errStopping) })
	})
	var beside sync.WaitGroup
	beside.Go(func() { b.c.renew(working) })
	beside.Go(func() { b.c.retryAsked(stopped) })
	go func() {
		defer close(b.gone)
		b.p.run(revoked.Done(), stopped.Done())
	}()
	b.t.Cleanup(func() {
		stop()
		<-b.gone
		stopWorking()
		beside.Wait()
		closeAll()
	})
}

// put writes SENT rows, one for each key, and their records.
func (b *bed) put(keys ...string) []outbox.ID {
	b.t.Helper()
	ids := b.rows(outbox.Sent, keys...)
	for i, key := range keys {
		b.log.add(b.record(ids[i], key))
	}
	return ids
}

func (b *bed) rows(status outbox.Status, keys ...string) []outbox.ID {
	b.t.Helper()
	ids := make([]outbox.ID, len(keys))
	batch := &pgx.Batch{}
	for i, key := range keys {
		ids[i] = outbox.NewID()
		batch.Queue(`INSERT INTO outbox (event_id, aggregate_type, aggregate_id, event_type, payload, send_status, sent_at)
			VALUES ($1, 'user', $2, 'made', '{}', $3::smallint, CASE WHEN $3::smallint = 2 THEN clock_timestamp() END)`, ids[i], key, status)
	}
	if err := b.pool.SendBatch(b.t.Context(), batch).Close(); err != nil {
		b.t.Fatal(err)
	}
	return ids
}

// record is that of a row.
func (b *bed) record(id outbox.ID, key string) group.Record {
	b.t.Helper()
	var row int64
	if err := b.pool.QueryRow(b.t.Context(), "SELECT id FROM outbox WHERE event_id = $1", id).Scan(&row); err != nil {
		b.t.Fatal(err)
	}
	return group.Record{Key: []byte(key), Value: []byte("{}"), Headers: headers("ce_id", id.String(), "cdcr-id", strconv.FormatInt(row, 10))}
}

// await waits until the position is at least n.
func (b *bed) await(n int64) {
	b.t.Helper()
	pgtest.Eventually(b.t, fmt.Sprintf("position %d", n), func() bool { return b.p.position.Load() >= n }, b.state)
}

func (b *bed) state() string { return fmt.Sprintf("%+v", b.p.status.read()) }

// row is what the table says of an event.
type row struct {
	Status     outbox.Status
	Generation int
	Attempts   int
	Code       string
}

func (b *bed) row(id outbox.ID) (r row) {
	b.t.Helper()
	err := b.pool.QueryRow(b.t.Context(), `SELECT send_status, claim_generation, attempts, coalesce(error_code, '')
		FROM outbox WHERE event_id = $1`, id).Scan(&r.Status, &r.Generation, &r.Attempts, &r.Code)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *bed) want(id outbox.ID, want row) {
	b.t.Helper()
	if diff := cmp.Diff(want, b.row(id)); diff != "" {
		b.t.Errorf("row of %s (-want +got):\n%s", id, diff)
	}
}

func consumed(generation int) row { return row{Status: outbox.Consumed, Generation: generation} }

// calls counts what a handler was called with.
type calls struct {
	mu   sync.Mutex
	list []outbox.ID
}

func (c *calls) add(ev *Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, ev.ID)
}

func (c *calls) all() []outbox.ID {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.list)
}

func numbered(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = strconv.Itoa(i)
	}
	return keys
}

func TestEachEventIsHandledOnceInOrder(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			var got calls
			b := newBed(t, version, func(_ context.Context, ev *Event) error {
				got.add(ev)
				return nil
			})
			ids := b.put(numbered(600)...) // more than two windows
			b.start()
			b.await(600)
			if diff := cmp.Diff(ids, got.all()); diff != "" {
				t.Errorf("handled (-want +got):\n%s", diff)
			}
			for _, id := range ids {
				b.want(id, consumed(1))
			}
		})
	}
}
