// Package operate is what people do with outbox rows from a command line: find
// them, read what became of them, look for their records in Kafka, replay and
// skip those that FAILED; verify that nothing is missing or stuck; and change
// how many partitions a topic's keys use.
//
// It works through one connection of the caller's, with the rights of
// cdc_relay_operator, and never touches the line: a command runs beside a relay
// or without one. No query reads all of the table. Rows that need attention
// come from the partial index on next_attempt_at; other questions walk the
// primary key backwards over at most MaxWalk rows, and the answer says so.
//
// A change names the state that the row must be in (I8) and is audited in the
// same transaction, or does not happen; many rows are changed in batches, and an
// error tells how many were. Whatever becomes due is told to the relay by the
// table's own trigger, as after a plain UPDATE.
//
// Verify changes nothing and never takes what a relay is dealing with for a
// fault: what it finds missing, the slot is past (I4, I7).
//
// Every sentence that a person reads about a status or an error code is in
// words.go. Payload, headers and keys are in no error.
package operate
