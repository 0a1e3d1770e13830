// Package consumer is the receiving side of the outbox: it reads the records
// that cdc-relay publishes, claims each event by compare-and-set, runs the
// application's handler and records what came of it, before the offset moves.
//
//	c, err := consumer.New(consumer.Config{
//		Brokers: []string{"localhost:9092"}, Group: "mailer", Topics: []string{"outbox.event.user"}, DB: pool,
//	}, handle)
//	...
//	err = c.Run(ctx) // nil after ctx has ended and everything is drained
//
// What it keeps, whatever crashes:
//
//   - An offset is committed only up to the first record of its partition
//     without a durable outcome: a CONSUMED or FAILED row, a finished receipt
//     or a quarantine row, committed in PostgreSQL.
//   - A handler runs only under a claim, or inside the transaction of its
//     receipt, one at a time for an event and purpose. Who lost a claim changes
//     nothing: every statement that ends one carries its generation.
//   - Nothing is skipped silently. Bad data is FAILED, what cannot be decoded or
//     matched is quarantined; both stay open until a person resolves them.
//   - An infrastructure failure keeps the obligation: the event is SENT again
//     with a delay on its row, which whoever gets the record honours. Only that
//     partition, or key, waits; the process lives and stays in the group.
//   - After a crash the event can be claimed within one lease.
//
// There are three places where the memory of an event can live:
//
//   - Shared status, the default: the outbox row itself goes SENT, CONSUMING,
//     CONSUMED. One group may do so. A handler whose effect is in the same
//     database ends the claim in its own transaction: [Claim.ConsumedTx].
//   - Transactional receipts, [NewTx]: the handler gets a transaction of the
//     consumer's own database, and its effect commits together with a receipt.
//   - External-effect receipts, [New] with [Receipts]: like shared status, but
//     in a receipt of (event id, purpose). For further purposes of an event, and
//     for consumers that cannot reach the outbox's database.
//
// An effect outside PostgreSQL happens once only if its receiver recognises
// [Event.Key], or can be asked; [Ambiguity] says what is done when an earlier
// attempt may have had its effect.
//
// The package starts no goroutine before Run and logs only to the logger that
// it is given.
package consumer
