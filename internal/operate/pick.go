package operate

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/cdc-relay/cdc-relay/outbox"
)

// Picked is what a command is to act on.
type Picked struct {
	// IDs are the rows, each once: those that were named, or the first ones,
	// up to its limit, that a filter has picked.
	IDs []int64
	// Missing are events that were named and that no row is of.
	Missing []Result
	// Total is how many rows the filter picks without its limit.
	Total int64
	// After is where a walk ended before the end of the table, else 0.
	After int64
}

// Named reports whether the filter does nothing but name rows: then each of them
// gets an answer, whether or not it is there and in a state to be acted on.
func (f Filter) Named() bool { return f.ByID() && !f.narrows() }

// Empty reports whether nothing but states is said about which rows are picked.
func (f Filter) Empty() bool { return !f.ByID() && !f.narrows() }

// narrows reports whether a condition is set besides ids and states.
func (f Filter) narrows() bool {
	for _, field := range f.texts() {
		if field.value != "" {
			return true
		}
	}
	return !f.Since.IsZero() || !f.Until.IsZero() || f.After > 0
}

// Pick finds the rows that a command is to act on, and changes and locks
// nothing.
func (a *Actions) Pick(ctx context.Context, f Filter) (Picked, error) {
	if f.Named() {
		return a.pickNamed(ctx, f)
	}
	matched, err := a.table.Match(ctx, f)
	if err != nil {
		return Picked{}, err
	}
	return Picked{IDs: matched.IDs, Total: matched.Count, After: matched.Page.After}, nil
}

// pickNamed finds the rows of named events. Named rows are not looked for.
func (a *Actions) pickNamed(ctx context.Context, f Filter) (Picked, error) {
	found, err := a.find(ctx, f.EventIDs)
	if err != nil {
		return Picked{}, err
	}
	var p Picked
	known := make(map[int64]bool)
	add := func(id int64) {
		if !known[id] {
			known[id] = true
			p.IDs = append(p.IDs, id)
		}
	}
	for _, id := range f.IDs {
		add(id)
	}
	for _, event := range f.EventIDs {
		if id, ok := found[event.String()]; ok {
			add(id)
		} else {
			p.Missing = append(p.Missing, Result{EventID: event.String(), Outcome: NotFound, Detail: noSuchRow})
		}
	}
	p.Total = int64(len(p.IDs))
	return p, nil
}

const findSQL = `SELECT {id}, {event_id}::text FROM {table} o WHERE o.{=event_id} = ANY ($1::text[]::uuid[])`

// find returns the ids of the rows of these events.
func (a *Actions) find(ctx context.Context, events []outbox.ID) (map[string]int64, error) {
	found := make(map[string]int64)
	if len(events) == 0 {
		return found, nil
	}
	var id int64
	var event string
	rows, err := a.table.conn.Query(ctx, a.table.sql(findSQL), eventTexts(events))
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&id, &event}, func() error {
			found[event] = id
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("finding the rows of events: %w", a.table.explain(ctx, err))
	}
	return found, nil
}
