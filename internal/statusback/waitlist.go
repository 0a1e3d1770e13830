package statusback

import (
	"fmt"
	"time"

	"github.com/cdc-relay/cdc-relay/internal/fault"
	"github.com/cdc-relay/cdc-relay/internal/pg"
)

// waitlist holds writes until it is time to try them again.
type waitlist struct {
	items   []waiting
	next    time.Time // the earliest of items, zero if there is none
	changed bool      // since trouble looked last
	stuck   *fault.Blocked
}

type waiting struct {
	write
	at time.Time
}

// add takes writes that were not settled, and why.
func (l *waitlist) add(writes []write, why reason) {
	now := time.Now()
	for _, w := range writes {
		if w.why != why {
			w.why, w.tries = why, 0
		}
		at := now.Add(why.delay(w.tries))
		w.tries = min(w.tries+1, 1<<15)
		l.put(w, at)
	}
}

// again takes writes of which nothing was learnt, because the connection was
// lost. They are due at once: the next connection is waited for anyway.
func (l *waitlist) again(writes []write) {
	now := time.Now()
	for _, w := range writes {
		l.put(w, now)
	}
}

func (l *waitlist) put(w write, at time.Time) {
	l.changed = true
	l.items = append(l.items, waiting{w, at})
	l.earliest(at)
}

// take removes and returns what is due.
func (l *waitlist) take(now time.Time) []write {
	if l.next.IsZero() || now.Before(l.next) {
		return nil
	}
	l.changed = true
	var due []write
	rest := l.items[:0]
	l.next = time.Time{}
	for _, item := range l.items {
		if now.Before(item.at) {
			rest = append(rest, item)
			l.earliest(item.at)
		} else {
			due = append(due, item.write)
		}
	}
	clear(l.items[len(rest):]) // lets go of the parks
	l.items = rest
	return due
}

func (l *waitlist) earliest(at time.Time) {
	if l.next.IsZero() || at.Before(l.next) {
		l.next = at
	}
}

// When a person should look: after this many tries, which take three seconds
// for a lock and one for a row that does not change.
const (
	patienceLocked    = 3
	patienceUnchanged = 10
)

// trouble names a row that has waited for too long, nil if there is none.
func (l *waitlist) trouble(table pg.Table) *fault.Blocked {
	if l.changed {
		l.changed, l.stuck = false, l.find(table)
	}
	return l.stuck
}

func (l *waitlist) find(table pg.Table) *fault.Blocked {
	for i := range l.items {
		switch w := &l.items[i].write; {
		case w.why == whyLocked && w.tries > patienceLocked:
			return &fault.Blocked{Reason: "table.locked",
				What: fmt.Sprintf("another session holds a lock on outbox row %d, on the table %s, or on the slot's row in %s",
					w.ID, table, table.Sibling(slotTable)),
				Remedy: "find it: SELECT pid, mode FROM pg_locks WHERE granted AND relation IN ('" + table.Ident() +
					"'::regclass, '" + table.Sibling(slotTable).Ident() + "'::regclass); and let it commit, or end it"}
		case w.why == whyUnchanged && w.tries > patienceUnchanged:
			return &fault.Blocked{Reason: "table.triggers",
				What: fmt.Sprintf("an UPDATE of outbox row %d changes nothing and raises no error", w.ID),
				Remedy: "look for a BEFORE UPDATE trigger, a rule or a row security policy on " + table.String() +
					" that suppresses it"}
		}
	}
	return nil
}
