package relay

import (
	"sync"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
	"github.com/cdc-relay/cdc-relay/internal/fault"
)

// Inbox is where the edges of one session report. Nothing in it blocks: each
// report is appended under one lock, a batch at a time, and the line's
// goroutine takes all of it at once. Its size is bounded by what is in flight.
type Inbox struct {
	ready chan struct{} // one slot: something is in the inbox

	mu   sync.Mutex
	mail mail
}

// mail is what came in since the line looked last.
type mail struct {
	acked    [][]event.Ref
	refused  []refusal
	held     []held
	resolved [][]event.Ref
	saved    pglogrepl.LSN
	silent   *silent                   // when that has changed
	failed   error                     // ends the session in order
	troubles map[string]*fault.Blocked // by edge; a nil value clears it
}

type refusal struct {
	refs    []event.Ref
	failure event.Failure
}

type held struct {
	refs []event.Ref
	why  event.Reason
}

// silent is how many partitions hold their events, and whether there were more
// since the line looked last: one may have come back in between.
type silent struct {
	partitions int
	fell       bool
}

// NewInbox returns an empty inbox.
func NewInbox() *Inbox { return &Inbox{ready: make(chan struct{}, 1)} }

// Publisher is the view of the Kafka edge on the inbox.
func (b *Inbox) Publisher() PublisherInbox { return PublisherInbox{b} }

// Recorder is the view of the write-back on the inbox.
func (b *Inbox) Recorder() RecorderInbox { return RecorderInbox{b} }

// Saved reports a position that has been saved in cdc_relay_lease.
func (b *Inbox) Saved(lsn pglogrepl.LSN) {
	b.put(func(m *mail) { m.saved = max(m.saved, lsn) })
}

// Fail reports a condition under which the session must end, in order.
func (b *Inbox) Fail(err error) { b.put(func(m *mail) { m.failed = err }) }

// PublisherInbox takes reports about records. Safe for concurrent use; it
// takes slices over.
type PublisherInbox struct{ in *Inbox }

// Acked reports records that the broker has acknowledged with acks=all.
func (p PublisherInbox) Acked(refs []event.Ref) {
	p.in.put(func(m *mail) { m.acked = append(m.acked, refs) })
}

// Refused reports events that could not be published, and why.
func (p PublisherInbox) Refused(refs []event.Ref, f event.Failure) {
	p.in.put(func(m *mail) { m.refused = append(m.refused, refusal{refs, f}) })
}

// Held reports events that were not published though nothing is wrong with
// them. When their batch is in doubt, another report about them may follow:
// its refs are Untracked then. Of those that are not Ordered none says that they
// are acked: they are due again, and that is said when they are handed over.
func (p PublisherInbox) Held(refs []event.Ref, why event.Reason) {
	p.in.put(func(m *mail) { m.held = append(m.held, held{refs, why}) })
}

// Silent reports how many partitions hold their events at present because
// they do not answer.
func (p PublisherInbox) Silent(partitions int) {
	p.in.put(func(m *mail) {
		fell := m.silent != nil && (m.silent.fell || partitions < m.silent.partitions)
		m.silent = &silent{partitions, fell}
	})
}

// Trouble reports a condition for a person while publishing goes on being
// tried; nil clears it.
func (p PublisherInbox) Trouble(b *fault.Blocked) { p.in.trouble(publisherTrouble, b) }

// RecorderInbox takes reports about rows. Safe for concurrent use; it takes
// slices over.
type RecorderInbox struct{ in *Inbox }

// Resolved reports events whose row is settled by a committed write, or is
// proved to have been settled by somebody else.
func (r RecorderInbox) Resolved(refs []event.Ref) {
	r.in.put(func(m *mail) { m.resolved = append(m.resolved, refs) })
}

// Trouble reports a condition for a person while writing goes on being tried;
// nil clears it.
func (r RecorderInbox) Trouble(b *fault.Blocked) { r.in.trouble(recorderTrouble, b) }

const (
	publisherTrouble = "publisher"
	recorderTrouble  = "recorder"
	partitionTrouble = "partition"
	rowsTrouble      = "rows"
)

// troubleOrder is the order in which they are told: the gravest first.
var troubleOrder = []string{publisherTrouble, recorderTrouble, partitionTrouble, rowsTrouble}

func (b *Inbox) trouble(edge string, t *fault.Blocked) {
	b.put(func(m *mail) {
		if m.troubles == nil {
			m.troubles = map[string]*fault.Blocked{}
		}
		m.troubles[edge] = t
	})
}

func (b *Inbox) put(f func(*mail)) {
	b.mu.Lock()
	f(&b.mail)
	b.mu.Unlock()
	select {
	case b.ready <- struct{}{}:
	default: // the line has not looked yet and will see this too
	}
}

// take empties the inbox.
func (b *Inbox) take() mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.mail
	b.mail = mail{}
	return m
}
