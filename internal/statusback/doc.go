// Package statusback writes what became of events to their rows: SENT after
// the broker's ack, the attempt of an event that could not be published, and
// the hold of one that has to wait for others.
//
// One statement is in flight at a time, in a transaction of its own, on a
// connection of its own. Each statement locks the slot's fence row FOR SHARE
// and names epoch and owner, so an instance that lost the slot writes nothing,
// and a takeover waits for a statement that was let through. Several such
// statements at once would starve every update of the fence row.
//
// Each statement names the status and the next_attempt_at that was last seen
// (I8) and returns the rows it changed. What did not change is asked for and
// told apart: a row that moved on, was parked or requeued by somebody else, or
// is proved deleted is resolved; one that is locked or not visible yet is
// tried again. So repeating a statement whose answer was lost is harmless, and
// that is what happens when the connection fails. An event is reported as
// resolved only after the commit that settled its row (I4, I6). Writes of one
// row that follow its parking are made in the order in which they came.
//
// A row that cannot be written, because a trigger of the user's raises for it,
// is tried again slowly and reported as trouble; all others go on.
package statusback
