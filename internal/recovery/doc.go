// Package recovery asks the table what became of events that the stream
// delivers again, marks the end of such a stretch with a probe, and keeps the
// pinned partition counts of topics.
//
// After a start the server repeats whatever was not confirmed. Rows looks those
// events up in batches: a row that is SENT or further, or parked, belongs to
// the table, whatever the stream says; a row that is missing although its
// transaction is visible was deleted; everything else has to be published (I7).
// A row can be missing only because it is not visible yet: its WAL may arrive
// before its commit is done.
//
// It also knows the order of parked rows (I5): which of an aggregate is the
// first one, and whether that waits for its release only.
//
// Sweep looks for events that were published and then stranded: claimed by a
// consumer that never ended the claim, while no other received the record.
//
// The package owns no state but how far its walks over the table have come.
// Every error is an ordinary one of the database: the caller tries again.
package recovery
