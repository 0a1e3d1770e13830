package relay

import (
	"context"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// Leadership decides which instance publishes for a slot.
type Leadership interface {
	// Acquire blocks until this instance leads. It calls standby, at most
	// once, when it has to wait for another one. A *fault.Blocked is for a
	// person; any other error may pass.
	Acquire(ctx context.Context, standby func()) (Tenure, error)
}

// Tenure is one period of leadership, from an acquired epoch to its end. Its
// methods are safe for concurrent use.
type Tenure interface {
	// Session is the server, timeline and epoch that this tenure is bound to.
	Session() event.Session
	// Run renews the lease until ctx ends or leadership is lost (then the
	// error is fault.ErrFenced or wraps it). Each renewal carries the highest
	// offered position; saved is called with it after the commit.
	Run(ctx context.Context, saved func(pglogrepl.LSN)) error
	// Offer gives a position to the next renewal to save. It never blocks.
	Offer(lsn pglogrepl.LSN)
	// Permit returns nil while the last successful renewal is fresh enough to
	// publish under (invariant I9). Otherwise it waits for a fresh one, for
	// the end of the tenure or of ctx.
	Permit(ctx context.Context) error
	// Release saves lsn (0: leaves it as it is) and gives the lease up, so
	// that a standby need not wait for it to run out. Run must have ended.
	Release(ctx context.Context, lsn pglogrepl.LSN) error
}

// Source is the replication stream of one session.
type Source interface {
	// Run reads the stream until ctx ends or the connection fails. It closes
	// Gulps when it returns. On a clean end the last permitted position has
	// been sent to the server.
	Run(ctx context.Context) error
	// Gulps yields what was read. A gulp that is not taken stops the reading,
	// and so, through the socket, the server.
	Gulps() <-chan event.Gulp
	// Confirm permits the stream to confirm lsn to the server. It only rises
	// (I1, I2), never blocks and is safe for concurrent use.
	Confirm(lsn pglogrepl.LSN)
}

// Publisher hands events to Kafka. Outcomes come back through the Inbox.
type Publisher interface {
	// Run publishes until ctx ends; what has no answer then is dropped here,
	// not lost: it is unresolved. An error ends the session.
	Run(ctx context.Context) error
	// Publish encodes events into the pending batches of their partitions and
	// copies what it keeps. It does not wait for Kafka: the caller bounds
	// what is in flight. Called by one goroutine only.
	Publish(events []event.Event)
	// Flush wakes the partitions that have something pending.
	Flush()
}

// Recorder writes what became of events to their rows. Outcomes come back
// through the Inbox.
type Recorder interface {
	// Run writes until ctx ends. An error ends the session; fault.ErrFenced
	// when the epoch has moved.
	Run(ctx context.Context) error
	// Sent takes acknowledged events over, to be written as SENT.
	Sent(refs []event.Ref)
	// Park takes failed events over, to be written with their attempt.
	Park(parks []event.Park)
}

// Rows asks the table about rows.
type Rows interface {
	// Lookup tells, for each ref in order, what the table says of an event
	// that may have been delivered before.
	Lookup(ctx context.Context, refs []event.Ref) ([]event.Fate, error)
	// Probe commits a probe message with this id, as the text of a UUID. It
	// comes back through the stream after everything committed before it.
	Probe(ctx context.Context, id [16]byte) error
}
