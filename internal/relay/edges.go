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
	// that a standby need not wait for it to run out. Run must have ended. It
	// is called once, also when leadership was lost.
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
	// Guard tells that the line knows that an event of these aggregates was
	// refused or held. In that moment the publisher took all that was behind
	// an Ordered one out of its queues and reported it as held, and it has
	// held what was handed over since. What is handed over from now on has
	// passed the line's gate and goes out. A later refusal starts that anew.
	Guard(aggregates []uint64)
}

// Recorder writes what became of events to their rows. Outcomes come back
// through the Inbox.
type Recorder interface {
	// Run writes until ctx ends. An error ends the session; fault.ErrFenced
	// when the epoch has moved.
	Run(ctx context.Context) error
	// Sent takes acknowledged events over, to be written as SENT.
	Sent(refs []event.Ref)
	// Park takes events over whose rows are to be parked.
	Park(parks []event.Park)
}

// Rows asks the table about rows. Its errors may pass with another try.
type Rows interface {
	// Lookup tells, for each ref in order, what the table says of an event
	// that may have been delivered before.
	Lookup(ctx context.Context, refs []event.Ref) ([]event.Fate, error)
	// Read returns what the table holds of requeued rows: for each ref in
	// order, ending early once what was read exceeds maxBytes, but never
	// before the first. It waits until the refs' transactions are visible.
	Read(ctx context.Context, refs []event.Ref, maxBytes int64) ([]event.Found, error)
	// Parked walks the aggregates that have a parked row with a commit
	// position, by type and id, after the given one ("", "": from the
	// beginning). It returns at most limit of them; none at the end.
	Parked(ctx context.Context, afterType, afterID string, limit int) ([]event.Aggregate, error)
	// Heads tells the same about the aggregates of these rows, in order. Of a
	// row that is gone nothing is known: its Aggregate is zero.
	Heads(ctx context.Context, ids []int64) ([]event.Aggregate, error)
	// Held returns the rows of an aggregate that wait for their release, in
	// the order of commit position and id, from the first parked row on: it
	// ends before the first one that waits for something else, after limit rows
	// and once what was read exceeds maxBytes (never before the first). whole
	// tells that no parked row is left behind them. The events own their
	// bytes.
	Held(ctx context.Context, aggregateType, aggregateID string, limit int, maxBytes int64) (events []event.Event, whole bool, err error)
	// Probe commits a probe message with this id, as the text of a UUID. It
	// comes back through the stream after everything committed before it.
	Probe(ctx context.Context, id [16]byte) error
	// Unsent lists rows that are READY and not parked, oldest first, as many
	// as one reconcile looks at. It may leave out what it knows to be settled.
	Unsent(ctx context.Context) (ids []int64, err error)
	// Requeue sets rows that are still READY and not parked to be due now, so
	// that the WAL delivers them, and returns how many those were.
	Requeue(ctx context.Context, ids []int64) (n int, err error)
}

// Pass reads the READY rows of one snapshot that are not parked, by id.
type Pass interface {
	// Next returns the next rows, about maxBytes of them; none at the end. The
	// events own their bytes. An error ends the pass: it is never resumed but
	// repeated.
	Next(ctx context.Context, maxBytes int64) ([]event.Event, error)
	// Close gives the snapshot back.
	Close()
}

// Scheduler requeues rows when they are due.
type Scheduler interface {
	// Run requeues until ctx ends. It leaves out while accepting says that
	// the line has no room or makes no progress.
	Run(ctx context.Context, accepting func() bool) error
	// Returned tells that the requeue messages of these rows came back; until
	// Settled tells the same they are not requeued again. Neither blocks.
	Returned(ids []int64)
	Settled(ids []int64)
}

// Sweeper requeues events that a consumer has claimed and never ended, and that
// no consumer will receive again.
type Sweeper interface {
	// Run sweeps until ctx ends. It rests while accepting says that the line
	// has no room or makes no progress.
	Run(ctx context.Context, accepting func() bool) error
}
