// Package outbox is what applications, consumers and tools share about the
// outbox table: the states of a row, and a [Writer] that adds events to it.
//
// An application writes its business change and its events in one transaction.
// If that commits, cdc-relay publishes the events to Kafka, those of one
// aggregate in commit order; if it rolls back, nobody hears of them:
//
//	writer, err := outbox.NewWriter() // once
//	...
//	tx, err := pool.Begin(ctx)
//	...
//	_, err = tx.Exec(ctx, "UPDATE orders SET state = 'paid' WHERE id = $1", order)
//	...
//	_, err = writer.Write(ctx, tx, outbox.Event{
//		AggregateType: "order",
//		AggregateID:   order,
//		EventType:     "order.paid",
//		Payload:       payload,
//	})
//	...
//	err = tx.Commit(ctx)
//
// [Writer.WriteSQL] does the same for database/sql, with any driver that sends
// its parameters to PostgreSQL as $1, $2 and so on.
//
// What the table would refuse, the Writer refuses before it sends anything, so
// that the transaction stays usable. Two things only the table knows: that an
// event id which the caller chose is there already, and what somebody added to
// the table, such as a trigger. Such an error of PostgreSQL ends the
// transaction as any other does; a savepoint keeps it.
//
// The package starts no goroutine, logs nothing and holds no state beyond what
// a Writer was made with.
package outbox
