package sampler

import (
	"math"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Sample is what one look at the database saw. It is never changed once made.
type Sample struct {
	At    time.Time // when the look began, by this machine's clock
	Slot  Slot
	Lease Lease
	// Rows has one entry for each of Groups, in that order.
	Rows []Rows
	// LeasesExpired counts rows INPROGRESS or CONSUMING past lease_until; nil
	// where the table has no such column.
	LeasesExpired *int64
	Complete      Complete
	// WALRate is how fast the server writes WAL, in bytes a second over the
	// last five minutes or what is known of them; nil before a second sample.
	WALRate *float64
}

// Unknown is the WAL status of a slot that does not exist or does not tell.
const Unknown = "unknown"

// WALStatuses are all values of Slot.WALStatus.
var WALStatuses = []string{"reserved", "extended", "unreserved", "lost", Unknown}

// Slot is the replication slot. Pointers are nil where the server has no
// value.
type Slot struct {
	Exists bool
	Active bool
	// WALStatus is one of WALStatuses, as in pg_replication_slots.
	WALStatus string
	Server    pglogrepl.LSN // current end of WAL
	Restart   pglogrepl.LSN // 0: none
	Confirmed pglogrepl.LSN // 0: none

	RetainedBytes     *int64 // from Restart to Server
	ConfirmedLagBytes *int64 // from Confirmed to Server
	// SafeBytes is how much WAL may still be written before the slot is in
	// danger of being lost: 0 if nothing is left, nil if there is no limit.
	SafeBytes      *int64
	CatalogXminAge *int64 // in transactions
}

// Lease is who leads the slot, as the tables say.
type Lease struct {
	Instance string // of the last leader, empty before the first
	Epoch    int64
	// Held tells that the lease has not run out and was not given up.
	Held bool
	// Age is the time since the last renewal, by the server's clock.
	Age   time.Duration
	Saved pglogrepl.LSN // 0: none
}

// Group is a kind of row that people look for.
type Group struct {
	Status outbox.Status
	// Kind is new, delayed, retrying or held for READY; publish or consume,
	// after what failed, for FAILED that is open; else empty.
	Kind string
}

// Groups are all groups that a sample counts.
var Groups = []Group{
	{outbox.Ready, "new"},
	{outbox.Ready, "delayed"},
	{outbox.Ready, "retrying"},
	{outbox.Ready, "held"},
	{outbox.Failed, "publish"},
	{outbox.Failed, "consume"},
	{outbox.InProgress, ""},
	{outbox.Sent, ""},
	{outbox.Consuming, ""},
}

// Rows is the number of rows of a group.
type Rows struct {
	Group
	Count int64
	// OldestAge is the age in seconds of the oldest of them since it was
	// created; 0 if there is none, nil if the table does not tell.
	OldestAge *float64
}

// Complete tells of each part of the table whether a sample saw all of it.
type Complete struct {
	Attention bool // rows that are parked, and open failures
	New       bool // READY rows that are not parked
	Consume   bool // rows between SENT and CONSUMED
}

// TimeToLoss is when the slot will be in danger of being lost at the present
// rate of WAL, infinite if none is written. ok is false while there is no limit
// or no rate is known.
func (s *Sample) TimeToLoss() (seconds float64, ok bool) {
	switch safe := s.Slot.SafeBytes; {
	case safe == nil:
		return 0, false
	case *safe == 0:
		return 0, true
	case s.WALRate == nil:
		return 0, false
	case *s.WALRate <= 0:
		return math.Inf(1), true
	default:
		return float64(*safe) / *s.WALRate, true
	}
}
