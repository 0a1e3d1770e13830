// Package pulse lets the parts of the process show that they come round: a
// part that works on one thing for longer than anything may take hangs.
//
// A goroutine beats when it takes up something and rests while it waits for
// others to give it something to do. A wait for PostgreSQL or Kafka is no rest:
// it has a deadline, and a beat on each side. Beating costs a look at the clock
// and an atomic store; nothing here blocks for long or fails.
package pulse

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Board knows the goroutines that beat. It is safe for concurrent use. A nil
// Board gives out nil Beats and shows no part.
type Board struct {
	mu    sync.Mutex
	beats map[*Beat]string // part
}

// NewBoard returns an empty board.
func NewBoard() *Board { return &Board{beats: map[*Beat]string{}} }

// Start tells that a goroutine of a part begins, with a first beat. Several
// may run under one name.
func (b *Board) Start(part string) *Beat {
	if b == nil {
		return nil
	}
	beat := &Beat{board: b}
	beat.Work()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.beats[beat] = part
	return beat
}

// Part is what is known of a part.
type Part struct {
	Name string
	// Since is when the goroutine of the part that has been at one thing for
	// longest took it up; zero while all of them rest.
	Since time.Time
}

// Parts lists the parts that run, by name.
func (b *Board) Parts() []Part {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	oldest := map[string]int64{}
	for beat, part := range b.beats {
		at, known := oldest[part]
		if mine := beat.nanos.Load(); !known || at == 0 || mine != 0 && mine < at {
			oldest[part] = mine
		}
	}
	parts := make([]Part, 0, len(oldest))
	for name, nanos := range oldest {
		p := Part{Name: name}
		if nanos != 0 {
			p.Since = time.Unix(0, nanos)
		}
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(x, y Part) int { return cmp.Compare(x.Name, y.Name) })
	return parts
}

// Beat belongs to one goroutine, and is read by the board. A nil Beat is one
// that nobody looks at.
type Beat struct {
	board *Board
	nanos atomic.Int64 // of the last beat, Unix time; 0 while resting
}

// Work tells that the goroutine takes something up.
func (b *Beat) Work() {
	if b != nil {
		b.nanos.Store(time.Now().UnixNano())
	}
}

// Rest tells that it waits for something to do.
func (b *Beat) Rest() {
	if b != nil {
		b.nanos.Store(0)
	}
}

// End tells that the goroutine ends.
func (b *Beat) End() {
	if b != nil {
		b.board.mu.Lock()
		defer b.board.mu.Unlock()
		delete(b.board.beats, b)
	}
}
