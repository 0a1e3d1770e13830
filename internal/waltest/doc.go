// Package waltest is a test kit for everything that reads a replication
// stream: a Builder that makes frames as a walsender would send them, and a
// Server that plays a walsender from a script.
package waltest
