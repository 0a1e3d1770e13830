package e2e

import (
	"context"
	"errors"
	"fmt"
	osexec "os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/cdc-relay/cdc-relay/e2e/check"
	"github.com/cdc-relay/cdc-relay/e2e/harness"
	"github.com/cdc-relay/cdc-relay/e2e/load"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
)

// standin poses as a physical standby: it receives WAL, throws it away, and
// says that it has it on disk, unless it is held.
type standin struct {
	conn *pgconn.PgConn
	held atomic.Bool
}

// startStandin connects one under that name and serves until the test ends.
func startStandin(t *testing.T, db *pgtest.DB, name string) *standin {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), db.DSN+"&replication=true&application_name="+name)
	if err != nil {
		t.Fatal(err)
	}
	server, err := pglogrepl.IdentifySystem(t.Context(), conn)
	if err != nil {
		t.Fatal(err)
	}
	const slot = "standin"
	_, err = pglogrepl.CreateReplicationSlot(t.Context(), conn, slot, "",
		pglogrepl.CreateReplicationSlotOptions{Mode: pglogrepl.PhysicalReplication, Temporary: true})
	if err != nil {
		t.Fatal(err)
	}
	err = pglogrepl.StartReplication(t.Context(), conn, slot, server.XLogPos,
		pglogrepl.StartReplicationOptions{Mode: pglogrepl.PhysicalReplication, Timeline: server.Timeline})
	if err != nil {
		t.Fatal(err)
	}
	s := &standin{conn: conn}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the stand-in of a standby: %v", err)
		}
	})
	return s
}

func (s *standin) run(ctx context.Context) error {
	defer s.conn.Close(context.WithoutCancel(ctx))
	var received, flushed pglogrepl.LSN
	for {
		waiting, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		msg, err := s.conn.ReceiveMessage(waiting)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && !pgconn.Timeout(err):
			return err
		}
		if data, ok := msg.(*pgproto3.CopyData); ok {
			received = max(received, walEnd(data.Data))
		}
		if !s.held.Load() {
			flushed = received
		}
		if flushed == 0 {
			continue // a zero means "as written"
		}
		err = pglogrepl.SendStandbyStatusUpdate(ctx, s.conn, pglogrepl.StandbyStatusUpdate{
			WALWritePosition: received, WALFlushPosition: flushed, WALApplyPosition: flushed,
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// walEnd is how far the WAL in a message goes; 0 for others.
func walEnd(message []byte) pglogrepl.LSN {
	if len(message) == 0 || message[0] != pglogrepl.XLogDataByteID {
		return 0
	}
	data, err := pglogrepl.ParseXLogData(message[1:])
	if err != nil {
		return 0
	}
	return data.WALStart + pglogrepl.LSN(len(data.WALData))
}

// syncStandbys sets synchronous_standby_names and waits until the server acts
// on it: a session of its own sees the value, and somebody is synchronous.
func syncStandbys(b *harness.Bed, names string, synchronous bool) {
	b.Exec(fmt.Sprintf(`ALTER SYSTEM SET synchronous_standby_names = '%s'`, names))
	b.Exec(`SELECT pg_reload_conf()`)
	b.Wait("synchronous_standby_names", func() bool {
		return b.Count(`SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')`) > 0 == synchronous
	})
}

// TestSynchronousStandbyPending: the WAL of a commit arrives while it still
// waits for a standby and its row cannot be seen. That is neither a deleted row
// nor one as it was before.
func TestSynchronousStandbyPending(t *testing.T) {
	t.Parallel()
	eachCluster(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t), Config: soon})
		standby := startStandin(t, db, "standin")
		relay := b.StartStreaming(nil)
		replayed := b.InsertOne(harness.Row("order", "replayed", "{}"))
		b.Settle()
		syncStandbys(b, "standin", true)

		standby.held.Store(true)
		conn := b.Conn()
		inserted := b.Background(func(ctx context.Context) error {
			return load.Insert(ctx, conn, b.Table, b.History, harness.Row("order", "pending", "{}"))
		})
		b.Wait("the row to be published", func() bool { return relay.Counter("events_acked_total") == 2 })
		if n := b.Count(`SELECT count(*) FROM outbox`); n != 1 {
			t.Fatalf("%d rows can be seen, want 1: the stand-in does not hold commits back", n)
		}
		replayer := b.Conn()
		updated := b.Background(func(ctx context.Context) error {
			_, err := replayer.Exec(ctx, `UPDATE outbox SET send_status = 0, next_attempt_at = now() WHERE id = $1`, replayed)
			return err
		})
		b.Wait("the replay to wait for the standby", func() bool {
			return b.Count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'`) >= 2
		})
		b.WaitSeconds(2)
		if acked, gone := relay.Counter("events_acked_total"), relay.Counter("rows_gone_total"); acked != 2 || gone != 0 {
			t.Errorf("%v events published and %v rows taken for gone while the standby was away, want 2 and 0", acked, gone)
		}
		if n := b.CountStatus(check.Sent); n != 1 {
			t.Errorf("%d rows SENT while the standby was away, want 1", n)
		}
		standby.held.Store(false)
		inserted()
		updated()
		b.Wait("both to be SENT again", func() bool { return relay.Counter(requeuesReceived) == 1 && b.CountStatus(check.Sent) == 2 })
		b.Finish(harness.Allow{Duplicates: 1}) // the replay
		if n := relay.Counter(`messages_ignored_total{reason="unknown_id"}`); n != 0 {
			t.Errorf("%v rows taken for unknown, want none", n)
		}
	})
}

// TestRelayAsSynchronousStandby: every commit would wait for the relay. It lets
// go of the stream within a minute, and goes on when it may.
func TestRelayAsSynchronousStandby(t *testing.T) {
	t.Parallel()
	eachCluster(t, func(t *testing.T, db *pgtest.DB) {
		b := harness.NewBed(t, db, harness.Options{Kafka: harness.Shared(t)})
		startStandin(t, db, "standin")
		relay := b.StartStreaming(nil)
		b.Write(100, 10)
		b.Settle()
		syncStandbys(b, "*", true)
		start := time.Now()
		status := relay.WaitBlocked("pg.sync_standby")
		if took := time.Since(start); took > time.Minute {
			t.Errorf("blocked after %v, want a minute at most", took)
		}
		if status.Remedy == "" {
			t.Error("no remedy")
		}
		b.Wait("the stream to be let go", func() bool { return b.Walsender() == 0 })
		b.Write(100, 10) // the standby alone decides
		if relay.Status().State != "blocked" {
			t.Errorf("state %s, want blocked", relay.Status().State)
		}
		syncStandbys(b, "", false)
		b.Wait("the rows to be SENT", func() bool { return b.CountStatus(check.Sent) == 200 })
		b.Finish(harness.Allow{})
	})
}

// TestTransactionIDsBeyond32Bits: the stream has 32 bits of them. Only the
// Debian server comes with the program that sets the epoch.
func TestTransactionIDsBeyond32Bits(t *testing.T) {
	t.Parallel()
	cluster := pgtest.StartCluster(t, 15)
	db := cluster.New(t)
	cluster.Stop(t, pgtest.Fast)
	resetEpoch(t, cluster, 7)
	cluster.Start(t)
	b := newGhostBed(t, db, nil)
	if n := b.Count(`SELECT (pg_current_xact_id()::text::bigint >> 32)::int`); n != 7 {
		t.Fatalf("epoch %d, want 7", n)
	}
	relay := b.StartStreaming(nil)
	b.Write(500, 20) // half of it for the topic that is missing
	b.Exec(`DO $$ BEGIN
		INSERT INTO outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', 'gone', 'changed', '{}');
		DELETE FROM outbox WHERE aggregate_id = 'gone'; END $$`)
	b.Wait("the deleted row to be known as gone", func() bool { return relay.Counter("rows_gone_total") == 1 })
	b.Wait("an attempt", func() bool { return b.Count(`SELECT count(*) FROM outbox WHERE attempts > 0`) > 0 })
	createGhost(t, b)
	b.Wait("all to be SENT", func() bool { return b.CountStatus(check.Sent) == 500 })
	b.Settle()
	if n := relay.Counter(requeuesReceived); n == 0 {
		t.Error("no row was requeued")
	}
}

// resetEpoch moves the transaction ids of a stopped server by so many times 2^32.
func resetEpoch(t *testing.T, c *pgtest.Cluster, epoch int) {
	t.Helper()
	program := filepath.Join(pgtest.Env(t, "CDC_TEST_PG15_BIN"), "pg_resetwal")
	cmd := osexec.Command(program, "-e", strconv.Itoa(epoch), "-D", c.Dir)
	cmd.Dir = c.Dir
	if syscall.Getuid() == 0 {
		u, err := user.Lookup(pgtest.Env(t, "CDC_TEST_PG_USER"))
		if err != nil {
			t.Fatal(err)
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("setting the epoch: %v\n%s", err, out)
	}
}
