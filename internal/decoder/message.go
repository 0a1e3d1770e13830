package decoder

import (
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Kind says what a Message holds.
type Kind uint8

const (
	// Keepalive is the server's position, sent between transactions or within one.
	Keepalive Kind = iota + 1
	// Begin opens a transaction. The server sends only committed ones.
	Begin
	// Commit ends the open transaction.
	Commit
	// Insert is a row of the outbox table.
	Insert
	// Logical is a message that somebody emitted with pg_logical_emit_message.
	Logical
	// Ignored is a pgoutput message that carries no event; Type tells which.
	Ignored
)

// String returns the kind in lower case, for metrics and errors.
func (k Kind) String() string {
	switch k {
	case Keepalive:
		return "keepalive"
	case Begin:
		return "begin"
	case Commit:
		return "commit"
	case Insert:
		return "insert"
	case Logical:
		return "logical"
	case Ignored:
		return "ignored"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Message is one decoded replication message. Decode fills the fields of its
// Kind and LSN; all others keep what an earlier message left there. The
// slices are views into the bytes given to Decode, valid as long as those.
type Message struct {
	Kind Kind
	// LSN is where the message's record starts, for errors and logs. It is
	// neither unique nor increasing. 0 for a keepalive.
	LSN pglogrepl.LSN

	// Begin.
	XID        uint32        // of the transaction, to be widened with Widen
	CommitLSN  pglogrepl.LSN // Begin's final LSN: where the commit record starts
	CommitTime int64         // microseconds since the Unix epoch

	// Commit.
	EndLSN pglogrepl.LSN // where the commit record ends: what may be confirmed

	// Keepalive.
	ServerEnd      pglogrepl.LSN // everything that ended before it has been sent
	ReplyRequested bool

	// Logical.
	Transactional bool // inside a transaction, so it is committed
	Prefix        []byte
	Content       []byte

	// Ignored.
	Type byte // pgoutput's message type: R, Y, O, U, D, T, or I of another table

	// Insert. Seq and XID are the receiver's to fill.
	Event event.Event
}

// Error is a message that cannot be decoded. The stream must not go past it.
type Error struct {
	LSN pglogrepl.LSN // of the message; 0 when it has none
	Err error
}

func (e *Error) Error() string {
	return fmt.Sprintf("decoding the replication message at LSN %s: %v", e.LSN, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }
