// Package wal is the replication connection of one session: it streams from a
// logical slot, hands what it reads over in gulps, and confirms positions.
//
// It owns the connection and what is told to the server about positions. A
// Stream is made by Connect, which tells which server answered, then Start,
// then Run, which reads until it is told to stop or the connection fails. A
// Stream is used once: positions, buffers and the connection die with it.
//
// Invariants: the confirmed position starts at 0, only rises, and is never
// beyond what Confirm permitted (I1, I2). The only positions that are ever
// confirmed are the caller's; nothing is computed from lengths (I3).
//
// A standby status goes out from a timer of its own, whatever the reading
// does, so that not reading is a safe way to push back. On failure nothing is
// retried here, but for a slot that somebody else still holds: the error ends
// the session. What a person must fix is a *fault.Blocked. No error holds a
// password or data of the stream.
package wal
