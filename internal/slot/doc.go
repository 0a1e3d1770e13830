// Package slot is what people do with the replication slot: look at it, create
// it, create it anew, move it on, and let a copy of a database publish.
//
// It owns no state. Nothing here loses an event: whatever a slot no longer
// shows is still in the table, and as the saved position stays behind, the
// relay publishes the READY rows first at its next start (I7). A slot that
// somebody streams from, or that is not of this database and this plugin, is
// never touched. Each change is in the audit trail before it is made, because
// slots know no transactions; an adoption is in the same one.
//
// An error is *Missing or *Refused when nothing was done because of how the
// slot is; any other one is the database's.
package slot
