// Package check decides whether what a run left behind keeps the relay's
// promises: it compares what the writers committed with the outbox table, the
// Kafka topics and the positions that were sampled meanwhile. It is pure, so
// that its own tests can plant every fault. One call of Run ends every
// end-to-end test and the demo.
package check

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pglogrepl"
)

// Status codes of an outbox row, as the table has them. They are repeated here
// on purpose: the checker must not share a mistake with what it checks.
const (
	Ready      int16 = 0
	InProgress int16 = 1
	Sent       int16 = 2
	Failed     int16 = 3
	Consumed   int16 = 4
	Consuming  int16 = 5
)

// Aggregate names what an event belongs to: events of one aggregate are ordered.
type Aggregate struct{ Type, ID string }

// Digest stands for a payload's bytes.
type Digest [sha256.Size]byte

// Event is a row as the application that inserted it knows it.
type Event struct {
	ID        int64
	EventID   [16]byte
	Aggregate Aggregate
	// Uncertain: the answer to its commit was lost. The table tells.
	Uncertain bool
}

// Row is what the table holds of an event at the end.
type Row struct {
	ID      int64
	EventID [16]byte
	Status  int16
	Parked  bool // next_attempt_at is set
	Payload Digest
}

// Record is one record of a topic.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Key       string
	RowID     int64 // header cdcr-id
	EventID   [16]byte
	Payload   Digest
}

// Sample is one look at the positions while the relay worked.
type Sample struct {
	Confirmed pglogrepl.LSN // of the slot, read before all else of this sample
	// Saved is the position in the lease; until one is saved, where the slot
	// was created.
	Saved pglogrepl.LSN
	// Passed are rows that were READY and unparked although the slot was past
	// their commit.
	Passed []int64
}

// Run is everything known about one run.
type Run struct {
	Events  []Event // in commit order within an aggregate
	Rows    []Row
	Records []Record
	Samples []Sample
	// MaxDuplicates is how many records more than one per event may exist.
	MaxDuplicates int
	// Refused are the rows that Kafka had to refuse: they end parked or FAILED
	// and need no record.
	Refused map[int64]bool
	// Block are the aggregate types whose events wait behind a refused one.
	// Later events of its aggregate must then be held: parked, without a record.
	Block map[string]bool
	// Waived are rows that a person has skipped or deleted: they need no
	// record, and nothing waits for them.
	Waived map[int64]bool
	// Unordered are rows that may come at any place, Repeated are rows that may
	// come more than once.
	Unordered, Repeated map[int64]bool
}

// Kind classifies a problem.
type Kind string

// What can be wrong.
const (
	Loss       Kind = "loss"       // committed, but not in Kafka
	Disorder   Kind = "disorder"   // first occurrences not in commit order, or in two partitions
	Duplicate  Kind = "duplicate"  // more copies than allowed
	Foreign    Kind = "foreign"    // a record of no committed row, or under another identity
	Corrupt    Kind = "corrupt"    // payload differs from the row's
	Unproven   Kind = "unproven"   // SENT or further without a record
	Unresolved Kind = "unresolved" // not settled at the end
	Position   Kind = "position"   // slot beyond the saved position or past unresolved work
)

// Problem is one broken promise.
type Problem struct {
	Kind Kind
	Text string
}

// Report is what Run found.
type Report struct {
	Committed  int // events
	Records    int
	Duplicates int
	Statuses   map[int16]int
	Samples    int
	Problems   []Problem
}

// Has reports whether a problem of that kind was found.
func (r *Report) Has(k Kind) bool {
	return slices.ContainsFunc(r.Problems, func(p Problem) bool { return p.Kind == k })
}

// String is the figures in one line.
func (r *Report) String() string {
	return fmt.Sprintf("%d committed, %d records, %d duplicates, rows by status %v, %d position samples, %d problems",
		r.Committed, r.Records, r.Duplicates, r.Statuses, r.Samples, len(r.Problems))
}

// Err is nil when nothing is wrong, else it lists the first problems of each kind.
func (r *Report) Err() error { return asError(r.String(), r.Problems) }

// asError lists the first problems of each kind below a headline.
func asError(headline string, problems []Problem) error {
	const examples = 5
	if len(problems) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "checker: %s", headline)
	seen := map[Kind]int{}
	for _, p := range problems {
		if seen[p.Kind]++; seen[p.Kind] <= examples {
			fmt.Fprintf(&b, "\n  %s: %s", p.Kind, p.Text)
		}
	}
	for k, n := range seen {
		if n > examples {
			fmt.Fprintf(&b, "\n  %s: %d in all", k, n)
		}
	}
	return errors.New(b.String())
}

// checker holds the indexes that the single checks share.
type checker struct {
	Run
	report Report
	events map[int64]Event
	first  map[int64]Record // first record of each row
	held   map[int64]int64  // row -> the refused one of its aggregate before it
}

// Check finds every broken promise of the run.
func (run Run) Check() *Report {
	c := &checker{Run: run, events: map[int64]Event{}, first: map[int64]Record{}, held: map[int64]int64{}}
	c.report.Statuses = map[int16]int{}
	c.report.Samples = len(run.Samples)
	c.report.Records = len(run.Records)
	c.committed()
	c.holds()
	c.records()
	c.loss()
	c.order()
	c.rows()
	c.positions()
	return &c.report
}

func (c *checker) problem(k Kind, format string, args ...any) {
	c.report.Problems = append(c.report.Problems, Problem{k, fmt.Sprintf(format, args...)})
}

// committed drops the uncertain events that the table does not know.
func (c *checker) committed() {
	inTable := make(map[int64][16]byte, len(c.Rows))
	for _, r := range c.Rows {
		inTable[r.ID] = r.EventID
	}
	c.Events = slices.DeleteFunc(slices.Clone(c.Events), func(e Event) bool {
		return e.Uncertain && inTable[e.ID] != e.EventID
	})
	for _, e := range c.Events {
		c.events[e.ID] = e
	}
	c.report.Committed = len(c.Events)
}

// holds finds the rows that must wait for a refused one.
func (c *checker) holds() {
	refused := map[Aggregate]int64{}
	for _, e := range c.Events {
		first, blocked := refused[e.Aggregate]
		switch {
		case c.Waived[e.ID] || c.Unordered[e.ID]:
		case blocked:
			c.held[e.ID] = first
		case c.Refused[e.ID] && c.Block[e.Aggregate.Type]:
			refused[e.Aggregate] = e.ID
		}
	}
}

// records walks the topics: identity of each record, copies, first occurrences.
func (c *checker) records() {
	var copies []string // examples
	slices.SortFunc(c.Records, func(a, b Record) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Offset, b.Offset))
	})
	for _, r := range c.Records {
		e, ok := c.events[r.RowID]
		switch {
		case !ok:
			c.problem(Foreign, "%s is of row %d, which was never committed", r.place(), r.RowID)
			continue
		case r.EventID != e.EventID:
			c.problem(Foreign, "%s of row %d has event id %x, the row %x", r.place(), r.RowID, r.EventID, e.EventID)
		case r.Key != e.Aggregate.ID:
			c.problem(Foreign, "%s of row %d has the key %q, the row %q", r.place(), r.RowID, r.Key, e.Aggregate.ID)
		}
		if first, again := c.first[r.RowID]; again {
			if c.Repeated[r.RowID] {
				continue
			}
			if c.report.Duplicates++; len(copies) < 5 {
				copies = append(copies, fmt.Sprintf("row %d of %s/%s: %s, again %s", r.RowID, e.Aggregate.Type, e.Aggregate.ID, first.place(), r.place()))
			}
		} else {
			c.first[r.RowID] = r
		}
	}
	if c.report.Duplicates > c.MaxDuplicates {
		c.problem(Duplicate, "%d records too many, at most %d allowed; %s", c.report.Duplicates, c.MaxDuplicates, strings.Join(copies, "; "))
	}
}

func (r Record) place() string {
	return fmt.Sprintf("record %s/%d@%d", r.Topic, r.Partition, r.Offset)
}

func (c *checker) loss() {
	for _, e := range c.Events {
		_, held := c.held[e.ID]
		if _, ok := c.first[e.ID]; !ok && !held && !c.Refused[e.ID] && !c.Waived[e.ID] {
			c.problem(Loss, "row %d of %s/%s has no record", e.ID, e.Aggregate.Type, e.Aggregate.ID)
		}
	}
}

// order compares neighbours in commit order: all of an aggregate's first
// occurrences must rise in one partition. A refused row's later success is out
// of order by design, where later events do not wait.
func (c *checker) order() {
	before := map[Aggregate]Record{}
	for _, e := range c.Events {
		r, ok := c.first[e.ID]
		if !ok || c.Refused[e.ID] || c.Unordered[e.ID] {
			continue
		}
		if refused, held := c.held[e.ID]; held {
			c.problem(Disorder, "%s/%s: %s is of row %d, which had to wait for row %d",
				e.Aggregate.Type, e.Aggregate.ID, r.place(), e.ID, refused)
		}
		if p, ok := before[e.Aggregate]; ok {
			switch {
			case p.Topic != r.Topic || p.Partition != r.Partition:
				c.problem(Disorder, "%s/%s is in two partitions: %s and %s", e.Aggregate.Type, e.Aggregate.ID, p.place(), r.place())
			case p.Offset > r.Offset:
				c.problem(Disorder, "%s/%s: row %d was committed before row %d, but %s is after %s",
					e.Aggregate.Type, e.Aggregate.ID, p.RowID, r.RowID, p.place(), r.place())
			}
		}
		before[e.Aggregate] = r
	}
}

// rows compares the table with the log.
func (c *checker) rows() {
	for _, r := range c.Rows {
		c.report.Statuses[r.Status]++
		rec, published := c.first[r.ID]
		_, held := c.held[r.ID]
		switch {
		case held && !published:
			if !r.Parked {
				c.problem(Unresolved, "row %d waits for row %d, but has status %d and is not parked", r.ID, c.held[r.ID], r.Status)
			}
			continue
		case c.Waived[r.ID]:
			if r.Status == Failed && r.Parked || r.Status == Ready || r.Status == InProgress {
				c.problem(Unresolved, "row %d was waived, but has status %d, parked %t", r.ID, r.Status, r.Parked)
			}
			continue
		case c.Refused[r.ID]:
			if !r.Parked {
				c.problem(Unresolved, "row %d was refused, but has status %d and is not parked", r.ID, r.Status)
			}
			continue
		case r.Status == Ready || r.Status == Failed || r.Status == InProgress:
			c.problem(Unresolved, "row %d has status %d, parked %t", r.ID, r.Status, r.Parked)
		case !published:
			c.problem(Unproven, "row %d has status %d and no record", r.ID, r.Status)
		}
		if published && rec.Payload != r.Payload {
			c.problem(Corrupt, "%s of row %d has another payload than the row", rec.place(), r.ID)
		}
	}
}

func (c *checker) positions() {
	for _, s := range c.Samples {
		if s.Confirmed > s.Saved {
			c.problem(Position, "slot confirmed %s, saved is %s", s.Confirmed, s.Saved)
		}
		if len(s.Passed) > 0 {
			c.problem(Position, "slot confirmed %s, past the unresolved rows %v", s.Confirmed, s.Passed[:min(5, len(s.Passed))])
		}
	}
}
