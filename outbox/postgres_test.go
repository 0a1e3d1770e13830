package outbox_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/cdc-relay/cdc-relay/internal/pgtest"
	"github.com/cdc-relay/cdc-relay/outbox"
)

// write makes a call in a transaction of its own, which it commits if the call
// returns no error.
type write func(ctx context.Context, w *outbox.Writer, events ...outbox.Event) ([]outbox.ID, error)

func writePgx(conn *pgx.Conn) write {
	return func(ctx context.Context, w *outbox.Writer, events ...outbox.Event) (ids []outbox.ID, err error) {
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			ids, err = w.Write(ctx, tx, events...)
			return err
		})
		return ids, err
	}
}

func writeSQL(db *sql.DB) write {
	return func(ctx context.Context, w *outbox.Writer, events ...outbox.Event) ([]outbox.ID, error) {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return nil, err
		}
		defer tx.Rollback()
		ids, err := w.WriteSQL(ctx, tx, events...)
		if err != nil {
			return nil, err
		}
		return ids, tx.Commit()
	}
}

// eachDriver runs a test on every version of PostgreSQL and by every way that
// parameters take to it: binary where the driver can, and all as text, as
// behind a pooler and as other drivers send them.
func eachDriver(t *testing.T, test func(t *testing.T, conn *pgx.Conn, write write)) {
	t.Helper()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		for _, mode := range []string{"cache_statement", "exec", "simple_protocol"} {
			dsn := db.DSN + "&default_query_exec_mode=" + mode
			if !strings.Contains(db.DSN, "?") {
				dsn = strings.Replace(dsn, "&", "?", 1)
			}
			t.Run("pgx "+mode, func(t *testing.T) {
				conn, err := pgx.Connect(t.Context(), dsn)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close(context.Background())
				test(t, conn, writePgx(conn))
			})
			t.Run("database/sql "+mode, func(t *testing.T) {
				pool, err := sql.Open("pgx", dsn)
				if err != nil {
					t.Fatal(err)
				}
				defer pool.Close()
				test(t, db.Conn(t), writeSQL(pool))
			})
		}
	})
}

// row is what the table holds of an event; SQL null is nil.
type row struct {
	ID                                             outbox.ID
	AggregateType, AggregateID, EventType, Headers string
	ContentType                                    string
	Topic                                          *string
	Payload                                        []byte
	Priority                                       int16
	NotBefore                                      *time.Time
	Status                                         outbox.Status
}

func rowsOf(t *testing.T, conn *pgx.Conn, where string) []row {
	t.Helper()
	result, err := conn.Query(t.Context(), `SELECT event_id, aggregate_type, aggregate_id, event_type, headers::text,
		content_type, topic, payload, priority, next_attempt_at, send_status FROM outbox WHERE `+where+` ORDER BY id`)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := pgx.CollectRows(result, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	for i := range rows {
		if rows[i].NotBefore != nil {
			*rows[i].NotBefore = rows[i].NotBefore.UTC()
		}
	}
	return rows
}

func TestEventsBecomeRows(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, conn *pgx.Conn, write write) {
		binary := make([]byte, 3000)
		rand.Read(binary)
		mine, aggregate := outbox.NewID(), t.Name()+` "quoted", \ {and} (odd) ' äöü€😀 NULL`
		due := time.Date(2100, 1, 2, 3, 4, 5, 678_900_001, time.FixedZone("", 3600))
		w := newWriter(t, outbox.AllowTombstones(), outbox.HeadersFrom(func(context.Context) map[string]string {
			return map[string]string{"traceparent": "00-1", "tenant": "common"}
		}))
		base := outbox.Event{AggregateType: "order", AggregateID: aggregate, EventType: "a", Payload: []byte("x")}
		full, tombstone, empty, plain := base, base, base, base
		full.ID, full.Payload, full.Priority, full.NotBefore = mine, binary, -32768, due
		full.Topic, full.ContentType = "a.b", `text/plain; charset="utf-8"`
		full.Headers = map[string]string{"tenant": `own "\` + "\n\x01<&>\u2028"}
		tombstone.Payload, tombstone.Tombstone, tombstone.EventType = nil, true, "NULL"
		empty.Payload, empty.EventType = []byte{}, "{}"
		plain.EventType = `\`

		ids, err := write(t.Context(), w, full, tombstone, empty, plain)
		if err != nil {
			t.Fatal(err)
		}
		topic, dueUp := "a.b", time.Date(2100, 1, 2, 2, 4, 5, 678_901_000, time.UTC)
		common := `{"tenant": "common", "traceparent": "00-1"}`
		want := []row{
			{mine, "order", aggregate, "a", "{\"tenant\": \"own \\\"\\\\\\n\\u0001<&>\u2028\", \"traceparent\": \"00-1\"}",
				`text/plain; charset="utf-8"`, &topic, binary, -32768, &dueUp, outbox.Ready},
			{ids[1], "order", aggregate, "NULL", common, "application/json", nil, nil, 0, nil, outbox.Ready},
			{ids[2], "order", aggregate, "{}", common, "application/json", nil, []byte{}, 0, nil, outbox.Ready},
			{ids[3], "order", aggregate, `\`, common, "application/json", nil, []byte("x"), 0, nil, outbox.Ready},
		}
		got := rowsOf(t, conn, "aggregate_id LIKE '"+strings.ReplaceAll(t.Name(), "_", `\_`)+" %'")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
	})
}

// More events than a statement may have parameters are one statement, and keep
// their order.
func TestManyEvents(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		conn := db.Conn(t)
		t.Run("pgx", func(t *testing.T) { writeMany(t, conn, writePgx(conn)) })
		t.Run("database/sql", func(t *testing.T) {
			pool, err := sql.Open("pgx", db.DSN)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			writeMany(t, conn, writeSQL(pool))
		})
	})
}

func writeMany(t *testing.T, conn *pgx.Conn, write write) {
	events := make([]outbox.Event, 70_000)
	for i := range events {
		events[i] = outbox.Event{AggregateType: "many", AggregateID: t.Name(), EventType: "e", Payload: fmt.Append(nil, i)}
	}
	ids, err := write(t.Context(), newWriter(t), events...)
	if err != nil {
		t.Fatal(err)
	}
	// Where rows were put tells the order in which the stream delivers them.
	result, err := conn.Query(t.Context(), `SELECT event_id, payload, id > lag(id, 1, 0) OVER (ORDER BY ctid), xmin::text
		FROM outbox WHERE aggregate_id = $1 ORDER BY ctid`, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(result, pgx.RowToStructByPos[struct {
		ID          outbox.ID
		Payload     []byte
		Ascends     bool
		Transaction string
	}])
	if err != nil || len(got) != len(events) || len(ids) != len(events) {
		t.Fatalf("%d rows, %d ids, %v", len(got), len(ids), err)
	}
	for i, row := range got {
		if row.ID != ids[i] || !bytes.Equal(row.Payload, events[i].Payload) || !row.Ascends || row.Transaction != got[0].Transaction {
			t.Fatalf("row %d is %+v", i, row)
		}
	}
}

// Empty is not null, even where no other event of the call has a payload.
func TestAnEmptyPayloadIsNoTombstone(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, conn *pgx.Conn, write write) {
		ids, err := write(t.Context(), newWriter(t), valid(func(e *outbox.Event) { e.Payload = []byte{} }))
		if err != nil {
			t.Fatal(err)
		}
		if rows := rowsOf(t, conn, "event_id = '"+ids[0].String()+"'"); len(rows) != 1 || rows[0].Payload == nil {
			t.Errorf("rows: %+v", rows)
		}
	})
}

// The largest payload that the Writer accepts, the table accepts.
func TestLargestPayload(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		conn := db.Conn(t)
		e := valid(func(e *outbox.Event) {
			e.Payload = make([]byte, 16<<20)
			e.Headers = map[string]string{"control": strings.Repeat("\x01", 1<<20-7)}
		})
		if _, err := writePgx(conn)(t.Context(), newWriter(t), e); err != nil {
			t.Fatal(err)
		}
		var payload, header int
		err := conn.QueryRow(t.Context(), "SELECT length(payload), length(headers->>'control') FROM outbox").Scan(&payload, &header)
		if err != nil || payload != 16<<20 || header != 1<<20-7 {
			t.Errorf("%d bytes of payload, %d of header, %v", payload, header, err)
		}
		e.Payload = append(e.Payload, 0)
		if _, err := writePgx(conn)(t.Context(), newWriter(t), e); !errors.Is(err, outbox.ErrTooLarge) {
			t.Errorf("one byte more: %v", err)
		}
	})
}

func TestARefusedEventLeavesTheTransactionUsable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		conn := db.Conn(t)
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			refused := valid(func(e *outbox.Event) { e.AggregateType = "a b" })
			if _, err := newWriter(t).Write(t.Context(), tx, valid(), refused); !errors.Is(err, outbox.ErrField) {
				t.Errorf("got %v", err)
			}
			_, err := newWriter(t).Write(t.Context(), tx, valid())
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if rows := rowsOf(t, conn, "true"); len(rows) != 1 {
			t.Errorf("%d rows, want the one of the second call", len(rows))
		}
	})
}

func TestRollback(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		conn := db.Conn(t)
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newWriter(t).Write(t.Context(), tx, valid(), valid()); err != nil {
			t.Fatal(err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if rows := rowsOf(t, conn, "true"); len(rows) != 0 {
			t.Errorf("%d rows", len(rows))
		}
	})
}

// An id that is in the table already is PostgreSQL's to refuse; a savepoint
// keeps the transaction.
func TestAnIDThatIsThereAlready(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		conn := db.Conn(t)
		again := valid(func(e *outbox.Event) { e.ID = outbox.NewID() })
		err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			if _, err := newWriter(t).Write(t.Context(), tx, again); err != nil {
				return err
			}
			err := pgx.BeginFunc(t.Context(), tx, func(savepoint pgx.Tx) error {
				_, err := newWriter(t).Write(t.Context(), savepoint, again)
				return err
			})
			var answer *pgconn.PgError
			if !errors.As(err, &answer) || answer.Code != "23505" || strings.Contains(err.Error(), again.ID.String()) {
				t.Errorf("got %v", err)
			}
			return nil
		})
		if rows := rowsOf(t, conn, "true"); err != nil || len(rows) != 1 {
			t.Errorf("%d rows, %v", len(rows), err)
		}
	})
}

// A login needs the grants of a writer and nothing else.
func TestWritersGrants(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Migrate(t, "public")
		role := db.Name + "_writer"
		db.Exec(t, `CREATE ROLE `+role+`;
			GRANT USAGE ON SCHEMA public TO `+role+`;
			GRANT INSERT (event_id, aggregate_type, aggregate_id, event_type, payload, headers, content_type, topic, priority,
			              next_attempt_at) ON outbox TO `+role)
		t.Cleanup(func() { dropRole(t, db, role) })
		conn := db.Conn(t)
		if _, err := conn.Exec(t.Context(), "SET ROLE "+role); err != nil {
			t.Fatal(err)
		}
		full := valid(func(e *outbox.Event) { e.Topic, e.Priority, e.NotBefore = "t", 1, time.Now() })
		if _, err := writePgx(conn)(t.Context(), newWriter(t), full, valid()); err != nil {
			t.Fatal(err)
		}
		var answer *pgconn.PgError
		if _, err := conn.Exec(t.Context(), "SELECT id FROM outbox"); !errors.As(err, &answer) || answer.Code != "42501" {
			t.Errorf("the role may read: %v", err)
		}
	})
}

func dropRole(t *testing.T, db *pgtest.DB, role string) {
	conn, err := pgx.Connect(context.Background(), db.DSN) // the test's context has ended
	if err != nil {
		t.Errorf("dropping role %s: %v", role, err)
		return
	}
	defer conn.Close(context.Background())
	for _, sql := range []string{"DROP OWNED BY " + role, "DROP ROLE " + role} {
		if _, err := conn.Exec(context.Background(), sql); err != nil {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

func TestMappedTable(t *testing.T) {
	t.Parallel()
	pgtest.Each(t, func(t *testing.T, db *pgtest.DB) {
		db.Exec(t, `CREATE SCHEMA "Sales"; CREATE TABLE "Sales"."Event Store" (n bigserial, "Key" uuid, kind varchar(20),
			"order" varchar(20), event_type text, "body" bytea, headers json, content_type text, topic text, priority int,
			next_attempt_at timestamptz)`)
		conn := db.Conn(t)
		w := newWriter(t, outbox.Table("Sales.Event Store"), outbox.Columns(map[string]string{
			"event_id": "Key", "aggregate_type": "kind", "aggregate_id": "order", "payload": "body",
		}))
		ids, err := writePgx(conn)(t.Context(), w, valid(header("a", "b")))
		if err != nil {
			t.Fatal(err)
		}
		var got string
		err = conn.QueryRow(t.Context(), `SELECT concat_ws(' ', kind, "order", convert_from(body, 'UTF8'), headers, priority)
			FROM "Sales"."Event Store" WHERE "Key" = $1`, ids[0]).Scan(&got)
		if want := "order s3cret s3cret {\"a\": \"b\"} 0"; err != nil || got != want {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	})
}

// A trigger that keeps a row away would lose its event.
func TestATableThatKeepsEventsAway(t *testing.T) {
	t.Parallel()
	eachDriver(t, func(t *testing.T, conn *pgx.Conn, write write) {
		for _, sql := range []string{
			`CREATE OR REPLACE FUNCTION away() RETURNS trigger LANGUAGE plpgsql AS
			 'BEGIN IF new.event_type = ''away'' THEN RETURN NULL; END IF; RETURN new; END'`,
			`CREATE OR REPLACE TRIGGER away BEFORE INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION away()`,
		} {
			if _, err := conn.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		_, err := write(t.Context(), newWriter(t), valid(), valid(func(e *outbox.Event) { e.EventType = "away" }))
		if err == nil || !strings.Contains(err.Error(), "took 1 of 2 events") {
			t.Errorf("got %v", err)
		}
	})
}
