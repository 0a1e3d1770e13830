// Package ledger knows what is in flight and how far the slot may move.
//
// It numbers the events of the stream, remembers which of them are not
// resolved yet, and yields the watermark: the highest position below which
// everything is resolved. It owns invariants I1 (the watermark never
// decreases), I3 (it is a commit end LSN, or a keepalive's position with
// everything before it resolved) and I4 (it does not pass an unresolved
// event). It is pure and not safe for concurrent use: one goroutine owns it.
//
// A session that fails throws its ledger away; the slot delivers again what
// was not confirmed.
package ledger

import (
	"fmt"

	"github.com/jackc/pglogrepl"

	"github.com/cdc-relay/cdc-relay/internal/event"
)

// cellEvents is how many events one cell can hold: one bit each.
const cellEvents = 64

// cell is a run of consecutive events of one transaction, or what is left of
// several resolved transactions that followed it.
type cell struct {
	first event.Seq // the number of bit 0
	open  uint64    // bit i is set: first+i is not resolved
	n     uint8     // events tracked; Invariant: n <= cellEvents
	// sealed tells that the transaction has ended, at end: once this cell and
	// all before it are resolved, the watermark is at least end.
	sealed bool
	end    pglogrepl.LSN
	began  int64 // what Begin was given for the transaction of the events
}

func (c *cell) next() event.Seq { return c.first + event.Seq(c.n) }

// Ledger is the in-flight ledger of one session. Its size follows the number
// of unresolved events, not the distance between the oldest and the newest.
type Ledger struct {
	cells     []cell // a ring; Invariant: len(cells) is a power of two
	head      int    // index of the oldest cell
	count     int    // cells in use
	hint      int    // position (from head) where the last resolution was
	open      bool   // between Begin and Seal
	began     int64  // of the open transaction
	next      event.Seq
	pending   int
	watermark pglogrepl.LSN
}

// New returns an empty ledger whose watermark is 0: nothing may be confirmed.
func New() *Ledger { return &Ledger{cells: make([]cell, 64)} }

// Begin opens a transaction. committed is when it was committed, in any unit;
// 0: that is not known.
func (l *Ledger) Begin(committed int64) { l.open, l.began = true, committed }

// Track numbers the next event, which belongs to the open transaction.
func (l *Ledger) Track() event.Seq {
	seq := l.next
	l.next++
	l.pending++
	if c := l.last(); c != nil && !c.sealed && c.n < cellEvents {
		c.open |= 1 << c.n
		c.n++
		return seq
	}
	l.push(cell{first: seq, open: 1, n: 1, began: l.began})
	return seq
}

// Seal ends the open transaction at the commit's end LSN. A transaction
// without a tracked event is sealed too: it moves the watermark as well.
func (l *Ledger) Seal(end pglogrepl.LSN) {
	l.open = false
	c := l.last()
	if c == nil {
		l.raise(end)
		return
	}
	c.sealed = true
	c.end = max(c.end, end)
	l.pop()
}

// AdvanceIdle takes a keepalive's position: everything that the server has
// committed before it has been received. Inside a transaction it is ignored,
// as the position then lies before the transaction's end.
func (l *Ledger) AdvanceIdle(serverEnd pglogrepl.LSN) {
	if !l.open {
		l.Seal(serverEnd)
	}
}

// Resolve settles an event. Resolutions may come in any order; one of an
// unknown or already resolved event is an error, and changes nothing.
func (l *Ledger) Resolve(seq event.Seq) error {
	c := l.find(seq)
	if c == nil {
		return fmt.Errorf("resolving event %d: it is not in flight", seq)
	}
	bit := uint64(1) << (seq - c.first)
	if c.open&bit == 0 {
		return fmt.Errorf("resolving event %d: it has been resolved before", seq)
	}
	c.open &^= bit
	l.pending--
	l.pop()
	return nil
}

// Watermark is the highest position below which everything is resolved.
func (l *Ledger) Watermark() pglogrepl.LSN { return l.watermark }

// Pending is the number of unresolved events.
func (l *Ledger) Pending() int { return l.pending }

// Oldest is when the transaction of the oldest unresolved event was committed,
// as Begin was told; 0 if there is none or that is not known.
func (l *Ledger) Oldest() int64 {
	if l.pending == 0 {
		return 0
	}
	return l.at(0).began // the cells before the oldest unresolved event are gone
}

// Committed is the same for an unresolved event.
func (l *Ledger) Committed(seq event.Seq) int64 {
	if c := l.find(seq); c != nil {
		return c.began
	}
	return 0
}

func (l *Ledger) at(i int) *cell { return &l.cells[(l.head+i)&(len(l.cells)-1)] }

func (l *Ledger) last() *cell {
	if l.count == 0 {
		return nil
	}
	return l.at(l.count - 1)
}

func (l *Ledger) raise(lsn pglogrepl.LSN) { l.watermark = max(l.watermark, lsn) }

// pop removes resolved cells from the front. The last cell of an open
// transaction stays: its end is still to come.
func (l *Ledger) pop() {
	for l.count > 0 {
		c := l.at(0)
		if c.open != 0 || (!c.sealed && l.count == 1) {
			return
		}
		if c.sealed {
			l.raise(c.end)
		}
		l.head = (l.head + 1) & (len(l.cells) - 1)
		l.count--
		l.hint = max(0, l.hint-1)
	}
}

// find returns the cell that holds seq, nil if none does. Acknowledgements
// come in runs, so the neighbourhood of the last one is tried first.
func (l *Ledger) find(seq event.Seq) *cell {
	for i := l.hint; i < min(l.hint+4, l.count); i++ {
		if c := l.at(i); seq >= c.first && seq < c.next() {
			l.hint = i
			return c
		}
	}
	lo, hi := 0, l.count
	for lo < hi {
		if mid := (lo + hi) / 2; seq >= l.at(mid).next() {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == l.count || seq < l.at(lo).first {
		return nil
	}
	l.hint = lo
	return l.at(lo)
}

func (l *Ledger) push(c cell) {
	if l.count == len(l.cells) {
		l.compact()
	}
	*l.at(l.count) = c
	l.count++
}

// compact merges resolved cells into their predecessors and doubles the ring
// if that frees less than half of it, so pushing costs constant time on
// average and one event stuck at the front does not make the rest pile up.
func (l *Ledger) compact() {
	kept := 1
	for i := 1; i < l.count; i++ {
		c := *l.at(i)
		if c.open != 0 {
			*l.at(kept) = c
			kept++
			continue
		}
		if c.sealed {
			before := l.at(kept - 1)
			before.sealed, before.end = true, c.end
		}
	}
	l.count, l.hint = kept, 0
	if kept <= len(l.cells)/2 {
		return
	}
	grown := make([]cell, 2*len(l.cells))
	for i := range kept {
		grown[i] = *l.at(i)
	}
	l.cells, l.head = grown, 0
}
