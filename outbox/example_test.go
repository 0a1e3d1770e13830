package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// The business change and its event commit together, or neither does.
func ExampleWriter_Write() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)

	writer, err := outbox.NewWriter(outbox.MaxPayload(900_000))
	if err != nil {
		log.Fatal(err)
	}

	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO orders (id, state) VALUES ('o-1', 'paid')"); err != nil {
			return err
		}
		_, err := writer.Write(ctx, tx, outbox.Event{
			AggregateType: "order",
			AggregateID:   "o-1",
			EventType:     "order.paid",
			Payload:       []byte(`{"order":"o-1"}`),
		})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	var status, payload string
	err = conn.QueryRow(ctx, "SELECT status, payload FROM outbox_readable WHERE aggregate_id = 'o-1'").Scan(&status, &payload)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(status, payload)
	// Output: READY {"order":"o-1"}
}

// Several events go into the table with one statement, here through
// database/sql: one now, one not before an hour from now.
func ExampleWriter_WriteSQL() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	writer, err := outbox.NewWriter()
	if err != nil {
		log.Fatal(err)
	}

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer tx.Rollback() // does nothing after the commit
	ids, err := writer.WriteSQL(ctx, tx,
		outbox.Event{AggregateType: "order", AggregateID: "o-2", EventType: "order.placed", Payload: []byte(`{}`)},
		outbox.Event{AggregateType: "order", AggregateID: "o-2", EventType: "order.reminder", Payload: []byte(`{}`),
			NotBefore: time.Now().Add(time.Hour)},
	)
	if err != nil {
		log.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		log.Fatal(err)
	}

	for _, id := range ids {
		var what string
		var delayed bool
		err := db.QueryRowContext(ctx, "SELECT event_type, next_attempt_at IS NOT NULL FROM outbox WHERE event_id = $1", id).
			Scan(&what, &delayed)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(what, "delayed:", delayed)
	}
	// Output:
	// order.placed delayed: false
	// order.reminder delayed: true
}

// A refused event leaves the transaction as it was, so that the application
// can decide what to do.
func ExampleWriter_Write_refused() {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	writer, err := outbox.NewWriter()
	if err != nil {
		log.Fatal(err)
	}

	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := writer.Write(ctx, tx, outbox.Event{
			AggregateType: "order", AggregateID: "o-3", EventType: "order.paid", Payload: []byte(`{}`),
			Headers: map[string]string{"ce_id": "mine"},
		})
		if !errors.Is(err, outbox.ErrHeader) {
			return err
		}
		fmt.Println(err)
		_, err = tx.Exec(ctx, "INSERT INTO orders (id, state) VALUES ('o-3', 'paid')")
		return err
	})
	fmt.Println(err)
	// Output:
	// writing to the outbox: events[0]: header refused: names that start with ce_ are reserved for the relay
	// <nil>
}

type requestKey struct{}

// Headers that every event of a request carries come from its context: mostly
// its trace context.
func ExampleHeadersFrom() {
	writer, err := outbox.NewWriter(outbox.HeadersFrom(func(ctx context.Context) map[string]string {
		request, ok := ctx.Value(requestKey{}).(string)
		if !ok {
			return nil
		}
		return map[string]string{"request": request}
	}))
	if err != nil {
		log.Fatal(err)
	}

	ctx := context.WithValue(context.Background(), requestKey{}, "r-17")
	conn, err := pgx.Connect(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close(ctx)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		_, err := writer.Write(ctx, tx, outbox.Event{
			AggregateType: "order", AggregateID: "o-4", EventType: "order.paid", Payload: []byte(`{}`),
			Headers: map[string]string{"tenant": "t-1"},
		})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	var headers string
	err = conn.QueryRow(ctx, "SELECT headers::text FROM outbox WHERE aggregate_id = 'o-4'").Scan(&headers)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(headers)
	// Output: {"tenant": "t-1", "request": "r-17"}
}
