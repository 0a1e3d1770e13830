package check

import (
	"cmp"
	"fmt"
	"slices"
)

// Consumption is what a consumer group left behind once it is quiet: the log,
// its positions there, the memory of the events, the quarantine, and what the
// receiver of the effects has seen.
type Consumption struct {
	Deliveries  []Delivery
	Positions   []GroupPosition
	Outcomes    map[[16]byte]Outcome // by event id
	Quarantined map[Place]Quarantined
	// Effects is how often each event had its effect; nil if nobody counted.
	Effects map[[16]byte]int

	// What the test has arranged, everything else is a problem: the error code
	// of each event that had to fail, the reason of each record that had to be
	// quarantined, events that must still be open, and partitions whose records
	// wait although they are not.
	Failed  map[[16]byte]string
	Refused map[Place]string
	Open    map[[16]byte]bool
	Waiting map[PartitionName]bool
}

// PartitionName names a partition of a topic.
type PartitionName struct {
	Topic  string
	Number int32
}

// Place is where a record lies.
type Place struct {
	PartitionName
	Offset int64
}

func (p Place) String() string { return fmt.Sprintf("record %s/%d@%d", p.Topic, p.Number, p.Offset) }

// Delivery is a record that the log holds. One without a readable identity has
// the zero event id.
type Delivery struct {
	Place
	EventID [16]byte
}

// GroupPosition is where a group stands in a partition. Start and End bound the log;
// Committed is negative when nothing is.
type GroupPosition struct {
	PartitionName
	Start, End, Committed int64
}

// Outcome is what the memory of an event says, its row or its receipt.
type Outcome struct {
	Status int16
	// LeaseOver: the claim's lease has run out.
	LeaseOver bool
	// Unpublished: FAILED before there was a record, so not the consumer's word.
	Unpublished   bool
	Code, Message string // of the last failure
}

// Quarantined is a row of the quarantine. One that a person has resolved needs no
// explanation.
type Quarantined struct {
	Reason, Message string
	Resolved        bool
}

// What can be wrong with a consumption, besides the kinds of a Run.
const (
	Unexplained Kind = "unexplained" // FAILED or quarantined, and not because the test arranged it
	Dead        Kind = "dead"        // CONSUMING although the lease is over
)

// Check finds every broken promise.
func (c Consumption) Check() error {
	var problems []Problem
	for _, find := range []func() []Problem{c.open, c.explained, c.positions, c.effects} {
		problems = append(problems, find()...)
	}
	return asError(fmt.Sprintf("%d records, %d outcomes, %d quarantined", len(c.Deliveries), len(c.Outcomes), len(c.Quarantined)), problems)
}

func problem(k Kind, format string, args ...any) Problem {
	return Problem{k, fmt.Sprintf(format, args...)}
}

// durable: the record may be passed.
func (c Consumption) durable(d Delivery) bool {
	if _, ok := c.Quarantined[d.Place]; ok {
		return true
	}
	o := c.Outcomes[d.EventID]
	return o.Status == Consumed || o.Status == Failed && !o.Unpublished
}

// open looks at each memory and each record: none may be without an end.
func (c Consumption) open() (problems []Problem) {
	for _, d := range c.Deliveries {
		if _, known := c.Outcomes[d.EventID]; !known && !c.durable(d) && !c.Open[d.EventID] {
			problems = append(problems, problem(Unresolved, "%s of event %x has no outcome", d.Place, d.EventID))
		}
	}
	for id, o := range c.Outcomes {
		switch {
		case o.Status == Consuming && o.LeaseOver:
			problems = append(problems, problem(Dead, "event %x is CONSUMING, its lease is over", id))
		case o.Status != Consumed && o.Status != Failed && !c.Open[id]:
			problems = append(problems, problem(Unresolved, "event %x has status %d", id, o.Status))
		case (o.Status == Consumed || o.Status == Failed) && c.Open[id]:
			problems = append(problems, problem(Unresolved, "event %x has status %d, it had to wait", id, o.Status))
		}
	}
	return problems
}

// explained compares failures and the quarantine with what was arranged.
func (c Consumption) explained() (problems []Problem) {
	for id, o := range c.Outcomes {
		want, failed := c.Failed[id], o.Status == Failed && !o.Unpublished
		if failed && (o.Code != want || o.Message == "") {
			problems = append(problems, problem(Unexplained, "event %x is FAILED with code %q and message %q, want code %q", id, o.Code, o.Message, want))
		}
		if !failed && want != "" {
			problems = append(problems, problem(Unexplained, "event %x has status %d, want FAILED with code %s", id, o.Status, want))
		}
	}
	for place, q := range c.Quarantined {
		if !q.Resolved && (q.Reason != c.Refused[place] || q.Message == "") {
			problems = append(problems, problem(Unexplained, "%s is quarantined for %q with message %q, want %q", place, q.Reason, q.Message, c.Refused[place]))
		}
	}
	for place, want := range c.Refused {
		if q, ok := c.Quarantined[place]; !ok || q.Resolved {
			problems = append(problems, problem(Unexplained, "%s is not quarantined, want %s", place, want))
		}
	}
	return problems
}

// positions compares what is committed with the first record that is open.
func (c Consumption) positions() (problems []Problem) {
	records := slices.SortedFunc(slices.Values(c.Deliveries), func(a, b Delivery) int { return cmp.Compare(a.Offset, b.Offset) })
	for _, p := range c.Positions {
		first := p.End
		for _, d := range records {
			if d.PartitionName == p.PartitionName && !c.durable(d) {
				first = d.Offset
				break
			}
		}
		committed := max(p.Committed, p.Start)
		switch {
		case committed > first:
			problems = append(problems, problem(Position, "%s/%d: offset %d is committed, %d is open", p.Topic, p.Number, committed, first))
		case committed < first && !c.Waiting[p.PartitionName]:
			problems = append(problems, problem(Unresolved, "%s/%d: offset %d is committed, all before %d is done", p.Topic, p.Number, committed, first))
		}
	}
	return problems
}

// effects: one of each event that is CONSUMED, none of one that is bad data.
func (c Consumption) effects() (problems []Problem) {
	if c.Effects == nil {
		return nil
	}
	for id, n := range c.Effects {
		if n > 1 {
			problems = append(problems, problem(Duplicate, "event %x had its effect %d times", id, n))
		}
	}
	for id, o := range c.Outcomes {
		switch n := c.Effects[id]; {
		case o.Status == Consumed && n == 0:
			problems = append(problems, problem(Loss, "event %x is CONSUMED and had no effect", id))
		case o.Status == Failed && n > 0 && o.Code != "CONSUMER_AMBIGUOUS":
			problems = append(problems, problem(Foreign, "event %x is FAILED with %s and had its effect", id, o.Code))
		}
	}
	return problems
}
