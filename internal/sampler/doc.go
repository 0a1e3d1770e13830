// Package sampler looks at the slot and the outbox table from outside the
// line, at intervals, and offers what it saw as metrics.
//
// It owns one connection and one goroutine. A scrape never touches the
// database: it gets the last sample. Every sample has a time-out, on this side
// and on the server's, so one that is stuck behind a lock ends and the next
// one starts anew; at most one statement waits at a time. After a sample that
// failed there are no figures at all until the next one succeeds: absent, not
// frozen (G8).
//
// No index knows send_status, so the table is read in three bounded parts, for
// each of which a sample tells whether it saw everything; figures of a part
// that it did not see the end of are lower bounds.
package sampler
