package wal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/decoder"
	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/internal/wal"
)

// outbox is a table with its publication in a database of the test.
type outbox struct {
	db    *pgtest.DB
	conn  *pgx.Conn
	table uint32
	slot  string
}

const outboxSQL = `
CREATE TABLE outbox (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  event_id uuid NOT NULL DEFAULT gen_random_uuid(),
  aggregate_type text NOT NULL DEFAULT 'order', aggregate_id text NOT NULL DEFAULT '1', event_type text NOT NULL DEFAULT 'created',
  payload bytea, send_status smallint NOT NULL DEFAULT 0, next_attempt_at timestamptz);
CREATE PUBLICATION p FOR TABLE outbox WITH (publish = 'insert');`

func newOutbox(t *testing.T, db *pgtest.DB) *outbox {
	t.Helper()
	db.Exec(t, outboxSQL)
	o := &outbox{db: db, conn: db.Conn(t), slot: db.Name}
	if err := o.conn.QueryRow(t.Context(), "SELECT 'outbox'::regclass::oid").Scan(&o.table); err != nil {
		t.Fatal(err)
	}
	return o
}

func (o *outbox) config(t testing.TB) wal.Config {
	cfg := config(t, o.db.DSN)
	cfg.Slot = o.slot
	return cfg
}

// login makes a login with the REPLICATION attribute and no other rights. It
// goes with the test.
func (o *outbox) login(t testing.TB, name string) string {
	t.Helper()
	name = o.slot + "_" + name // roles belong to the whole server
	o.exec(t, "CREATE ROLE "+name+" LOGIN REPLICATION")
	t.Cleanup(func() {
		conn, err := pgx.Connect(context.Background(), o.db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if _, err := conn.Exec(context.Background(), "DROP ROLE "+name); err != nil {
			t.Error(err)
		}
	})
	return name
}

// configOf is the configuration of a stream under a login.
func (o *outbox) configOf(t testing.TB, login string) wal.Config {
	t.Helper()
	cfg := o.config(t)
	cfg.Conn.User = login
	return cfg
}

func (o *outbox) createSlot(t testing.TB) pglogrepl.LSN {
	t.Helper()
	s := connect(t, o.config(t))
	defer s.Close()
	lsn, err := s.CreateSlot(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	return lsn
}

func (o *outbox) exec(t testing.TB, sql string) {
	t.Helper()
	if _, err := o.conn.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// query returns one value as text.
func (o *outbox) query(t testing.TB, sql string) (value string) {
	t.Helper()
	if err := o.conn.QueryRow(context.Background(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// ids takes gulps until they held n inserted rows, and returns their ids and
// the end of the last transaction.
func (r *running) ids(t *testing.T, d *decoder.Decoder, n int) (ids []int64, end pglogrepl.LSN) {
	t.Helper()
	var m decoder.Message
	for len(ids) < n || end == 0 {
		select {
		case g, open := <-r.Gulps():
			if !open {
				t.Fatalf("the stream ended after %d of %d rows: %v", len(ids), n, <-r.done)
			}
			wholeFrames(t, g.Frames)
			for f := g.Frames; len(f) > 0; {
				size := 1 + frameLength(f)
				if err := d.Decode(f[5:size], &m); err != nil {
					t.Fatal(err)
				}
				switch m.Kind {
				case decoder.Insert:
					ids, end = append(ids, m.Event.ID), 0
				case decoder.Commit:
					end = m.EndLSN
				}
				f = f[size:]
			}
			g.Release()
		case <-time.After(30 * time.Second):
			t.Fatalf("got %d of %d rows", len(ids), n)
		}
	}
	return ids, end
}

func TestRealStream(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		o := newOutbox(t, db)
		o.createSlot(t)
		s := start(t, o.config(t))
		if id := o.query(t, "SELECT system_identifier::text FROM pg_control_system()"); id != systemID(s.Stream) {
			t.Errorf("system identifier %s, the server says %s", systemID(s.Stream), id)
		}
		d := decoder.New(decoder.Config{Table: o.table})
		o.exec(t, "INSERT INTO outbox (payload) SELECT 'x' FROM generate_series(1, 1000)")
		o.exec(t, "INSERT INTO outbox (payload) VALUES (repeat('y', 1000000)::bytea)")
		ids, end := s.ids(t, d, 1001)
		for i, id := range ids {
			if id != int64(i+1) {
				t.Fatalf("row %d has id %d", i, id)
			}
		}

		s.Confirm(end)
		eventually(t, "the slot to reach the position", func() bool {
			return o.query(t, fmt.Sprintf("SELECT (confirmed_flush_lsn = '%s')::text FROM pg_replication_slots WHERE slot_name = '%s'", end, o.slot)) == "true"
		})
		eventually(t, "a keepalive", func() bool { s.drain(); return s.ServerEnd() >= end })

		o.exec(t, "INSERT INTO outbox (payload) VALUES ('last')")
		_, end = s.ids(t, d, 1)
		s.Confirm(end)
		s.stopClean(t)
		if got := o.query(t, "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = '"+o.slot+"'"); got != end.String() {
			t.Errorf("after the end the slot is at %s, want %s", got, end)
		}
	})
}

// A walsender with a time-out of 2 s goes on for longer than that while
// nothing is read, and nothing is lost.
func TestRealBackPressureOutlivesTimeout(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		o := newOutbox(t, db)
		o.exec(t, fmt.Sprintf("ALTER DATABASE %s SET wal_sender_timeout = '2s'", db.Name))
		o.createSlot(t)
		s := start(t, o.config(t))
		if got := s.SenderTimeout(); got != 2*time.Second {
			t.Errorf("wal_sender_timeout is %v, want 2s", got)
		}
		const rows = 300
		o.exec(t, fmt.Sprintf("INSERT INTO outbox (payload) SELECT convert_to(string_agg(md5(g::text || i), ''), 'UTF8') "+
			"FROM generate_series(1, %d) g, generate_series(1, 3000) i GROUP BY g", rows)) // 100 kB a row, 30 MB
		eventually(t, "5 s of statuses while the reader waits for its buffers", func() bool {
			return o.query(t, "SELECT (count(*) = 1 AND max(reply_time - backend_start) > interval '5 s')::text FROM pg_stat_replication WHERE application_name = 'cdc-relay/s' AND pid = (SELECT active_pid FROM pg_replication_slots WHERE slot_name = '"+o.slot+"')") == "true"
		})
		if len(s.Gulps()) != 3 {
			t.Errorf("%d gulps wait, want all 3 buffers", len(s.Gulps()))
		}
		s.ids(t, decoder.New(decoder.Config{Table: o.table}), rows)
		s.stopClean(t)
	})
}

func TestRealWalsenderTerminated(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		o := newOutbox(t, db)
		o.createSlot(t)
		s := start(t, o.config(t))
		o.exec(t, "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '"+o.slot+"'")
		err := s.endDiscarding(t)
		var answer *pgconn.PgError
		if !errors.As(err, &answer) || answer.Code != "57P01" {
			t.Errorf("got error %v, want 57P01", err)
		}
	})
}

func TestRealTakeOver(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		o := newOutbox(t, db)
		o.createSlot(t)
		old := start(t, o.config(t))
		next := start(t, o.config(t)) // has the same application name
		if err := old.end(t); err == nil {
			t.Error("the earlier leader's stream ended cleanly")
		}
		next.stopClean(t)
	})
}

// Only the login that streams may end the walsender of an earlier leader: it
// is no superuser, and neither is another login of the relay.
func TestRealTakeOverByLogin(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		o := newOutbox(t, db)
		o.createSlot(t)
		streams, writes := o.login(t, "streams"), o.login(t, "writes")

		old := start(t, o.configOf(t, streams))
		other := connect(t, o.configOf(t, writes))
		defer other.Close()
		wantBlocked(t, other.Start(t.Context()), "slot.active")

		next := start(t, o.configOf(t, streams))
		if err := old.end(t); err == nil {
			t.Error("the earlier leader's stream ended cleanly")
		}
		next.stopClean(t)
	})
}

// One version is enough: it takes the whole 10 s of patience.
func TestRealStranger(t *testing.T) {
	t.Parallel()
	o := newOutbox(t, pgtest.New(t, 18))
	o.createSlot(t)
	stranger := o.config(t)
	stranger.Conn.RuntimeParams["application_name"] = "stranger"
	holder := start(t, stranger)
	s := connect(t, o.config(t))
	defer s.Close()
	err := s.Start(t.Context())
	wantBlocked(t, err, "slot.active")
	if !strings.Contains(err.Error(), `application "stranger"`) {
		t.Errorf("error %q does not name the application", err)
	}
	holder.stopClean(t)
}

func TestRealRefusals(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		o := newOutbox(t, db)
		t.Run("no slot", func(t *testing.T) {
			s := connect(t, o.config(t))
			defer s.Close()
			wantBlocked(t, s.Start(t.Context()), "slot.exists")
		})
		t.Run("another plugin", func(t *testing.T) {
			o := *o
			o.slot += "_x"
			o.exec(t, "SELECT pg_create_physical_replication_slot('"+o.slot+"')")
			t.Cleanup(func() { o.exec(t, "SELECT pg_drop_replication_slot('"+o.slot+"')") })
			s := connect(t, o.config(t))
			defer s.Close()
			wantBlocked(t, s.Start(t.Context()), "slot.plugin")
		})
		o.createSlot(t)
		t.Run("no publication", func(t *testing.T) {
			cfg := o.config(t)
			cfg.Publication = "missing"
			s := start(t, cfg)
			o.exec(t, "INSERT INTO outbox (payload) VALUES ('x')")
			wantBlocked(t, s.endDiscarding(t), "pub.exists")
		})
		t.Run("young publication", func(t *testing.T) {
			o.exec(t, `CREATE PUBLICATION "Young ""p""" FOR TABLE outbox WITH (publish = 'insert')`)
			cfg := o.config(t)
			cfg.Publication = `Young "p"`
			wantBlocked(t, start(t, cfg).endDiscarding(t), "pub.young")
		})
		t.Run("no REPLICATION", func(t *testing.T) {
			cfg := o.config(t)
			cfg.Conn.User = db.Name
			o.exec(t, "CREATE ROLE "+db.Name+" LOGIN")
			t.Cleanup(func() { o.exec(t, "DROP ROLE "+db.Name) })
			_, err := wal.Connect(t.Context(), cfg)
			wantBlocked(t, err, "pg.replication_conn")
		})
	})
}

func TestRealSlot(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		o := newOutbox(t, db)
		s := connect(t, o.config(t))
		defer s.Close()
		_, err := s.CreateSlot(t.Context(), true)
		if got, want := err == nil, db.Version >= 17; got != want {
			t.Fatalf("failover slot: %v", err)
		}
		if db.Version >= 17 && o.query(t, "SELECT failover::text FROM pg_replication_slots WHERE slot_name = '"+o.slot+"'") != "true" {
			t.Error("the slot is no failover slot")
		}
		if err := s.DropLostSlot(t.Context()); db.Version >= 17 && !errors.Is(err, wal.ErrNotLost) {
			t.Errorf("dropping a slot that is well: %v, want ErrNotLost", err)
		}
		if db.Version >= 17 {
			o.exec(t, "SELECT pg_drop_replication_slot('"+o.slot+"')")
		}
		if err := s.DropLostSlot(t.Context()); !errors.Is(err, wal.ErrNotLost) {
			t.Errorf("dropping a slot that is not there: %v, want ErrNotLost", err)
		}
		lsn, err := s.CreateSlot(t.Context(), false)
		if err != nil || lsn == 0 {
			t.Fatalf("created at %s: %v", lsn, err)
		}
		if got := o.query(t, "SELECT plugin || confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '"+o.slot+"'"); got != "pgoutput"+lsn.String() {
			t.Errorf("the slot is %s, want pgoutput at %s", got, lsn)
		}
		if _, err := s.CreateSlot(t.Context(), false); err == nil {
			t.Error("created twice")
		}
	})
}

// The server has removed WAL that the slot needs.
func TestRealSlotLost(t *testing.T) {
	t.Parallel()
	for _, version := range pgtest.Versions {
		t.Run(fmt.Sprintf("pg%d", version), func(t *testing.T) {
			t.Parallel()
			cluster := pgtest.StartCluster(t, version, "max_slot_wal_keep_size = '1MB'", "min_wal_size = '32MB'", "max_wal_size = '32MB'")
			o := newOutbox(t, cluster.New(t))
			o.createSlot(t)
			for range 4 {
				o.exec(t, "INSERT INTO outbox DEFAULT VALUES")
				o.exec(t, "SELECT pg_switch_wal()")
			}
			eventually(t, "the slot to be lost", func() bool {
				o.exec(t, "CHECKPOINT")
				return o.query(t, "SELECT wal_status FROM pg_replication_slots") == "lost"
			})
			s := connect(t, o.config(t))
			defer s.Close()
			wantBlocked(t, s.Start(t.Context()), "slot.wal_status")
			elsewhere := connect(t, (&outbox{db: cluster.New(t), slot: o.slot}).config(t))
			defer elsewhere.Close()
			if err := elsewhere.DropLostSlot(t.Context()); !errors.Is(err, wal.ErrNotLost) {
				t.Errorf("dropping a lost slot of another database: %v, want ErrNotLost", err)
			}
			if err := s.DropLostSlot(t.Context()); err != nil {
				t.Errorf("dropping the lost slot: %v", err)
			}
		})
	}
}

func TestRealWALLevel(t *testing.T) {
	t.Parallel()
	cluster := pgtest.StartCluster(t, 15, "wal_level = replica")
	_, err := wal.Connect(t.Context(), config(t, cluster.DSN("postgres")))
	wantBlocked(t, err, "pg.wal_level")
}
