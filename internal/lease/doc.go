// Package lease decides which instance leads a replication slot.
//
// Leadership is an epoch and an owner in cdc_relay_slot, which every write-back
// names, and a lease in cdc_relay_lease, which the leader renews on a
// connection of its own. An instance that finds the lease free, run out, or
// neglected while nobody streams from the slot takes it in one transaction and
// raises the epoch; all others wait. A renewal also carries the position below
// which everything is resolved, so that it is saved before PostgreSQL is told
// to confirm it (I2).
//
// The package owns the two rows of its slot and the connection it keeps to
// them. Invariants:
//
//   - I9: Permit lets nothing through unless the last successful renewal was
//     sent less than PublishWithin ago, by this process's monotonic clock and by
//     the one on the wall: the former may stand still while the machine sleeps. As
//     PublishWithin is at most half of TakeoverAfter, an instance that was
//     frozen publishes nothing new once another one can have taken over.
//   - I8: the epoch only rises, and only together with a change of the lease.
//   - A tenure is bound to one server on one timeline; another answer ends it.
//
// On failure: a lost connection is made again without end, and the tenure goes
// on under its epoch if nobody took it meanwhile, even when the lease had run
// out; publishing pauses in between. A renewal that finds another owner or
// epoch ends the tenure with fault.ErrFenced.
package lease
