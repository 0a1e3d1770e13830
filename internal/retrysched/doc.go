// Package retrysched decides when a failed event is tried again, and requeues
// rows when they are due.
//
// The policy is a pure function. What it decides is persisted on the row by
// the write-back, so a schedule survives the process. The Scheduler only touches
// next_attempt_at of due rows: the requeue trigger's message brings them through
// the WAL, and that is the only way. Rows of one aggregate that wait for each
// other are requeued one by one, in their order (I5).
//
// A row that is requeued is left alone until the line has settled it, or until
// the slot has certainly passed its message and the patience is over. A message
// that is lost three times means that the trigger does not work: then the
// scheduler ends with a *fault.Blocked, and publishes nothing by another way.
// Errors of the database are tried again.
package retrysched
