package check

import (
	"slices"
	"strings"
	"testing"
)

// quiet is a consumption in which all is well: partition 0 holds a consumed
// event, one that failed as arranged, and its duplicate; partition 1 a record
// that was quarantined and an event that waits.
func quiet() Consumption {
	p0, p1 := PartitionName{"t", 0}, PartitionName{"t", 1}
	return Consumption{
		Deliveries: []Delivery{
			{Place{p1, 1}, eventID(3)}, {Place{p1, 0}, [16]byte{}}, // in any order
			{Place{p0, 0}, eventID(1)}, {Place{p0, 1}, eventID(2)}, {Place{p0, 2}, eventID(2)},
		},
		Positions: []GroupPosition{{p0, 0, 3, 3}, {p1, 0, 2, 1}, {PartitionName{"t", 2}, 0, 0, -1}},
		Outcomes: map[[16]byte]Outcome{
			eventID(1): {Status: Consumed},
			eventID(2): {Status: Failed, Code: "APP_X", Message: "said"},
			eventID(3): {Status: Sent},
		},
		Quarantined: map[Place]Quarantined{{p1, 0}: {Reason: "NO_EVENT_ID", Message: "said"}},
		Effects:     map[[16]byte]int{eventID(1): 1},
		Failed:      map[[16]byte]string{eventID(2): "APP_X"},
		Refused:     map[Place]string{{p1, 0}: "NO_EVENT_ID"},
		Open:        map[[16]byte]bool{eventID(3): true},
	}
}

func TestConsumptionAcceptsAQuietGroup(t *testing.T) {
	t.Parallel()
	if err := quiet().Check(); err != nil {
		t.Error(err)
	}
}

// TestConsumptionSeesPlantedFaults plants one fault; exactly the kinds named
// must come out.
func TestConsumptionSeesPlantedFaults(t *testing.T) {
	t.Parallel()
	set := func(id int64, change func(*Outcome)) func(*Consumption) {
		return func(c *Consumption) {
			o := c.Outcomes[eventID(id)]
			change(&o)
			c.Outcomes[eventID(id)] = o
		}
	}
	place := Place{PartitionName{"t", 1}, 0}
	for _, tc := range []struct {
		name  string
		plant func(*Consumption)
		want  []Kind
	}{
		{"a dead lease", set(1, func(o *Outcome) { o.Status, o.LeaseOver = Consuming, true }), []Kind{Dead, Position}},
		{"a dead lease of an event that waits", set(3, func(o *Outcome) { o.Status, o.LeaseOver = Consuming, true }), []Kind{Dead}},
		{"an event left SENT", set(1, func(o *Outcome) { o.Status = Sent }), []Kind{Unresolved, Position}},
		{"an event that had to wait", set(3, func(o *Outcome) { o.Status = Consumed }), []Kind{Unresolved, Loss}},
		{"a record that nobody remembers", func(c *Consumption) { delete(c.Outcomes, eventID(1)) }, []Kind{Unresolved, Position}},
		{"another code", set(2, func(o *Outcome) { o.Code = "APP_Y" }), []Kind{Unexplained}},
		{"no message", set(2, func(o *Outcome) { o.Message = "" }), []Kind{Unexplained}},
		{"a failure that did not happen", set(2, func(o *Outcome) { o.Status = Consumed }), []Kind{Unexplained, Loss}},
		{"a failure that was not arranged", func(c *Consumption) { c.Failed = nil }, []Kind{Unexplained}},
		{"FAILED, says the relay, and passed", set(2, func(o *Outcome) { o.Unpublished = true }), []Kind{Unexplained, Position}},
		{"quarantined for another reason", func(c *Consumption) { c.Quarantined[place] = Quarantined{Reason: "MISSING", Message: "said"} }, []Kind{Unexplained}},
		{"quarantined without a word", func(c *Consumption) { c.Quarantined[place] = Quarantined{Reason: "NO_EVENT_ID"} }, []Kind{Unexplained}},
		{"quarantined for no reason", func(c *Consumption) { c.Refused = nil }, []Kind{Unexplained}},
		{"resolved already", func(c *Consumption) {
			c.Quarantined[place] = Quarantined{Reason: "NO_EVENT_ID", Message: "said", Resolved: true}
		}, []Kind{Unexplained}},
		{"not quarantined, and passed", func(c *Consumption) { c.Quarantined = nil }, []Kind{Unexplained, Unresolved, Position}},
		{"a position past an open event", func(c *Consumption) { c.Positions[1].Committed = 2 }, []Kind{Position}},
		{"a position that is behind", func(c *Consumption) { c.Positions[0].Committed = 2 }, []Kind{Unresolved}},
		{"no position", func(c *Consumption) { c.Positions[0].Committed = -1 }, []Kind{Unresolved}},
		{"two effects", func(c *Consumption) { c.Effects[eventID(1)] = 2 }, []Kind{Duplicate}},
		{"no effect", func(c *Consumption) { delete(c.Effects, eventID(1)) }, []Kind{Loss}},
		{"an effect of bad data", func(c *Consumption) { c.Effects[eventID(2)] = 1 }, []Kind{Foreign}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := quiet()
			tc.plant(&c)
			err := c.Check()
			if err == nil {
				t.Fatal("no problem was found")
			}
			for _, k := range []Kind{Dead, Unresolved, Unexplained, Position, Duplicate, Loss, Foreign} {
				found := strings.Contains(err.Error(), "\n  "+string(k)+": ")
				if wanted := slices.Contains(tc.want, k); found != wanted {
					t.Errorf("%s: found %t, want %t in\n%v", k, found, wanted, err)
				}
			}
		})
	}
}

func TestConsumptionAllowsWhatWasArranged(t *testing.T) {
	t.Parallel()
	for name, arrange := range map[string]func(*Consumption){
		"a partition that waits": func(c *Consumption) {
			c.Positions[0].Committed = 1
			c.Waiting = map[PartitionName]bool{{"t", 0}: true}
		},
		"a log that begins later": func(c *Consumption) { c.Positions[2] = GroupPosition{PartitionName{"t", 2}, 7, 7, -1} },
		"a person resolved it": func(c *Consumption) {
			c.Quarantined[Place{PartitionName{"t", 1}, 0}] = Quarantined{Resolved: true}
			c.Refused = nil
		},
		"nobody counts effects":       func(c *Consumption) { c.Effects = nil },
		"an effect in doubt":          func(c *Consumption) { c.inDoubt(eventID(2)) },
		"quarantined, says the relay": func(c *Consumption) { c.unpublished(eventID(3)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := quiet()
			arrange(&c)
			if err := c.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}

// inDoubt makes an event FAILED because nobody knows whether it had the effect
// that it had.
func (c *Consumption) inDoubt(id [16]byte) {
	c.Outcomes[id] = Outcome{Status: Failed, Code: "CONSUMER_AMBIGUOUS", Message: "said"}
	c.Failed[id], c.Effects[id] = "CONSUMER_AMBIGUOUS", 1
}

// unpublished makes the event that waits one of which the relay says that it is
// FAILED, and quarantines its record.
func (c *Consumption) unpublished(id [16]byte) {
	place := Place{PartitionName{"t", 1}, 1}
	c.Outcomes[id] = Outcome{Status: Failed, Unpublished: true}
	c.Quarantined[place], c.Refused[place] = Quarantined{Reason: "STATE_CONFLICT", Message: "said"}, "STATE_CONFLICT"
	c.Positions[1].Committed = 2
	delete(c.Open, id)
}
